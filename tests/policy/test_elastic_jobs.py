"""What operator and leader decide for ElasticJobs, where a simulated cluster loses, delays and repeats what is seen."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain.operation import Migrate, ScaleIn, ScaleTo
from scavenger.policy.elastic_jobs import (
    AGAIN_S,
    ENDED,
    SUSPENDED,
    Decision,
    JobSeen,
    KeepAvailable,
    LeaderSeen,
    RemoveLeader,
    StartLeader,
    Training,
    decide,
    next_operation,
)

NOW = "2026-11-23T14:00:00Z"


class KilledError(Exception):
    """The operator's process ends here."""


@dataclass
class Cluster:
    """A cluster with one ElasticJob whose leader needs some rounds of a running pod to end the job."""

    seed: int
    kept: bool
    rounds_needed: int = 6
    suspend: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    pod: LeaderSeen | None = None
    made: list[str] = field(default_factory=list)
    done: int = 0
    alive: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.seen: list[tuple[JobSeen, LeaderSeen | None]] = []

    def now(self) -> tuple[JobSeen, LeaderSeen | None]:
        job = JobSeen(1, suspend=self.suspend, kept=self.kept, status=dict(self.status))
        return job, self.pod

    def act(self, decision: Decision, *, killed: bool) -> None:
        """Carry out a decision, perhaps not all of it."""
        for action in decision.actions:
            if killed and self.chance.random() < 0.3:
                raise KilledError
            match action:
                case StartLeader():
                    if self.pod is None:  # the name is taken by one pod at a time
                        self.made.append(f"pod-{len(self.made)}")
                        self.pod = LeaderSeen(self.made[-1], "Pending")
                case RemoveLeader(uid):
                    if self.pod is not None and self.pod.uid == uid:
                        self.pod = LeaderSeen(uid, self.pod.phase, deleting=True)
                case KeepAvailable(pods):
                    assert pods >= 0
        if killed and self.chance.random() < 0.3:
            raise KilledError
        self.status |= decision.status

    def live(self) -> None:
        """What happens besides: the pod begins, works, is lost, or is gone."""
        pod = self.pod
        if pod is None:
            return
        if pod.deleting:
            if self.chance.random() < 0.5:
                self.pod = None
                self.done = self.done if self.kept else 0
            return
        if pod.phase == "Pending":
            self.pod = LeaderSeen(pod.uid, "Running")
        elif pod.phase == "Running":
            if self.status.get("state") in ENDED:
                self.pod = LeaderSeen(pod.uid, "Succeeded")
            elif self.chance.random() < 0.15:
                self.pod = self.chance.choice([None, LeaderSeen(pod.uid, "Failed")])
                self.done = self.done if self.kept else 0
            elif self.suspend:
                self.status |= {"state": SUSPENDED, "replicas": 0}
            else:
                self.done += 1
                over = self.done >= self.rounds_needed
                self.status |= {"state": "succeeded" if over else "running", "replicas": 0 if over else 2}

    def observe(self) -> tuple[JobSeen, LeaderSeen | None]:
        """What an operator sees: what is there now, or what was there a while ago."""
        self.seen.append(self.now())
        late = self.chance.random() < 0.4
        return self.chance.choice(self.seen[-4:]) if late else self.seen[-1]


@pytest.mark.parametrize("seed", range(150))
def test_a_job_ends_though_events_are_lost_and_late_pods_vanish_and_operators_are_killed(seed: int) -> None:
    cluster = Cluster(seed, kept=seed % 2 == 0)
    for at in range(400):
        cluster.suspend = 10 <= at < 60 and seed % 3 == 0
        job, pod = cluster.observe()
        decision = decide(job, pod, None, now=NOW)
        with contextlib.suppress(KilledError):
            cluster.act(decision, killed=True)
        cluster.live()
        if cluster.status.get("phase") == "Succeeded" and cluster.pod is not None:
            break
    # with the present state seen and nobody killed, it comes to rest
    for _ in range(4):
        cluster.act(decide(*cluster.now(), 0, now=NOW), killed=False)
    before = len(cluster.made)
    decision = decide(*cluster.now(), 0, now=NOW)

    assert cluster.status["phase"] == "Succeeded"
    assert (decision.actions, decision.status, decision.told) == ((), {}, ())
    assert len(cluster.made) == before
    assert cluster.done >= cluster.rounds_needed


@given(
    state=st.sampled_from(["", "starting", "running", SUSPENDED, "interrupted", *ENDED]),
    phase=st.sampled_from([None, "Pending", "Running", "Succeeded", "Failed"]),
    suspend=st.booleans(),
    kept=st.booleans(),
    fault=st.sampled_from(["", "spec.job: no"]),
    deleting=st.booleans(),
)
def test_deciding_twice_changes_nothing_more(
    state: str, phase: Any, suspend: bool, kept: bool, fault: str, deleting: bool
) -> None:
    pod = None if phase is None else LeaderSeen("pod", phase, deleting)
    job = JobSeen(3, fault, suspend, kept, status={"state": state} if state else {})
    first = decide(job, pod, 0, now=NOW)
    again = JobSeen(3, fault, suspend, kept, status={**job.status, **first.status})
    second = decide(again, pod, 0, now="later")

    assert (second.status, second.told) == ({}, ())
    assert second.actions == first.actions
    assert not (fault and StartLeader() in first.actions)
    assert not (suspend and StartLeader() in first.actions)
    assert not (state in ENDED and first.actions)
    assert len([one for one in first.actions if not isinstance(one, KeepAvailable)]) <= 1


def test_nothing_is_done_for_a_job_that_is_being_deleted() -> None:
    assert decide(JobSeen(1, deleting=True), LeaderSeen("a", "Failed"), 1, now=NOW) == Decision()


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 4))
def test_evictions_leave_all_pods_of_workers_but_one(pods: int, available: int, gpus: int) -> None:
    job = JobSeen(1, status={"state": "running", "replicas": pods * gpus, "pods": pods})
    kept = [
        one.pods
        for one in decide(job, LeaderSeen("a", "Running"), available, now=NOW).actions
        if isinstance(one, KeepAvailable)
    ]
    wanted = max(0, pods - 1)
    assert kept == ([] if wanted == available else [wanted])


# ---- the leader ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_a_job_comes_to_the_workers_that_were_set_last_and_those_that_were_named_go(seed: int) -> None:
    """Sizes and names change at any time, leaders forget what they asked for, and a job refuses now and then."""
    chance = random.Random(seed)
    workers = {"w1": "p1", "w2": "p2"}
    made, replicas, removed = 2, 2, []
    for at in range(300):
        if at < 200 and chance.random() < 0.05:
            replicas = chance.randint(1, 5)
        if at < 200 and chance.random() < 0.03 and replicas > 1:
            named = chance.choice(sorted(workers.values()))
            if named not in removed:
                removed.append(named)  # one write: the name, and one replica less
                replicas -= 1
        target = len(workers)
        operation = next_operation(
            Training(dict(workers), target, busy=chance.random() < 0.2), replicas=replicas, leaving=removed
        )
        if operation is None or (at < 200 and chance.random() < 0.2):
            continue
        if isinstance(operation, ScaleIn):
            workers = {name: pod for name, pod in workers.items() if name not in operation.remove}
        if isinstance(operation, Migrate):
            fresh = {f"w{made + at}": f"p{made + at}" for at in range(1, len(operation.workers or ()) + 1)}
            made += len(fresh)
            workers = {name: pod for name, pod in workers.items() if name not in (operation.workers or ())}
            workers |= fresh
        while isinstance(operation, ScaleTo) and len(workers) < operation.workers:
            made += 1
            workers[f"w{made}"] = f"p{made}"
        while isinstance(operation, ScaleTo) and len(workers) > operation.workers:
            workers.pop(sorted(workers)[-1])

    assert len(workers) == replicas
    assert not set(removed) & set(workers.values())


def test_a_number_that_was_refused_is_asked_for_again_later_and_another_one_at_once() -> None:
    def asked(replicas: int, after_s: float) -> object:
        training = Training({"w1": "p1"}, 1, refused=8, refused_s=after_s)
        return next_operation(training, replicas=replicas, leaving=())

    assert asked(8, AGAIN_S - 1) is None
    assert asked(8, AGAIN_S) == ScaleTo(8)
    assert asked(2, 0.0) == ScaleTo(2)


def test_the_last_worker_goes_when_another_one_has_its_place() -> None:
    assert next_operation(Training({"w1": "p1"}, 1), replicas=1, leaving=("p1",)) == Migrate(("w1",))
