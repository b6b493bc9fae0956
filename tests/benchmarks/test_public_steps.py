"""Step times of public clusters: the errors that docs/models.md tells of, where the data is there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import priors, vm_types
from benchmarks.public_steps import DATA, read_step_times
from scavenger.models.backtest import GroupResult, PlacementRow, coverage90
from scavenger.models.backtest_steps import backtest_steps
from scavenger.models.overlap_law import BELIEFS, Beliefs

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


def test_twelve_probes_tell_the_step_times_of_four_vm_types(rows: list[PlacementRow], tmp_path: Path) -> None:
    figures = vm_types.run(1, tmp_path).figures

    assert np.mean(list(figures["mean_ape"].values())) < 12.0
    assert figures["coverage90"] > 0.85
