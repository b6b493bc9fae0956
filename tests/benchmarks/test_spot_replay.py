"""The replay of spot traces: laws of what is kept of the time that nodes are there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.spot_replay import _FILES, _TRACES, Costs, elastic_s, ideal_s, read_trace, stopping_s

FREE = Costs(0.0, 0.0, 0.0, 600.0)
COUNTS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20)), min_size=2, max_size=30).map(
    lambda steps: [
        (float(sum(gap for gap, _ in steps[:index])), nodes) for index, (_, nodes) in enumerate(steps)
    ]
)
COSTS = st.builds(Costs, st.floats(0, 900), st.floats(0, 1), st.floats(0, 60), st.floats(60, 3600))


@given(COUNTS, COSTS)
def test_nothing_trains_longer_than_nodes_are_there(counts: list[tuple[float, int]], costs: Costs) -> None:
    most = ideal_s(counts) + 1e-6
    assert 0.0 <= elastic_s(counts, costs) <= most
    assert 0.0 <= stopping_s(counts, costs) <= most


@given(COUNTS)
def test_changes_that_cost_nothing_leave_the_ideal(counts: list[tuple[float, int]]) -> None:
    assert elastic_s(counts, FREE) == pytest.approx(ideal_s(counts))


@given(COUNTS, COSTS)
def test_a_longer_start_trains_no_more(counts: list[tuple[float, int]], costs: Costs) -> None:
    slower = Costs(costs.start_s + 60.0, 0.0, 0.0, costs.checkpoint_s)
    quick = Costs(costs.start_s, 0.0, 0.0, costs.checkpoint_s)
    assert elastic_s(counts, slower) <= elastic_s(counts, quick) + 1e-6


def test_a_loss_takes_a_job_that_stops_back_to_its_checkpoint_and_an_elastic_one_nowhere() -> None:
    counts = [(0.0, 4), (1000.0, 3), (2000.0, 3), (2600.0, 0)]
    costs = Costs(0.0, 0.0, 5.0, 600.0)
    assert elastic_s(counts, costs) == 4 * 1000 + 3 * (1600 - 5)
    assert stopping_s(counts, costs) == 4 * 600 + 3 * 1600


@pytest.mark.parametrize(("file", "unit_s"), [(file, unit_s) for _, file, unit_s in _FILES])
def test_the_recorded_clusters_train_more_than_19_of_20_hours(file: str, unit_s: float) -> None:
    if not (_TRACES / file).exists():
        pytest.skip("the traces are not here")
    counts = read_trace(_TRACES / file, unit_s)
    assert elastic_s(counts, Costs(4.3)) > 0.95 * ideal_s(counts)
    assert elastic_s(counts, Costs(60.0)) > stopping_s(counts, Costs(60.0))
