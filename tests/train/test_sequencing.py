"""The control path of a step: what it takes grows with the number of workers, and with nothing faster."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from benchmarks.sequencing import SequencedJob
from scavenger.train.transport.block_file import create_block

FEW, MANY = 50, 400


def spent(workers: int) -> tuple[int, int, int]:
    """Function calls of a step, bytes of its orders, and bytes of a new view and the first orders under it."""
    fd = create_block()
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    try:
        job = SequencedJob(fd, workers, 3)
        job.begin()
        view_bytes, job.sent_bytes = job.sent_bytes, 0
        job.step()
        job.sent_bytes = 0
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            job.step()
        finally:
            sys.setprofile(before)
        return calls, job.sent_bytes, view_bytes
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def costs() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return spent(FEW), spent(MANY)


@pytest.mark.parametrize(
    ("what", "more"),
    # the number of a piece takes up to two bytes more
    [(0, 0), (1, 2), (2, 2)],
    ids=["calls", "bytes of orders", "bytes of a view"],
)
def test_a_step_costs_the_same_for_each_worker_however_many_there_are(
    costs: tuple[tuple[int, int, int], tuple[int, int, int]], what: int, more: int
) -> None:
    few, many = (cost[what] for cost in costs)
    assert many / MANY < 1.15 * few / FEW + more


def test_an_order_and_what_a_worker_needs_of_a_view_are_small(
    costs: tuple[tuple[int, int, int], tuple[int, int, int]],
) -> None:
    _, (_, orders, view) = costs
    assert orders / MANY < 20
    assert view / MANY < 150  # once a view, with the names of its fields
