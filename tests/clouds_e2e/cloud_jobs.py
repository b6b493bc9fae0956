"""Jobs as a person runs them on a cloud: `examples/digits` with another `infra`, and the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real_jobs import MARK, ROOT, Outcome, ended
from rented import Rented, RentedVm
from ruamel.yaml import YAML
from waiting import wait_for

from scavenger.domain.intent import Intent
from scavenger.store import Store

WITHIN_S = 200.0
EXAMPLE = ROOT / "examples" / "digits"


@dataclass
class CloudJob:
    """A folder with a job file and its training module, a store and a cloud.

    Attributes:
        store: Its URL.
        prices: US dollars per hour by VM type: on demand, spot.
    """

    folder: Path
    store: str
    cloud: Rented
    mark: str
    prices: dict[str, tuple[float, float]]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def price_file(self) -> Path:
        return self.folder / "prices.yaml"

    def write(self, **sections: Any) -> CloudJob:
        """The example's job file with other sections, its training module unless there is one, and the prices."""
        self.folder.mkdir(parents=True, exist_ok=True)
        spec = YAML(typ="safe").load((EXAMPLE / "job.yaml").read_text())
        self.file.write_text(json.dumps({**spec, **sections}))
        if not (self.folder / "train.py").exists():
            shutil.copy(EXAMPLE / "train.py", self.folder)
        here = {"provider": self.cloud.name, "region": self.cloud.region}
        prices = [
            {**here, "vm": vm, "on_demand": on_demand, "spot": spot}
            for vm, (on_demand, spot) in self.prices.items()
        ]
        self.price_file.write_text(json.dumps({"version": 1, "prices": prices}))
        return self

    def change(self, **sections: Any) -> CloudJob:
        """The job file with some sections replaced."""
        self.file.write_text(json.dumps({**json.loads(self.file.read_text()), **sections}))
        return self

    def start(self, *options: str) -> subprocess.Popen[str]:
        """`scavenger optimize JOB --yes`, with its report as JSON."""
        return self.begin("optimize", str(self.file), "--yes", *options, "-o", "json")

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Any command with the job's store, cloud and prices."""
        return subprocess.Popen(
            [sys.executable, "-m", "scavenger_cli", *arguments, "--store", self.store],
            env=self.whole_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def whole_environment(self) -> dict[str, str]:
        """Of a shell in which everything is set that the job needs."""
        folders = {
            f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")
        }
        return {
            **os.environ,
            **folders,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
            "SCAVENGER_PRICES": str(self.price_file),
            "SCAVENGER_ADDRESS": self.cloud.machines.address,
            "SCAVENGER_CONFIG": str(self.cloud.settings_file(self.folder)),
            MARK: self.mark,
            **self.cloud.environment,
            **self.environment,
        }

    def ask(self, *arguments: str) -> CloudOutcome:
        """As `begin`, with its answer as JSON, to its end."""
        return self.ended(self.begin(*arguments, "-o", "json"))

    def ended(self, process: subprocess.Popen[str], within_s: float = WITHIN_S) -> CloudOutcome:
        """Wait for a command."""
        outcome = ended(process, within_s)
        return CloudOutcome(outcome.code, outcome.stdout, outcome.stderr)

    def phase(self) -> str:
        """Where it is; empty while it does not run."""
        with Store.open(self.store) as store:
            running = store.running_jobs(self.file)
            return running[0].phase if running else ""

    def intents(self) -> tuple[Intent, ...]:
        """Of all jobs of the store."""
        with Store.open(self.store) as store:
            return store.intents()

    def workers_vms(self) -> list[RentedVm]:
        """The living VMs with a worker of this job that trains."""
        with Store.open(self.store) as store:
            running = store.running_jobs(self.file)
            if not running:
                return []
            intents = {one.id: one for one in store.intents(running[0].id)}
            hosts = {
                p.host for p in store.processes(running[0].id) if (p.role, p.state) == ("worker", "training")
            }
        return [
            vm
            for vm in self.cloud.vms()
            if vm.alive and vm.token in intents and self.cloud.machine(vm.id).address in hosts
        ]


class CloudOutcome(Outcome):
    """What a command left."""

    @property
    def job_id(self) -> str:
        """Of the report."""
        return str(self.report["job"]["id"])


def paid_usd(job: CloudJob, token: str = "") -> float:
    """What the cloud will bill, by its own times: of one launch, or of all."""
    return sum(
        vm.billed_s * job.prices[vm.vm][1 if vm.spot else 0] / 3600.0
        for vm in job.cloud.vms()
        if token in ("", vm.token)
    )


def assert_nothing_left_at(cloud: Rented) -> None:
    """Neither at the cloud nor on this machine."""
    vms = cloud.vms()
    assert [vm for vm in vms if vm.alive] == []
    assert cloud.leftovers() == ()
    wait_for(lambda: not [vm.id for vm in vms if not cloud.machine(vm.id).over.is_set()], within_s=10.0)


def assert_nothing_left(job: CloudJob) -> None:
    """Neither at the cloud, nor on this machine, nor in the store, and no launch came to two VMs."""
    assert_nothing_left_at(job.cloud)
    vms = job.cloud.vms()
    intents = job.intents()
    assert {one.state for one in intents} <= {"GONE"}
    tokens = [vm.token for vm in vms]
    assert len(set(tokens)) == len(tokens)
    assert set(tokens) <= {one.id for one in intents}


MakeJob = Callable[..., CloudJob]
"""Makes a job on the test's cloud."""
