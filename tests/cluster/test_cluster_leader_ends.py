"""The ends of a leader's pod: lost and started again on its claim, and by itself once nobody needs it any more."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import EXAMPLE, PRICES
from elastic_world import bound_claim
from ruamel.yaml import YAML
from test_cluster_leader import (  # noqa: F401 - fixtures
    _secrets,
    command,
    kubelet,
    namespace,
)
from waiting import wait_for

from tests.cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

Command = Callable[..., subprocess.CompletedProcess[str]]
WITHIN_S = 240.0


def led_job(folder: Path, at: str, name: str, *, infra: dict[str, Any] | None = None, **spec: Any) -> str:
    """Write a job that a pod is to lead; returns the path of its file."""
    folder.mkdir()
    written = YAML(typ="safe").load((EXAMPLE / "job.yaml").read_text())
    where = {"at": "kubernetes/tests", "namespace": at, "image": "scavenger:tests", **PRICES}
    written |= {
        "name": name,
        "infra": {**where, "leader_service_account": "scavenger-leader", **(infra or {})},
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": [1], "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.99999, "max_epochs": 2, "epochs_hint": 2},
        "profile": {"steps": 4},
        **spec,
    }
    (folder / "job.yaml").write_text(json.dumps(written))
    shutil.copy(EXAMPLE / "train.py", folder)
    return str(folder / "job.yaml")


def leader_of(plane: ControlPlane, at: str) -> Any:
    """The leader's pod; None if there is none."""
    pods = plane.core().list_namespaced_pod(at, label_selector="scavenger/role=leader").items
    return pods[0] if pods else None


def test_a_leader_that_is_lost_is_started_again_on_its_claim_and_its_job_goes_on(
    plane: ControlPlane,
    kubelet: Any,  # noqa: F811
    tmp_path: Path,
    command: Command,  # noqa: F811
    namespace: str,  # noqa: F811
) -> None:
    bound_claim(plane.core(), namespace, "leaders")
    path = led_job(
        tmp_path / "job",
        namespace,
        "kept",
        infra={"leader_claim": "leaders"},
        goal={"metric": "val_accuracy", "target": 0.99999, "max_epochs": 40, "epochs_hint": 10},
        checkpoint={"path": "checkpoints", "every": "2s"},
    )
    begun = command("optimize", path, "--yes", "--detach")
    assert begun.returncode == 0, begun.stderr
    volume = tmp_path / "volumes" / f"claim-{namespace}-leaders"
    wait_for(lambda: list(volume.glob("leaders/*/job/checkpoints/*/step-*")), within_s=WITHIN_S)
    first = leader_of(plane, namespace)
    assert first is not None
    busy = command("resume", "kept", "--yes", "--detach")
    assert busy.returncode != 0, "one that is there is not started again"
    assert "scavenger leader follow kept" in busy.stderr

    plane.core().delete_namespaced_pod(first.metadata.name, namespace, grace_period_seconds=0)

    def state() -> str:
        (found,) = json.loads(command("leader", "list", "-o", "json").stdout)["leaders"]
        return str(found["state"])

    wait_for(lambda: state() == "gone")
    (database,) = volume.glob("leaders/*/store/scavenger.db")

    def counts() -> tuple[int, int]:
        """Attempts of the job, and runners that were started for it."""
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            ((attempts, starts),) = connection.execute(
                "SELECT jobs.attempts, submissions.starts FROM jobs JOIN submissions ON jobs.id = submissions.id"
            ).fetchall()
        return attempts, starts

    assert counts() == (1, 1)
    again = command("resume", "kept", "--yes", "--detach")
    assert again.returncode == 0, again.stderr
    began = time.monotonic()
    wait_for(lambda: counts()[0] == 2, within_s=WITHIN_S)
    print(f"the job goes on {time.monotonic() - began:.1f} s after its pod has begun")
    assert counts() == (2, 2), "the first runner in the new pod knows that the one before is dead"
    second = leader_of(plane, namespace)
    assert second is not None
    assert second.metadata.uid != first.metadata.uid

    followed = command("leader", "follow", "kept", "-o", "json", within_s=WITHIN_S)

    assert followed.returncode in (0, 4), followed.stderr
    told = json.loads(followed.stdout)
    assert told["state"] == "target_missed"
    record = json.loads((Path(told["folder"]) / "record.json").read_text())
    assert record["job"]["attempts"] == 2
    wait_for(lambda: not plane.core().list_namespaced_pod(namespace).items)
    wait_for(lambda: not _secrets(plane, namespace))


def test_a_leader_that_nobody_fetches_the_result_of_ends_by_itself(
    plane: ControlPlane,
    kubelet: Any,  # noqa: F811
    tmp_path: Path,
    command: Command,  # noqa: F811
    namespace: str,  # noqa: F811
) -> None:
    path = led_job(tmp_path / "job", namespace, "unfetched", limits={"leader": "5s"})
    begun = command("optimize", path, "--yes", "--detach")
    assert begun.returncode == 0, begun.stderr

    def ended() -> bool:
        pod = leader_of(plane, namespace)
        return pod is not None and pod.status.phase == "Succeeded"

    wait_for(ended, within_s=WITHIN_S)
    workers = plane.core().list_namespaced_pod(namespace, label_selector="scavenger/role=worker").items
    assert [pod for pod in workers if pod.status.phase in ("Pending", "Running")] == []
    (listed,) = json.loads(command("leader", "list", "-o", "json").stdout)["leaders"]
    assert listed["state"] == "gone"
    left = command("leader", "end", "unfetched", "--yes")
    assert left.returncode == 0, left.stderr
    wait_for(lambda: not plane.core().list_namespaced_pod(namespace).items)
    wait_for(lambda: not _secrets(plane, namespace))
