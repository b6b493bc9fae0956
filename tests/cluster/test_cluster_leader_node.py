"""The loss of the node that carries the leader of an ElasticJob: another leader goes on elsewhere, nothing is twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_world import ElasticWorld, PodRunner, until
from machines import AGENT, Machines, unavailable
from test_cluster_operator import BEGUN_S, TRAIN, digits

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

NODES = tuple(NodeShape(f"carries-{name}", "zone-1", cpus=6, memory_gib=32) for name in "abc")
EPOCHS, STEPS = 40, 45
"""Of the job; steps are of each epoch of the example, with batches of 32."""


@pytest.fixture
def kubelet(plane: ControlPlane, tmp_path: Path) -> Iterator[Kubelet]:
    if reason := unavailable():
        pytest.skip(reason)
    (tmp_path / "volumes").mkdir()
    with Machines(AGENT) as machines:
        with nodes_of(plane, *NODES, runner=PodRunner(plane, machines, tmp_path / "volumes")) as found:
            yield found
        for node in plane.core().list_node().items:
            if node.metadata.name.startswith("carries-"):
                plane.core().delete_node(node.metadata.name)


def test_a_job_whose_leader_is_lost_with_its_node_goes_on_elsewhere_and_trains_nothing_twice(
    plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    world = ElasticWorld(plane, tmp_path, f"node-{tmp_path.name[-8:].replace('_', '-').lower().strip('-')}")
    world.add_code("digits", TRAIN)
    world.add_claim("digits")
    try:
        world.start_operator()
        world.add("digits", {**digits(EPOCHS), "replicas": 1})
        until(lambda: world.status("digits").get("phase") == "Running", BEGUN_S, what="it runs")
        (claim,) = (tmp_path / "volumes").glob("claim-*")
        until(
            lambda: list(claim.glob("job/checkpoints/*/step-*/manifest.json")), BEGUN_S, what="a checkpoint"
        )
        (first,) = world.pods("leader")

        kubelet.lose(first.spec.node_name)
        kubelet.delete(first.spec.node_name)

        def another() -> Any:
            leaders = world.pods("leader")
            assert len(leaders) <= 1, "one leader at a time"
            return [pod for pod in leaders if pod.metadata.uid != first.metadata.uid]

        (second,) = until(another, BEGUN_S, what="another leader")
        until(lambda: _rows(claim)[0] == 2, BEGUN_S, what="it goes on")
        status = until(lambda: _ended(world), BEGUN_S, what="the end")

        assert status["phase"] == "Succeeded", status
        assert second.metadata.name == first.metadata.name
        attempts, starts = _rows(claim)
        assert (attempts, starts) == (2, 2), "its first runner knows that the one before is dead"
        (file,) = claim.glob("job/.scavenger/*/record.json")
        report = json.loads(file.read_text())["job"]["report"]
        assert report["steps"] == EPOCHS * STEPS, "each sample of each epoch was trained on once"
        assert "LeaderLost" in [reason for reason, _ in world.events()]
    finally:
        world.close()


def _rows(claim: Path) -> tuple[int, int]:
    """Attempts of the job, and runners that were started for it."""
    with sqlite3.connect(f"file:{claim / 'store' / 'scavenger.db'}?mode=ro", uri=True) as store:
        ((attempts, starts),) = store.execute(
            "SELECT jobs.attempts, submissions.starts FROM jobs JOIN submissions ON jobs.id = submissions.id"
        ).fetchall()
    return attempts, starts


def _ended(world: ElasticWorld) -> dict[str, Any] | None:
    status = world.status("digits")
    return status if status.get("phase") in ("Succeeded", "Stopped", "Failed") else None
