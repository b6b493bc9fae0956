"""What to profile next."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.models.design import Candidate, ProfilingCost, expected_log_sd, propose
from scavenger.models.overlap_law import OverlapLaw, overlap_prior
from scavenger.models.parallel import StepTimes, fit_parallel

LAW = OverlapLaw.from_unknowns(
    overlap_prior(0.2, 64.0).mean + np.array([0, 0, 0, 0, 0.7, 0.8, 0.2, 0, 0, -0.5, -0.3])
)
CANDIDATES = [Candidate(k, k * b) for k in (1, 2, 3, 4, 6, 8, 12, 16) for b in (8, 16, 32, 64, 128, 256)]


def measure(candidate: Candidate, scale: float = 1.0) -> StepTimes:
    k, b = candidate.workers, candidate.global_batch_size // candidate.workers
    step_time_s, _ = LAW.evaluate(np.array([float(k)]), np.array([float(b)]), np.ones(1))
    time_s = scale * float(step_time_s[0])
    return StepTimes(
        k, k * b, b, candidate.contention, time_s, time_s, 0.0, 0.0, 20, candidate.workers_per_node
    )


def profile(count: int, cost: ProfilingCost | None = None) -> list[StepTimes]:
    seen: list[StepTimes] = []
    for _ in range(count):
        index = propose(CANDIDATES, seen, cost=cost)
        assert index is not None
        seen.append(measure(CANDIDATES[index]))
    return seen


def error(seen: list[StepTimes]) -> float:
    workers = np.array([c.workers for c in CANDIDATES])
    batch = np.array([c.global_batch_size for c in CANDIDATES])
    predicted, _ = fit_parallel(seen, law="overlap").predict(workers, batch, np.ones(len(CANDIDATES)))
    return float(np.mean(np.abs(np.log(predicted / [measure(c).step_time_s for c in CANDIDATES]))))


def test_the_first_is_the_smallest_batch_on_the_fewest_workers() -> None:
    assert propose(CANDIDATES[::-1], []) == len(CANDIDATES) - 1


def test_the_second_is_on_more_workers_since_nothing_is_known_of_synchronisation() -> None:
    index = propose(CANDIDATES, [measure(CANDIDATES[0])])

    assert index is not None
    assert CANDIDATES[index].workers > 1


def test_six_proposed_points_predict_better_than_the_first_six_of_the_grid() -> None:
    assert error(profile(6)) < 0.5 * error([measure(c) for c in CANDIDATES[:6]])
    assert error(profile(6)) < 0.05


def test_each_proposal_lowers_the_expected_error_most() -> None:
    seen = profile(3)
    index = propose(CANDIDATES, seen)
    known = {(t.workers, t.global_batch_size) for t in seen}
    expected = expected_log_sd(CANDIDATES, seen)
    open_ = [i for i, c in enumerate(CANDIDATES) if (c.workers, c.global_batch_size) not in known]

    assert index == min(open_, key=lambda i: expected[i])


def test_what_is_not_asked_for_is_not_profiled_for() -> None:
    one_machine = [c for c in CANDIDATES if c.workers == 1]
    index = propose(CANDIDATES, [measure(CANDIDATES[0])], target=one_machine)

    assert index is not None
    assert CANDIDATES[index].workers == 1


def test_costly_configurations_are_left_for_cheap_ones() -> None:
    cost = ProfilingCost(steps=20, setup_s=5.0)

    def spent(seen: list[StepTimes]) -> float:
        return sum(t.workers * (cost.steps * t.step_time_s + cost.setup_s) for t in seen)

    assert spent(profile(5, cost)) < 0.6 * spent(profile(5))


@pytest.mark.parametrize("ready", [1, 2])
def test_workers_that_are_there_already_are_used_where_others_are_slow_to_start(ready: int) -> None:
    cost = ProfilingCost(steps=20, setup_s=1e4, ready=ready)
    index = propose(CANDIDATES, profile(3, cost), cost=cost)

    assert index is not None
    assert CANDIDATES[index].workers <= 2


@pytest.mark.parametrize("workers_per_node", [1, 4])
@pytest.mark.parametrize("setup_s", [0.0, 5.0, 1e6])
def test_a_search_knows_the_ends_of_one_worker_and_three_numbers_of_machines(
    setup_s: float, workers_per_node: int
) -> None:
    """Though another point on the workers that are there costs next to nothing beside the start of one."""
    candidates = [replace(c, workers_per_node=workers_per_node) for c in CANDIDATES]
    seen: list[StepTimes] = []
    for _ in range(5):
        cost = ProfilingCost(20, setup_s, ready=max([t.workers for t in seen], default=0))
        index = propose(candidates, seen, cost=cost)
        assert index is not None
        seen.append(measure(candidates[index]))
    machines = [-(-t.workers // workers_per_node) for t in seen]

    assert [(t.workers, t.local_batch_size) for t in seen[:2]] == [(1, 8), (1, 256)]
    assert len(set(machines[:3])) == 2
    assert len(set(machines)) >= 3


def test_where_all_workers_share_a_machine_their_numbers_are_varied() -> None:
    candidates = [replace(c, workers_per_node=16) for c in CANDIDATES]
    cost = ProfilingCost(20, 1e6, ready=1)
    seen = [measure(candidates[0]), measure(candidates[5])]
    index = propose(candidates, seen, cost=cost)

    assert index is not None
    assert candidates[index].workers > 1
    assert propose(candidates[:6], seen, cost=cost) in (None, *range(1, 5))


def test_expected_error_falls_with_what_is_measured_and_is_that_of_the_fit() -> None:
    nothing, some = (float(np.min(expected_log_sd(CANDIDATES, profile(n)))) for n in (0, 6))

    assert some < nothing
    assert 0.0 < some < 0.3


def test_nothing_is_proposed_where_everything_was_measured() -> None:
    assert propose(CANDIDATES, [measure(c) for c in CANDIDATES]) is None
    assert propose([], []) is None


def test_nothing_is_proposed_that_does_not_help() -> None:
    few, far = CANDIDATES[:3], Candidate(4096, 4096 * 8)
    seen = [measure(c) for c in (*few, *CANDIDATES[3:12])]

    assert propose([*few, far], seen, target=few) is None


def test_bad_measurements_are_as_good_as_none() -> None:
    bad = replace(measure(CANDIDATES[0]), step_time_s=math.nan)

    assert propose(CANDIDATES, [bad]) == 0


@pytest.mark.parametrize(
    "values", [(0, 8), (8, 4), (1, 8, 0), (1, 8, 1, 0.5), (1, 8, 1, math.nan), (1, 8, 1, math.inf)]
)
def test_impossible_candidates_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"candidate|contention"):
        Candidate(*values)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [(0, 1.0, 0), (1, -1.0, 0), (1, math.nan, 0), (1, 1.0, -1)])
def test_impossible_costs_are_refused(values: tuple[int, float, int]) -> None:
    with pytest.raises(ValueError, match="profiling costs"):
        ProfilingCost(*values)


def test_an_expectation_needs_something_to_expect() -> None:
    with pytest.raises(ValueError, match="needs candidates"):
        expected_log_sd(CANDIDATES, [], target=[])


@examples(8)
@given(st.lists(st.integers(0, len(CANDIDATES) - 1), max_size=6, unique=True), st.randoms())
def test_proposals_are_new_and_depend_on_no_order(seen: list[int], random) -> None:  # type: ignore[no-untyped-def]
    times = [measure(CANDIDATES[i]) for i in seen]
    index = propose(CANDIDATES, times)
    candidates = list(CANDIDATES)
    random.shuffle(candidates)
    random.shuffle(times)
    other = propose(candidates, times)

    assert index is not None
    assert other is not None
    assert index not in seen
    assert CANDIDATES[index] == candidates[other]


@examples(8)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(1e-9, 1e9)), min_size=1, max_size=5)
)
def test_any_measurements_give_a_proposal_and_a_finite_expectation(rows) -> None:  # type: ignore[no-untyped-def]
    times = [StepTimes(k, k * b, b, 1.0, t, t, 0.0, 0.0, 20) for k, b, t in rows]
    expected = expected_log_sd(CANDIDATES, times)

    assert propose(CANDIDATES, times) in (None, *range(len(CANDIDATES)))
    assert np.all(np.isfinite(expected) & (expected > 0.0))
