"""A job that is led by a VM of its own, which the command reaches through a real SSH server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from caller_net import CallerNet
from cloud_jobs import CloudJob, assert_nothing_left_at, paid_usd
from gcp_state import PROJECT
from machines import AGENT, Machine, unavailable
from rented import AwsRented, Rented, rented
from test_clouds_command import EPOCHS, as_command
from test_e2e_loop import _MODULE as LOOP
from waiting import wait_for

from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE
from scavenger.control.leading.caller import CALLER_VARIABLE
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.store import Store

LEADER = AGENT.replace("scavenger.control.provisioning.on_vm", "scavenger.server.on_leader")
IDENTITIES = {
    "aws": '\ninstance_profile = "scavenger-vms"\nleader_profile = "scavenger-leader"\n',
    "gcp": f'\nleader_service_account = "leader@{PROJECT}.iam.gserviceaccount.com"\n',
}
CALLER = "203.0.113.7"
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
WITHIN_S = 900.0
"""The machine may be shared, and only a test that fails waits for so long."""

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.root, pytest.mark.timeout(3600)]


@pytest.fixture(params=["aws", "gcp"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Rented]:
    """A cloud whose image has the leader's program and an SSH server."""
    if reason := unavailable():
        pytest.skip(reason)
    if not (shutil.which("ssh") and Path("/usr/sbin/sshd").is_file()):
        pytest.skip("needs OpenSSH's client and server (apt-get install openssh-server)")
    with rented(request.param, programs={"/usr/local/bin/scavenger-leader": LEADER}) as cloud:
        if isinstance(cloud, AwsRented):
            agent = AGENT.replace("export ", f"export AWS_ENDPOINT_URL={cloud.server.url} ", 1)
            cloud.machines.programs["/usr/local/bin/scavenger-vm"] = agent
            cloud.server.profiles = {"scavenger-vms", "scavenger-leader"}
        yield cloud


@dataclass
class Laptop:
    """A machine that VMs do not reach, with a job."""

    job: CloudJob
    net: CallerNet

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command; both its outputs are one."""
        environment = self.job.whole_environment()
        settings = Path(environment["SCAVENGER_CONFIG"])
        settings.write_text(settings.read_text() + IDENTITIES[self.job.cloud.name])
        environment[CALLER_VARIABLE] = f"{CALLER}/32"
        del environment["SCAVENGER_ADDRESS"]
        command = [sys.executable, "-m", "scavenger_cli", *arguments, "--store", self.job.store]
        return subprocess.Popen(
            self.net.command(*command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def browse(self, link: str) -> str:
        """The page that a browser on this machine sees behind a link: with cookies, and redirected."""
        program = (
            "import sys, urllib.request as u; "
            "print(u.build_opener(u.HTTPCookieProcessor(), u.ProxyHandler({})).open(sys.argv[1], timeout=60).read())"
        )
        command = self.net.command(sys.executable, "-c", program, link)
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    def ask(self, *arguments: str) -> tuple[int, str]:
        """A command, to its end."""
        process = self.begin(*arguments)
        said, _ = process.communicate(timeout=WITHIN_S)
        return process.returncode, said


@pytest.fixture
def laptop(cloud: Rented, tmp_path: Path) -> Iterator[Laptop]:
    prices = {**cloud.prices, cloud.small: (0.02, 0.01)}
    job = CloudJob(tmp_path / "job", f"sqlite:///{tmp_path / 'store' / 'scavenger.db'}", cloud, "", prices)
    job.write(
        infra=f"{cloud.name}/{cloud.region}",
        resources={"vm": cloud.small},
        search={"workers": [1], "batch_size": [32]},
        goal={"metric": "val_accuracy", "target": 0.9, "max_epochs": 12},
    )
    endpoint = cloud.server.url if isinstance(cloud, AwsRented) else cloud.environment[ENDPOINT_VARIABLE]
    net = CallerNet(cloud.machines.address, (22, urlsplit(endpoint).port or 0), tmp_path)
    yield Laptop(job, net)
    net.close()


class Said:
    """What a command has written so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.text = process, ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def awaits(self, words: str) -> None:
        """Wait until it has written something."""
        wait_for(lambda: words in self.text or self.process.poll() is not None, within_s=WITHIN_S)
        assert words in self.text, self.text


def leader_of(cloud: Rented) -> Machine:
    (vm,) = (one for one in cloud.vms() if one.slot == LEADER_SLOT)
    return cloud.machine(vm.id)


def test_a_job_reaches_its_target_while_command_server_and_network_are_lost(
    cloud: Rented, laptop: Laptop
) -> None:
    assert laptop.net.interfaces() == ["lo"]
    submitting = Said(laptop.begin("optimize", str(laptop.job.file), "--yes"))
    submitting.awaits("goes on without this machine")

    os.killpg(submitting.process.pid, signal.SIGKILL)
    laptop.net.cut()
    leader = leader_of(cloud)
    (server,) = leader.run("pgrep", "-f", "server.on_leader").stdout.split()
    told = leader.run("cat", f"/proc/{server}/environ").stdout
    assert not [name for name in KEYS if name in told]
    leader.run("kill", "-9", server)
    following = Said(laptop.begin("leader", "follow", "digits-cnn"))
    following.awaits("the leader is not reached")
    laptop.net.mend()
    following.awaits("val_accuracy")
    os.killpg(following.process.pid, signal.SIGINT)
    following.process.wait(60)

    code, said = laptop.ask("leader", "follow", "digits-cnn", "-o", "json")

    assert code == 0, said
    with Store.open(laptop.job.store) as store:
        (job,) = store.jobs(10)
        job = store.job(job.id)
    assert job.state == "succeeded"
    folder = laptop.job.folder / ".scavenger" / job.id
    assert (folder / "model.keras").is_file()
    assert job.report is not None
    assert "leader" in [item["name"] for item in job.report["estimate"]["items"]]
    assert job.cost_usd is not None
    assert_nothing_left_at(cloud)
    assert laptop.ask("leader", "list")[1].strip() == "No job is led by a VM of its own."


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_lost_leader_is_replaced_and_its_job_goes_on_from_the_object_store(
    cloud: Rented, laptop: Laptop
) -> None:
    assert isinstance(cloud, AwsRented)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    s3 = boto3.client("s3", endpoint_url=cloud.server.url, region_name="us-east-1", **keys)
    s3.create_bucket(Bucket="training")
    laptop.job.change(
        checkpoint={"path": "s3://training/checkpoints", "every_steps": 25},
        goal={"metric": "val_accuracy", "target": 0.97, "max_epochs": 40},
    )
    submitting = Said(laptop.begin("optimize", str(laptop.job.file), "--yes"))

    def manifests() -> list[str]:
        found = s3.list_objects_v2(Bucket="training").get("Contents", [])
        return [one["Key"] for one in found if one["Key"].endswith("manifest.json")]

    wait_for(lambda: len(manifests()) > 1 or submitting.process.poll() is not None, within_s=WITHIN_S)
    leader_of(cloud).kill()
    submitting.process.wait(WITHIN_S)
    assert "leader's VM of job digits-cnn is gone" in submitting.text
    code, said = laptop.ask("gc", "--yes")
    assert code == 0, said

    code, said = laptop.ask("resume", "digits-cnn", "--yes")

    assert code == 0, said
    with Store.open(laptop.job.store) as store:
        (job,) = store.jobs(10)
    assert (job.state, job.attempts) == ("succeeded", 2)
    assert_nothing_left_at(cloud)


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_loop_is_led_by_a_vm_and_its_replica_is_fetched(cloud: Rented, laptop: Laptop) -> None:
    goal = {"metric": "val_error", "max_epochs": 12, "epochs_hint": 10}
    search = {"workers": [1, 2], "batch_size": [32], "strategy": "full"}
    laptop.job.change(goal=goal, search=search, profile={"steps": 5}, elastic={"policy": "fixed"})
    (laptop.job.folder / "train.py").write_text(LOOP)

    code, said = laptop.ask("optimize", str(laptop.job.file), "--yes")

    assert code == 0, said
    with Store.open(laptop.job.store) as store:
        job = store.job(store.jobs(10)[0].id)
        leader_usd = store.entry(job.id, "leader").usd
        (spent_usd,) = store.spending(datetime(2000, 1, 1, tzinfo=UTC)).spent.values()
    assert job.state == "succeeded"
    assert (job.cost_usd or 0.0) > 0.0
    assert (laptop.job.folder / ".scavenger" / job.id / "model.safetensors").is_file()
    assert_nothing_left_at(cloud)
    # what the leader's VM costs until it has ended is in the sums of this machine, and nothing is there twice
    assert leader_usd > 0.0
    assert spent_usd == pytest.approx((job.cost_usd or 0.0) + leader_usd)
    assert spent_usd == pytest.approx(paid_usd(laptop.job), rel=0.25)  # but for disks
    assert "not counted by the job" in laptop.ask("cost", job.id)[1]


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_command_is_led_by_a_vm_and_what_it_saved_is_fetched(cloud: Rented, laptop: Laptop) -> None:
    goal = {"metric": "val_error", "target": 0.1, "max_epochs": EPOCHS, "epochs_hint": 10}
    search = {"workers": [1, 2], "batch_size": [32], "strategy": "full"}
    laptop.job.change(goal=goal, search=search, profile={"steps": 5}, elastic={"policy": "fixed"})
    as_command(laptop.job)

    code, said = laptop.ask("optimize", str(laptop.job.file), "--yes")

    assert code == 0, said
    with Store.open(laptop.job.store) as store:
        job = store.job(store.jobs(10)[0].id)
    assert job.state == "succeeded"
    assert (job.cost_usd or 0.0) > 0.0
    state = json.loads((laptop.job.folder / ".scavenger" / job.id / "model").read_text())
    assert state["error"] <= 0.1
    assert state["samples"] == 640 * state["epoch"] + state["done"]
    assert_nothing_left_at(cloud)


def test_a_leader_that_nobody_watches_ends_itself_after_its_job(cloud: Rented, laptop: Laptop) -> None:
    laptop.job.change(goal={"metric": "val_loss", "max_epochs": 2}, limits={"leader": "60s"})
    code, said = laptop.ask("optimize", str(laptop.job.file), "--yes", "--detach")
    assert code == 0, said
    leader = leader_of(cloud)
    browses_through_a_break_of_the_network(laptop)
    laptop.net.cut()

    assert leader.over.wait(WITHIN_S)

    if cloud.name == "gcp":  # whose VMs keep their disks when they power off
        assert "this VM is deleted, with its disk" in leader.console()
    else:
        assert leader.how == "poweroff"
    wait_for(lambda: not [vm for vm in cloud.vms() if vm.alive])
    assert not [one for one in cloud.leftovers() if one.startswith("disk")]
    laptop.net.mend()
    code, said = laptop.ask("leader", "connect", "digits-cnn")
    assert code != 0
    assert "the leader's VM of job digits-cnn is gone" in said
    code, said = laptop.ask("gc", "--yes")
    assert code == 0, said
    assert_nothing_left_at(cloud)


def browses_through_a_break_of_the_network(laptop: Laptop) -> None:
    """The link logs a browser in, and is good again after a break, at the same address; Ctrl-C ends that."""
    connecting = Said(laptop.begin("leader", "connect", "digits-cnn"))
    connecting.awaits("/login?token=")
    (link,) = re.findall(r"http://127\.0\.0\.1:\d+/login\?token=\S+", connecting.text.replace("\n", ""))
    assert "digits-cnn" in laptop.browse(link)

    laptop.net.cut()
    connecting.awaits("the connection is made again")
    laptop.net.mend()
    connecting.awaits("connected again")

    assert "digits-cnn" in laptop.browse(link)
    os.killpg(connecting.process.pid, signal.SIGINT)
    assert connecting.process.wait(60) == 0
    connecting.awaits("the connection is closed")
