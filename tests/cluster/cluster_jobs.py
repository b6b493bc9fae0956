"""Jobs on a cluster of the tests: `scavenger optimize` in a process of its own, and what its pods do meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machines import ROOT, Machines
from ruamel.yaml import YAML

from scavenger.store import Store
from tests.cluster.control_plane import ControlPlane

EXAMPLE = ROOT / "examples" / "digits"
PRICES = {"usd_per_cpu_hour": 0.03, "usd_per_gib_hour": 0.004}


class ClusterJob:
    """The example of digits on pods of a namespace of its own; `close` ends it.

    Args:
        namespace: Begin of the namespace's name.
        workers: How many it trains with.
        spec: Further keys of its job file.
        infra: Further keys of its `infra`.
        files: Further files of its folder.

    Attributes:
        store: URL of its store.
        process: The command.
    """

    def __init__(
        self,
        plane: ControlPlane,
        machines: Machines,
        folder: Path,
        *,
        namespace: str,
        workers: int,
        infra: dict[str, Any] | None = None,
        files: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        namespace = f"{namespace}-{uuid.uuid4().hex[:8]}"  # of this try of the test
        self._plane, self.namespace, self._workers = plane, namespace, workers
        self.folder, self.store = folder, f"sqlite:///{folder}/jobs.db"  # where it must not be packed
        plane.core().create_namespace({"metadata": {"name": namespace}})
        written = YAML(typ="safe").load((EXAMPLE / "job.yaml").read_text())
        where = {"at": "kubernetes/tests", "namespace": namespace, "image": "scavenger:tests", **PRICES}
        written |= {
            "infra": {**where, **(infra or {})},
            "resources": {"cpus": 2, "memory": 4},
            "search": {"strategy": "full", "workers": [workers], "batch_size": [32]},
            "goal": {"metric": "val_accuracy", "target": 0.9999, "max_epochs": 30, "epochs_hint": 10},
            "profile": {"steps": 8},
            **spec,
        }
        if "run" in spec:
            del written["train"]
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        (folder / "job.yaml").write_text(json.dumps(written))
        shutil.copy(EXAMPLE / "train.py", folder)
        self.environment = {
            **os.environ,
            **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
            "SCAVENGER_ADDRESS": machines.address,
            "SCAVENGER_STORE": self.store,
            "KUBECONFIG": str(plane.kubeconfig()),
        }
        audit = () if "run" in spec else ("--audit",)  # which samples a command reads is its own affair
        self.process = self.command("optimize", str(folder / "job.yaml"), "--yes", *audit, "-o", "json")

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the user's."""
        return subprocess.Popen(
            [sys.executable, "-m", "scavenger_cli", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def pods(self) -> list[Any]:
        """All pods of the namespace."""
        return list(self._plane.core().list_namespaced_pod(self.namespace).items)

    def workers(self, count: int | None = None) -> dict[str, str]:
        """The pods of workers that train, with their nodes, once there are as many as it trains with."""
        try:
            with Store.open(self.store) as opened:
                jobs = [job for job in opened.jobs(limit=1) if job.phase == "running"]
                hosts = {
                    one.host
                    for job in jobs
                    for one in opened.processes(job.id)
                    if (one.role, one.state) == ("worker", "training")
                }
        except Exception:  # noqa: BLE001 - the store is not there yet
            return {}
        found = {
            pod.metadata.name: pod.spec.node_name
            for pod in self.pods()
            if pod.status.pod_ip in hosts and pod.status.phase == "Running"
        }
        return found if len(found) == (count or self._workers) else {}

    def until(self, what: Callable[[], Any], within_s: float = 120.0) -> Any:
        """Wait until something is so of the job, which runs meanwhile; returns what was found."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if found := what():
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"it ended first, {self.process.returncode}: {self.said()}")
            time.sleep(0.2)
        raise AssertionError(f"it did not happen within {within_s} s: {self.said()}")

    def said(self, within_s: float = 10.0) -> tuple[str, str]:
        """What the command has written; it is ended."""
        self.process.terminate()
        try:
            return self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()

    def close(self) -> None:
        """End it, with its pods."""
        if self.process.poll() is None:
            self.said(60.0)
        self._plane.core().delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)
