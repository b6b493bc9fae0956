"""`python -m tests.cluster.demo`: an ElasticJob before a real API server, with two workers, then three, then one.

It prints a transcript, with how long each change took. Root, and `make test-kubernetes` once, are needed.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT / "tests" / "cloud")]

from elastic_world import ElasticWorld, PodRunner, until  # noqa: E402
from machines import AGENT, Machines, unavailable  # noqa: E402

from tests.cluster.binaries import missing  # noqa: E402
from tests.cluster.control_plane import running_control_plane  # noqa: E402
from tests.cluster.kubelet import NodeShape, nodes_of  # noqa: E402

EPOCHS, WITHIN_S = 60, 300.0
JOB: dict[str, Any] = {
    "job": {
        "train": "train:job",
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": "1..3", "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.99999, "max_epochs": EPOCHS, "epochs_hint": 10},
        "profile": {"steps": 4},
    },
    "code": {"configMap": "digits"},
    "store": {"claim": "digits"},
    "replicas": 2,
}


class Transcript:
    """Prints what is asked of the cluster, and what it answers."""

    def __init__(self, world: ElasticWorld) -> None:
        self._world = world

    def asked(self, command: str) -> None:
        print(f"$ {command}", flush=True)

    def jobs(self) -> None:
        """As `kubectl get ejob`."""
        self.asked("kubectl get ejob")
        status = self._world.status("digits")
        chosen, actual = status.get("chosen") or {}, status.get("actual") or {}
        cells = (
            *("digits", status.get("phase"), status.get("replicas"), status.get("step")),
            *(chosen.get("batchSize"), actual.get("dollars")),
        )
        print(f"{'NAME':10}{'PHASE':12}{'WORKERS':10}{'STEP':8}{'BATCH':8}DOLLARS")
        print(
            "{:10}{:12}{:<10}{:<8}{:<8}{}\n".format(*(("" if one is None else one) for one in cells)),
            flush=True,
        )

    def pods(self) -> None:
        """As `kubectl get pods`."""
        self.asked("kubectl get pods -L scavenger/role")
        print(f"{'NAME':50}{'STATUS':12}ROLE")
        for pod in self._world.core.list_namespaced_pod(self._world.namespace).items:
            role = (pod.metadata.labels or {}).get("scavenger/role", "")
            phase = "Terminating" if pod.metadata.deletion_timestamp else pod.status.phase
            print(f"{pod.metadata.name:50}{phase:12}{role}")
        print(flush=True)


def scaled(world: ElasticWorld, to: Transcript, workers: int) -> dict[str, float]:
    """Change `replicas`; returns after how long pods were asked for, or asked to end, and the workers were so many."""
    before = {pod.metadata.name for pod in world.pods("worker") if not pod.metadata.deletion_timestamp}
    to.asked(f"kubectl scale ejob digits --replicas={workers}")
    world.scale("digits", workers)
    begun_s = time.monotonic()

    def changed() -> bool:
        now = {pod.metadata.name for pod in world.pods("worker") if not pod.metadata.deletion_timestamp}
        return now != before

    until(changed, WITHIN_S, what="pods change")
    pods_s = time.monotonic() - begun_s
    until(lambda: world.status("digits").get("replicas") == workers, WITHIN_S, what=f"{workers} workers")
    workers_s = time.monotonic() - begun_s
    print(
        f"# pods changed after {pods_s:.2f} s, {workers} workers trained after {workers_s:.1f} s\n",
        flush=True,
    )
    return {"pods_s": pods_s, "workers_s": workers_s}


def stalls_ms(folder: Path) -> list[tuple[int, float]]:
    """Workers and standstill at each change of the view, by the job's records."""
    (file,) = folder.glob("claim-*/store/scavenger.db")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as store:
        rows = store.execute("select data from events where kind = 'view' order by id").fetchall()
    found = [json.loads(row[0]) for row in rows if row[0]]
    return [
        (int(one.get("workers") or len(one.get("members") or ())), 1e3 * float(one["stall_s"]))
        for one in found
        if one.get("stall_s") is not None
    ]


def main() -> int:
    """Play the demo; returns the exit status."""
    if reason := missing() or unavailable():
        print(reason, file=sys.stderr)
        return 2
    nodes = tuple(NodeShape(f"node-{name}", "zone-1", cpus=4, memory_gib=16) for name in "abc")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as made, Machines(AGENT) as machines:
        folder = Path(made)
        (folder / "plane").mkdir()
        with (
            running_control_plane(folder / "plane") as plane,
            nodes_of(plane, *nodes, runner=PodRunner(plane, machines, folder)),
        ):
            world = ElasticWorld(plane, folder, "training")
            to = Transcript(world)
            try:
                world.start_operator()
                world.add_code("digits", ROOT / "examples" / "digits" / "train.py")
                world.add_claim("digits")
                to.asked("kubectl apply -f digits.yaml")
                world.add("digits", JOB)
                until(lambda: world.status("digits").get("phase") == "Running", WITHIN_S, what="it runs")
                to.jobs()
                to.pods()
                figures["to three"] = scaled(world, to, 3)
                to.jobs()
                to.pods()
                figures["to one"] = scaled(world, to, 1)
                to.jobs()
                until(
                    lambda: world.status("digits").get("phase") in ("Succeeded", "Failed", "Stopped"),
                    2 * WITHIN_S,
                )
                to.jobs()
                to.asked("kubectl get events --field-selector involvedObject.kind=ElasticJob")
                for reason, message in world.events():
                    print(f"{reason:16}{message}")
                figures["standstill ms by workers"] = stalls_ms(folder)
                to.asked("kubectl delete ejob digits")
                world.delete("digits")
                until(lambda: not world.core.list_namespaced_pod("training").items, WITHIN_S, what="no pods")
                to.pods()
            finally:
                world.close()
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
