"""Step times of public clusters: the errors that docs/models.md tells of, where the data is there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import priors, regret, vm_types
from benchmarks.public_steps import DATA, KEPT_BACK, read_more_step_times, read_step_times
from scavenger.domain.curve import Objective
from scavenger.models.backtest import GroupResult, PlacementRow, coverage90, summary
from scavenger.models.backtest_steps import backtest_steps
from scavenger.models.overlap_law import BELIEFS, Beliefs

pytestmark = pytest.mark.slow

FIRST = Beliefs((-1.5, 1.0), (0.02, 0.03), (math.log(0.25), 0.7), (0.3, 0.3))
"""The prior before it was set by likelihood: little fixed computing, synchronisation that soon levels off."""


@pytest.fixture(scope="module")
def rows() -> list[PlacementRow]:
    if not (DATA / "elasticflow").is_dir():
        pytest.skip(f"{DATA} is not here")
    return read_step_times()


def test_the_prior_in_use_makes_the_public_step_times_more_probable_than_the_first(
    rows: list[PlacementRow],
) -> None:
    in_use, first = (priors.log_likelihood(rows, beliefs) for beliefs in (BELIEFS, FIRST))

    assert in_use > first + 10.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_node", "points", "aim"),
    [(1, "extremes", 8.0), (8, "extremes", 8.0), (1, 6, 7.0), (4, 6, 8.5), (8, 6, 4.0)],
)
def test_step_times_of_a_cluster_follow_from_few_points(
    rows: list[PlacementRow], per_node: int, points: int | str, aim: float
) -> None:
    here = [row for row in rows if row.workers_per_node == per_node]
    found = [one for one in backtest_steps(here, points) if isinstance(one, GroupResult)]

    assert np.mean([one.errors().mean() for one in found]) < aim
    assert (coverage90(found) or 0.0) > 0.85


@pytest.mark.slow
def test_intervals_hold_as_many_step_times_as_they_say_where_a_search_takes_its_points(
    rows: list[PlacementRow],
) -> None:
    kept_back = [row for row in read_more_step_times() if row.workload in KEPT_BACK]

    for here, widest in ((rows, 0.20), (kept_back, 0.32)):
        found = summary([one for one in backtest_steps(here, "search") if isinstance(one, GroupResult)])
        assert found is not None
        assert found.coverage90 > 0.88
        assert found.half_width90 < widest


@pytest.mark.parametrize("objective", regret.OBJECTIVES)
def test_a_search_over_vm_types_chooses_nearly_the_best_where_runs_have_finished(
    rows: list[PlacementRow], objective: Objective
) -> None:
    assert len(rows) > 0
    found = regret.jobs()["imagenet"].regret(objective, finished=True)

    assert len(found.measured) <= regret.PROBES
    assert found.percent < 5.0


def test_twelve_probes_tell_the_step_times_of_four_vm_types(rows: list[PlacementRow], tmp_path: Path) -> None:
    figures = vm_types.run(1, tmp_path).figures

    assert np.mean(list(figures["mean_ape"].values())) < 12.0
    assert figures["coverage90"] > 0.85
