"""How a configuration's step time differs between its profile and the run after it.

A profile lasts seconds, and a machine that is shared, throttled or warmed up is faster or slower minutes later. This
common factor of all step times is no error of a law and shows in no residual. It is learned from earlier jobs: the
logarithms of their step times in the run over those in the profile have mean 0 and an unknown variance, whose prior is
an inverse gamma distribution; the estimate is the mean of ln² over the jobs and what the prior counts for. A stored
model is of another run, so that the machine may differ by more: by what runs of a job differ from those before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["RERUN_LOG_SD", "RUN_LOG_SD", "run_log_sd"]

RUN_LOG_SD = 0.06
"""Before any job has run. Profiled configurations were 0.036 away (root mean square) in an idle run of
`python -m benchmarks prediction`, and 0.13 to 0.25 on a busy machine."""
RERUN_LOG_SD = 0.115
"""The same between two runs of a job, each in processes of its own: 15 profiled configurations that were measured
again later were 0.115 away (root mean square, `python -m benchmarks prediction` on a quiet machine)."""
_PRIOR_RUNS = 2.0
"""Jobs that the prior counts for: little, as it lies between machines that differ by a factor of five."""


def run_log_sd(ratios: Iterable[float], before: float = RUN_LOG_SD) -> float:
    """Standard deviation of ln of the step time in a run over that in the profile before it.

    Args:
        ratios: Of earlier jobs on such hardware, each above 0; a ratio that is not is left out.
        before: The deviation before any job has run.
    """
    squares = [math.log(ratio) ** 2 for ratio in ratios if 0.0 < ratio < math.inf]
    return math.sqrt((_PRIOR_RUNS * before**2 + math.fsum(squares)) / (_PRIOR_RUNS + len(squares)))
