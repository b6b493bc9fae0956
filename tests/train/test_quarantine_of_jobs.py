"""A sample that kills its workers is found, left out and told."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import JOBS, SEED, Run

from scavenger.elastic.order import epoch_order

pytestmark = pytest.mark.slow

SIZE, POISON = 170, 83


def test_a_sample_that_kills_every_worker_is_left_out_and_everything_else_is_trained_on(
    tmp_path: Path,
) -> None:
    # with a batch of 8 it takes few deaths to find the one among them
    with Run("poison:poisoned", tmp_path, epochs=2, replace=True) as run:
        run.begin(2, 8)
        run.to_the_end(within_s=280)
        assert run.supervisor.quarantined == (POISON,)
        assert all(lost.crashed for lost in run.lost), run.lost
        assert len(run.lost) <= 2 * 3 + 3 + 3  # deaths_min twice, one for each halving, and chance

    assert JOBS.joinpath("poison.py").exists()
    for epoch in range(2):
        order = epoch_order(SEED, epoch, SIZE)
        covered = sorted(
            place
            for step in run.steps
            if step.epoch == epoch
            for _, start, stop in step.pieces
            for place in range(start, stop)
        )
        left_out = set(range(SIZE)) - set(covered)
        # once it is known, its place may be part of a piece, but it is not counted
        assert left_out <= {int(place) for place in range(SIZE) if order[place] == POISON}
        assert len(covered) == len(set(covered))
        assert sum(step.samples for step in run.steps if step.epoch == epoch) == SIZE - 1
