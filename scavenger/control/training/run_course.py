"""The course of a run, read from its journal as it grows: what pictures of a job show."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from scavenger.control.training.journal import EpochLine, ResumedLine
from scavenger.control.training.segments import lines_of
from scavenger.domain.measurement import EpochRecord

BUCKETS_MAX = 600
"""Most points of a course of steps: more than a picture has pixels to tell apart; older ones are merged in pairs."""


@dataclass(frozen=True, slots=True)
class StepBucket:
    """Some steps in a row at one configuration, as one point of a picture.

    Attributes:
        first, last: Numbers of the first and the last step.
        count: Number of steps whose time represents the configuration.
        step_time_s: Mean time of those; of all steps if there are none.
        slowest_s: The longest step time.
        noise_scale: As of the last step, samples; None where unknown.
        at_s: End of the last step, seconds since the job began.
    """

    first: int
    last: int
    workers: int
    global_batch_size: int
    count: int
    step_time_s: float
    slowest_s: float
    loss: float
    noise_scale: float | None
    at_s: float


class CostAt(msgspec.Struct, frozen=True, tag_field="kind", tag="cost"):
    """Cost of all attempts at a time; `unix_s` is the time of day, seconds since the epoch."""

    at_s: float
    unix_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class RunCourse:
    """What a journal tells of a run so far.

    Attributes:
        report: The curve and the choice as a report (`scavenger.domain.document`); None before the choice.
    """

    steps: tuple[StepBucket, ...] = ()
    epochs: tuple[EpochRecord, ...] = ()
    costs: tuple[CostAt, ...] = ()
    report: dict[str, Any] | None = None


class _Step(msgspec.Struct, tag_field="kind", tag="step"):
    step: int
    workers: int
    global_batch_size: int
    step_time_s: float
    loss: float | None
    disturbed: bool
    at_s: float
    noise_scale: float | None = None


_Record = _Step | EpochLine | CostAt | ResumedLine


class CourseReader:
    """Reads a journal and, with each call, what has been added to it since. Threads may share a reader.

    A missing or damaged journal yields less, and is no error: pictures show what there is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._decoder: msgspec.json.Decoder[_Record] = msgspec.json.Decoder(_Record)
        self._begin()

    def _begin(self) -> None:
        self._read_bytes = 0
        self._file_number = -1
        self._steps: list[StepBucket] = []
        self._width = 1
        self._epochs: dict[int, EpochRecord] = {}
        self._costs: list[CostAt] = []
        self._report: dict[str, Any] | None = None

    def read(self) -> RunCourse:
        """The course up to now."""
        with self._lock:
            for line in self._new_lines():
                with contextlib.suppress(
                    msgspec.DecodeError, UnicodeDecodeError
                ):  # damaged, or of another kind
                    self._take(line)
            return RunCourse(
                tuple(self._steps),
                tuple(self._epochs[number] for number in sorted(self._epochs)),
                tuple(self._costs),
                self._report,
            )

    def _new_lines(self) -> Iterator[bytes]:
        """Complete lines since the last call; all lines again if the journal has gone on in a new file."""
        with contextlib.suppress(OSError, EOFError):
            stat = self._path.stat()
            if self._file_number in (-1, stat.st_ino) and self._read_bytes <= stat.st_size:
                if self._file_number == -1 and any(self._path.parent.glob(f"{self._path.name}.*")):
                    self._begin()  # what could be read before a segment could not is read again
                    yield from lines_of(self._path)
                    self._read_bytes, self._file_number = self._complete_bytes(), stat.st_ino
                    return
                self._file_number = stat.st_ino
                with self._path.open("rb") as file:
                    file.seek(self._read_bytes)
                    for line in file:
                        if not line.endswith(b"\n"):
                            return  # it is being written
                        self._read_bytes += len(line)
                        yield line
                return
            self._begin()
            yield from self._new_lines()

    def _complete_bytes(self) -> int:
        with self._path.open("rb") as file:
            content = file.read()
        return content.rfind(b"\n") + 1

    def _take(self, line: bytes) -> None:
        if line.startswith(b'{"kind":"curve"'):
            self._report = msgspec.json.decode(line)
            return
        match self._decoder.decode(line):
            case _Step() as step:
                self._add_step(step)
            case EpochLine() as epoch:
                self._epochs[epoch.epoch] = epoch.record()
            case CostAt() as cost:
                self._costs.append(cost)
                if len(self._costs) > 2 * BUCKETS_MAX:
                    self._costs = [*self._costs[:-1:2], self._costs[-1]]
            case ResumedLine(step):
                self._steps = [one for one in self._steps if one.last <= step]
                self._epochs = {n: one for n, one in self._epochs.items() if one.step <= step}

    def _add_step(self, step: _Step) -> None:
        new = StepBucket(
            first=step.step,
            last=step.step,
            workers=step.workers,
            global_batch_size=step.global_batch_size,
            count=0 if step.disturbed else 1,
            step_time_s=step.step_time_s,
            slowest_s=step.step_time_s,
            loss=math.nan if step.loss is None else step.loss,
            noise_scale=step.noise_scale,
            at_s=step.at_s,
        )
        last = self._steps[-1] if self._steps else None
        if last is not None and _alike(last, new) and new.last - last.first < self._width:
            self._steps[-1] = _merged(last, new)
            return
        self._steps.append(new)
        if len(self._steps) > BUCKETS_MAX:
            self._width *= 2
            self._steps = _halved(self._steps)
            if (
                len(self._steps) > BUCKETS_MAX
            ):  # the configuration changed more often than a picture could show
                self._steps = [*self._steps[:-1:2], self._steps[-1]]


def _alike(one: StepBucket, other: StepBucket) -> bool:
    return (one.workers, one.global_batch_size) == (other.workers, other.global_batch_size)


def _merged(one: StepBucket, other: StepBucket) -> StepBucket:
    """One bucket of both; steps that represent their configuration count alone, if there are any."""
    count = one.count + other.count
    weights = (one.count, other.count) if count else (1, 1)
    mean = (one.step_time_s * weights[0] + other.step_time_s * weights[1]) / sum(weights)
    return replace(
        other,
        first=one.first,
        count=count,
        step_time_s=mean,
        slowest_s=max(one.slowest_s, other.slowest_s),
        noise_scale=one.noise_scale if other.noise_scale is None else other.noise_scale,
    )


def _halved(steps: list[StepBucket]) -> list[StepBucket]:
    """About half as many buckets: neighbours of one configuration are merged in pairs."""
    fewer: list[StepBucket] = []
    paired = True
    for bucket in steps:
        if not paired and _alike(fewer[-1], bucket):
            fewer[-1], paired = _merged(fewer[-1], bucket), True
        else:
            fewer.append(bucket)
            paired = False
    return fewer
