"""Which aggregators hold a job's model: what is asked of the sequencer as users, clouds and processes come and go."""

from __future__ import annotations

import pytest
from stubs import manifest

from scavenger.elastic.migration import BucketMap
from scavenger.errors import ScavengerError
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.transport import messages as m
from scavenger.train.transport.layout import Layout

LAYOUT = Layout.of(manifest(300_000), 3)
BUCKETS = len(LAYOUT.holders)


class Job:
    """The requests of one job with three aggregators, and a sequencer that does what it is asked."""

    def __init__(self) -> None:
        self.asked: list[m.Message] = []
        self.number, self.now = 0, 0.0
        self.migrations = Migrations(self.asked.append, 3, clock=lambda: self.now)

    @property
    def holding(self) -> set[int]:
        """Who holds something under the newest map."""
        assert self.migrations.map is not None
        return {*self.migrations.map.holders}

    def carry_out(self) -> None:
        """Move everything that was asked for last."""
        request = self.asked[-1]
        assert isinstance(request, m.MoveBuckets)
        self.number, before = self.number + 1, self.migrations.spare
        body = BucketMap(self.number, self.number, request.holders)
        self.migrations.take(m.MapChanged(body))
        assert self.migrations.spare <= before, "the step for which it was decided was not applied"
        self.migrations.take(m.Migrated(request.request, body))
        assert not self.migrations.active


@pytest.fixture
def job() -> Job:
    made = Job()
    made.migrations.set_layout(LAYOUT)
    assert made.holding == {0, 1, 2}
    return made


def test_one_whose_vm_will_be_taken_holds_nothing_until_another_process_has_replaced_it(job: Job) -> None:
    assert job.migrations.leave([1])
    assert job.migrations.leave([1]), "a repeated notice asks for nothing"
    assert len(job.asked) == 1
    job.carry_out()
    assert (job.holding, job.migrations.spare) == ({0, 2}, {1})

    job.migrations.process_serves(1)
    assert len(job.asked) == 1, "a repeated message of the process that leaves"
    job.migrations.process_ended(1)
    assert len(job.asked) == 1
    job.migrations.process_serves(1)
    job.carry_out()
    assert (job.holding, job.migrations.spare) == ({0, 1, 2}, frozenset())


def test_two_of_one_vm_leave_together_and_the_first_cannot_be_spared(job: Job) -> None:
    assert job.migrations.leave([1, 2])
    job.carry_out()
    assert (job.holding, job.migrations.spare) == ({0}, {1, 2})
    assert not job.migrations.leave([0])
    with pytest.raises(ScavengerError, match="no other aggregator"):
        job.migrations.use([1])
    job.migrations.process_ended(1)
    job.migrations.process_serves(1)
    job.carry_out()
    assert job.holding == {0, 1}, "the other one still leaves"


def test_nothing_moves_where_no_other_is_left_or_nothing_is_known_yet() -> None:
    job = Job()
    assert not job.migrations.leave([1])
    job.migrations.set_layout(LAYOUT)
    job.migrations.use([1, 2])
    assert not job.migrations.leave([1, 2])


def test_what_an_empty_one_was_to_get_stays_elsewhere_if_its_process_ends(job: Job) -> None:
    """Nobody would copy it, and the step would wait for that."""
    job.migrations.use([0, 1])
    job.carry_out()
    assert job.migrations.spare == {2}
    job.migrations.use([0, 1, 2])
    job.migrations.process_ended(2)
    assert isinstance(job.asked[-1], m.MoveBuckets)
    assert {*job.asked[-1].holders} == {0, 1}
    job.carry_out()

    job.migrations.process_serves(2)
    job.carry_out()
    assert job.holding == {0, 1, 2}


def test_one_that_is_replaced_changes_nothing_while_all_that_may_hold_the_model_are_gone(job: Job) -> None:
    job.migrations.use([0])
    job.carry_out()
    assert job.migrations.leave([1])
    job.migrations.process_ended(1)
    job.migrations.use([2])
    job.migrations.process_ended(2)
    asked = len(job.asked)
    job.migrations.process_serves(1)
    assert len(job.asked) == asked
    job.migrations.process_serves(2)
    job.carry_out()
    assert job.holding == {2}


def test_a_request_is_repeated_until_its_end_is_reported(job: Job) -> None:
    job.migrations.move({0: 2})
    for job.now in (0.5, 1.2, 1.5, 2.3):
        job.migrations.watch()
    assert len(job.asked) == 3
    job.carry_out()
    job.now = 9.0
    job.migrations.watch()
    assert len(job.asked) == 3
    with pytest.raises(ScavengerError, match=f"has {BUCKETS} buckets"):
        job.migrations.move({BUCKETS: 0})


def test_one_that_only_sequences_gives_its_share_away_and_holds_everything_while_no_other_can() -> None:
    job = Job()
    job.migrations = Migrations(job.asked.append, 2, clock=lambda: job.now, apart=True)
    job.migrations.watch()
    assert job.asked == [], "nothing is known of the model yet"
    job.migrations.set_layout(Layout.of(manifest(300_000), 2))
    job.migrations.watch()
    job.carry_out()
    assert (job.holding, job.migrations.vacant) == ({1}, frozenset())

    assert job.migrations.leave([1])
    assert job.migrations.vacant == frozenset(), "it holds what was not moved yet"
    job.carry_out()
    assert (job.holding, job.migrations.vacant) == ({0}, {1})
    job.migrations.process_ended(1)
    assert job.migrations.vacant == frozenset()
    job.migrations.process_serves(1)
    job.carry_out()
    assert job.holding == {1}


def test_who_still_holds_something_after_a_migration_was_given_up_is_asked_again_to_leave(job: Job) -> None:
    assert job.migrations.leave([1])
    request = job.asked[-1]
    assert isinstance(request, m.MoveBuckets)
    job.migrations.take(m.Migrated(request.request, BucketMap(0, 0, LAYOUT.holders), "a copy never ended"))

    assert job.migrations.leave([1])

    assert len(job.asked) == 2
    job.carry_out()
    assert (job.holding, job.migrations.vacant) == ({0, 2}, {1})
