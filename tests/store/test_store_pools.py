"""The store's pools: each allotment follows the one before, and a standing is written under the lease alone."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime

import pytest

from scavenger.domain.pool import (
    JobStanding,
    Pool,
    PoolAllotment,
    PoolShare,
    RatePoint,
    UserPart,
    WorkLeft,
    pool_of,
)
from scavenger.domain.submission import NewSubmission, Submission, runner_lease
from scavenger.errors import TransientError
from scavenger.store import Store, pools

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
STANDING = JobStanding(
    1,
    "training",
    2,
    7,
    attained_slot_s=12.5,
    left=WorkLeft(3e6, 0.3),
    curve=(RatePoint(1, 10.0, True), RatePoint(2, 18.0, False)),
)


def allotment(number: int, pool: str = "gpu") -> PoolAllotment:
    shares = {"a": PoolShare(2, 1, 3, number, "gains most", 1, 4.0, AT)}
    return PoolAllotment(
        Pool(pool, 4, "fair", {"ann": UserPart(2.0, 3)}, 60.0), number, shares, ("a begins",), AT
    )


def submitted(store: Store) -> Submission:
    new = NewSubmission(
        "tiny", {"infra": "pool/gpu"}, "/nowhere/job.yaml", "ann", socket.gethostname(), os.getuid()
    )
    return store.submit(new)


def test_allotments_are_read_as_they_were_written_newest_first(store: Store) -> None:
    assert store.allotment("gpu") is None
    for number in (1, 2, 3):
        store.put_allotment(allotment(number))
    store.put_allotment(allotment(1, "cpu"))

    assert store.allotment("gpu") == allotment(3)
    assert [one.number for one in store.allotments("gpu", 2)] == [3, 2]
    assert store.pools() == (allotment(1, "cpu"), allotment(3))
    assert store.allotments("gpu", 9, since=datetime(2027, 1, 1, tzinfo=UTC)) == ()


def test_of_two_servers_that_decide_at_once_the_second_is_told(store: Store) -> None:
    store.put_allotment(allotment(1))
    with pytest.raises(TransientError, match="comes after 1"):
        store.put_allotment(allotment(1))
    assert store.allotment("gpu") == allotment(1)


def test_the_oldest_allotments_are_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "ALLOTMENTS_MAX", 2)
    for number in (1, 2, 3, 4):
        store.put_allotment(allotment(number))
    assert [one.number for one in store.allotments("gpu", 9)] == [4, 3]


def test_a_standing_is_written_under_the_lease_and_renews_it(store: Store) -> None:
    one = submitted(store)
    assert store.standings([one.id]) == {}
    lease = store.start_runner(one.id, "server", None)
    assert lease is not None

    assert store.stand(lease.fence, one.id, STANDING)
    renewed = store.lease(runner_lease(one.id))
    assert renewed is not None
    assert renewed.beats == lease.beats + 1
    assert store.standings([one.id, "another"]) == {one.id: STANDING}

    store.hand_over_lease(lease.fence, "another")
    assert not store.stand(lease.fence, one.id, JobStanding(1, "pausing"))
    assert store.standings([one.id]) == {one.id: STANDING}


def test_a_job_that_is_paused_waits_at_its_old_place_and_the_start_costs_it_nothing(store: Store) -> None:
    first, second = submitted(store), submitted(store)
    lease = store.start_runner(first.id, "server", None)
    assert lease is not None

    assert store.pause_submission(lease.fence, first.id, "its slots are with urgent")

    queued = store.backlog(socket.gethostname(), os.getuid(), None).queued
    assert [one.id for one in queued] == [first.id, second.id]
    assert (queued[0].reason, queued[0].starts.fruitless, queued[0].starts.faults) == (
        "its slots are with urgent",
        0,
        0,
    )
    assert queued[0].started_at is None
    assert not store.pause_submission(lease.fence, first.id, "again")


def test_a_job_that_is_to_be_stopped_while_it_is_paused_ends(store: Store) -> None:
    one = submitted(store)
    lease = store.start_runner(one.id, "server", None)
    assert lease is not None
    store.cancel(one.id, "not wanted any more")

    assert store.pause_submission(lease.fence, one.id, "paused")
    found = store.submission(one.id)
    assert found is not None
    assert (found.state, found.reason) == ("ended", "not wanted any more")


@pytest.mark.parametrize(
    ("infra", "rents", "pool"),
    [
        (None, False, "local"),
        ("local", False, "local"),
        ("pool/gpu", False, "gpu"),
        ("aws/us-east-1", True, ""),
    ],
)
def test_a_job_of_this_machine_is_in_a_pool(infra: str | None, rents: bool, pool: str) -> None:
    assert pool_of({} if infra is None else {"infra": infra}, rents=rents) == pool
