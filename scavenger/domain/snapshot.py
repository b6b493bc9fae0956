"""A running job as a policy sees it: its state, measurements, remaining work and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from scavenger.domain.configuration import Configuration

WorkerPhase = Literal["starting", "standby", "training", "leaving"]

SECONDS_PER_HOUR = 3600.0


def _require_finite(value: object, *names: str) -> None:
    for name in names:
        figure = getattr(value, name)
        if not (math.isfinite(figure) and figure >= 0.0):
            raise ValueError(f"{name} must be finite and not negative, not {figure}")


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker that is paid for.

    Attributes:
        host: The machine it runs on.
        joined_at_s: Time at which its first view took effect, seconds since the job began; None before.
        compute_s: Gradient computation times of its last steps, oldest first. The last entry of every
            training worker is of the same step.
        samples: Its samples in these steps; 0 where a short batch left it without any.
    """

    name: str
    host: str
    state: WorkerPhase = "training"
    joined_at_s: float | None = None
    compute_s: tuple[float, ...] = ()
    samples: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.compute_s) != len(self.samples):
            raise ValueError(
                f"{self.name}: {len(self.compute_s)} times but {len(self.samples)} sample counts"
            )


@dataclass(frozen=True, slots=True)
class Throughput:
    """Samples per second of a configuration, over `steps` undisturbed steps of this run."""

    configuration: Configuration
    samples_per_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker that left while its job continued.

    Attributes:
        kind: `failure`: it died. `preemption`: the cloud took it. `eviction`: it was replaced as too slow or
            for its host; workers that a smaller view let go are not listed.
        steps: Steps that it contributed to; 0 if it died before its first.
    """

    worker: str
    host: str
    at_s: float
    kind: Literal["failure", "preemption", "eviction"]
    steps: int = 0


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far a job has come.

    Attributes:
        step: Last applied step.
        epoch: 0-based.
        elapsed_s: Time that counts against the deadline: this run's, and what earlier runs of a resumed job took.
        remaining_samples: Samples expected until the goal; None if unknown.
    """

    step: int
    epoch: int
    elapsed_s: float = 0.0
    remaining_samples: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.elapsed_s):
            raise ValueError(f"elapsed_s must be finite, not {self.elapsed_s}")


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The workers of a job and the machines for them.

    Attributes:
        view: Number of the view in effect.
        workers: All workers that are paid for, in any state.
        departures: Workers that left during this run, oldest first.
        hosts: The machines that workers can be placed on; empty where every worker gets a new one.
        blacklist: Hosts that are avoided, each with the time in `JobSnapshot.at_s` at which that ends.
    """

    view: int
    workers: tuple[WorkerSnapshot, ...]
    departures: tuple[Departure, ...] = ()
    hosts: tuple[str, ...] = ()
    blacklist: tuple[tuple[str, float], ...] = field(default=())

    @property
    def training(self) -> tuple[WorkerSnapshot, ...]:
        """The workers that train."""
        return tuple(worker for worker in self.workers if worker.state == "training")


@dataclass(frozen=True, slots=True)
class JobCosts:
    """Prices and cost so far of a job.

    Attributes:
        price_usd_per_hour: Price of one worker. An unknown price is an error, never 0; 0 means free.
        shared_usd_per_hour: Costs that do not depend on the number of workers: aggregators, storage.
        cost_usd: Cost so far.
    """

    price_usd_per_hour: float
    shared_usd_per_hour: float = 0.0
    cost_usd: float = 0.0

    def __post_init__(self) -> None:
        _require_finite(self, "price_usd_per_hour", "shared_usd_per_hour", "cost_usd")

    def rate_usd_per_s(self, workers: int) -> float:
        """Cost rate of the job with this many workers."""
        return (workers * self.price_usd_per_hour + self.shared_usd_per_hour) / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of a job; None if it has none."""

    budget_usd: float | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("budget_usd", "deadline_s"):
            limit = getattr(self, name)
            if limit is not None and math.isnan(limit):
                raise ValueError(f"{name} must be a number")


@dataclass(frozen=True, slots=True)
class Delays:
    """How long it takes until a decision has its effect.

    Attributes:
        drain_s: Time from the decision to stop until nothing is paid for any more.
        look_every_s: Longest time until the next decision.
        setup_s: Time from the launch of a worker until it is ready to join; it is paid for.
    """

    drain_s: float = 0.0
    look_every_s: float = 0.0
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        _require_finite(self, "drain_s", "look_every_s", "setup_s")


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The input of a policy's decision.

    Attributes:
        at_s: Current time, seconds since the job began, by a monotonic clock.
        configuration: The configuration of the view in effect.
        reference: The configuration at the start of the run. Batch rules and learning rates refer to it.
        throughput: Measured throughputs, at most one per configuration.
        planned: The configuration that the refitted model chooses; None if the model was not asked.
        planned_because: Why it does, and what that changes; empty if it chooses the present one.
    """

    at_s: float
    configuration: Configuration
    reference: Configuration
    progress: TrainingProgress
    cluster: ClusterSnapshot
    costs: JobCosts
    limits: JobLimits = JobLimits()
    delays: Delays = Delays()
    throughput: tuple[Throughput, ...] = ()
    planned: Configuration | None = None
    planned_because: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.at_s):
            raise ValueError(f"at_s must be finite, not {self.at_s}")

    @property
    def changing(self) -> bool:
        """Whether workers are joining or leaving, so that current measurements belong to no configuration."""
        moving = any(worker.state in ("starting", "leaving") for worker in self.cluster.workers)
        return moving or len(self.cluster.training) != self.configuration.workers

    def measured(self, configuration: Configuration) -> Throughput | None:
        """The measured throughput of a configuration; None if it was not tried."""
        for throughput in self.throughput:
            if throughput.configuration == configuration:
                return throughput
        return None
