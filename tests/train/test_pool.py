"""Aggregators that several jobs share, without touching each other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Run, assert_same_weights, plain_keras

from scavenger.train.aggregation.pool import AggregatorPool, PooledEngine

pytestmark = pytest.mark.slow


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AggregatorPool]:
    made = AggregatorPool(2, tmp_path / "pool")
    yield made
    made.close()


def run_on(pool: AggregatorPool, train: str, folder: Path) -> Run:
    return Run(train, folder, aggregators=2, engine=lambda log_dir, fd: PooledEngine(log_dir, fd, pool=pool))


def train_together(one: Run, other: Run, steps: int) -> None:
    deadline = time.monotonic() + 120
    while min(len(one.steps), len(other.steps)) < steps:
        assert time.monotonic() < deadline, (one.steps[-1:], other.steps[-1:])
        for run in (one, other):
            run.poll(0.005)


def pids(run: Run) -> set[int]:
    return {process.pid for process in run.supervisor.processes() if process.role == "aggregator"}


def test_two_jobs_on_the_same_aggregators_get_the_weights_that_each_gets_alone(
    pool: AggregatorPool, tmp_path: Path
) -> None:
    with (
        run_on(pool, "small:adam", tmp_path / "a") as one,
        run_on(pool, "small:momentum", tmp_path / "b") as other,
    ):
        one.begin(1, 16)
        other.begin(1, 12)
        train_together(one, other, 30)
        assert len(pids(one)) == 2
        assert pids(one) == pids(other)
        # the process that both of them use dies: both go on where they stood
        os.kill(min(pids(one)), signal.SIGKILL)
        train_together(one, other, len(one.steps) + 40)
        assert len(one.recovered) == len(other.recovered) == 1

        assert_same_weights(one.finish(), plain_keras("adam", one.steps))
        one.supervisor.close()
        other.train(10)  # the end of one job is nothing to the other
        assert_same_weights(other.finish(), plain_keras("momentum", other.steps))
    assert len(pool.engine.running) == 2
