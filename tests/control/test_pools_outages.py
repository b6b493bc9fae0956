"""Pools of real stores when these are away, are restored, or have two servers, and when a hundred jobs come at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from postgresql_server import Server, running_server
from test_pools_served import POOL, World, both

from scavenger.domain.operation import TakeShare
from scavenger.domain.pool import JobStanding
from scavenger.errors import StoreUnavailableError, TransientError
from scavenger.store import Store


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.mark.long
@pytest.mark.slow
def test_while_the_store_is_away_no_change_is_begun_and_what_was_under_way_is_told_later(
    postgresql: Server,
) -> None:
    with Store.open(postgresql.url) as store:
        world = World(store, replace(POOL, name="away"))
        first, second = both(world)
        record, last = world.asked(first.id), store.allotments("away")[0]
        fence = world.fences[first.id]

        postgresql.kill()
        with pytest.raises(StoreUnavailableError):
            world.decide()
        with pytest.raises(StoreUnavailableError):
            store.stand(fence, first.id, JobStanding(fence.token, "training", 2, last.number, size=2))
        postgresql.start()

        found = world.decide()
        assert (found.begin, found.told, store.allotments("away")[0]) == (frozenset(), (), last)
        store.end_operation(record.id, "done", "")
        assert isinstance(record.operation, TakeShare)
        world.stand(first.id, record.operation.slots, record.operation.allotment)
        assert world.decide().begin == {second.id}
        assert [world.share(one.id).counts for one in (first, second)] == [2, 2]


@pytest.mark.slow
def test_of_two_servers_that_decide_at_once_each_job_is_begun_by_one(postgresql: Server) -> None:
    pool = replace(POOL, name="two", slots=8)
    with Store.open(postgresql.url) as one, Store.open(postgresql.url) as other:
        worlds, begun = (World(one, pool), World(other, pool)), list[list[str]]()
        jobs = [worlds[0].submit(f"job-{number}", most=1) for number in range(12)]
        together = threading.Barrier(2)

        def serve(world: World) -> None:
            mine = list[str]()
            begun.append(mine)
            for _ in range(6):
                together.wait(60.0)
                try:
                    mine += world.decide().begin
                except TransientError:  # the other one has decided meanwhile
                    continue

        threads = [threading.Thread(target=serve, args=(world,)) for world in worlds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        numbers = [allotment.number for allotment in one.allotments("two", 100)]
        assert numbers == list(range(len(numbers), 0, -1))
        assert sorted(itertools.chain(*begun)) == sorted(job.id for job in jobs[:8])
        for allotment in one.allotments("two", 100):
            assert sum(share.counts for share in allotment.shares.values()) <= pool.slots


def test_after_a_restore_nothing_goes_on_by_itself_and_no_slot_counts_as_taken(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store)
        first, waits = both(world)
        store.backup(tmp_path / "backup")
    url = f"sqlite:///{tmp_path}/again.db"
    Store.restore(url, tmp_path / "backup", keep_tokens=True)

    with Store.open(url) as store:
        again = World(store)
        ran = store.submission(first.id)
        assert ran is not None
        assert (ran.state, "is to be resumed" in ran.reason) == ("ended", True)
        assert not store.stand(world.fences[first.id], first.id, JobStanding(1, "training", 4)), (
            "it has no lease"
        )
        found = again.decide()
        assert first.id not in found.begin
        assert found.begin == {waits.id}, "which had not begun, and has all slots"
        assert again.share(waits.id).counts == POOL.slots


@pytest.mark.long
def test_a_burst_of_a_hundred_jobs_is_served_in_order_and_none_begins_twice(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
        world = World(store, replace(POOL, slots=16))
        jobs = [world.submit(f"job-{number}", most=2) for number in range(100)]
        begun = list[str]()
        while len(begun) < len(jobs):
            new = world.decide().begin
            assert new
            assert len(new) <= 16
            begun += sorted(new, key=[job.id for job in jobs].index)
            last = store.allotment("gpu")
            assert last is not None
            assert sum(share.counts for share in last.shares.values()) <= 16
            for job_id in new:
                assert store.end_submission(world.fences[job_id], job_id, "succeeded")
        assert begun == [job.id for job in jobs]
