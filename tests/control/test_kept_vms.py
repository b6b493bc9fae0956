"""VMs that a study keeps between trials, from one trial's fleet to the next: a scripted cloud, with real agents."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_fleet import Scene, slots
from test_fleet import scene as scene
from waiting import eventually

from scavenger.control.provisioning.clean_up import CleanUp
from scavenger.control.provisioning.fleet import Fleet
from scavenger.control.provisioning.kept_place import KEEPER_NAME
from scavenger.control.provisioning.kept_vms import KeptVms
from scavenger.domain.operation import StopJob
from scavenger.errors import ConfigurationError, StoreBusyError

pytestmark = pytest.mark.slow


@pytest.fixture
def kept() -> Iterator[KeptVms]:
    made = KeptVms("rates", 600.0)
    yield made
    made.close()


def begin(scene: Scene, kept: KeptVms, *names: str, **more: Any) -> Fleet:
    """A trial whose processes run."""
    fleet = scene.fleet(scene.job(), kept=kept, **more)
    scene.launch(*names)
    scene.placed(*names)
    return fleet


def end(scene: Scene, fleet: int = -1) -> None:
    """The end of a trial; its job has ended."""
    scene.engines[fleet].close()
    scene.fleets[fleet].close(limit_s=20.0)
    scene.store.finish_job(scene.jobs[fleet], state="succeeded", report=None, exit_code=0)
    scene.forget(fleet)


def instances(scene: Scene) -> dict[str, int]:
    """The number of records of each VM that are not of its past."""
    found: dict[str, int] = {}
    for one in scene.store.intents(living=True):
        found[one.instance_id] = found.get(one.instance_id, 0) + 1
    return found


def test_three_trials_have_the_same_vms_and_the_study_ends_them(scene: Scene, kept: KeptVms) -> None:
    for number in range(3):
        with kept.trial():
            begin(scene, kept, "aggregator-0", "w0", "w1")
            assert kept.waiting == 0
            end(scene)
        assert kept.waiting == 3, number
        assert len(scene.cloud.agents) == 3
        assert set(instances(scene).values()) == {1}
    taken = [re.search(r"taken over from another job: (\d+) VM", line) for line in scene.progress]
    assert sum(int(found[1]) for found in taken if found) == 6  # however many at once
    keeper = scene.store.job(kept.record_id)
    assert (keeper.name, keeper.state, keeper.spec) == (KEEPER_NAME, "running", {"study": "rates"})
    with pytest.raises(ConfigurationError, match="no job, but the VMs that study rates keeps"):
        scene.store.submit_operation(keeper.id, StopJob(), "me")
    assert CleanUp(scene.store, scene.cloud).find() == ()  # somebody has them

    kept.close()

    assert scene.alive() == []
    assert instances(scene) == {}
    assert scene.store.job(keeper.id).state == "stopped"
    rows = scene.store.intents()
    assert len({row.instance_id for row in rows}) == 3
    for instance in {row.instance_id for row in rows}:
        mine = sorted(
            (row for row in rows if row.instance_id == instance), key=lambda row: str(row.times.launched_at)
        )
        holders = [scene.store.job(row.job_id).name for row in mine]
        assert holders == ["job", KEEPER_NAME] * 3


@pytest.mark.long
def test_a_vm_that_no_trial_takes_ends_within_its_time(scene: Scene) -> None:
    now = [0.0]
    kept = KeptVms("rates", 1.0, clock=lambda: now[0])
    told: list[tuple[float, float]] = []
    kept.budgeted = lambda spent, more, _: told.append((spent, more)) or True
    try:
        begin(scene, kept, "w0")
        end(scene)
        assert kept.waiting == 1
        now[0] = 1.0
        assert eventually(lambda: kept.waiting == 0 and scene.alive() == [], within_s=60.0)
    finally:
        kept.close()
    set_aside = [more for _, more in told]
    assert max(set_aside) == pytest.approx(0.36 / 3600.0, rel=0.01)
    assert set_aside[-1] == 0.0
    assert told[-1][0] == pytest.approx(kept.spent_usd)


@pytest.mark.long
def test_a_trial_that_wants_other_vms_rents_them_and_those_end(scene: Scene, kept: KeptVms) -> None:
    begin(scene, kept, "w0")
    end(scene)
    (before,) = scene.alive()

    with kept.trial():
        begin(scene, kept, "w0", spot=True, package="scavenger-ml==0.2")

        assert eventually(lambda: before not in scene.alive(), within_s=60.0)
        (now,) = scene.store.intents(scene.jobs[-1])
        assert (now.request.spot, now.times.taken_at) == (True, None)
        end(scene)


def test_a_trial_takes_what_another_does_not_need_any_more(
    scene: Scene, kept: KeptVms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "IDLE_S", 0.2)
    with kept.trial(), kept.trial():
        begin(scene, kept, "w0", "w1")
        scene.engines[0].stop(["w1"])
        scene.until(lambda: kept.waiting == 1)

        begin(scene, kept, "w0")

        assert len(scene.cloud.agents) == 2
        assert kept.waiting == 0
        holders = {one.job_id for one in scene.store.intents(living=True)}
        assert holders == {*scene.jobs}
        end(scene)
        end(scene)
    assert kept.waiting == 2


def test_nothing_is_kept_for_which_there_is_no_money(scene: Scene, kept: KeptVms) -> None:
    kept.budgeted = lambda spent, more, _: more == 0.0
    begin(scene, kept, "w0")
    end(scene)

    assert kept.waiting == 0
    assert scene.alive() == []


@pytest.mark.long
def test_an_interrupted_end_is_no_clean_one(
    scene: Scene, kept: KeptVms, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(scene, kept, "w0")
    end(scene)

    def interrupted(job_id: str) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(scene.store, "is_clean", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.close()
    monkeypatch.undo()
    keeper = scene.store.job(kept.record_id)
    assert (keeper.state, "scavenger gc" in keeper.error) == ("failed", True)


def test_where_vms_cannot_be_kept_no_record_is_left_behind(
    scene: Scene, kept: KeptVms, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = scene.store.update_job

    def busy(job_id: str, **fields: Any) -> None:
        if fields.get("phase") == "waiting":
            raise StoreBusyError("it is locked")
        update(job_id, **fields)

    monkeypatch.setattr(scene.store, "update_job", busy)
    begin(scene, kept, "w0")
    end(scene)
    assert kept.waiting == 0
    assert scene.alive() == []
    assert scene.store.jobs(name=KEEPER_NAME) == ()


@pytest.mark.parametrize("at", ["before", "committed", "moved"])
@pytest.mark.parametrize("of", ["leaving", "taking"])
def test_wherever_the_process_is_killed_each_vm_is_one_jobs_and_another_process_ends_it(
    scene: Scene, kept: KeptVms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str, of: str
) -> None:
    begin(scene, kept, "aggregator-0", "w0")
    if of == "taking":
        end(scene)
        assert eventually(lambda: kept.ready == 2, within_s=60.0)
    exchange = scene.store.exchange_vms

    def killed(*given: Any) -> Any:
        if not given[1]:
            return exchange(*given)
        if at == "before":
            raise StoreBusyError("killed")
        done = exchange(*given)
        if at == "committed":
            raise StoreBusyError("killed")
        return done

    monkeypatch.setattr(scene.store, "exchange_vms", killed)
    if of == "leaving":
        scene.engines[-1].close()
        scene.fleets[-1]._leave_vms()
    else:
        scene.fleet(scene.job(), kept=kept)
        scene.launch("w0")
        scene.until(lambda: True)
    assert set(instances(scene).values()) == {1}
    assert {one.id for one in scene.store.intents(living=True)} >= set(scene.alive())

    _die(scene, kept, tmp_path)
    clean_up = CleanUp(scene.store, scene.cloud, sleep=lambda seconds: scene.cloud.advance(seconds))
    assert clean_up.end(clean_up.find()) == ()
    assert scene.alive() == []
    assert instances(scene) == {}


def _die(scene: Scene, kept: KeptVms, folder: Path) -> None:
    """What a SIGKILL leaves: records of a process that is gone, and agents whose leaders are silent."""
    for fleet, engine in zip(scene.fleets, scene.engines, strict=True):
        engine.kill_all()
        fleet._group.stop(10.0)
    scene.fleets.clear()
    scene.engines.clear()
    kept._closing.set()
    if kept._place is not None:
        kept._place.stop(10.0)
    with sqlite3.connect(folder / "store.db") as connection:
        connection.execute("UPDATE jobs SET owner_pid = 2147483647")
    scene.store.reap_dead_jobs()
