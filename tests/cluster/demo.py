"""`python -m tests.cluster.demo`: an ElasticJob before a real API server, with two workers, then three, then one.

It prints a transcript, with how long each change took, and in between switches a node off. Root, and `make
test-kubernetes` once, are needed. SIGINT and SIGTERM end all that it has started.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT / "tests" / "cloud")]

from elastic_world import ElasticWorld, PodRunner, until  # noqa: E402
from machines import AGENT, Machines, unavailable  # noqa: E402

from scavenger.control.training.segments import lines_of  # noqa: E402
from tests.cluster.binaries import missing  # noqa: E402
from tests.cluster.control_plane import running_control_plane  # noqa: E402
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of  # noqa: E402

EPOCHS, WITHIN_S = 150, 300.0
NAME = "digits"
NODES = tuple(NodeShape(f"node-{name}", "zone-1", cpus=6, memory_gib=32) for name in "abcd")
JOB: dict[str, Any] = {
    "job": {
        "train": "train:job",
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": "1..3", "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.99999, "max_epochs": EPOCHS, "epochs_hint": 10},
        "profile": {"steps": 4},
    },
    "code": {"configMap": NAME},
    "store": {"claim": NAME},
    "replicas": 2,
}
_STEPS_BETWEEN = 40
_ENDED = ("Succeeded", "Failed", "Stopped")


@dataclass
class Figures:
    """What was measured.

    Attributes:
        pods_s: From a change of `replicas` until pods were asked for, or asked to end, by the number of workers.
        workers_s: From the same until `status` told of so many workers.
        stall_ms: How long the workers stood still when they became so many.
        lost_s: From a node's end until the workers that were left took the next step.
        replaced_s: From a node's end until `status` told of as many workers as before.
    """

    pods_s: dict[int, float] = field(default_factory=dict)
    workers_s: dict[int, float] = field(default_factory=dict)
    stall_ms: dict[int, float] = field(default_factory=dict)
    lost_s: float = 0.0
    replaced_s: float = 0.0


class Demo:
    """Asks the cluster for changes, prints the answers and measures them.

    Args:
        world: With an operator, and without jobs.
        folder: With the volumes.
        write: Gets each line of the transcript.
    """

    def __init__(
        self, world: ElasticWorld, kubelet: Kubelet, folder: Path, write: Callable[[str], None]
    ) -> None:
        self._world, self._kubelet, self._folder, self._write = world, kubelet, folder, write
        self.figures = Figures()

    # ---- what it prints -------------------------------------------------------------------------------------

    def asked(self, command: str) -> None:
        """A command, as a user types it."""
        self._write(f"$ {command}")

    def jobs(self) -> None:
        """As `kubectl get ejob`."""
        self.asked("kubectl get ejob")
        status = self._world.status(NAME)
        chosen, actual = status.get("chosen") or {}, status.get("actual") or {}
        cells = (
            *(NAME, status.get("phase"), status.get("replicas"), status.get("step")),
            *(chosen.get("batchSize"), actual.get("dollars")),
        )
        self._write(f"{'NAME':10}{'PHASE':12}{'WORKERS':10}{'STEP':8}{'BATCH':8}DOLLARS")
        texts = ["" if one is None else str(one) for one in cells]
        self._write("{:10}{:12}{:10}{:8}{:8}{}\n".format(*texts))

    def pods(self) -> None:
        """As `kubectl get pods`."""
        self.asked("kubectl get pods -o wide -L scavenger/role")
        self._write(f"{'NAME':50}{'STATUS':14}{'NODE':10}ROLE")
        for pod in self._world.core.list_namespaced_pod(self._world.namespace).items:
            role = (pod.metadata.labels or {}).get("scavenger/role", "")
            phase = "Terminating" if pod.metadata.deletion_timestamp else pod.status.phase
            self._write(f"{pod.metadata.name:50}{phase:14}{pod.spec.node_name or '':10}{role}")
        self._write("")

    # ---- what it does ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A job with two workers, which trains."""
        self.asked("kubectl apply -f digits.yaml       # replicas: 2")
        self._world.add(NAME, JOB)
        self._until(lambda: self._world.status(NAME).get("phase") == "Running", "it runs")
        self._steps_on()
        self.jobs()
        self.pods()

    def scale(self, workers: int) -> None:
        """Change `replicas`."""
        before, views = self._workers(), len(self._views())
        self.asked(f"kubectl scale ejob {NAME} --replicas={workers}")
        self._world.scale(NAME, workers)
        begun_s = time.monotonic()
        self._until(lambda: self._workers() != before, "pods change")
        pods_s = self.figures.pods_s[workers] = time.monotonic() - begun_s
        self._until(lambda: self._world.status(NAME).get("replicas") == workers, f"{workers} workers")
        workers_s = self.figures.workers_s[workers] = time.monotonic() - begun_s
        came = self._until(lambda: self._views()[views:], "the view is on record")
        stall_ms = self.figures.stall_ms[workers] = 1e3 * float(came[-1]["stall_s"])
        self._write(
            f"# pods changed after {pods_s:.2f} s, {workers} trained after {workers_s:.1f} s; those that stayed "
            f"stood still for {stall_ms:.0f} ms\n"
        )
        self._steps_on()
        self.jobs()
        self.pods()

    def lose_node(self) -> None:
        """Switch off a node that has workers alone, and wait until other pods have taken their places."""
        replicas = int(self._world.status(NAME)["replicas"])
        others = {pod.spec.node_name for role in ("leader", "aggregator") for pod in self._world.pods(role)}
        node = sorted({pod.spec.node_name for pod in self._world.pods("worker")} - others)[0]
        before = len(self._steps())
        self._write(f"# the power of {node} fails")
        self._kubelet.lose(node)
        begun_s = time.monotonic()

        def fewer() -> bool:
            return self._world.status(NAME).get("replicas") != replicas

        self._until(fewer, "its worker is missed")
        self._until(lambda: len(self._steps()) > before + 1, "it trains on")
        lost_s = self.figures.lost_s = self._gap_s(before)
        self._until(lambda: not fewer(), "another pod has taken its place")
        replaced_s = self.figures.replaced_s = time.monotonic() - begun_s
        self._write(
            f"# training went on after {lost_s:.1f} s; with {replicas} workers again after {replaced_s:.0f} s\n"
        )
        self._write(f"# the cloud takes {node} out of the cluster\n")
        self._kubelet.delete(node)
        self.jobs()
        self.pods()

    def finish(self) -> None:
        """Wait for the end of the job, and delete it."""
        self._until(lambda: self._world.status(NAME).get("phase") in _ENDED, "the end", 3 * WITHIN_S)
        self.jobs()
        self.asked("kubectl get events --field-selector involvedObject.kind=ElasticJob")
        for reason, message in self._world.events():
            self._write(f"{reason:16}{message}")
        self._write("")
        self.asked(f"kubectl delete ejob {NAME}")
        self._world.delete(NAME)
        self._until(lambda: not self._world.core.list_namespaced_pod(self._world.namespace).items, "no pods")
        self.pods()

    # ---- what it reads --------------------------------------------------------------------------------------

    def _until(self, ask: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
        return until(ask, within_s, what=what)

    def _workers(self) -> set[str]:
        pods = self._world.pods("worker")
        return {pod.metadata.name for pod in pods if not pod.metadata.deletion_timestamp}

    def _steps_on(self) -> None:
        """Let it train for some steps."""
        before = len(self._steps())
        self._until(lambda: len(self._steps()) >= before + _STEPS_BETWEEN, "steps")

    def _steps(self) -> list[float]:
        """When each step was taken, by the job's own clock, seconds."""
        (file,) = self._folder.glob("claim-*/job/.scavenger/*/measurements.jsonl")
        lines = [line for line in lines_of(file) if b'"kind":"step"' in line[:40]]
        return [float(json.loads(line)["at_s"]) for line in lines]

    def _gap_s(self, since: int) -> float:
        """The longest time between two steps since then."""
        at_s = self._steps()[max(0, since - 1) :]
        return max((late - early for early, late in pairwise(at_s)), default=0.0)

    def _views(self) -> list[dict[str, Any]]:
        (file,) = self._folder.glob("claim-*/store/scavenger.db")
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as store:
            rows = store.execute("select data from events where kind = 'view' order by id").fetchall()
        return [json.loads(row[0]) for row in rows if row[0]]


def cannot() -> str:
    """Why it cannot be played on this machine; empty if it can."""
    return missing() or unavailable()


def play(folder: Path, write: Callable[[str], None], *, whole: bool = True) -> Figures:
    """Play the demo in an empty folder; returns what was measured.

    Args:
        whole: Whether to wait for the job's end.
    """
    (folder / "plane").mkdir()
    with (
        Machines(AGENT) as machines,
        running_control_plane(folder / "plane") as plane,
        nodes_of(plane, *NODES, runner=PodRunner(plane, machines, folder)) as kubelet,
    ):
        world = ElasticWorld(plane, folder, "training")
        demo = Demo(world, kubelet, folder, write)
        try:
            world.start_operator()
            world.add_code(NAME, ROOT / "examples" / "digits" / "train.py")
            world.add_claim(NAME)
            demo.begin()
            demo.scale(3)
            demo.lose_node()
            demo.scale(1)
            if whole:
                demo.finish()
        finally:
            world.close()
    return demo.figures


def main() -> int:
    """Play the demo; returns the exit status."""
    if reason := cannot():
        print(reason, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as made:
        try:
            play(Path(made), lambda line: print(line, flush=True))
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
