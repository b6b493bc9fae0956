"""Messages of the control channel between the supervisor and the coordinator."""

from __future__ import annotations

from scavenger.elastic.migration import BucketMap
from scavenger.elastic.steps import Death
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint, Tagged


class Brief(Tagged, frozen=True):
    """What a coordinator must know to lead a job: time limits, processes, and the last request.

    Attributes:
        token: The coordinator's token.
        workers: The running workers.
        aggregators: The aggregators, the sequencer first.
        start_s: Longest time for a worker to become ready, seconds.
        step_s: Longest time for a step, seconds.
        restore: The checkpoint to begin with; None for initial weights.
        checkpoint: The checkpoint plan; None for none.
        resize: The last request for a configuration; None before the first.
        command: The number of the last command.
        number: The number of the newest view that the supervisor knows.
        held: Indices of the aggregators that hold their model shard, or whose memory does.
        rewinding: Indices of the aggregators that a rollback restarts, whatever their memory holds.
        quarantined: Samples that are left out.
        evaluation_s: Longest time for an evaluation, seconds; None to derive it from the size of the evaluation.
        map: The newest map of buckets that the supervisor knows; None for the one that follows from the model alone.
        spare: Indices of the aggregators whose loss loses nothing; see `scavenger.elastic.migration.spared`.
    """

    token: int
    workers: tuple[str, ...]
    aggregators: tuple[str, ...]
    start_s: float
    step_s: float
    restore: RestorePoint | None
    checkpoint: CheckpointPlan | None
    resize: ResizeMembers | None
    command: int
    number: int
    held: tuple[int, ...]
    rewinding: tuple[int, ...]
    quarantined: tuple[int, ...]
    evaluation_s: float | None = None
    map: BucketMap | None = None
    spare: tuple[int, ...] = ()


class ShardLost(Tagged, frozen=True):
    """From the coordinator: a model shard is lost, so all aggregators must be restarted."""

    cause: str


class Rewind(Tagged, frozen=True):
    """The supervisor's answer to `ShardLost`: all aggregators have ended, and their successors begin with `restore`.

    If `restore` is None, they begin with initial weights.
    """

    restore: RestorePoint | None


class Launched(Tagged, frozen=True):
    """A worker was launched and has a host."""

    worker: str


class ProcessEnded(Tagged, frozen=True):
    """A process has ended; `death` has details for a worker, and is None otherwise."""

    name: str
    death: Death | None = None


class ResizeMembers(Tagged, frozen=True):
    """Train on this number of workers with this batch from the next step boundary on; see `Membership.resize`."""

    command: int
    workers: int
    global_batch_size: int
    reason: str
    without: tuple[str, ...] = ()
    lr_scale: float = 1.0


class ReleaseSpares(Tagged, frozen=True):
    """Release spare workers until `keep` are alive."""

    command: int
    keep: int


class Roster(Tagged, frozen=True):
    """The coordinator's report on the workers.

    Attributes:
        command: The number of the last command that it has carried out.
        states: The state of each worker.
        settled: Whether the last request has taken effect.
        number: The number of the newest view.
        forgotten: Lost workers whose slots no process reads any more.
    """

    command: int
    states: dict[str, str]
    settled: bool
    number: int
    forgotten: tuple[str, ...]


class Expel(Tagged, frozen=True):
    """Order to end a process.

    Attributes:
        name: The process's name.
        cause: The reason, in words.
        hung: Whether it is over a time limit, so that its stack is logged first.
        fatal: The error that ends the job; empty if the job goes on.
    """

    name: str
    cause: str
    hung: bool
    fatal: str = ""


class Working(Tagged, frozen=True):
    """From the supervisor: processes that send no heartbeats, but work.

    Attributes:
        idle_s: Seconds since each was last seen to work.
    """

    idle_s: dict[str, float]


CoordinationMessage = (
    Brief
    | ProcessEnded
    | Expel
    | Launched
    | ReleaseSpares
    | ResizeMembers
    | Rewind
    | ShardLost
    | Roster
    | Working
)
