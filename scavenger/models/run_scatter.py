"""How a configuration's step time differs between its profile and the run after it.

A profile lasts seconds, and a machine that is shared, throttled or warmed up is faster or slower minutes later. This
common factor of all step times is no error of a law and shows in no residual. It is learned from earlier jobs: the
logarithms of their step times in the run over those in the profile have mean 0 and an unknown variance, whose prior is
an inverse gamma distribution; the estimate is the mean of ln² over the jobs and what the prior counts for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["RUN_LOG_SD", "run_log_sd"]

RUN_LOG_SD = 0.06
"""Before any job has run. Profiled configurations were 0.036 away (root mean square) in an idle run of
`python -m benchmarks prediction`, and 0.13 to 0.25 on a busy machine."""
_PRIOR_RUNS = 2.0
"""Jobs that the prior counts for: little, as it lies between machines that differ by a factor of five."""


def run_log_sd(ratios: Iterable[float]) -> float:
    """Standard deviation of ln of the step time in a run over that in the profile before it.

    Args:
        ratios: Of earlier jobs on such hardware, each above 0; a ratio that is not is left out.
    """
    squares = [math.log(ratio) ** 2 for ratio in ratios if 0.0 < ratio < math.inf]
    return math.sqrt((_PRIOR_RUNS * RUN_LOG_SD**2 + math.fsum(squares)) / (_PRIOR_RUNS + len(squares)))
