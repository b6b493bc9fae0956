"""Decides what follows from the state of a job's runner: nothing, its end, another one, or the submission's end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scavenger.domain.submission import RunnerSeen

__all__ = [
    "SILENT_S",
    "STARTS_MAX",
    "EndSubmission",
    "Holder",
    "KeepRunner",
    "KillRunner",
    "RunnerDecision",
    "StartRunner",
    "follow_runner",
    "rest_s",
]

SILENT_S = 60.0
"""A runner that does not renew its lease for so long is ended; it renews it every few seconds."""
STARTS_MAX = 5
"""So many runners in a row may end unexpectedly before the job makes a further step."""
REST_MAX_S = 60.0

Holder = Literal["alive", "dead", "unseen"]
"""Whether the process that holds the lease of a runner lives; `dead` if nobody holds it, `unseen` if it was one of a
container that hides it from here, or may have been."""


@dataclass(frozen=True, slots=True)
class KeepRunner:
    """Nothing is to be done."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class KillRunner:
    """End the process that holds the lease."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartRunner:
    """Start another runner."""


@dataclass(frozen=True, slots=True)
class EndSubmission:
    """The job needs no runner any more.

    Attributes:
        reason: For the user.
        cancelled: Whether the user wanted its end.
    """

    reason: str
    cancelled: bool = False


RunnerDecision = KeepRunner | KillRunner | StartRunner | EndSubmission


def rest_s(fruitless: int) -> float:
    """Seconds from one start to the next: none after progress, then 2, 4, 8 ..., at most `REST_MAX_S`."""
    return 0.0 if fruitless <= 1 else min(REST_MAX_S, 2.0 ** min(fruitless - 1, 10))


def follow_runner(
    seen: RunnerSeen, holder: Holder, *, silent_s: float, since_start_s: float
) -> RunnerDecision:
    """Decide what follows.

    A runner is replaced only when its process is known to have ended: a lease that is not renewed ends the process
    first. So files of a job, which no lease protects, have one writer, too. One that cannot be seen is replaced when
    it is as silent: if it still lives, it finds its lease taken within seconds, and ends.

    Args:
        seen: The submission, its lease and its job.
        holder: Whether the holder of the lease lives.
        silent_s: Time since the lease was last seen to be renewed.
        since_start_s: Time since this server started the last runner; infinite if it started none.
    """
    one = seen.submission
    if holder == "alive":
        if silent_s > SILENT_S:
            return KillRunner(f"it has not renewed its lease for {silent_s:.0f} s")
        return KeepRunner("it renews its lease")
    if holder == "unseen" and silent_s <= SILENT_S:
        return KeepRunner("it may live, and was not silent for long")
    if seen.ended and seen.job_state is not None:
        return EndSubmission(seen.job_state.replace("_", " "))
    if one.cancelling:
        return EndSubmission(one.reason or "cancelled", cancelled=True)
    if one.fruitless >= STARTS_MAX:
        return EndSubmission(
            f"its runner ended unexpectedly {one.fruitless} times in a row without a further step"
        )
    if since_start_s < rest_s(one.fruitless):
        return KeepRunner("its runner ended a moment ago")
    return StartRunner()
