"""Decides what follows from the state of a job's runner: nothing, its end, another one, or the submission's end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scavenger.domain.intent import Lease
from scavenger.domain.submission import RunnerSeen, RunnerStarts, Submission

SILENT_S = 60.0
"""A runner that does not renew its lease for so long is asked, and ended if it does not answer; it renews it every few
seconds."""
GAP_S = 10.0
"""A server that has not read the store for so long has not seen whether leases were renewed meanwhile."""
STARTS_MAX = 5
"""So many runners in a row may end unexpectedly before the job makes a further step."""
FAULTS_MAX = 20
"""So many starts in a row may fail for faults that pass, as a full disk or a cloud that does not answer: over an hour
and a quarter, by their pauses."""
REST_MAX_S = 60.0
_FAULT_REST_MAX_S = 300.0

Holder = Literal["alive", "dead", "unseen"]
"""Whether the process that holds the lease of a runner lives; `dead` if nobody holds it, `unseen` if it was one of a
container that hides it from here, or may have been."""


@dataclass(frozen=True, slots=True)
class KeepRunner:
    """Nothing is to be done."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskRunner:
    """Ask the process that holds the lease whether it works, and end it if it does not answer.

    Attributes:
        job: Whether its job is to work, too, and not only what renews its lease.
    """

    reason: str
    job: bool = False


@dataclass(frozen=True, slots=True)
class StopRunner:
    """End its process: the budget of its pool pays no longer for what it does, and it has not paused in time."""


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


@dataclass(frozen=True, slots=True)
class PauseSubmission:
    """The job waits in the queue again: its runner ended while it gave its slots back, or was ended for that."""


RunnerDecision = KeepRunner | AskRunner | StopRunner | StartRunner | EndSubmission | PauseSubmission


def rest_s(starts: RunnerStarts) -> float:
    """Seconds from one start to the next: none after progress, then 2, 4, 8 ...; a minute at most, five for faults."""
    fruitless, faults = starts.fruitless, starts.faults
    after_faults = 0.0 if faults == 0 else min(_FAULT_REST_MAX_S, 2.0 ** min(faults, 10))
    return max(after_faults, 0.0 if fruitless <= 1 else min(REST_MAX_S, 2.0 ** min(fruitless - 1, 10)))


def given_up(one: Submission) -> str:
    """Why a submission that waits is not started again; empty if it is."""
    if one.starts.fruitless >= STARTS_MAX:
        return one.reason or "it could not begin"
    if one.starts.faults >= FAULTS_MAX:
        return f"it could not begin in {one.starts.faults} attempts; {one.reason}"
    return ""


class Silences:
    """How long leases have not been renewed, as far as a server has seen.

    A server whose store was away, or that was suspended itself, has seen nothing meanwhile, and the runners could renew
    nothing. So silence counts from the first time that the store is read again.
    """

    def __init__(self) -> None:
        self._read_at_s = -math.inf
        self._since: dict[str, tuple[Lease | None, float]] = {}

    def look(self, leases: Mapping[str, Lease | None], now_s: float) -> dict[str, float]:
        """How long each lease has been as it is, seconds; those that are not given are forgotten.

        Args:
            leases: The leases by the ids of their jobs.
            now_s: When they were about to be read, monotonic.
        """
        gap, self._read_at_s = now_s - self._read_at_s > GAP_S, now_s
        before = {} if gap else self._since
        self._since = {
            job_id: before[job_id] if job_id in before and before[job_id][0] == lease else (lease, now_s)
            for job_id, lease in leases.items()
        }
        return {job_id: now_s - since_s for job_id, (_, since_s) in self._since.items()}

    def answered(self, job_id: str, now_s: float) -> None:
        """Begin anew for a runner that has shown that it works."""
        lease, _ = self._since[job_id]
        self._since[job_id] = (lease, now_s)


def follow_runner(
    seen: RunnerSeen,
    holder: Holder,
    *,
    silent_s: float,
    since_start_s: float,
    late: str = "",
    stopped: bool = False,
) -> RunnerDecision:
    """Decide what follows.

    A runner is replaced only when its process is known to have ended: one that does not renew its lease, and does not
    answer either, is ended first. So files of a job, which no lease protects, have one writer, too. One that cannot be
    seen is replaced when it is as silent: if it still lives, it finds its lease taken within seconds, and ends.

    Args:
        seen: The submission, its lease and its job.
        holder: Whether the holder of the lease lives.
        silent_s: Time since the lease was last seen to be renewed; see `Silences`.
        since_start_s: Time since this server started the last runner; infinite if it started none.
        late: Why its job has not done what its pool asked for; empty if it has, or was asked about a moment ago.
        stopped: Whether the budget of its pool pays for no more than the end of its VMs.
    """
    one = seen.submission
    if holder == "alive":
        if stopped and not seen.ended:
            return StopRunner()
        if silent_s > SILENT_S:
            return AskRunner(f"it has not renewed its lease for {silent_s:.0f} s")
        if late:
            return AskRunner(late, job=True)
        return KeepRunner("it renews its lease")
    if holder == "unseen" and silent_s <= SILENT_S:
        return KeepRunner("it may live, and was not silent for long")
    if (
        (seen.pausing or stopped)
        and not one.cancelling
        and (not seen.ended or seen.job_state == "interrupted")
    ):
        return PauseSubmission()
    if seen.ended and seen.job_state is not None:
        return EndSubmission(seen.job_state.replace("_", " "))
    if one.cancelling:
        return EndSubmission(one.reason or "cancelled", cancelled=True)
    if one.starts.fruitless >= STARTS_MAX:
        return EndSubmission(
            f"its runner ended unexpectedly {one.starts.fruitless} times in a row without a further step"
        )
    if since_start_s < rest_s(one.starts):
        return KeepRunner("its runner ended a moment ago")
    return StartRunner()
