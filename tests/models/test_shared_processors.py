"""Step times of workers that share one machine's processors, measured on two that were idle before.

They are those of benchmarks/README.md#prediction: milliseconds of a step at (K, B), medians of runs after the search.
"""

from __future__ import annotations

import numpy as np
import pytest

from scavenger.models.overlap_law import BELIEFS, SHARED_BELIEFS, Beliefs, beliefs_of
from scavenger.models.parallel import INTERVAL_Z, StepTimes, fit_parallel

PROCESSORS = 2
MEASURED_MS = {
    "digits": {
        (1, 32): 43.0,
        (1, 64): 82.8,
        (1, 128): 166.9,
        (2, 32): 26.7,
        (2, 64): 49.0,
        (2, 128): 100.2,
        (3, 32): 33.0,
        (3, 64): 53.1,
        (3, 128): 117.5,
    },
    "charlm": {
        (1, 16): 17.2,
        (1, 32): 26.2,
        (1, 64): 46.3,
        (1, 128): 90.8,
        (2, 16): 15.6,
        (2, 32): 26.4,
        (2, 64): 44.4,
        (2, 128): 79.8,
    },
    "friedman": {
        (1, 32): 10.9,
        (1, 64): 11.9,
        (1, 128): 15.5,
        (1, 256): 22.1,
        (2, 32): 12.2,
        (2, 64): 12.7,
        (2, 128): 15.1,
        (2, 256): 17.9,
        (3, 32): 17.6,
        (3, 64): 16.1,
        (3, 128): 16.7,
        (3, 256): 20.2,
    },
}


def step_times(workers: int, batch: int, time_ms: float) -> StepTimes:
    time_s, contention = time_ms / 1e3, max(1.0, workers / PROCESSORS)
    return StepTimes(
        workers=workers,
        global_batch_size=batch,
        local_batch_size=-(-batch // workers),
        contention=contention,
        step_time_s=time_s,
        compute_s=0.9 * time_s,
        sync_s=0.1 * time_s,
        spread_s=0.05 * time_s,
        steps=20,
        workers_per_node=3,
    )


def errors(name: str, beliefs: Beliefs) -> tuple[list[float], list[float]]:
    """ln of predicted over measured times and their deviations: from both ends at K = 1 and any one point at K = 2."""
    rows = MEASURED_MS[name]
    batches = sorted(batch for workers, batch in rows if workers == 1)
    off: list[float] = []
    deviations: list[float] = []
    for at_two in batches:
        known = [(1, batches[0]), (1, batches[-1]), (2, at_two)]
        model = fit_parallel([step_times(*place, rows[place]) for place in known], beliefs=beliefs)
        rest = [place for place in rows if place not in known]
        workers, batch = (np.array(column) for column in zip(*rest, strict=True))
        predicted, log_sd = model.predict(workers, batch, np.maximum(1.0, workers / PROCESSORS), 3)
        off += np.log(predicted * 1e3 / [rows[place] for place in rest]).tolist()
        deviations += log_sd.tolist()
    return off, deviations


def test_a_point_on_two_workers_predicts_the_other_batches_there() -> None:
    off, deviations = map(np.concatenate, zip(*(errors(n, SHARED_BELIEFS) for n in MEASURED_MS), strict=True))
    alone, _ = map(np.concatenate, zip(*(errors(n, BELIEFS) for n in MEASURED_MS), strict=True))

    assert np.mean(np.abs(off)) < 0.15
    assert np.mean(np.abs(off)) < 0.6 * np.mean(np.abs(alone))
    assert np.mean(np.abs(off) <= INTERVAL_Z * deviations) > 0.85


@pytest.mark.parametrize("slower", [1.0, 1.25, 1.6])
def test_two_workers_may_compute_as_fast_as_one_or_much_slower(slower: float) -> None:
    """From their smallest batch, where synchronisation may be what takes longer."""
    known = [(1, 32, 20.0), (1, 256, 160.0), (2, 32, 10.0 * slower)]
    model = fit_parallel([step_times(*point) for point in known], beliefs=SHARED_BELIEFS)
    time_s, log_sd = model.predict(np.array([2]), np.array([256]), np.ones(1), 3)

    assert abs(np.log(time_s[0] / (0.08 * slower))) <= INTERVAL_Z * log_sd[0]


def test_only_workers_that_share_processors_slow_each_other_down() -> None:
    assert beliefs_of(None) is BELIEFS
    assert beliefs_of(2) is SHARED_BELIEFS
