"""Hosts over SSH keep the contract of providers, and a host serves one VM until all of its processes have ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_lab import SshLab, SshWorld, lab_of, needs_ssh, programs_in
from test_boot_install import wheel
from waiting import eventually, wait_for

from scavenger.cloud.boot.boot import Join
from scavenger.cloud.boot.pod import pod_script
from scavenger.cloud.ssh.host import _processes
from scavenger.cloud.ssh.provider import SshProvider
from scavenger.domain.vm import VmPackage
from scavenger.domain.vm_settings import SshSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError, CredentialsError, StockOutError
from scavenger.store import Store
from scavenger.testing.provider_conformance import OWNER, ProviderConformance, World, make_request

pytestmark = [needs_ssh, pytest.mark.slow]
SIZE = {"cpus": 2, "memory": 4.0, "gpus": 0, "usd_per_hour": 0.0}


def hosts_of(**racks: int) -> dict[str, dict[str, object]]:
    """So many hosts in each rack."""
    return {
        f"{rack}{number}": {**SIZE, "rack": rack} for rack, count in racks.items() for number in range(count)
    }


class TestSshProvider(ProviderConformance):
    lacks = ("spot", "quotas", "throttling", "clock", "hiding")

    @pytest.fixture
    def world(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
        """A host costs each look a tenth of a second, so there are many only where a test has many VMs."""
        many = "longer_than_a_page" in request.node.name
        with lab_of(tmp_path / "lab", hosts_of(a=8, b=6) if many else hosts_of(a=4, b=1)) as lab:
            yield SshWorld(lab)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SshLab]:
    with lab_of(tmp_path / "lab", hosts_of(a=2)) as made:
        yield made


def test_a_host_is_held_while_a_process_of_its_vm_lives_whichever_is_killed(lab: SshLab) -> None:
    world = SshWorld(lab)
    world.user_data = "#!/bin/sh\nsleep 1000 &\nwait\n"
    seen = [world.provider.launch(make_request(world, name)) for name in (1, 2)]
    name, _, token = seen[0].instance_id.partition(".")
    (vm,) = lab.vms(name)
    assert eventually(lambda: len(_processes(token)) == 2)
    parent, child = sorted(_processes(token))

    os.kill(vm["keeper"], signal.SIGKILL)
    os.kill(parent, signal.SIGKILL)

    assert eventually(lambda: _processes(token) == [child])
    with pytest.raises(StockOutError, match="all 2 hosts 2cpu-4gib are in use"):
        world.provider.launch(make_request(world, 3))
    world.provider.terminate(seen[0].instance_id, seen[0].zone)
    assert eventually(lambda: not _processes(token))
    assert world.provider.describe(seen[0].instance_id, seen[0].zone).state == "gone"
    assert world.provider.launch(make_request(world, 3)).state == "running"


def test_a_vm_ends_at_its_time_limit_and_with_its_script_and_says_why(lab: SshLab) -> None:
    world = SshWorld(lab)
    limited = world.provider.launch(make_request(world, 1, run_max_s=0.5))
    ended = world.provider.launch(make_request(world, 2, user_data="echo over\nexit 3\n"))

    def reasons() -> list[str]:
        return [world.provider.describe(vm.instance_id, vm.zone).reason for vm in (limited, ended)]

    assert eventually(lambda: reasons() == ["its time limit", "its script ended with status 3"])
    assert world.provider.console(ended.instance_id, ended.zone) == "over\n"


def test_a_host_that_is_lost_counts_as_gone_after_a_while_and_others_serve(lab: SshLab) -> None:
    world, now = SshWorld(lab), [0.0]
    world.provider = SshProvider("lab", lab.settings, clock=lambda: now[0])
    lost = world.provider.launch(make_request(world, 1))
    name, _, _ = lost.instance_id.partition(".")
    port = lab.port(name)
    lab.stop(name)
    lab.kill(name)

    with pytest.raises(CloudUnavailableError, match=f"host {name} does not answer"):
        world.provider.list_owned(OWNER)
    now[0] = 61.0
    assert world.provider.list_owned(OWNER) == ()
    seen = world.provider.describe(lost.instance_id, lost.zone)
    assert (seen.state, seen.reason) == ("gone", "its host has not been reached for 61 s")
    world.provider.terminate(lost.instance_id, lost.zone)
    assert not world.provider.launch(make_request(world, 2)).instance_id.startswith(name)
    with pytest.raises(StockOutError, match="all 1 hosts 2cpu-4gib are in use, and 1 do not answer"):
        world.provider.launch(make_request(world, 3))

    lab.start(name, port)
    assert {vm.state for vm in world.provider.list_owned(OWNER)} == {"gone", "running"}


def test_while_no_host_is_reached_none_is_given_up_for_as_long_as_agents_wait(lab: SshLab) -> None:
    """It is this machine's network, most likely; a host that is lost meanwhile is so once others answer."""
    world, now = SshWorld(lab), [0.0]
    world.provider = SshProvider("lab", lab.settings, clock=lambda: now[0])
    one = world.provider.launch(make_request(world, 1))
    ports = {name: lab.port(name) for name in world.provider.hosts}
    for name in ports:
        lab.stop(name)
    for now[0] in (0.0, 61.0, 299.0):
        with pytest.raises(CloudUnavailableError, match="does not answer"):
            world.provider.list_owned(OWNER)
        with pytest.raises(CloudUnavailableError, match="does not answer"):
            world.provider.describe(one.instance_id, one.zone)

    for name, port in ports.items():
        lab.start(name, port)
    assert [vm.instance_id for vm in world.provider.list_owned(OWNER)] == [one.instance_id]


def test_a_host_installs_once_and_keeps_it_for_the_next_job(tmp_path: Path) -> None:
    join = Join("tcp://127.0.0.1:1", "0" * 40, "intent", "1" * 40, "ssh")
    script = pod_script(join, VmPackage(requirement=f"scavenger-ml @ file://{wheel(tmp_path)}"), life_s=900.0)
    with lab_of(tmp_path / "lab", hosts_of(a=1), programs_in(tmp_path / "programs")) as lab:
        world = SshWorld(lab)
        consoles = []
        for number in range(2):
            seen = world.provider.launch(make_request(world, number, user_data=script))
            wait_for(lambda seen=seen: "join.json" in world.provider.console(seen.instance_id, seen.zone))
            consoles.append(world.provider.console(seen.instance_id, seen.zone))
            world.provider.terminate(seen.instance_id, seen.zone)
            world.advance(0.0)

    assert ["scavenger: installing" in console for console in consoles] == [True, False]
    assert all("scavenger: the agent was started" in console for console in consoles)


def test_doctor_says_which_hosts_let_us_in_and_how_many_are_free(lab: SshLab) -> None:
    settings = {"SCAVENGER_CONFIG": str(lab.settings_file())}

    def checks(**variables: str) -> dict[str, dict[str, str]]:
        done = subprocess.run(
            [sys.executable, "-m", "scavenger_cli", "doctor", "--infra", "ssh/lab", "-o", "json"],
            env={**os.environ, **settings, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    lab.hold("a0")
    found = checks()
    assert found["credentials"]["found"] == "2 of 2 hosts let us in: a0, a1"
    assert found["VM type"]["found"] == "2cpu-4gib in lab-a"
    assert "1 of 2 used" in found["quotas"]["found"]
    lab.stop("a1")
    assert checks()["credentials"]["found"].startswith(
        "1 of 2 hosts let us in: a0; host a1 does not answer: ssh: connect to host 127.0.0.1"
    )
    without = checks(PATH="")["credentials"]
    assert without["status"] == "fail"
    assert without["found"] == "there is no ssh on this machine: install OpenSSH's client"


def test_gc_ends_what_no_job_has(lab: SshLab, tmp_path: Path) -> None:
    world, url = SshWorld(lab), f"sqlite:///{tmp_path}/s.db"
    with Store.open(url) as store:
        kept = world.provider.launch(make_request(world, 1, owner="somebody"))
        left = world.provider.launch(make_request(world, 2, owner=store.installation()))

    done = subprocess.run(
        [sys.executable, "-m", "scavenger_cli", "gc", "--in", "ssh/lab", "--yes", "--store", url],
        env={**os.environ, "SCAVENGER_CONFIG": str(lab.settings_file())},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert "ended 1 VM" in done.stdout
    assert {fact.instance_id for fact in world.truth() if fact.alive} == {kept.instance_id}
    assert left.instance_id != kept.instance_id


def test_machines_to_avoid_come_last(lab: SshLab) -> None:
    world = SshWorld(lab)
    for number, avoided in enumerate(("a0", "a1")):
        seen = world.provider.launch(make_request(world, number, avoided=(avoided,)))
        assert not seen.instance_id.startswith(avoided)
        world.provider.terminate(seen.instance_id, seen.zone)
        world.advance(0.0)


def test_quotas_count_the_hosts(lab: SshLab) -> None:
    world = SshWorld(lab)
    world.provider.launch(make_request(world))

    (quota,) = world.provider.quotas()

    assert (quota.name, quota.limit, quota.used) == ("hosts 2cpu-4gib", 2.0, 1.0)


def test_what_a_host_is_is_asked_there(lab: SshLab) -> None:
    bare = {
        name: host.model_copy(update={"cpus": None, "memory": None, "gpus": None})
        for name, host in lab.settings.hosts.items()
    }
    (kind,) = set(SshProvider("lab", lab.settings.model_copy(update={"hosts": bare})).types.values())

    assert kind.cpus == len(os.sched_getaffinity(0))
    assert kind.memory_gib > 0


def test_what_is_wrong_is_told_in_one_line_with_what_to_do(lab: SshLab) -> None:
    settings = lab.settings
    with pytest.raises(
        ConfigurationError, match="ssh/other: the settings have no host of that group; groups are lab"
    ):
        SshProvider("other", settings)
    hosts = {**settings.hosts, "a1": settings.hosts["a1"].model_copy(update={"usd_per_hour": 1.0})}
    with pytest.raises(ConfigurationError, match="a0, a1 are all 2cpu-4gib and differ in size or price"):
        SshProvider("lab", settings.model_copy(update={"hosts": hosts})).zones("2cpu-4gib")
    (lab.folder / "known_hosts").write_text("")
    with pytest.raises(
        CredentialsError, match=r"the key of host a. is not known here: run `ssh 127.0.0.1` once"
    ):
        SshProvider("lab", settings).list_owned(OWNER)


def test_without_ssh_one_line_says_so(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="there is no ssh on this machine: install OpenSSH's client"):
        SshProvider("lab", lab.settings).list_owned(OWNER)


def test_settings_without_a_price_are_refused() -> None:
    with pytest.raises(ValueError, match="usd_per_hour"):
        SshSettings.model_validate({"hosts": {"a": {}}})
