"""Two operators before a real API server, of which the one that acts is killed again and again.

Nothing may be doubled or lost by it: each job has the one leader that it is to have, and comes to the phase that it is
to come to.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_world import ElasticWorld, PodRunner, until
from kubernetes import watch
from machines import ROOT, Machines

from scavenger.domain.elastic_job import GROUP, JOB_LABEL, PLURAL, ROLE_LABEL, VERSION
from scavenger.store import Store
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = 8
TAKEN_OVER_S = 40.0
"""A lease lasts 15 s from its last renewal; the machine is busy."""
SPEC: dict[str, Any] = {
    "job": {
        "train": "train:job",
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": "1..2", "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.99999, "max_epochs": 8, "epochs_hint": 8},
        "profile": {"steps": 4},
        "checkpoint": {"path": "checkpoints", "every": "3s"},
    },
    "code": {"configMap": "digits"},
    "store": {"claim": "digits"},
}


class Leaders:
    """Every leader's pod that there ever was."""

    def __init__(self, world: ElasticWorld) -> None:
        self._world = world
        self.uids: dict[str, set[str]] = {}
        self._over = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        core, labels = self._world.plane.core(), f"{ROLE_LABEL}=leader"
        while not self._over:
            stream = watch.Watch().stream(
                core.list_namespaced_pod, self._world.namespace, label_selector=labels, timeout_seconds=5
            )
            for event in stream:
                meta = event["object"].metadata
                self.uids.setdefault(meta.labels[JOB_LABEL], set()).add(meta.uid)

    def close(self) -> None:
        self._over = True
        self._thread.join(15)


def kill_the_one_that_acts(world: ElasticWorld) -> None:
    """End it without a word; another one takes its place as a Deployment would have it, and has to wait its turn."""
    acting = until(world.acting_operator, TAKEN_OVER_S, what="one acts")
    acting.kill()
    acting.wait()
    world.start_operator()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_no_leader_is_doubled_or_lost_whenever_the_operator_that_acts_is_killed(
    plane: ControlPlane, tmp_path: Path, seed: int
) -> None:
    """Jobs are applied, report, wait, go on, end and are deleted in any order; their leaders are played."""
    chance = random.Random(seed)
    node = NodeShape(f"replicas-{seed}", cpus=64, memory_gib=256)
    with nodes_of(plane, node):
        world = ElasticWorld(plane, tmp_path, f"replicas-{seed}")
        leaders = Leaders(world)
        try:
            world.start_operator()
            world.start_operator()
            world.add_claim("digits")
            begun = _played(world, chance)
            until(lambda: world.acting_operator() is not None, TAKEN_OVER_S, what="one acts in the end")
            for name, (phase, _) in begun.items():
                until(lambda n=name, p=phase: _phase(world, n) == p, 60.0, what=f"{name} is {phase}")
            time.sleep(2.0)  # a leader too many would be started by now
            starts = {name: len(uids) for name, uids in leaders.uids.items()}
            assert starts == {name: count for name, (_, count) in begun.items() if count}
            living = Counter(pod.metadata.labels[JOB_LABEL] for pod in world.pods("leader"))
            runs = [name for name, (phase, _) in begun.items() if phase in ("Running", "Succeeded")]
            assert living == Counter(runs)
        finally:
            world.close()
            leaders.close()


def _played(world: ElasticWorld, chance: random.Random) -> dict[str, tuple[str, int]]:
    """Change jobs at random, and kill operators meanwhile; returns for each job the phase that it should come to, and
    how many leaders it should have had.
    """
    names = [f"job-{number}" for number in range(JOBS)]
    expected: dict[str, tuple[str, int]] = {}
    after: dict[str, list[str]] = {
        "": ["apply"],
        "Running": ["suspend", "end"],
        "Suspended": ["resume"],
        "Succeeded": [],
    }
    kills = 3
    for _ in range(3 * JOBS):
        name = chance.choice(names)
        phase, leaders = expected.get(name, ("", 0))
        steps = after[phase]
        if steps:
            expected[name] = _step(world, name, chance.choice(steps), leaders, wait=lambda: chance.random())
        if kills and chance.random() < 0.2:
            kills -= 1
            kill_the_one_that_acts(world)
    return expected


def _step(world: ElasticWorld, name: str, step: str, leaders: int, *, wait: Any) -> tuple[str, int]:
    match step:
        case "apply":
            world.add(name, {**SPEC, "replicas": 1})
            time.sleep(wait())
        case "suspend":
            world.change(name, suspend=True)
            time.sleep(wait())
            _report(world, name, "suspended", 0)  # as its leader does when the job has stopped
            until(lambda: not _led(world, name), 2 * TAKEN_OVER_S, what=f"{name} has no leader")
            return "Suspended", leaders
        case "resume":
            world.change(name, suspend=False)
            time.sleep(wait())
        case "end":
            _report(world, name, "succeeded", 0)
            return "Succeeded", leaders
    until(lambda: _led(world, name), 2 * TAKEN_OVER_S, what=f"{name} has a leader")
    _report(world, name, "running", 1)
    return "Running", leaders + 1


def _led(world: ElasticWorld, name: str) -> bool:
    return any(pod.status.phase == "Running" for pod in world.pods("leader", name=name))


def _report(world: ElasticWorld, name: str, state: str, replicas: int) -> None:
    status = {"state": state, "replicas": replicas, "wanted": 1}
    world.objects.patch_namespaced_custom_object_status(
        GROUP, VERSION, world.namespace, PLURAL, name, {"status": status}
    )


def _phase(world: ElasticWorld, name: str) -> str:
    return str(world.status(name).get("phase"))


@pytest.fixture
def trained(plane: ControlPlane, machines: Machines, tmp_path: Path) -> Iterator[ElasticWorld]:
    nodes = tuple(NodeShape(f"trains-{name}", "zone-1", cpus=6, memory_gib=32) for name in "ab")
    with nodes_of(plane, *nodes, runner=PodRunner(plane, machines, tmp_path)):
        world = ElasticWorld(plane, tmp_path, "replicas-trains")
        world.add_code("digits", ROOT / "examples" / "digits" / "train.py")
        world.add_claim("digits")
        yield world
        world.close()


@pytest.mark.long
def test_a_job_is_on_record_once_however_often_the_operator_that_acts_is_killed(
    trained: ElasticWorld, tmp_path: Path
) -> None:
    world, chance = trained, random.Random(7)
    leaders = Leaders(world)
    try:
        world.start_operator()
        world.start_operator()
        world.add("digits", {**SPEC, "replicas": 1})
        for phase in ("Starting", "Running"):
            until(lambda p=phase: _phase(world, "digits") in (p, "Running"), 240.0, what=phase)
            time.sleep(chance.uniform(0.0, 2.0))
            kill_the_one_that_acts(world)
        status = until(lambda: _ended(world), 300.0, what="the end")

        assert status["phase"] == "Succeeded", status
        assert len(leaders.uids["digits"]) == 1
        (folder,) = tmp_path.glob("claim-*")
        with Store.open(f"sqlite:///{folder / 'store' / 'scavenger.db'}") as store:
            (job,) = store.jobs()
            assert job.attempts == 1
            assert len(store.submissions(10)) == 1
            workers = [one for one in store.processes(job.id) if one.role == "worker"]
            assert len(workers) <= 2, "one for each size that the search has tried"
    finally:
        leaders.close()


def _ended(world: ElasticWorld) -> dict[str, Any] | None:
    status = world.status("digits")
    return status if status.get("phase") in ("Succeeded", "Stopped", "Failed") else None
