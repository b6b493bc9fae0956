"""VMs that a pool keeps, from a job to its server and on to the next job: a scripted cloud, with real agents."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from test_fleet import CONFIG, AgentCloud, Scene
from test_fleet import scene as scene
from waiting import eventually

from scavenger.control.pools import keeper as module
from scavenger.control.pools.keeper import PoolKeeper
from scavenger.control.pools.rented import KEEPER_NAME, keepers_of
from scavenger.control.provisioning.clean_up import CleanUp
from scavenger.control.provisioning.fleet import DRAINED_S
from scavenger.control.provisioning.kept_by_pool import KeptByPool
from scavenger.control.provisioning.kept_place import Region
from scavenger.domain.operation import StopJob
from scavenger.domain.pool import Pool, PoolAllotment, PoolVms
from scavenger.domain.submission import NewSubmission
from scavenger.domain.vm import VmRequest, VmSeen
from scavenger.errors import ConfigurationError, StoreBusyError
from scavenger.scheduler.jobs.renting import Renting
from scavenger.scheduler.jobs.seeing import decided
from scavenger.store import Store
from scavenger.train.engines.base import PreemptionNotice

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POOL = Pool("vms", 2, vms=PoolVms("aws/us-east-1", "small", False, 0.36, idle_s=600.0))


def renting(wanted: int, most: int = 2) -> Renting:
    return Renting(decided(POOL, ()).allotment, wanted, most)


@pytest.fixture
def keeper(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolKeeper]:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    made = serve(scene)
    yield made
    made.close()


def serve(scene: Scene, pool: Pool = POOL) -> PoolKeeper:
    """A server's keeper."""

    def region(store: Store, vms: PoolVms) -> Region:
        return Region(store, scene.cloud, None, CONFIG, "127.0.0.1", 0)

    made = PoolKeeper(scene.store, pool, open_region=region)
    made._here = scene.cloud.name, scene.cloud.region
    made.renting = renting(1)
    made.start()
    return made


def begin(scene: Scene, *names: str, user: str = "ann") -> None:
    """A submitted job whose processes run, or are to run."""
    new = NewSubmission("job", {}, "/nowhere/job.yaml", user, socket.gethostname(), os.getuid())
    id = scene.store.submit(new).id
    scene.store.create_job("job", spec={}, job_file="/nowhere/job.yaml", job_id=id)
    scene.fleet(id, kept=KeptByPool("vms", POOL.slots, user))
    scene.launch(*names)
    scene.placed(*names)
    scene.until(lambda: all(one.acks for one in scene.store.intents(id) if one.state != "GONE"))


def end(scene: Scene) -> None:
    scene.engines[-1].close()
    scene.fleets[-1].close(limit_s=20.0)
    scene.store.finish_job(scene.jobs[-1], state="succeeded", report=None, exit_code=0)
    scene.forget()


def waiting(scene: Scene) -> list[str]:
    """VMs that the pool has, and that could be taken."""
    keepers = {one.id for one in keepers_of(scene.store, POOL)}
    return [one.id for one in scene.store.intents(living=True) if one.job_id in keepers and one.acks]


def test_the_next_job_has_the_vm_of_the_one_before_and_the_server_ends_it(
    scene: Scene, keeper: PoolKeeper
) -> None:
    for _ in range(2):
        begin(scene, "w0")
        assert eventually(lambda: keeper._seats, within_s=20.0)
        end(scene)
        assert eventually(lambda: waiting(scene) == scene.alive(), within_s=20.0)
    assert len(scene.cloud.agents) == 1
    (record,) = keepers_of(scene.store, POOL)
    with pytest.raises(ConfigurationError, match="no job, but the VMs that pool vms keeps"):
        scene.store.submit_operation(record.id, StopJob(), "me")
    assert CleanUp(scene.store, scene.cloud).find() == ()  # somebody has it

    keeper.close()

    assert scene.alive() == []
    rows = sorted(scene.store.intents(), key=lambda row: str(row.times.launched_at))
    names = [scene.store.job(row.job_id).name for row in rows]
    assert names == ["job", KEEPER_NAME] * 2
    assert {row.state for row in rows} == {"GONE"}
    assert scene.store.job(record.id).state == "stopped"


def test_a_job_leaves_a_vm_that_is_drained_and_it_waits_for_no_other(
    scene: Scene, keeper: PoolKeeper
) -> None:
    def drain(id: str, number: int) -> None:
        names = tuple(one.instance_id for one in scene.store.intents() if one.id == id)
        scene.store.put_allotment(PoolAllotment(POOL, number, {}, (), NOW, drained=names))

    begin(scene, "w0")
    [held] = [one.id for one in scene.store.intents(scene.jobs[-1]) if one.state == "UP"]
    drain(held, 1)
    notices: list[PreemptionNotice] = []
    scene.until(lambda: bool(notices.extend(scene.engines[-1].preemption_notices()) or notices))
    assert [(one.name, one.reason) for one in notices] == [("w0", "its machine is drained")]
    assert notices[0].in_s is not None
    assert 0.0 < notices[0].in_s <= DRAINED_S
    end(scene)
    assert eventually(lambda: scene.alive() == [], within_s=20.0)

    begin(scene, "w0")
    assert eventually(lambda: keeper._seats, within_s=20.0)
    end(scene)
    assert eventually(lambda: len(waiting(scene)) == 1, within_s=20.0)
    drain(waiting(scene)[0], 2)
    assert eventually(lambda: scene.alive() == [], within_s=20.0)


def test_another_users_job_rents_its_own_vm_as_soon_as_there_is_room(
    scene: Scene, keeper: PoolKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.renting = renting(2)
    begin(scene, "w0", "w1")
    assert eventually(lambda: len(keeper._seats) > 1, within_s=20.0)
    end(scene)
    assert eventually(lambda: len(waiting(scene)) == 2, within_s=20.0)
    before = set(scene.alive())

    at_once = []
    launch = AgentCloud.launch

    def counted(cloud: AgentCloud, request: VmRequest) -> VmSeen:
        seen = launch(cloud, request)
        at_once.append(len(scene.alive()))
        return seen

    monkeypatch.setattr(AgentCloud, "launch", counted)
    begin(scene, "w0", user="bob")

    assert at_once == [2]
    assert len(before & set(scene.alive())) == 1
    end(scene)


def test_a_vm_ends_when_it_was_idle_for_its_time_or_cannot_be_paid(scene: Scene, keeper: PoolKeeper) -> None:
    now = [0.0]
    keeper._clock = lambda: now[0]
    keeper.renting = renting(2)
    begin(scene, "w0", "w1")
    assert eventually(lambda: len(keeper._seats) > 1, within_s=20.0)
    end(scene)
    assert eventually(lambda: len(waiting(scene)) == 2, within_s=20.0)
    keeper.renting = renting(1)
    now[0] = 599.0
    keeper._thread.join(0.5)
    assert len(waiting(scene)) == 2
    now[0] = 601.0
    assert eventually(lambda: len(scene.alive()) == 1, within_s=20.0)
    keeper.renting = renting(1, most=0)
    assert eventually(lambda: not scene.alive(), within_s=20.0)


@pytest.mark.parametrize("of", ["leaving", "taking"])
@pytest.mark.parametrize("dies", ["runner", "server", "both"])
@pytest.mark.parametrize("at", ["before", "committed"])
@pytest.mark.long
def test_whatever_dies_while_a_vm_goes_over_it_is_one_records_and_another_process_ends_it(
    scene: Scene,
    keeper: PoolKeeper,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    of: str,
    dies: str,
    at: str,
) -> None:
    begin(scene, "w0")
    assert eventually(lambda: keeper._seats, within_s=20.0)
    if of == "taking":
        end(scene)
        assert eventually(lambda: waiting(scene), within_s=20.0)
    exchange = scene.store.exchange_vms

    def killed(*given: Any) -> Any:
        if not given[1]:
            return exchange(*given)
        if at == "before":
            raise StoreBusyError("killed")
        if dies != "runner":
            keeper._stopping.set()
        exchange(*given)
        return frozenset()  # nobody is told anything

    monkeypatch.setattr(scene.store, "exchange_vms", killed)
    if of == "leaving":
        scene.engines[-1].close()
        scene.fleets[-1]._leave_vms()
    else:
        with pytest.raises(AssertionError):
            _short(scene)
    living = scene.store.intents(living=True)
    assert len({one.instance_id for one in living if one.instance_id}) == len(living)
    _die(scene, keeper, tmp_path, dies)
    monkeypatch.undo()

    clean_up = CleanUp(scene.store, scene.cloud, sleep=lambda seconds: scene.cloud.advance(seconds))
    if dies == "both":
        assert clean_up.end(clean_up.find()) == ()
        assert scene.alive() == []
        return
    if dies == "server":
        keeper._place and keeper._place.stop(10.0)
        again = serve(scene)
        try:
            scene.close()
            scene.fleets.clear()
            scene.engines.clear()
            assert eventually(lambda: not scene.alive(), within_s=30.0)
        finally:
            again.close()
        return
    keeper.renting = renting(0, most=0)
    assert eventually(lambda: not scene.alive(), within_s=30.0)


def _short(scene: Scene) -> None:
    new = NewSubmission("job", {}, "/nowhere/job.yaml", "ann", socket.gethostname(), os.getuid())
    id = scene.store.submit(new).id
    scene.store.create_job("job", spec={}, job_file="/nowhere/job.yaml", job_id=id)
    scene.fleet(id, kept=KeptByPool("vms", POOL.slots, "ann"))
    scene.launch("w0")
    scene.until(lambda: False, within_s=1.0)


def _die(scene: Scene, keeper: PoolKeeper, folder: Path, dies: str) -> None:
    """What a SIGKILL leaves: records of a process that is gone, and agents whose leaders are silent."""
    keepers = [one.id for one in keepers_of(scene.store, POOL)]
    gone = [*(keepers if dies != "runner" else []), *(scene.jobs if dies != "server" else [])]
    if dies != "server":
        for fleet, engine in zip(scene.fleets, scene.engines, strict=True):
            engine.kill_all()
            fleet._group.stop(10.0)
        scene.fleets.clear()
        scene.engines.clear()
    if dies != "runner":
        keeper._stopping.set()
        keeper._thread.join(10.0)
        if keeper._place is not None:
            keeper._place.stop(10.0)
            keeper._place.server.close()
            keeper._place = None
    with sqlite3.connect(folder / "store.db") as connection:
        for id in gone:
            connection.execute("UPDATE jobs SET owner_pid = 2147483647 WHERE id = ?", (id,))
        connection.execute("UPDATE leases SET holder = ''")  # whoever lives takes it again
    if dies == "runner":
        for id in gone:  # as the server does that finds it dead while it is to be paused
            scene.store.finish_job(id, state="interrupted", report=None, exit_code=None)
    scene.store.reap_dead_jobs()
