"""Finds samples that kill the workers which compute them, without blaming data for failures of machines.

A death is evidence only if the process ended by its own fault (`Cause.blames_data`), and only against the piece
of data which that worker was computing. What becomes of a piece::

    state       crashed on exactly it                            crashed on a part of it     passed
    unknown     -> suspected, 1 death                            -> the part is suspected    -
    suspected   deaths + 1; at `deaths_min` on `hosts_min`       -> the part is suspected,   what passed is
                hosts: -> split; one that cannot: quarantined    the rest stays so           forgotten
    half of a   -> split; one that cannot be split stands        as above                    as above
    split piece trial like any other: `deaths_min`, `hosts_min`
    quarantined -                                                -                           -

Who died of one of several pieces is evidence against none of them: each is watched, and tried alone. A piece is
retried apart from its neighbours (`cut`), so that a worker that dies on it dies of it. Halving a piece that was found
guilty takes one death a level, not three: a chance death there merely sends the search into an innocent half,
which then passes. The verdict itself always takes `deaths_min` deaths on the one piece alone, which makes at most
`2 deaths_min + log2(n)` for a piece of n samples with one that kills.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

DEATHS_MIN = 3
HOSTS_MIN = 2
"""Hosts on which a piece must have killed a worker: on one host alone, the host may be the cause."""


class Cause(Enum):
    """Why a worker ended."""

    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    KILLED = "killed from outside"
    SILENT = "silent"

    @property
    def blames_data(self) -> bool:
        """Whether its data may be the cause; not for evictions, preemptions and lost connections."""
        return self in (Cause.CRASHED, Cause.OUT_OF_MEMORY, Cause.HUNG)


_OWN_FAULT = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)
_SHELL_SIGNAL = 128
"""Shells and container runtimes report a death by signal n as exit code 128 + n."""


def cause_of_death(
    exit_code: int | None,
    *,
    ended_by_us: bool = False,
    preempted: bool = False,
    out_of_memory: bool = False,
    hung: bool = False,
) -> Cause:
    """Classify a death; in doubt as a cause that does not blame the data.

    SIGKILL alone is `KILLED`, although the kernel's out-of-memory killer uses it too: callers that can tell (the cgroup
    counts its kills) pass `out_of_memory`.

    Args:
        exit_code: As in `subprocess`, negative for a signal; None if unknown.
        ended_by_us: Whether Scavenger ended it, by request or by signal.
        preempted: Whether the cloud gave a preemption notice for the machine.
        out_of_memory: Whether the out-of-memory killer ended it.
        hung: Whether the watchdog ended it because it made no progress.
    """
    if preempted:
        return Cause.PREEMPTED
    if hung:
        return Cause.HUNG
    if ended_by_us:
        return Cause.EVICTED
    if out_of_memory:
        return Cause.OUT_OF_MEMORY
    if exit_code is None:
        return Cause.SILENT
    number = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL
    if number > 0 and number not in _OWN_FAULT:
        return Cause.KILLED
    return Cause.CRASHED


@dataclass(frozen=True, slots=True, order=True)
class SampleRange:
    """Samples `start` to `stop` (exclusive) of a scope: of a shard, or of an epoch's order where there are none."""

    scope: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"no piece from {self.start} to {self.stop}")

    @property
    def samples(self) -> int:
        return self.stop - self.start

    def overlaps(self, other: SampleRange) -> bool:
        return self.scope == other.scope and self.start < other.stop and other.start < self.stop

    def contains(self, other: SampleRange) -> bool:
        return self.scope == other.scope and self.start <= other.start and other.stop <= self.stop

    def minus(self, other: SampleRange) -> list[SampleRange]:
        """The rest without the other piece: zero, one or two pieces."""
        if not self.overlaps(other):
            return [self]
        rest = [(self.start, other.start), (other.stop, self.stop)]
        return [SampleRange(self.scope, start, stop) for start, stop in rest if start < stop]


# ---- findings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Innocent:
    """The death is no evidence against the data."""

    reason: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """Try the piece again, apart from its neighbours, and not on the hosts of `Suspects.avoid`."""

    piece: SampleRange
    reason: str


@dataclass(frozen=True, slots=True)
class Split:
    """The piece kills: its halves are to be tried apart."""

    piece: SampleRange
    halves: tuple[SampleRange, SampleRange]
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The piece is left out from now on. The result is no longer complete, which the report must state."""

    piece: SampleRange
    reason: str


@dataclass(frozen=True, slots=True)
class NotTheData:
    """So many samples would have to be left out that the training code or the machines are to blame."""

    reason: str


Finding = Innocent | Suspected | Split | Quarantined | NotTheData


@dataclass(slots=True)
class _Suspect:
    piece: SampleRange
    guilty_before: bool
    """Whether it is part of a piece that was found guilty."""
    deaths: list[tuple[str, str]] = field(default_factory=list)
    """Worker and host of each death on exactly this piece."""


class Suspects:
    """Suspected and quarantined pieces of the data.

    Args:
        samples_max: Samples that may be quarantined in all; beyond, the finding is `NotTheData`.
        deaths_min: Deaths on one piece alone that condemn it.
        hosts_min: Hosts on which they must have been, where there are so many.
        samples_min: Samples below which a piece is not split, where the source cannot read fewer apart.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        samples_max: int,
        deaths_min: int = DEATHS_MIN,
        hosts_min: int = HOSTS_MIN,
        samples_min: int = 1,
    ) -> None:
        if samples_max < 0 or min(deaths_min, hosts_min, samples_min) < 1:
            raise ValueError("a quarantine takes at least one death, host and sample")
        self.samples_max, self.samples_min = samples_max, samples_min
        self.deaths_min, self.hosts_min = deaths_min, hosts_min
        self._suspects: list[_Suspect] = []
        self._quarantined: list[Quarantined] = []
        self._counted: set[str] = set()

    @property
    def suspected(self) -> tuple[SampleRange, ...]:
        """Suspected pieces, ordered by scope and start."""
        return tuple(sorted(suspect.piece for suspect in self._suspects))

    @property
    def any(self) -> bool:
        """Whether a piece is suspected."""
        return bool(self._suspects)

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """Quarantined pieces in the order in which they were found."""
        return tuple(self._quarantined)

    @property
    def samples_quarantined(self) -> int:
        return sum(entry.piece.samples for entry in self._quarantined)

    def cut(self, piece: SampleRange) -> tuple[SampleRange, ...]:
        """Cut a piece into the parts to compute, in order: suspects separately, without quarantined samples."""
        rest = [piece]
        for entry in self._quarantined:
            rest = [left for part in rest for left in part.minus(entry.piece)]
        for suspect in self._suspects:
            rest = [left for part in rest for left in _apart(part, suspect.piece)]
        return tuple(sorted(rest))

    def avoid(self, piece: SampleRange, hosts: Collection[str]) -> frozenset[str]:
        """Hosts on which another death would be no new evidence on a piece, if the next death decides.

        Args:
            piece: As `cut` gave it.
            hosts: The job's present hosts; if all would be avoided, none is.
        """
        suspect = self._find(piece)
        if suspect is None or len(suspect.deaths) + 1 < self.deaths_min or not self._decisive(suspect):
            return frozenset()
        tried = frozenset(host for _, host in suspect.deaths)
        return tried if len(tried) < self.hosts_min and set(hosts) - tried else frozenset()

    def watches(self, piece: SampleRange) -> bool:
        """Whether the piece, as `cut` gave it, is suspected and must be computed alone."""
        return self._find(piece) is not None

    def watch(self, piece: SampleRange) -> Suspected:
        """Suspect a piece, without evidence against it alone: it was one of several that a dead worker had."""
        self._watched(piece)
        return Suspected(piece, "it was one of several pieces that a worker died of")

    def passed(self, piece: SampleRange) -> None:
        """The piece was computed and applied: nothing in it kills."""
        self._carve(piece)

    def crashed(
        self, worker: str, host: str, piece: SampleRange, step: int, cause: Cause, *, hosts: int
    ) -> Finding:
        """A worker died while it computed a piece.

        Args:
            worker: A name that is never used again, so that a message that comes twice counts once.
            host: The machine it ran on.
            piece: What it was computing, as `cut` gave it.
            step: The step it was computed for, for messages.
            cause: See `cause_of_death`.
            hosts: Number of the job's hosts, including this one.
        """
        if not cause.blames_data:
            return Innocent(f"{worker} was lost in step {step}: {cause.value}")
        if worker in self._counted or any(entry.piece.overlaps(piece) for entry in self._quarantined):
            return Innocent(f"the death of {worker} has been counted")
        self._counted.add(worker)
        suspect = self._watched(piece)
        suspect.deaths.append((worker, host))
        return self._judge(suspect, step, cause, hosts)

    def _judge(self, suspect: _Suspect, step: int, cause: Cause, hosts: int) -> Finding:
        piece, tried = suspect.piece, {host for _, host in suspect.deaths}
        count = f"{len(suspect.deaths)} worker(s) on {len(tried)} host(s)"
        reason = f"{count} died of it, the last in step {step}: {cause.value}"
        decisive = self._decisive(suspect)
        enough_hosts = len(tried) >= min(self.hosts_min, hosts)
        if decisive and not (len(suspect.deaths) >= self.deaths_min and enough_hosts):
            return Suspected(piece, reason)
        if self._splits(piece):
            middle = (piece.start + piece.stop) // 2
            halves = (
                SampleRange(piece.scope, piece.start, middle),
                SampleRange(piece.scope, middle, piece.stop),
            )
            self._suspects.remove(suspect)
            self._suspects += [_Suspect(half, guilty_before=True) for half in halves]
            return Split(piece, halves, reason)
        if self.samples_quarantined + piece.samples > self.samples_max:
            return NotTheData(
                f"more than {self.samples_max} samples would have to be left out, so the training code or the "
                f"machines are likelier at fault than the data; {reason}"
            )
        self._suspects.remove(suspect)
        verdict = Quarantined(piece, reason)
        self._quarantined.append(verdict)
        return verdict

    def quarantine(self, entry: Quarantined) -> None:
        """Leave out a piece that an earlier process found guilty; idempotent."""
        if entry not in self._quarantined:
            self._carve(entry.piece)
            self._quarantined.append(entry)

    def snapshot(self) -> dict[str, Any]:
        """Its state as plain values that JSON can hold."""
        return {
            "samples_max": self.samples_max,
            "deaths_min": self.deaths_min,
            "hosts_min": self.hosts_min,
            "samples_min": self.samples_min,
            "quarantined": [[*_numbers(entry.piece), entry.reason] for entry in self._quarantined],
            "suspects": [
                [*_numbers(suspect.piece), suspect.guilty_before, [list(death) for death in suspect.deaths]]
                for suspect in self._suspects
            ],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Suspects:
        """Restore the state from `snapshot`.

        Raises:
            ValueError: If the state is invalid.
        """
        try:
            suspects = cls(**{name: int(snapshot[name]) for name in _SETTINGS})
            suspects._quarantined = [
                Quarantined(SampleRange(scope, start, stop), str(reason))
                for scope, start, stop, reason in snapshot["quarantined"]
            ]
            suspects._suspects = [
                _Suspect(SampleRange(scope, start, stop), bool(guilty), [(str(w), str(h)) for w, h in deaths])
                for scope, start, stop, guilty, deaths in snapshot["suspects"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no snapshot of suspects: {error}") from error
        return suspects

    # ---- helpers -------------------------------------------------------------------------------------------

    def _find(self, piece: SampleRange) -> _Suspect | None:
        return next((suspect for suspect in self._suspects if suspect.piece == piece), None)

    def _watched(self, piece: SampleRange) -> _Suspect:
        suspect = self._find(piece)
        if suspect is None:
            guilty = any(other.guilty_before and other.piece.contains(piece) for other in self._suspects)
            self._carve(piece)
            suspect = _Suspect(piece, guilty)
            self._suspects.append(suspect)
        return suspect

    def _splits(self, piece: SampleRange) -> bool:
        return piece.samples // 2 >= self.samples_min

    def _decisive(self, suspect: _Suspect) -> bool:
        """Whether the full evidence is needed: for a piece not yet known to kill, and for the final verdict."""
        return not (suspect.guilty_before and self._splits(suspect.piece))

    def _carve(self, piece: SampleRange) -> None:
        """Remove a piece from the suspects; evidence against the whole is no evidence against the rest."""
        untouched = [suspect for suspect in self._suspects if not suspect.piece.overlaps(piece)]
        touched = [suspect for suspect in self._suspects if suspect.piece.overlaps(piece)]
        self._suspects = untouched + [
            _Suspect(left, suspect.guilty_before)
            for suspect in touched
            for left in suspect.piece.minus(piece)
        ]


_SETTINGS = ("samples_max", "deaths_min", "hosts_min", "samples_min")


def _numbers(piece: SampleRange) -> tuple[int, int, int]:
    return piece.scope, piece.start, piece.stop


def _apart(piece: SampleRange, suspect: SampleRange) -> Iterable[SampleRange]:
    if not piece.overlaps(suspect):
        return [piece]
    both = SampleRange(piece.scope, max(piece.start, suspect.start), min(piece.stop, suspect.stop))
    return [*piece.minus(suspect), both]


def without(samples: npt.NDArray[np.int64], quarantined: Collection[int]) -> npt.NDArray[np.int64]:
    """Leave quarantined samples out of a stretch of the epoch's order.

    Positions in the epoch stay what they are: nothing moves up, so a sample found guilty in mid-epoch shifts no
    other into or out of a step that is applied already, and the shares of any number of workers hold together
    the same samples in the same order.

    Args:
        samples: `epoch_order(...)[start:stop]`, shape `(n,)`.
        quarantined: Sample indices.

    Returns:
        Those to compute, in order, shape `(m,)` with `m <= n`; it may be empty.
    """
    if not quarantined:
        return samples
    kept: npt.NDArray[np.int64] = samples[~np.isin(samples, list(quarantined))]
    return kept
