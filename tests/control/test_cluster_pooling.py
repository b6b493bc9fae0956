"""Pools of ElasticJobs before an API server in memory: no slot has two owners, whoever is killed, late or doubled."""

from __future__ import annotations

import copy
import itertools
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from scavenger_cli.commands.pool import pool_text

from scavenger.api.calls import Local
from scavenger.api.pools import shared
from scavenger.control.cluster.operating import Installation, Operator
from scavenger.control.cluster.pooling import ClusterPools, standing_pools
from scavenger.domain.elastic_job import GROUP, JOB_LABEL, ROLE_LABEL, VERSION, GivenShare, leader_name
from scavenger.domain.pool import JobStanding, RatePoint, WorkLeft, document_of
from scavenger.domain.pool_settings import PoolSettings
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import CloudUnavailableError

pytestmark = pytest.mark.slow

SLOTS = 6
SPACE = "training"
Json = dict[str, Any]


class KilledError(BaseException):
    """An operator's process ends here."""


def merged(old: Json, changes: Json) -> Json:
    """A merge patch, as the API server does it."""
    made = dict(old)
    for key, value in changes.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = (
                merged(made.get(key) or {}, value) if isinstance(value, dict) else copy.deepcopy(value)
            )
    return made


class Server:
    """ElasticJobs with versions, leases, pods and nodes.

    Attributes:
        dies: Whether a caller's process ends at a write.
        between: Called before each call is answered: what happens meanwhile.
    """

    def __init__(self) -> None:
        self.all_jobs: dict[str, Json] = {}
        self.all_pods: dict[str, Json] = {}
        self.all_nodes: list[Json] = []
        self.leases: dict[str, Json] = {}
        self._versions = itertools.count(1)
        self.dies = lambda: False
        self.between = lambda: None

    def _write(self, write: Any) -> Any:
        self.between()
        if self.dies():
            raise KilledError
        found = write()
        if self.dies():
            raise KilledError
        return found

    def add(self, name: str, **spec: Any) -> Json:
        uid = f"{name}-{next(self._versions)}"
        job = {"train": "train:job", "goal": {"max_epochs": 3}, "search": {"workers": "1..4"}}
        given = {"job": job, "code": {"path": "/code"}, "store": {"claim": "c"}, "pool": "gpu", **spec}
        meta = {"name": name, "namespace": SPACE, "uid": uid, "generation": 1}
        meta["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.all_jobs[name] = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "ElasticJob",
            "metadata": meta,
            "spec": given,
            "status": {},
        }
        return self.change(name, {})

    def change(self, name: str, changes: Json) -> Json:
        job = merged(self.all_jobs[name], changes)
        job["metadata"]["resourceVersion"] = str(next(self._versions))
        self.all_jobs[name] = job
        return copy.deepcopy(job)

    def jobs(self) -> tuple[list[Json], str]:
        return copy.deepcopy(list(self.all_jobs.values())), ""

    def job(self, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.all_jobs.get(name))

    def leaders(self) -> tuple[list[Json], str]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"][ROLE_LABEL] == "leader"], ""

    def pods(self, selector: str = "") -> list[Json]:
        self.between()
        return copy.deepcopy(list(self.all_pods.values()))

    def nodes(self) -> list[Json]:
        return self.all_nodes

    def patch_job(self, namespace: str, name: str, changes: Json, *, status: bool = False) -> Json | None:
        wanted = changes.pop("metadata", {}).get("resourceVersion")

        def write() -> Json | None:
            job = self.all_jobs.get(name)
            if job is None:
                return None
            if wanted not in (None, job["metadata"]["resourceVersion"]):
                raise CloudUnavailableError("it has changed")
            return self.change(name, changes)

        return self._write(write)

    def lease(self, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.leases.get(name))

    def leases_in(self, namespace: str) -> list[Json]:
        return copy.deepcopy(list(self.leases.values()))

    def write_lease(self, body: Json, *, fresh: bool) -> bool:
        name = body["metadata"]["name"]

        def write() -> bool:
            before = self.leases.get(name)
            if fresh != (before is None):
                return False
            if before and before["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                return False
            self.leases[name] = copy.deepcopy(body)
            self.leases[name]["metadata"]["resourceVersion"] = str(next(self._versions))
            return True

        return self._write(write)

    def create_pod(self, body: Json) -> bool:
        def write() -> bool:
            if body["metadata"]["name"] in self.all_pods:
                return False
            self.all_pods[body["metadata"]["name"]] = {**body, "status": {"phase": "Running"}}
            self.all_pods[body["metadata"]["name"]]["metadata"]["uid"] = f"pod-{next(self._versions)}"
            return True

        return self._write(write)

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        def write() -> None:
            if name in self.all_pods and self.all_pods[name]["metadata"]["uid"] == uid:
                del self.all_pods[name]

        self._write(write)

    def tell(self, *_: Any, **__: Any) -> None:
        """Events are of no interest here."""

    def workers(self, name: str = "") -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.all_pods.values()
            if pod["metadata"]["labels"][ROLE_LABEL] == "worker"
            and (not name or pod["metadata"]["labels"][JOB_LABEL] == name)
        ]

    def add_worker(self, name: str) -> None:
        pod = f"{name}-w{next(self._versions)}"
        meta = {"name": pod, "namespace": SPACE, "labels": {JOB_LABEL: name, ROLE_LABEL: "worker"}}
        self.all_pods[pod] = {"metadata": meta, "spec": {"containers": []}, "status": {"phase": "Running"}}


@dataclass
class Process:
    """An operator, with what it has seen so far, which may be old."""

    server: Server
    settings: PoolSettings = field(default_factory=lambda: PoolSettings(slots=SLOTS, policy="even"))
    now: float = 0.0

    def __post_init__(self) -> None:
        installation = Installation(
            KubernetesSettings(image="i"), pools={"gpu": self.settings}, unproven="gpu-vms"
        )
        cluster: Any = self.server
        self.operator = Operator(cluster, installation)
        self.pools = ClusterPools(cluster, installation, self.operator, "system", clock=lambda: self.now)
        self.operator.list_again()

    def act(self) -> None:
        self.now += 100.0
        self.pools.round()
        for job in self.operator.jobs():
            self.operator.look((SPACE, job["metadata"]["name"]))


@dataclass
class Leaders:
    """The leaders of all jobs: each does what its ElasticJob says, at its own pace, as far as it has seen that."""

    server: Server
    chance: random.Random
    seen: dict[str, Json] = field(default_factory=dict)
    obeyed: dict[str, int] = field(default_factory=dict)
    settled: dict[tuple[str, int], int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def live(self, name: str, *, prompt: bool = False) -> None:
        """What the leader of a job does next, if it has one."""
        job = self.server.all_jobs[name]
        uid = job["metadata"]["uid"]
        if leader_name(uid) not in self.server.all_pods or (job["status"].get("state") == "succeeded"):
            return
        pod = self.server.all_pods[leader_name(uid)]["metadata"]["uid"]
        if prompt or pod not in self.seen or self.chance.random() < 0.6:
            self.seen[pod] = copy.deepcopy(job)
        job = self.seen[pod]
        share, workers = GivenShare.of(job), self.server.workers(name)
        wanted = 0 if share is None or job["spec"].get("suspend") else share.slots
        if wanted and share is not None:  # who has said with how many he trains stays at that
            wanted = self.settled.get((uid, share.allotment), wanted)
        state = self.server.all_jobs[name]["status"].get("state")
        if wanted and state in (None, "suspended"):  # it says so before it has any pods
            self.report(name, "starting", JobStanding(1, "starting"))
        elif not wanted and workers:
            del self.server.all_pods[workers[0]]
        elif not wanted:
            stopped = 0 if share is None or share.slots else share.allotment
            self.report(name, "suspended", JobStanding(1, "waiting", obeyed=stopped))
        elif (
            uid,
            share.allotment,
        ) not in self.settled and self.chance.random() < 0.05:  # it has what it has, and says so
            self.obey(name, share, len(workers))
        elif len(workers) < wanted:
            self.server.add_worker(name)
        elif len(workers) > wanted:
            del self.server.all_pods[workers[0]]
        else:
            self.obey(name, share, wanted)

    def obey(self, name: str, share: GivenShare | None, size: int) -> None:
        assert share is not None
        uid = self.server.all_jobs[name]["metadata"]["uid"]
        assert share.allotment >= self.obeyed.get(uid, 0), "an older allotment was told after a newer one"
        self.obeyed[uid] = share.allotment
        self.steps[uid] = self.steps.get(uid, 0) + 1
        curve = tuple(RatePoint(k, k**0.8, True) for k in range(1, 5))
        if not size:
            self.report(name, "starting", JobStanding(1, "starting", obeyed=share.allotment))
        elif self.steps[uid] > 12:
            self.report(name, "succeeded", None)
        else:
            self.settled[uid, share.allotment] = size
            standing = JobStanding(
                1, "training", size, share.allotment, curve=curve, left=WorkLeft(100.0), size=size
            )
            self.report(name, "running", standing)

    def report(self, name: str, state: str, standing: JobStanding | None) -> None:
        told = {"state": state, "apart": 0, "standing": None if standing is None else document_of(standing)}
        self.server.change(name, {"status": told})


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 200), marks=pytest.mark.long)])
def test_no_slot_has_two_owners_whoever_dies_and_all_jobs_end(seeds: range) -> None:
    """Two operators believe that they act, with old views; each is killed at random, before or after a write."""
    for seed in seeds:
        play(seed, PoolSettings(slots=SLOTS, policy="even") if seed % 3 else GPUS)


GPUS = PoolSettings(nodes={"pool": "gpus"}, vm="8cpu-64gib-2gpu", slots=SLOTS, policy="even")
NODE = {
    "metadata": {"name": "n", "labels": {"pool": "gpus"}},
    "status": {"allocatable": {"cpu": "100", "memory": "999Gi", "nvidia.com/gpu": "8"}},
}
"""Room for four pods of `GPUS`."""


def play(seed: int, settings: PoolSettings) -> None:
    """One course of events."""
    chance, server = random.Random(seed), Server()
    server.all_nodes = [NODE]
    slots = SLOTS if settings.nodes is None else 4
    leaders = Leaders(server, chance)
    operators = [Process(server, settings), Process(server, settings)]
    for at in range(6):
        server.add(
            f"job-{at}",
            priority=chance.choice((0, 0, 5)),
            job={**JOB, "search": {"workers": chance.choice(("1..4", "2..3", [2]))}},
        )
    nested = [False]

    def act() -> None:
        number = chance.randrange(2)
        try:
            operators[number].act()
        except (KilledError, CloudUnavailableError):
            operators[number] = Process(server, settings)

    def happen(*events: str) -> None:
        names = list(server.all_jobs)
        match chance.choice(events):
            case "see" if names:
                seen = copy.deepcopy(server.all_jobs[chance.choice(names)])
                chance.choice(operators).operator.note_job(seen)
            case "act":
                act()
            case "live" if names:
                leaders.live(chance.choice(names))
            case "user" if names:
                _user(server, chance, chance.choice(names))
            case "lost" if server.all_pods and chance.random() < 0.3:  # of a leader, or a worker
                del server.all_pods[chance.choice(list(server.all_pods))]
        assert len(server.workers()) <= slots, seed

    def between() -> None:
        """Other things happen while an operator waits for an answer."""
        if nested[0] or chance.random() > 0.1:
            return
        nested[0] = True
        for _ in range(chance.randint(1, 12)):
            happen("see", "act", "act", "live", "live", "user")
        nested[0] = False

    server.dies, server.between = lambda: chance.random() < 0.03, between
    for _ in range(200):
        happen("see", "see", "act", "act", "live", "live", "live", "live", "user", "lost")
    server.between = lambda: None
    server.dies = lambda: False
    for name in server.all_jobs:
        server.change(name, {"spec": {"suspend": None}})
    last = Process(server, settings)
    for _ in range(400):
        last.operator.list_again()
        last.act()
        for name in list(server.all_jobs):
            for _ in range(8):
                leaders.live(name, prompt=True)
            if server.all_jobs[name]["status"].get("state") == "succeeded":
                for pod in server.workers(name):
                    del server.all_pods[pod]
        for name, pod in list(server.all_pods.items()):  # of jobs that were deleted
            if pod["metadata"]["labels"][JOB_LABEL] not in server.all_jobs:
                del server.all_pods[name]
        assert len(server.workers()) <= slots, seed
        if all(job["status"].get("state") == "succeeded" for job in server.all_jobs.values()):
            return
    raise AssertionError(seed, {name: job["status"] for name, job in server.all_jobs.items()})


JOB = {"train": "train:job", "goal": {"max_epochs": 3}}


def _user(server: Server, chance: random.Random, name: str) -> None:
    """Somebody suspends a job, lets it go on, or deletes it."""
    job = server.all_jobs[name]
    match chance.choice(("suspend", "resume", "resume", "delete")):
        case "suspend":
            server.change(name, {"spec": {"suspend": True}})
        case "resume":
            server.change(name, {"spec": {"suspend": None}})
        case "delete" if chance.random() < 0.3:
            del server.all_jobs[name]
            server.all_pods.pop(leader_name(job["metadata"]["uid"]), None)


def two_jobs(server: Server, settings: PoolSettings, *jobs: Json) -> dict[str, GivenShare]:
    """Jobs `a`, `b` ... train, each with what it has come to; returns what they were told, by name."""
    leaders, operator = Leaders(server, random.Random(1)), Process(server, settings)
    for name, job in zip("abcdef", jobs, strict=False):
        server.add(name, job={**JOB, **job})
    for _ in range(12):
        operator.operator.list_again()
        operator.act()
        for name in server.all_jobs:
            leaders.live(name, prompt=True)
    server.add("waits", job={**JOB, "search": {"workers": [4]}}, priority=-1)
    server.add("none", job={"train": 3})
    operator.operator.list_again()
    operator.act()
    told = {name: GivenShare.of(job) for name, job in server.all_jobs.items()}
    return {name: one for name, one in told.items() if one is not None}


def test_who_may_read_the_cluster_sees_its_pools_as_those_of_a_server() -> None:
    server, now = Server(), datetime.now(UTC)

    def at(space: str) -> Any:
        return server

    assert standing_pools(at, "system", now) == {}
    told = two_jobs(server, PoolSettings(slots=SLOTS, policy="even"), *({"search": {"workers": "1..4"}},) * 2)

    [(name, pool)] = standing_pools(at, "system", now).items()
    seen = shared(Local(), pool, {}, (), ())
    assert (name, seen.slots, seen.usd_per_slot_hour) == ("gpu", SLOTS, None)
    assert [(one.name, one.state) for one in seen.jobs] == [
        ("a", "training"),
        ("b", "training"),
        ("waits", "waiting"),
    ]
    assert all(one.slots == told[one.name or ""].slots for one in seen.jobs)
    words = StringIO()
    Console(width=200, file=words).print(*pool_text(seen), sep="\n")
    lines = [line.rstrip() for line in words.getvalue().splitlines()]
    assert lines[0] == "Pool gpu: 6 slots, shared out by even; 0 free"
    why = told["a"].reason
    assert next(line for line in lines if line.startswith("a (")).endswith(f" has 3 slots; {why}")
    assert lines[-1] == "90 % intervals, if no other job comes; the price of a slot is not known"


def test_a_slot_of_pods_with_several_gpus_has_a_worker_on_each() -> None:
    server = Server()
    server.all_nodes = [NODE]
    told = two_jobs(server, GPUS, {"elastic": {"min": 3, "max": 3}}, {"elastic": {"min": 1, "max": 4}})

    assert {name: (one.slots, one.workers) for name, one in told.items()} == {
        "a": (2, 3),
        "b": (2, 4),
        "waits": (0, 0),
    }
    assert told["waits"].waits == "it waits for 2 slots of pool gpu: of 4, a has 2, b has 2"
    assert {name: len(server.workers(name)) for name in "ab"} == {"a": 2, "b": 2}
    [pool] = standing_pools(lambda space: server, "system", datetime.now(UTC)).values()  # type: ignore[arg-type, return-value]
    seen = shared(Local(), pool, {}, (), ())
    assert [(one.slots, one.per_slot, one.workers) for one in seen.jobs] == [(2, 2, 3), (2, 2, 4), (0, 2, 0)]
    assert "it may have no more than 3 workers: 1 of its GPUs are idle" in seen.jobs[0].why
