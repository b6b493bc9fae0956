"""A command on pods: searched over two sizes, a pod is killed, checkpoints are carried, and the bill is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import PRICES, ClusterJob
from command_program import EPOCHS, PROGRAM, RUN, STEPS
from machines import Machines
from pod_machines import MachineRunner

from scavenger.store import Store
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(420)]

NODES = tuple(NodeShape(f"command-{name}", "zone-1", cpus=8, memory_gib=32) for name in "ab")
WITHIN_S = 300.0


@pytest.fixture
def kubelet(plane: ControlPlane, machines: Machines) -> Iterator[Kubelet]:
    with nodes_of(plane, *NODES, runner=MachineRunner(machines)) as found:
        yield found


def test_a_command_trains_on_pods_through_the_loss_of_one_and_is_billed(
    plane: ControlPlane, kubelet: Kubelet, machines: Machines, tmp_path: Path
) -> None:
    job = ClusterJob(
        plane,
        machines,
        tmp_path,
        namespace="commands",
        workers=2,
        files={"program.py": PROGRAM},
        run=RUN,
        search={"workers": [1, 2], "batch_size": [32], "strategy": "full"},
        goal={"metric": "val_error", "target": 1e-9, "max_epochs": EPOCHS, "epochs_hint": 10},
        checkpoint={"path": "./saved", "every_steps": 40},
        objective="time",
        profile={"steps": 5},
        elastic={"policy": "fixed"},
    )
    try:
        first, second = job.until(job.workers, WITHIN_S)
        job.until(lambda: list(tmp_path.glob("saved/*/command-files/*")), WITHIN_S)
        kubelet.pod(second).kill()
        job.until(lambda: job.workers() and set(job.workers()) - {first, second}, WITHIN_S)
        out, err = job.process.communicate(timeout=WITHIN_S)
    finally:
        job.process.kill()

    assert job.process.returncode in (0, 4), err
    report = json.loads(out)
    journal = [json.loads(line) for line in Path(report["measurements_path"]).read_text().splitlines()]
    assert {line["configuration"]["workers"] for line in journal if line["kind"] == "measurement"} == {1, 2}
    # each step counts once, and the program's own count of samples is the job's: nothing was repeated or left out in it
    assert report["steps"] == STEPS * EPOCHS
    state = json.loads(Path(report["model_path"]).read_text())
    assert (state["epoch"], state["samples"]) == (EPOCHS, 640 * EPOCHS)
    assert state["error"] == pytest.approx(10.0 * 0.99 ** (STEPS * EPOCHS))
    with Store.open(job.store) as opened:
        intents = opened.intents()
    assert {intent.state for intent in intents} == {"GONE"}
    per_hour = 2 * PRICES["usd_per_cpu_hour"] + 4 * PRICES["usd_per_gib_hour"]
    billed = [(intent.charges.billed_s, intent.charges.spent_usd) for intent in intents]
    assert all(seconds >= 60.0 for seconds, _ in billed), "a minute at least"
    assert [usd for _, usd in billed] == pytest.approx([seconds / 3600 * per_hour for seconds, _ in billed])
    assert report["actual"]["cost_usd"] == pytest.approx(sum(usd for _, usd in billed))
    left = plane.core().list_namespaced_pod(job.namespace).items
    assert [pod.metadata.name for pod in left if pod.status.phase in ("Pending", "Running")] == []
