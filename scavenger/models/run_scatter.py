"""How a configuration's step time differs between its profile and the run after it.

A profile lasts seconds, and a machine that is shared, throttled or warmed up is faster or slower minutes later. This
common factor of all step times is no error of a law and shows in no residual. It is learned from earlier jobs: the
logarithms of their step times in the run over those in the profile have mean 0 and an unknown variance, whose prior is
an inverse gamma distribution; the estimate is the mean of ln² over the jobs and what the prior counts for. A stored
model is of another run, so that the machine may differ by more: by what runs of a job differ from those before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from scavenger.domain.measurement import Measurement
from scavenger.models.parallel import standard_error

RUN_LOG_SD = 0.06
"""Before any job has run. Profiled configurations were 0.036 away (root mean square) in an idle run of
`python -m benchmarks prediction`, and 0.13 to 0.25 on a busy machine."""
RERUN_LOG_SD = 0.115
"""The same between two runs of a job, each in processes of its own: 15 profiled configurations that were measured
again later were 0.115 away (root mean square, `python -m benchmarks prediction` on a quiet machine)."""
_PRIOR_RUNS = 2.0
"""Jobs that the prior counts for: little, as it lies between machines that differ by a factor of five."""


DRIFT = "drift: "
"""Prefix of the note on what a search found when it measured its first point again."""


def drift_log_sd(first: Measurement, again: Measurement) -> float:
    """Standard deviation of ln of all step times by drift of the machine: its change, less what both medians err by.

    Args:
        first, again: The same configuration at the beginning and at the end of a search.
    """
    change = math.log(again.step_time_s / first.step_time_s)
    errors = [standard_error(m.step_time_s, m.step_time_spread_s, m.steps) for m in (first, again)]
    return math.sqrt(max(change**2 - math.hypot(*errors) ** 2, 0.0))


def drift_note(first: Measurement, again: Measurement) -> str:
    """The change, for the user."""
    change, log_sd = again.step_time_s / first.step_time_s - 1.0, drift_log_sd(first, again)
    words = f"{DRIFT}steps of the first point took {change:+.0%} at the end of the search"
    return f"{words}; all intervals contain it" if log_sd > 0.0 else f"{words}, within their error"


def run_log_sd(ratios: Iterable[float], before: float = RUN_LOG_SD) -> float:
    """Standard deviation of ln of the step time in a run over that in the profile before it.

    Args:
        ratios: Of earlier jobs on such hardware, each above 0; a ratio that is not is left out.
        before: The deviation before any job has run.
    """
    squares = [math.log(ratio) ** 2 for ratio in ratios if 0.0 < ratio < math.inf]
    return math.sqrt((_PRIOR_RUNS * before**2 + math.fsum(squares)) / (_PRIOR_RUNS + len(squares)))


def with_the_run(profiled: Sequence[Measurement], own: Measurement) -> tuple[Measurement, ...]:
    """A profile as it is stored for later runs, by the steps of the run after it.

    How much faster or slower the machine was in the run than in the seconds of the profile is a factor that all of its
    step times share. A run has many more steps, over a longer time, and `rerun_ratios` tell how the next one differs
    from it, so all times are taken to the run's. A configuration that was not profiled is one more point.

    Args:
        own: The undisturbed steps of the run at the chosen configuration.
    """
    there = next((one for one in profiled if one.configuration == own.configuration), None)
    if there is None:
        return (*profiled, own)
    factor = own.step_time_s / there.step_time_s
    return tuple(
        replace(
            one,
            step_time_s=factor * one.step_time_s,
            step_time_spread_s=factor * one.step_time_spread_s,
            compute_s=factor * one.compute_s,
            sync_s=factor * one.sync_s,
        )
        for one in profiled
    )
