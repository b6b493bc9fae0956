"""What is to be done for a job that is a custom resource: by the operator, and by the job's leader.

Both are level-triggered: they decide from what is there, and never from what has happened, so an event that is lost,
late or repeated changes nothing, and neither does a process that is killed between two actions.

The operator has one pod for each job, its leader, and reads in `status` what the leader reports::

    job is there ──no pod──> StartLeader ──pod ended, job not──> RemoveLeader ──> StartLeader ...
      ├── spec cannot be read: nothing is started
      ├── suspended, or without workers of its pool: nothing is started, and when the leader has stopped the job,
      │   RemoveLeader if the job can go on without its pod
      └── the job has ended: nothing; the pod stays for its log, until the ElasticJob is deleted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scavenger.domain.elastic_job import JobState
from scavenger.domain.operation import Migrate, ScaleIn, ScaleTo

ENDED: Mapping[str, JobState] = {
    "succeeded": "Succeeded",
    "target_missed": "Succeeded",
    "planned": "Succeeded",
    "stopped": "Stopped",
    "failed": "Failed",
}
"""States that the leader reports of a job that has ended, and phases."""
SUSPENDED = "suspended"
"""State that the leader reports of a job that it has stopped since it is to wait."""
_LIVE: Mapping[str, JobState] = {
    "starting": "Starting",
    "profiling": "Profiling",
    "running": "Running",
    "paused": "Paused",
    "interrupted": "Starting",
}
AGAIN_S = 30.0
"""After a number of workers was refused, it is asked for again so much later."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """An ElasticJob.

    Attributes:
        generation: Of its `spec`.
        fault: Why its `spec` is no job; empty if it is one.
        suspend: As in `spec`.
        pool: As in `spec`; empty for none.
        kept: Whether the job can go on when its leader's pod is another one.
        deleting: Whether it is being deleted.
        status: Its `status`, with what its leader has reported.
    """

    generation: int
    fault: str = ""
    suspend: bool = False
    pool: str = ""
    kept: bool = False
    deleting: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The state that the leader has reported; empty before its first report."""
        return str(self.status.get("state") or "")

    @property
    def waits(self) -> str:
        """Why it waits for its pool; empty if it has workers of it, or is in none."""
        share = self.status.get("share") or {}
        if not self.pool or (share.get("pool") == self.pool and share.get("workers")):
            return ""
        return str(share.get("waits") or f"it waits for pool {self.pool}")


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """The pod of a job's leader.

    Attributes:
        uid: Of the pod, to delete this one and no later one.
        phase: Of the pod.
        deleting: Whether it is being deleted.
        why: Why it does not run, in the cluster's words; empty if it does.
    """

    uid: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    deleting: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class StartLeader:
    """Create the leader's pod; nothing if there is one of its name."""


@dataclass(frozen=True, slots=True)
class RemoveLeader:
    """Delete this pod of the leader, and no other one of its name."""

    uid: str


@dataclass(frozen=True, slots=True)
class KeepAvailable:
    """Let evictions leave so many of the workers' pods at any time."""

    pods: int


Action = StartLeader | RemoveLeader | KeepAvailable


@dataclass(frozen=True, slots=True)
class Told:
    """An event for who looks at the job."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What the operator does for a job: all of it can be done again without harm.

    Attributes:
        status: Keys of `status` that change.
        told: Conditions that changed.
    """

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[Told, ...] = ()


def decide(job: JobSeen, leader: LeaderSeen | None, available: int | None, *, now: str) -> Decision:
    """Decide what is to be done for a job.

    Args:
        leader: The pod of its leader; None if there is none.
        available: Pods of workers that evictions leave now; None if nothing says so.
        now: The time, for conditions that change, as the API has it.
    """
    if job.deleting:  # what belongs to it is deleted by the cluster
        return Decision()
    actions = (*_leader_action(job, leader), *_availability(job, available))
    phase, message = _phase(job, leader)
    conditions, told = _conditions(job, leader, phase, message, now)
    wanted = {
        "phase": phase,
        "message": message or None,  # which takes the key away
        "observedGeneration": job.generation,
        "conditions": conditions,
    }
    changed = {key: value for key, value in wanted.items() if job.status.get(key) != value}
    return Decision(actions, changed, told)


def _leader_action(job: JobSeen, leader: LeaderSeen | None) -> tuple[Action, ...]:
    rests = job.suspend or bool(job.waits)
    if job.state in ENDED:
        return ()
    if leader is None:
        return () if job.fault or (rests and not _unstopped(job)) else (StartLeader(),)
    if leader.deleting:
        return ()
    if leader.phase in ("Succeeded", "Failed"):
        return (RemoveLeader(leader.uid),)
    if rests and job.kept and job.state == SUSPENDED:
        return (RemoveLeader(leader.uid),)
    return ()


def _unstopped(job: JobSeen) -> bool:
    """Whether its leader was lost before it has stopped the job: another one ends the pods that are left."""
    return job.kept and job.state not in ("", SUSPENDED)


def _availability(job: JobSeen, available: int | None) -> tuple[Action, ...]:
    """One pod of workers at a time may be evicted; a job that has ended keeps none."""
    pods = job.status.get("pods", job.status.get("replicas"))
    wanted = 0 if job.state in ENDED else max(0, int(pods or 0) - 1)
    return (KeepAvailable(wanted),) if wanted != available and (wanted or available) else ()


def _phase(job: JobSeen, leader: LeaderSeen | None) -> tuple[JobState, str]:
    detail = str(job.status.get("detail") or "")
    if job.state in ENDED:
        return ENDED[job.state], detail
    if job.fault and leader is None:
        return "Invalid", job.fault
    runs = leader is not None and leader.phase == "Running" and not leader.deleting
    stopped = leader is None or job.state == SUSPENDED
    if job.suspend:
        return ("Suspended", "spec.suspend is true") if stopped else ("Paused", "it is being suspended")
    if job.waits:
        return (
            ("Waiting", job.waits) if stopped else ("Paused", f"it gives its workers back to pool {job.pool}")
        )
    if not runs:
        return ("Starting" if job.state else "Pending"), (leader.why if leader else "its leader is started")
    return _LIVE.get(job.state, "Starting"), detail


def _conditions(
    job: JobSeen, leader: LeaderSeen | None, phase: JobState, message: str, now: str
) -> tuple[list[dict[str, Any]], tuple[Told, ...]]:
    """The conditions, with the time at which each changed, and those that did."""
    before = {str(one.get("type")): one for one in job.status.get("conditions") or ()}
    made, told = [], []
    for kind, status, reason, text in (
        ("Accepted", not job.fault, "Invalid" if job.fault else "Valid", job.fault),
        _leads(job, leader),
        _scaled(job),
        ("Finished", phase in ENDED.values(), phase if phase in ENDED.values() else "Unfinished", ""),
    ):
        word = "Unknown" if status is None else str(status)
        old = before.get(kind, {})
        same = (old.get("status"), old.get("reason")) == (word, reason)
        made.append(
            {
                "type": kind,
                "status": word,
                "reason": reason,
                "message": text or _WORDS.get(reason, reason),
                "observedGeneration": job.generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else now,
            }
        )
        if not same and (kind, reason) not in _UNTOLD:
            bad = reason in _WARNINGS
            words = text or (message if kind == "Finished" else "")
            told.append(Told(reason, words or _WORDS.get(reason, reason), warning=bad))
    return made, tuple(told)


_WARNINGS = ("Invalid", "Refused", "LeaderLost", "Failed", "Stopped")
_UNTOLD = (
    ("Accepted", "Valid"),
    ("Finished", "Unfinished"),
    ("Scaled", "Chosen"),
    ("LeaderRuns", "Ended"),
    ("LeaderRuns", "Invalid"),
)
_WORDS = {
    "Valid": "spec is a job",
    "Chosen": "Scavenger chooses the workers",
    "Unfinished": "it has not ended",
    "Ended": "the job has ended",
    "LeaderRunning": "its leader runs",
    "LeaderPending": "its leader is started",
    "LeaderLost": "its leader is gone, and another one is started",
    "Suspended": "it waits",
    "Reached": "it has the workers that were asked for",
    "Scaling": "its workers change",
}


def _leads(job: JobSeen, leader: LeaderSeen | None) -> tuple[str, bool, str, str]:
    kind = "LeaderRuns"
    if job.state in ENDED:
        return kind, False, "Ended", ""
    if leader is not None and leader.phase == "Running" and not leader.deleting:
        return kind, True, "LeaderRunning", ""
    if leader is None and (job.suspend or job.waits):
        return kind, False, "Suspended", ""
    if leader is None and job.fault:
        return kind, False, "Invalid", ""
    if leader is not None and (leader.deleting or leader.phase in ("Succeeded", "Failed")):
        return kind, False, "LeaderLost", leader.why
    return kind, False, "LeaderPending", leader.why if leader else ""


def _scaled(job: JobSeen) -> tuple[str, bool | None, str, str]:
    status, kind = job.status, "Scaled"
    wanted, refused = status.get("wanted"), str(status.get("refused") or "")
    if job.waits and job.state not in ENDED:
        return kind, False, "Waiting", job.waits
    if wanted is None:
        return kind, None, "Chosen", ""
    if refused:
        return kind, False, "Refused", refused
    reached = wanted == status.get("replicas")
    return kind, reached, "Reached" if reached else "Scaling", ""


# ---- the leader ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Training:
    """What the leader sees of a job that trains.

    Attributes:
        workers: The pod of each worker that trains; empty where it is not known.
        target: Workers that it is at, or on its way to.
        busy: Whether an operation is under way.
        refused: The number of workers that was refused last; None if none was.
        refused_s: How long ago, seconds.
    """

    workers: Mapping[str, str]
    target: int
    busy: bool = False
    refused: int | None = None
    refused_s: float = 0.0


def next_operation(
    training: Training, *, replicas: int | None, leaving: Sequence[str]
) -> ScaleTo | ScaleIn | Migrate | None:
    """What the leader asks the job for next; None if nothing, or not yet.

    Where all workers were named to go, others take their places first: a job without workers would wait.

    Args:
        training: The job.
        replicas: Workers that it is to have; None if it chooses itself.
        leaving: Pods of workers that were named to go; `replicas` does not count them.
    """
    if training.busy:
        return None
    going = tuple(sorted(name for name, pod in training.workers.items() if pod in leaving))
    if going:
        return ScaleIn(going) if len(going) < training.target else Migrate(going)
    if replicas is None or replicas == training.target:
        return None
    if replicas == training.refused and training.refused_s < AGAIN_S:
        return None
    return ScaleTo(replicas)
