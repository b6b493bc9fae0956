"""What happens to a shared pool, and what is done about it: events in, actions out, both plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scavenger.scheduler.pool import AggregatorNode, Assignment, JobLoad

Reason = Literal["pack", "drain", "revert"]


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A job that was measured alone asks for its place in the pool; one that is there was measured again."""

    load: JobLoad


@dataclass(frozen=True, slots=True)
class JobLeft:
    """A job ended, or leaves the pool."""

    job: str


@dataclass(frozen=True, slots=True)
class StepTimeMeasured:
    """The mean step time of a job over enough steps (AutoPS: 100) since its assignment last changed."""

    job: str
    step_time_s: float


@dataclass(frozen=True, slots=True)
class PeriodEnded:
    """It is time to look at the whole pool."""


@dataclass(frozen=True, slots=True)
class DrainNode:
    """A node has to go: a preemption notice, a congested link, or its user's wish."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node died with what it held."""

    node: str


Event = JobArrived | JobLeft | StepTimeMeasured | PeriodEnded | DrainNode | NodeLost


@dataclass(frozen=True, slots=True)
class StartNode:
    """Start this node; what follows it in the list may need it."""

    node: AggregatorNode


@dataclass(frozen=True, slots=True)
class EndNode:
    """End this node; the actions before have left nothing on it."""

    node: str


@dataclass(frozen=True, slots=True)
class PlaceJob:
    """Put the buckets of a job here: it is new, or what these nodes are to hold was lost."""

    job: str
    nodes: Assignment


@dataclass(frozen=True, slots=True)
class MoveBucket:
    """Move one bucket of a running job.

    Attributes:
        why: `pack`: to need fewer nodes; `drain`: its node has to go; `revert`: a job lost more than the limit.
    """

    job: str
    bucket: int
    source: str
    target: str
    why: Reason


Action = StartNode | EndNode | PlaceJob | MoveBucket
