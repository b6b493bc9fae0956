"""`scavenger gc`: what serves nobody is listed and ended, and nothing else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from cli_fake import Run
from fake import FakeProvider, Fault, install
from made_intents import made_intent
from nested import built
from waiting import wait_for

from scavenger.control.provisioning import clean_up as clearing
from scavenger.control.provisioning.clean_up import CleanUp
from scavenger.control.sweep import sweep_once, sweeping
from scavenger.domain.intent import Fence, FleetSpec, PlacementOption, VmSlot
from scavenger.errors import CredentialsError
from scavenger.store import Store

WHERE = "fake/fake-1"


class Scene:
    """A cloud, and a store with one job that this process drives."""

    def __init__(self, store: Store) -> None:
        self.store, self.cloud = store, FakeProvider(stop_s=0.0)
        self.owner = store.installation()
        self.job_id = store.create_job("digits", spec={}, job_file="job.yaml").id
        lease = store.take_lease(WHERE, "service", None)
        assert lease is not None
        self.fence = Fence(WHERE, lease.token)
        place, slots = (
            PlacementOption("small", "fake-1a", False, 0.36),
            tuple(VmSlot(slot) for slot in range(4)),
        )
        store.want_vms(
            built(
                FleetSpec,
                job_id=self.job_id,
                provider="fake",
                region="fake-1",
                slots=slots,
                options=(place,),
                vms_max=4,
                budget_usd=float("inf"),
                run_max_s=3600.0,
            )
        )

    def launch(self, slot: int = 0, *, owner: str = "", written: bool = True, up: bool = True) -> str:
        token = str(uuid4())
        intent = made_intent(
            {
                "token": token,
                "owner": owner or self.owner,
                "job_id": self.job_id,
                "slot": slot,
                "zone": "fake-1a",
            },
            provider="fake",
            region="fake-1",
        )
        if written:
            assert self.store.write_intent(self.fence, intent)
        if up:
            vm = self.cloud.launch(intent.request)
            if written:
                self.store.mark_up(self.fence, token, vm)
        return token

    def end_job(self) -> None:
        self.store.finish_job(self.job_id, state="interrupted", report=None, exit_code=130)

    def alive(self) -> set[str]:
        return {fact.token for fact in self.cloud.truth() if fact.alive}


@pytest.fixture
def scene(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with Store.open(store_url) as store:
        made = Scene(store)
        install(monkeypatch, made.cloud)
        monkeypatch.setattr(clearing, "LIMIT_S", 0.0)
        monkeypatch.setattr(clearing, "POLL_S", 0.0)
        yield made


def test_what_serves_nobody_is_ended_and_what_a_living_job_has_is_not(scavenger: Run, scene: Scene) -> None:
    kept, unknown = scene.launch(0), scene.launch(1, written=False)
    ended = scene.launch(2)
    scene.store.mark_gone(scene.fence, ended, "died", "so it seemed", None, never=False)
    foreign = scene.launch(3, owner="somebody", written=False)

    code, out, err = scavenger("gc", "--yes")
    assert (code, err) == (0, "")
    assert scene.alive() == {kept, foreign}
    assert "the store has no record of it" in out
    assert "its intent has ended" in out
    assert out.endswith("ended 2 VMs\n")
    assert unknown not in scene.alive()


def test_what_is_found_is_told_to_webhooks_once(
    scavenger: Run, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[notify.team]\nurl = "https://chat.example/x"\nevents = ["vms.leftover"]\n')
    monkeypatch.setenv("SCAVENGER_CONFIG", str(file))
    scavenger("gc", "--dry-run")
    assert scene.store.notification_counts() == ()  # nothing was found
    scene.launch()
    scene.end_job()
    for _ in range(2):
        scavenger("gc", "--dry-run")
    taken = scene.store.take_notification("team", for_s=60)
    assert taken is not None
    assert taken.notification.text.startswith("no job uses 1 VM that cost money: fake/fake-1/")
    assert scene.store.take_notification("team", for_s=60) is None


def test_a_dry_run_lists_and_does_nothing(scavenger: Run, scene: Scene) -> None:
    token = scene.launch()
    scene.end_job()
    code, out, _ = scavenger("gc", "--dry-run")

    assert code == 0
    assert f"no process runs job {scene.job_id[:8]}" in out
    assert scene.alive() == {token}
    assert not scene.store.is_clean(scene.job_id)


def test_without_a_terminal_or_consent_nothing_is_ended(scavenger: Run, scene: Scene) -> None:
    token = scene.launch(written=False)
    code, _, err = scavenger("gc")

    assert (code, scene.alive()) == (2, {token})
    assert "use --yes to end 1 VM" in err


@pytest.mark.parametrize(("answer", "ended"), [(True, True), (False, False)])
def test_on_a_terminal_it_asks(
    scavenger: Run, scene: Scene, monkeypatch: pytest.MonkeyPatch, answer: bool, ended: bool
) -> None:
    from scavenger_cli.ui import console

    scene.launch(written=False)
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr(console, "ask", lambda question: answer)
    code, _, _ = scavenger("gc")

    assert code == 0
    assert (scene.alive() == set()) is ended


def test_jobs_that_nobody_drives_are_clean_afterwards(scavenger: Run, scene: Scene) -> None:
    scene.launch(0)
    forgotten = scene.launch(1)
    fact = next(fact for fact in scene.cloud.truth() if fact.token == forgotten)
    scene.cloud.delete_by_hand(fact.instance_id)
    scene.end_job()
    code, out, _ = scavenger("gc", "--yes", "-o", "json")

    assert code == 0
    document = json.loads(out)
    assert (document["ended"], document["left"], len(document["leftovers"])) == (True, [], 1)
    (leftover,) = document["leftovers"]
    assert list(leftover) == ["provider", "region", "vm", "reason", "quarantined"]
    assert list(leftover["vm"]) == [
        *("instance_id", "vm", "zone", "spot", "state", "owner", "token", "job_id", "slot", "generation"),
        *("address", "public_address", "launched_at", "ended_at", "reason", "run_max_s", "queued"),
    ]
    assert leftover["vm"]["job_id"] == scene.job_id
    assert scene.store.is_clean(scene.job_id)
    assert scene.cloud.remove_leftovers(scene.owner) == ()


def test_a_launch_that_may_still_come_to_a_vm_is_not_called_clean(
    scavenger: Run, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.launch(up=False)
    scene.end_job()
    code, _, err = scavenger("gc", "--yes")
    assert code == 8
    assert "launched recently" in err

    monkeypatch.setattr(clearing, "SETTLED", timedelta(0))
    assert scavenger("gc", "--yes")[0] == 0
    assert scene.store.is_clean(scene.job_id)


def test_what_cannot_be_ended_has_a_line_each_and_exit_code_8(scavenger: Run, scene: Scene) -> None:
    for _ in range(2):
        scene.launch(written=False)
    scene.cloud.script("terminate", *[Fault(CredentialsError("not\x1b[2J yours"))] * 2)
    code, _, err = scavenger("gc", "--yes")

    lines = err.splitlines()
    assert (code, len(lines)) == (8, 2)
    assert all(line.startswith("left behind: fake VM fake-0000") for line in lines)
    assert all("yours" in line and "\x1b" not in line for line in lines)


def test_a_cloud_that_does_not_answer_may_have_something_left(scavenger: Run, scene: Scene) -> None:
    scene.cloud.deny()
    code, out, err = scavenger("gc", "--yes")

    assert (code, out) == (8, "")  # not "No VM is left over"
    assert err.startswith("left behind: fake/fake-1 cannot be checked: fake-1: access denied")


@pytest.mark.parametrize(
    ("where", "complaint"), [("gcp", "write CLOUD/REGION"), ("moon/crater", "cannot be checked")]
)
def test_a_region_that_is_none_is_named(scavenger: Run, store_url: str, where: str, complaint: str) -> None:
    code, _, err = scavenger("gc", "--in", where)

    assert code == (2 if "/" not in where else 8)
    assert complaint in err


def test_with_no_cloud_ever_asked_there_is_nothing_to_do(scavenger: Run, store_url: str) -> None:
    code, out, _ = scavenger("gc")
    assert (code, out) == (0, "No VM is left over: no job in this store has asked for VMs.\n")


def test_after_a_restore_unknown_vms_are_shown_and_ended_only_when_a_user_says_so(
    scavenger: Run, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    install(monkeypatch, scene.cloud, keeps_disks=True)
    known = scene.launch(0)
    assert scavenger("store", "backup", str(tmp_path / "b"))[0] == 0
    later, off = scene.launch(1), scene.launch(2)
    (fact,) = (fact for fact in scene.cloud.truth() if fact.token == off)
    scene.end_job()
    url = f"sqlite:///{tmp_path}/again.db"
    code, out, _ = scavenger("store", "restore", str(tmp_path / "b"), "--store", url)
    assert code == 0
    assert "VMs that this store does not know are in quarantine" in out
    with Store.open(url) as again:
        again.finish_job(scene.job_id, state="interrupted", report=None, exit_code=130)
        scene.cloud.power_off(fact.instance_id)  # any command would delete it, were it known

    err = scavenger("status", "--store", url)[2]
    assert "`scavenger gc` looks for VMs that it does not know" in err
    code, out, err = scavenger("gc", "--yes", "--store", url)
    assert (code, scene.alive()) == (0, {later, off})
    assert out.count("quarantine") == 2
    assert out.endswith("ended 1 VM\n")  # the known one, whose job no process runs
    assert "in quarantine, and not ended: 2 VMs" in err
    assert known not in scene.alive()
    assert "2 VMs; `scavenger gc` shows them" in " ".join(scavenger("status", "--store", url)[2].split())
    assert scene.alive() == {later, off}

    stays = next(one.instance_id for one in scene.cloud.truth() if one.token == later)
    assert scavenger("gc", "--keep", stays, "--store", url)[0] == 0
    assert scavenger("gc", "--yes", "--quarantined", "--store", url)[0] == 0
    assert scene.alive() == {later}
    assert scavenger("gc", "--yes", "--store", url)[1].startswith("No VM is left over")
    with Store.open(url) as again:
        (vm,) = again.quarantined_vms()
        assert (vm.instance_id, bool(vm.kept_by)) == (stays, True)
        again.keep_quarantined(vm.key, None)
    assert scavenger("gc", "--yes", "--quarantined", "--store", url)[0] == 0
    assert scene.alive() == set()
    assert scavenger("gc", "--yes", "--store", url)[1].startswith("No VM is left over")
    assert "quarantine" not in scavenger("status", "--store", url)[2]


def test_a_server_sweeps_and_tells_what_it_finds(
    scene: Scene, powered_off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[notify.team]\nurl = "https://chat.example/x"\nevents = ["vms.leftover"]\n')
    monkeypatch.setenv("SCAVENGER_CONFIG", str(file))
    unknown = scene.launch(1, written=False)
    scene.end_job()
    with sweeping(scene.store, first_s=0.0, every_s=0.05):
        wait_for(scene.store.notification_counts)
        time.sleep(0.2)  # further sweeps find the same
    (told,) = scene.store.notification_counts()
    assert (told.webhook, told.state, told.count) == ("team", "waiting", 1)
    assert scene.alive() == {unknown}  # only what has powered itself off is deleted


@pytest.fixture
def powered_off(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A VM that ended itself after its job's process had, in a cloud where its disk is still paid for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    install(monkeypatch, scene.cloud, keeps_disks=True)
    token = scene.launch()
    (fact,) = scene.cloud.truth()
    scene.cloud.power_off(fact.instance_id)
    return token


@pytest.mark.parametrize("command", [("status",), ("cost",), ("models", "list")])
def test_any_command_deletes_vms_that_powered_themselves_off_without_their_job(
    scavenger: Run, scene: Scene, powered_off: str, command: tuple[str, ...]
) -> None:
    scavenger(*command)
    assert scene.alive() == {powered_off}  # its job lives

    scene.end_job()
    code, _, err = scavenger(*command)
    assert (code, scene.alive()) == (0, set())
    assert err == "deleted 1 powered-off VM in fake/fake-1 that no job uses, with boot disks\n"


def test_vms_that_run_still_are_left_to_end_themselves_and_an_absent_cloud_is_asked_once(
    scavenger: Run, scene: Scene, powered_off: str
) -> None:
    running = scene.launch(1)
    scene.end_job()
    scene.cloud.deny()
    code, _, err = scavenger("status")
    assert code == 0
    assert err.startswith("disks of VMs that no job uses may be left in fake/fake-1: fake-1: access denied")
    assert scavenger("status")[2] == ""

    scene.cloud.deny(on=False)
    (mark,) = (Path(os.environ["XDG_CACHE_HOME"]) / "scavenger").iterdir()
    os.utime(mark, (0, 0))
    scavenger("status")
    assert scene.alive() == {running}


def test_one_vm_that_cannot_be_ended_keeps_no_other_from_its_end(scene: Scene, powered_off: str) -> None:
    other = scene.launch(1)
    scene.cloud.power_off(next(fact.instance_id for fact in scene.cloud.truth() if fact.token == other))
    scene.end_job()
    scene.cloud.script("terminate", Fault(CredentialsError("not yours")))
    with pytest.raises(CredentialsError):
        CleanUp(scene.store, scene.cloud).end_powered_off()
    assert len(scene.alive()) == 1


def test_one_cloud_that_refuses_keeps_no_other_from_the_sweep(
    scene: Scene, powered_off: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.end_job()
    scene.cloud.script("terminate", Fault(CredentialsError("not yours")))
    swept = sweep_once(scene.store)
    assert "powered-off VMs may be left in fake/fake-1: not yours" in caplog.text
    assert [one.vm.tags.token for one in swept.leftovers] == [powered_off]


def test_a_vm_that_may_not_be_looked_at_has_a_line(scene: Scene) -> None:
    scene.launch(0)
    scene.end_job()
    clean_up = CleanUp(scene.store, scene.cloud)
    scene.cloud.script("describe", Fault(CredentialsError("not yours")))
    assert [line.endswith(": not yours") for line in clean_up.end(())] == [True]
