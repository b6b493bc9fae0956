"""Buckets move by what a running job reports of its steps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scavenger.control.training.balancing import Balancing, measured
from scavenger.domain.elastic import ElasticSpec
from scavenger.elastic.migration import BucketMap
from scavenger.errors import ScavengerError
from scavenger.policy.bucket_balance import BalanceRules
from scavenger.train.transport import messages as m

MB = 1_000_000
RULES = BalanceRules(measurements=4)


def report(step: int, waits: dict[int, float], *, view: int = 1) -> m.StepReport:
    said = m.StepReport(step, view, 0, ("w0",), 8, 8, 1.0, 0.1, 0.1, 0.0, 0.5, 1.0, 1.0, 2)
    return msgspec.structs.replace(said, aggregator_wait_s=tuple(waits.items()))


class Moves:
    """The migrations of a job with ten buckets on two aggregators, whose migrations end when the test says so."""

    sizes = (4 * MB,) * 10

    def __init__(self) -> None:
        self.map: BucketMap | None = BucketMap(0, 0, (0, 1) * 5)
        self.active, self.fails = False, False
        self.asked: list[dict[int, int]] = []

    def move(self, buckets: dict[int, int]) -> None:
        if self.fails:
            raise ScavengerError("no such bucket")
        self.asked.append(buckets)
        self.active = True


class Job:
    def __init__(self) -> None:
        self.moves: Any = Moves()
        self.reports: list[m.StepReport] = []
        self.notes: list[str] = []
        self.at_s = 0.0
        self.balancing = Balancing(
            self.moves,
            lambda: self.reports,
            note=self.notes.append,
            clock=lambda: self.at_s,
            rules=RULES,
        )

    def train(self, steps: int, waits: dict[int, float]) -> None:
        for _ in range(steps):
            self.at_s += 1.0
            self.reports.append(report(len(self.reports) + 1, waits))
            self.balancing.look()


def test_a_slow_aggregator_gives_buckets_up_and_nothing_is_asked_for_while_they_move() -> None:
    job = Job()
    job.train(20, {0: 0.5, 1: 0.5})
    assert not job.moves.asked
    job.train(20, {0: 0.5, 1: 1.5})
    (asked,) = job.moves.asked
    assert 1 <= sum(holder == 1 for holder in asked.values()) < 5
    assert "1.5e+03 ms for aggregator-1 and 500 ms for the others" in job.notes[0]


def test_the_first_steps_under_a_new_map_are_left_out() -> None:
    job = Job()
    job.train(10, {0: 0.5, 1: 1.5})
    (asked,) = job.moves.asked
    job.moves.active = False
    job.moves.map = BucketMap(1, len(job.reports) + 1, tuple(asked.values()))
    job.train(3, {0: 90.0, 1: 90.0})
    job.train(20, {0: 0.8, 1: 0.8})
    assert len(job.moves.asked) == 1


def test_without_new_steps_or_a_model_nothing_is_measured() -> None:
    job = Job()
    job.train(3, {0: 0.5, 1: 1.5})
    for _ in range(50):
        job.balancing.look()
    job.moves.map = None
    job.train(50, {0: 0.5, 1: 1.5})
    assert not job.moves.asked


def test_a_request_that_is_refused_is_told_and_does_not_end_the_job() -> None:
    job = Job()
    job.moves.fails = True
    job.train(4, {0: 0.5, 1: 1.5})
    assert job.notes[0].endswith("which fails: no such bucket")


def test_a_measurement_is_of_one_view_and_of_aggregators_that_all_its_steps_name() -> None:
    assert measured([], 1.0) is None
    found = measured(
        [
            report(1, {0: 9.0, 1: 9.0}),
            report(2, {0: 1.0, 1: 2.0}, view=2),
            report(3, {0: 3.0}, view=2),
            report(4, {0: 2.0, 1: 7.0}, view=2),
        ],
        5.0,
    )
    assert found is not None
    assert (found.at_s, found.view, found.waits_s) == (5.0, 2, {0: 2.0})


@pytest.mark.parametrize(
    ("keys", "moves"),
    [
        ({}, False),
        ({"aggregators": 4}, False),
        ({"aggregators": 4, "aggregator_vms": 2}, True),
        ({"aggregators": 4, "aggregator_vms": 2, "move_buckets": False}, False),
        ({"aggregators": 4, "move_buckets": True}, True),
    ],
)
def test_buckets_move_by_measurement_where_aggregators_are_on_several_vms(
    keys: dict[str, Any], moves: bool
) -> None:
    assert ElasticSpec.model_validate(keys).moves_buckets is moves
