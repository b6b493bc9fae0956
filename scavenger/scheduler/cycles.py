"""Formulas of the execution cycle in which an aggregator node serves the jobs that share it.

A node repeats a cycle of `C` seconds. In each cycle a job whose step takes `D` seconds alone makes
`floor(C / D)` steps, evenly spaced, so its step takes `d = C / floor(C / D)` seconds there. `C` is at least
the longest `D` of the jobs on the node.

| here | AutoPS [1]_ | meaning |
|---|---|---|
| `cycle_s` | C_n | execution cycle of a node |
| `alone_s` | D_j | step time of a job, measured while it was alone |
| `step_time_s` | d_j | step time of the job on shared nodes |
| `loss` | L_j | share of its speed that the job loses, (d - D) / d |

AutoPS takes the longest step time for the cycle. Another cycle is often better for all: jobs with steps of 2
and 3 s both run at full speed in a cycle of 6 s, but in one of 3 s the first loses a third of its speed.
`execution_cycle` therefore also tries longer cycles where it is allowed to.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, section 3.3.1, appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

_ROUNDING = 1e-9
"""Two times that differ by less than this share of them are the same: 0.3 s has three steps of 0.1 s."""


def steps_in_cycle(cycle_s: float, alone_s: float) -> int:
    """Steps that a job makes in a cycle: `floor(C / D)`; 0 if the cycle is shorter than its step."""
    return math.floor(cycle_s / alone_s * (1.0 + _ROUNDING))


def cyclic_step_time(cycle_s: float, alone_s: float) -> float:
    """Step time of a job on a node with this cycle: `C / floor(C / D)`; infinite if the cycle has no step of it."""
    steps = steps_in_cycle(cycle_s, alone_s)
    return cycle_s / steps if steps else math.inf


def speed_loss(step_time_s: float, alone_s: float) -> float:
    """Share of its speed that a job loses by a longer step: `(d - D) / d`, 0 where it is faster than alone."""
    if math.isinf(step_time_s):
        return 1.0
    return max(0.0, (step_time_s - alone_s) / step_time_s)


def worst_loss(cycle_s: float, alone_s: Collection[float]) -> float:
    """The greatest loss of jobs with these step times in one cycle; 0 without jobs."""
    used_s = cycle_s
    for alone in alone_s:
        used_s = min(used_s, math.floor(cycle_s / alone * (1.0 + _ROUNDING)) * alone)
    return 1.0 - used_s / cycle_s if alone_s else 0.0


def execution_cycle(alone_s: Collection[float], *, cycle_max: float = 1.0, loss_limit: float = 0.1) -> float:
    """The cycle in which the job that loses most loses least; the shortest of equals.

    Between two multiples of the step times the steps of a cycle stay the same, and every loss grows with the
    cycle: so the best cycle is a multiple of one of the step times.

    Args:
        alone_s: Step time of each job on the node, measured alone.
        cycle_max: Longest cycle that is tried, in longest step times. At 1 the cycle is the longest step
            time, the rule of AutoPS.
        loss_limit: Multiples of step times below this share of the longest are not tried: such a job's loss
            is within the limit in every cycle.

    Returns:
        Seconds; 0 without jobs.
    """
    if not alone_s:
        return 0.0
    distinct = sorted(set(alone_s), reverse=True)
    longest = distinct[0]
    if cycle_max <= 1.0 or worst_loss(longest, distinct) <= _ROUNDING:
        return longest
    highest = longest * cycle_max * (1.0 + _ROUNDING)
    multiples = {
        count * alone
        for alone in distinct
        if alone > loss_limit * longest
        for count in range(steps_in_cycle(longest, alone), steps_in_cycle(highest, alone) + 1)
    }
    cycles = np.array(sorted(cycle for cycle in multiples if longest <= cycle <= highest))
    times = np.array(distinct)
    steps = np.floor(cycles[:, None] / times * (1.0 + _ROUNDING))
    losses = 1.0 - (steps * times).min(axis=1) / cycles
    shortest = int(np.argmax(losses <= losses.min() + _ROUNDING))
    return float(cycles[shortest])
