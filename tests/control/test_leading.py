"""Speaking to a leader: keys, command lines, records, the boot, the job file there."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake import FakeProvider

from scavenger.cloud.boot.leader import LeaderAccess, leader_boot_script, leader_set_up_script
from scavenger.cloud.boot.package import own_package
from scavenger.control.leading.caller import CALLER_VARIABLE, caller_networks
from scavenger.control.leading.configuration import environment_there, job_there
from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.keys import login_key, new_key
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.leading.seats import seat_of
from scavenger.control.leading.ssh import SshTarget, forwarded, ssh_command
from scavenger.control.provisioning.leader_meter import (
    LEADER_VARIABLE,
    leader_of,
    leader_text,
    leader_zone,
)
from scavenger.control.training.item_meter import ItemMeter
from scavenger.domain.job import JobSpec
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmTags
from scavenger.domain.vm_settings import AwsSettings
from scavenger.errors import ConfigurationError, GoneError, NotFoundError, TransientError
from scavenger.policy.provisioning.actions import Listing, Sweep
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.decider import decide
from scavenger.policy.provisioning.memory import Memory
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.store import Store

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDu5UiG38rx9aC62wMm1qBJDkD18frO/HruuFg10U8Bk"
RECORD = LeaderRecord(
    "0a1b2c3d", "digits", "/jobs/digits.yaml", "aws", "us-east-1", PUBLIC, "/jobs/.scavenger"
)


# Keys and the command line


def test_an_installation_has_one_key_that_nobody_else_reads_and_openssh_takes(tmp_path: Path) -> None:
    public = login_key(tmp_path / "leaders")

    assert login_key(tmp_path / "leaders") == public
    (key,) = (tmp_path / "leaders").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    told = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == public


def test_a_vms_key_is_kept_nowhere_but_in_its_user_data() -> None:
    first, second = new_key(), new_key()

    assert first.public != second.public
    access = LeaderAccess(PUBLIC, first.secret, 8765)
    assert first.secret in leader_boot_script(access)
    assert first.secret not in repr(access)
    assert first.secret not in repr(first)


def test_a_host_is_known_by_the_pinned_key_alone(tmp_path: Path) -> None:
    target = SshTarget("203.0.113.9", "0a1b2c3d", tmp_path / "key", tmp_path / "known")

    command = ssh_command(target, "true", forward=(40000, 8765))
    # the client itself says what it makes of the options
    told = subprocess.run([command[0], "-G", *command[1:]], capture_output=True, text=True, check=True).stdout
    options = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)

    assert options["stricthostkeychecking"] in ("yes", "true")
    assert options["userknownhostsfile"] == str(target.known_hosts)
    assert options["globalknownhostsfile"] == "/dev/null"
    assert options["hostkeyalias"] == "0a1b2c3d"
    assert options["identityfile"] == str(target.key)
    assert options["identitiesonly"] == "yes"
    assert options["forwardagent"] == "no"
    assert options["batchmode"] == "yes"
    assert options["user"] == "root"
    assert options["localforward"] == "[127.0.0.1]:40000 [127.0.0.1]:8765"


def test_the_boot_lets_one_key_in_and_forwards_one_port() -> None:
    script = leader_boot_script(LeaderAccess(PUBLIC, new_key().secret, 8765))

    assert f'restrict,port-forwarding,permitopen="127.0.0.1:8765" {PUBLIC}\n' in script
    assert "PasswordAuthentication no" in script
    assert "GatewayPorts no" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0
    assert len(script) < 12_000  # beside the time limits, within EC2's user data
    with pytest.raises(ConfigurationError, match="keys"):
        leader_boot_script(LeaderAccess("ssh-rsa AAAA", "no key", 8765))


def test_the_set_up_takes_an_image_that_has_this_very_package() -> None:
    package = own_package(("server",))
    script = leader_set_up_script(package, proxy="http://proxy.example:3128")

    assert f"scavenger-vm --has {package.sha256} server" in script
    assert "https_proxy=http://proxy.example:3128" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0


# Who may log in


def test_the_callers_networks_are_what_is_set() -> None:
    assert caller_networks({CALLER_VARIABLE: "203.0.113.7/32, 198.51.100.0/24"}) == (
        "203.0.113.7/32",
        "198.51.100.0/24",
    )
    for wrong in ("0.0.0.0/0", "somewhere", "203.0.113.7/24"):
        with pytest.raises(ConfigurationError, match=CALLER_VARIABLE):
            caller_networks({CALLER_VARIABLE: wrong})


def test_an_address_that_nobody_tells_is_asked_of_the_user(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text("203.0.113.7\n")
    assert caller_networks({}, page=page.as_uri()) == ("203.0.113.7/32",)
    page.write_text("<html>")
    with pytest.raises(ConfigurationError, match=CALLER_VARIABLE):
        caller_networks({}, page=page.as_uri())


# What it is told


def job(**sections: Any) -> JobSpec:
    required = {"version": 1, "name": "digits", "train": "train:job", "goal": {"max_epochs": 2}}
    return JobSpec.model_validate({**required, "infra": "aws/us-east-1", **sections})


def test_the_job_there_has_all_settings_and_leads_there() -> None:
    settings = AwsSettings(
        instance_profile="scavenger-vms",
        leader_profile="scavenger-leader",
        identity_certificate="/home/ann/region.pem",
    )
    document = job_there(
        job(leader="vm", output="/data/out", checkpoint={"path": "/data/c", "every": "2m"}),
        settings,
        folder="/var/lib/scavenger",
    )
    there = JobSpec.model_validate(json.loads(json.dumps(document)))

    assert there.leader == "here"
    assert there.output == "./.scavenger"
    assert there.checkpoint is not None
    assert (there.checkpoint.path, there.checkpoint.every) == ("./checkpoints", 120.0)
    assert there.infra.settings == AwsSettings(
        instance_profile="scavenger-vms",
        identity_certificate="/var/lib/scavenger/identity_certificate.pem",
    )


def test_checkpoints_in_an_object_store_stay_where_they_are() -> None:
    document = job_there(
        job(checkpoint={"path": "s3://bucket/c"}), AwsSettings(), folder="/var/lib/scavenger"
    )

    assert document["checkpoint"]["path"] == "s3://bucket/c"
    assert document["infra"] == "aws/us-east-1"


def test_what_the_leader_costs_after_the_job_is_set_aside() -> None:
    document = job_there(
        job(constraints={"budget": "$20", "deadline": "2h"}), AwsSettings(), folder="/f", aside_usd=0.5
    )

    there = JobSpec.model_validate(json.loads(json.dumps(document)))

    assert (there.constraints.budget, there.constraints.deadline) == (19.5, 7200.0)


def test_no_credentials_are_passed_on() -> None:
    mine = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "session",
        "AWS_PROFILE": "work",
        "AWS_ENDPOINT_URL": "http://endpoint",
        "SCAVENGER_IMAGE": "ami-1",
    }

    there = environment_there(mine, address="10.0.0.4", leader="c5.large 0.1 0", folder="/f", prices=False)

    assert there == {
        "AWS_ENDPOINT_URL": "http://endpoint",
        "SCAVENGER_IMAGE": "ami-1",
        "SCAVENGER_ADDRESS": "10.0.0.4",
        LEADER_VARIABLE: "c5.large 0.1 0",
    }


# What it costs


def test_a_leaders_cost_counts_from_its_launch_and_survives_attempts(tmp_path: Path) -> None:
    environment = {LEADER_VARIABLE: leader_text("c5.large", 0.36, 1000.0)}
    leader = leader_of(environment)
    assert leader is not None
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        job_id = store.create_job("digits", spec={}, job_file="job.yaml").id
        first = ItemMeter(store, job_id, "leader", clock=lambda: 0.0)
        first.note_total(leader.used(1100.0))
        assert first.attempt.usd == pytest.approx(0.01)
        first.record()
        second = ItemMeter(store, job_id, "leader", clock=lambda: 0.0)
        assert (second.before.basis, second.before.quantity) == ("c5.large", pytest.approx(100.0))
        second.note_total(leader.used(1150.0))
        assert second.attempt.usd == pytest.approx(0.005)
        second.note_total(leader.used(1050.0))
        assert second.attempt.usd == 0.0, "a VM whose clock goes back"
    assert leader_of({}) is None
    assert leader_zone(environment) == leader_zone({}) == ""
    placed = {LEADER_VARIABLE: leader_text("c5.large", 0.36, 1000.0, "us-east-1b")}
    assert (leader_zone(placed), leader_of(placed)) == ("us-east-1b", leader)
    for text in ("c5.large", "c5.large -1 0", "c5.large nan 0"):
        with pytest.raises(ConfigurationError, match=LEADER_VARIABLE):
            leader_of({LEADER_VARIABLE: text})


# The record


def test_leaders_are_found_by_job_and_name_in_private_files(tmp_path: Path) -> None:
    leaders = Leaders(tmp_path / "leaders")
    leaders.put(RECORD)
    changed = leaders.change(RECORD, job_id="ffff-1", address="203.0.113.9")

    assert leaders.find("digits") == leaders.find("ffff") == changed
    assert leaders.target(changed).known_hosts.read_text() == f"0a1b2c3d {PUBLIC}\n"
    for path in (tmp_path / "leaders" / "0a1b2c3d").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(NotFoundError, match="never set up"):
        leaders.token(changed)
    leaders.put(replace(changed, id="second"))
    with pytest.raises(NotFoundError, match="2 leaders"):
        leaders.find("digits")


# Its VM


def test_the_reconciler_on_a_leaders_vm_leaves_the_vm_alone_on_which_it_runs(store: Store) -> None:
    provider = FakeProvider(name="aws", region="us-east-1")
    owner = store.installation()
    zone = provider.zones("small")[0]
    template = LaunchTemplate(3600.0)
    seen = {
        slot: provider.launch(
            VmRequest(VmTags(owner, str(uuid.uuid4()), "job", slot, 0), "small", zone, False, template)
        )
        for slot in (LEADER_SLOT, 1)
    }
    provider.advance(60.0)
    situation = store.situation("aws", "us-east-1")
    memory = Memory()
    config = ProvisioningConfig(provider.visibility_s)
    swept = set[str]()
    for now_s in range(0, 2000, 10):
        memory.attend(float(now_s), 60.0)
        listing = Listing(provider.list_owned(owner), float(now_s))
        memory.note(situation, listing)
        actions = decide(
            situation, listing, memory, config, owner=owner, now_s=float(now_s), rng=random.Random(1)
        )
        swept |= {one.vm.instance_id for one in actions if isinstance(one, Sweep)}

    assert swept == {seen[1].instance_id}


def test_a_tunnel_that_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits at a prompt for it would not hear of it otherwise."""
    client = tmp_path / "ssh"
    client.write_text(f"#!{sys.executable}\n{_CLIENT_THAT_GIVES_UP}")
    client.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    target = SshTarget("192.0.2.1", "leader", tmp_path / "key", tmp_path / "known")

    with forwarded(target, 8765) as tunnel, pytest.raises(TransientError, match="ended: not responding"):
        tunnel.wait()


def test_a_connection_is_made_again_at_the_same_port_until_its_vm_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "ssh"
    client.write_text(f"#!{sys.executable}\n{_CLIENT_THAT_GIVES_UP}")
    client.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    leaders, said, ports, looks = Leaders(tmp_path / "leaders"), list[str](), list[int](), iter(range(4))
    record = replace(RECORD, address="192.0.2.1")
    leaders.put(record)
    seat = seat_of(leaders, record, inform=said.append, sleep=lambda seconds: None)
    session = LeaderSession(seat)

    def look() -> None:
        if next(looks) == 3:
            raise GoneError("the leader's VM of job digits is gone")

    monkeypatch.setattr(seat, "let_in", look)

    with pytest.raises(GoneError, match="is gone"):
        session.connect(ports.append)

    assert len(ports) == 1, "others have been told this port"
    assert said.count("connected again") == 2
    assert any("connection is made again" in one for one in said)


_CLIENT_THAT_GIVES_UP = """
import socket, sys
port = int(sys.argv[sys.argv.index("-L") + 1].split(":")[1])
with socket.create_server(("127.0.0.1", port)) as forwarding:
    forwarding.accept()
sys.exit("not responding")
"""
