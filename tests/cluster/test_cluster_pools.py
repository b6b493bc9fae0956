"""Three ElasticJobs in one pool before a real API server: jobs wait, grow and shrink for each other, and for a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_world import ElasticWorld, PodRunner, until
from kubernetes.client.exceptions import ApiException
from machines import ROOT, Machines
from sleeping_loop import SLEEPING_LOOP
from test_cluster_replicas import Leaders, kill_the_one_that_acts

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LABEL = "tests/pool"
SLOTS_OF_A_NODE = 2
# the last one is by far the emptiest, so the scheduler takes it for leaders
NODES = (
    *(
        NodeShape(f"pool-{name}", "zone-1", cpus=4, memory_gib=8, labels=((LABEL, "shared"),))
        for name in "abc"
    ),
    NodeShape("pool-leaders", "zone-1", cpus=200, memory_gib=800),
)
SLOTS = 3 * SLOTS_OF_A_NODE
SETTINGS = f"""
[pool.shared]
nodes = {{"{LABEL}" = "shared"}}
vm = "2cpu-4gib"
policy = "even"
"""
WITHIN_S = 240.0


def looping(least: int, most: int, epochs: int) -> dict[str, Any]:
    """`spec` of an ElasticJob that searches nothing and begins with all that it may have."""
    return {
        "pool": "shared",
        "code": {"configMap": "loop"},
        "job": {
            "train": "train:job",
            "search": {"workers": [least], "batch_size": [48]},
            "elastic": {"min": least, "max": most},
            "goal": {"max_epochs": epochs},
            "profile": {"steps": 3},
            "checkpoint": {"path": "checkpoints", "every_steps": 40},
        },
    }


class Census:
    """The most pods of workers that there ever were at once."""

    def __init__(self, world: ElasticWorld) -> None:
        self._world, self.most, self._over = world, 0, threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while not self._over.wait(0.1):
            self.most = max(self.most, len(self._world.pods("worker")))

    def close(self) -> None:
        self._over.set()
        self._thread.join(15)


@pytest.fixture
def world(plane: ControlPlane, machines: Machines, tmp_path: Path) -> Iterator[ElasticWorld]:
    (tmp_path / "train.py").write_text(SLEEPING_LOOP)
    with nodes_of(plane, *NODES, runner=PodRunner(plane, machines, tmp_path)):
        found = ElasticWorld(plane, tmp_path, "pools", settings=SETTINGS)
        found.add_code("loop", tmp_path / "train.py")
        yield found
        found.close()


def test_jobs_of_a_pool_grow_shrink_and_wait_for_each_other_and_for_a_node(world: ElasticWorld) -> None:
    """Operators are killed while jobs begin, and while a node is drained."""
    leaders, census = Leaders(world), Census(world)
    try:
        world.start_operator()
        world.start_operator()
        for name, spec in (("long", looping(1, 3, 10_000)), ("short", looping(3, 3, 10_000))):
            world.add_claim(name)
            world.add(name, {**spec, "store": {"claim": name}})
        kill_the_one_that_acts(world)
        trains(world, long=3, short=3)
        assert {name: len(uids) for name, uids in leaders.uids.items()} == {"long": 1, "short": 1}
        with pytest.raises(ApiException):  # the pool alone decides
            world.change("long", replicas=2)

        world.add_claim("third")
        world.add("third", {**looping(3, 3, 20), "priority": 5, "store": {"claim": "third"}})
        until(lambda: world.status("short").get("phase") == "Waiting", WITHIN_S, what="one is paused for it")
        step = world.status("short")["step"]
        trains(world, third=3, long=3)
        assert not world.pods("worker", name="short")
        (scaled,) = [one for one in world.status("short")["conditions"] if one["type"] == "Scaled"]
        assert (scaled["status"], scaled["reason"]) == ("False", "Waiting")
        waits = "it waits for 3 slots of pool shared: of 6, "
        assert scaled["message"].startswith(waits)
        shown = world.shown()
        assert (shown["long"]["Share"], shown["long"]["Workers"], shown["long"].get("Waits")) == (
            3,
            3,
            None,
        ), shown
        assert (shown["short"]["Phase"], shown["short"]["Share"]) == ("Waiting", 0), shown
        assert shown["short"]["Waits"].startswith(waits), shown

        is_shown_to_who_may_read_it(world)
        until(lambda: world.status("third").get("phase") == "Succeeded", WITHIN_S, what="the third one ends")
        trains(world, long=3, short=3)
        until(lambda: world.status("short")["step"] > step, WITHIN_S, what="it goes on where it was")

        assert census.most <= SLOTS
        drain(world, "pool-c")  # whose pods end while others take their places
        kill_the_one_that_acts(world)
        trains(world, long=1, short=3)
        assert not [pod for pod in world.pods("worker") if pod.spec.node_name == "pool-c"]

        world.delete("short")
        trains(world, long=3)
        assert not world.pods("worker", name="short")
        world.delete("long")
        until(lambda: not world.pods("worker") and not world.pods("leader"), WITHIN_S, what="nothing is left")
    finally:
        census.close()
        leaders.close()


def trains(world: ElasticWorld, **workers: int) -> None:
    """Wait until jobs have these shares, train with so many workers, and no other pods are there."""

    def so() -> bool:
        found = {name: world.status(name) for name in workers}
        return all(
            (one.get("share") or {}).get("workers") == one.get("replicas") == workers[name]
            and len(world.pods("worker", name=name)) == workers[name]
            for name, one in found.items()
        )

    try:
        until(so, WITHIN_S, what=f"they train with {workers}")
    except AssertionError as error:
        said = {name: world.status(name) for name in workers}
        raise AssertionError(f"{error}: {said}\n{world.operator_log()[-6000:]}") from error


def is_shown_to_who_may_read_it(world: ElasticWorld) -> None:
    """`scavenger pool`, by the rights of an account of its own."""
    viewer = world.add_viewer("viewer", "scavenger-pools", "scavenger-view")
    stranger = world.add_viewer("stranger", "scavenger-view")

    def scavenger(kubeconfig: Path, *arguments: str) -> tuple[int, str]:
        place = ("--in", "kubernetes/tests", "--lease-namespace", world.namespace)
        done = subprocess.run(
            [sys.executable, "-m", "scavenger_cli", "pool", *arguments, *place],
            env={
                **os.environ,
                "KUBECONFIG": str(kubeconfig),
                "COLUMNS": "200",
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    code, text = scavenger(viewer, "-o", "json")
    assert code == 0, text
    [pool] = json.loads(text)["pools"]
    assert (pool["name"], pool["policy"], pool["slots"], pool["usd_per_slot_hour"]) == (
        "shared",
        "even",
        SLOTS,
        None,
    )
    jobs = {one["name"]: one for one in pool["jobs"]}
    assert {name: (one["slots"], one["state"]) for name, one in jobs.items()} == {
        "long": (3, "training"),
        "short": (0, "waiting"),
        "third": (3, "training"),
    }
    code, text = scavenger(viewer)
    assert code == 0, text
    assert f"Pool shared: {SLOTS} slots, shared out by even; 0 free" in text
    code, text = scavenger(viewer, "explain", "short")
    assert code == 0, text
    assert text.startswith("short (")
    code, text = scavenger(viewer, "explain", "nobody")
    assert code != 0
    assert "no ElasticJob 'nobody' has or awaits a share of shared; `kubectl get ejob` lists them" in text
    code, text = scavenger(stranger)
    assert code != 0
    assert text.count("\n") == 1, text
    assert "cannot list resource" in text


def drain(world: ElasticWorld, node: str) -> None:
    """As `kubectl drain --disable-eviction` does."""
    world.core.patch_node(node, {"spec": {"unschedulable": True}})
    for pod in world.pods("worker"):
        if pod.spec.node_name == node:
            world.core.delete_namespaced_pod(pod.metadata.name, world.namespace)
