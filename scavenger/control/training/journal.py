"""The journal of a run: a line of JSON per step, epoch, view and measurement."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from scavenger.control.training.sample_counter import SampleCounter
from scavenger.control.training.segments import compress_segments, lines_of, next_segment
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.measurement import EpochRecord
from scavenger.private_files import make_private_folder, private_opener

SCHEMA_VERSION = 1
AUDIT_FILE = "audit.jsonl"
"""The audit, which records the samples of each applied step: a journal of kind `step` with step, view, epoch, and
`pieces`, each a worker with the positions that it computed, from `start` to `stop` (exclusive), in the epoch's order,
which `scavenger.elastic.order` gives."""
PENDING_BYTES_MAX = 64 << 20
"""Size limit of waiting lines, some hours of steps; a job that waits longer for disk space ends."""
SEGMENT_BYTES = 64 << 20
"""Size at which a journal continues in a new file, some hundred thousand steps; the full one is compressed."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BLOCK_BYTES = 1 << 16
_TELL_S = 5.0
"""Most of a killed job's running time that may be missing in the journal, seconds."""
_COST_S = 10.0
"""Time between two lines of kind `cost`, seconds."""


class Journal:
    """A file of JSON lines, each with its `kind`, written without buffering, so that a killed job loses none.

    A file that has reached `SEGMENT_BYTES` becomes a compressed segment beside it; `lines_of` reads all of them.

    While the disk is full, lines wait in memory, up to `PENDING_BYTES_MAX`, and are written in order later.

    A resumed job appends to its file, after a line of kind `resumed`: earlier lines of steps after that line's `step`
    were undone. A line of kind `time` gives the running time of the job when no other line has given it for a while;
    one of kind `cost` gives what the job has cost so far, and the time of day.

    Attributes:
        problem: Why lines are waiting, in one line; empty if none are.

    Raises:
        OSError: If the file cannot be opened, or too many lines wait for disk space.
    """

    def __init__(self, path: Path, *, resumed_step: int | None = None, **header: Any) -> None:
        make_private_folder(path.parent)
        self.path, self.problem = path, ""
        self._written_at_s = self._cost_at_s = -math.inf
        self._pending = bytearray()
        self._compressing: threading.Thread | None = None
        mode = "wb" if resumed_step is None else "ab"
        self._file: IO[bytes] = open(path, mode, buffering=0, opener=private_opener)  # noqa: SIM115
        if resumed_step is None:
            self._write("header", {"schema_version": SCHEMA_VERSION, **header})
        else:
            _cut_torn_line(path)
            self._write("resumed", {"step": resumed_step})

    def add(self, kind: str, record: Any) -> None:
        """Append a line from a dataclass or a mapping."""
        fields: dict[str, Any] = asdict(record) if is_dataclass(record) else record  # type: ignore[arg-type]
        self._written_at_s = fields.get("at_s", self._written_at_s)
        self._write(kind, fields)

    def tick(self, at_s: float, cost_usd: float) -> None:
        """Write running time (seconds) and cost (US dollars) of all attempts, each if it was not written recently."""
        if at_s - self._written_at_s >= _TELL_S:
            self.end(at_s)
        if at_s - self._cost_at_s >= _COST_S:
            self._cost_at_s = at_s
            self._write(
                "cost",
                {"at_s": at_s, "unix_s": round(datetime.now(UTC).timestamp(), 3), "cost_usd": cost_usd},
            )

    def end(self, at_s: float) -> None:
        """Write the running time of all attempts, seconds, at the end of the job."""
        self._written_at_s = at_s
        self._write("time", {"at_s": at_s})

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._pending += msgspec.json.encode({"kind": kind, **fields}) + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self._pending:
                del self._pending[: self._file.write(self._pending)]
            self.problem = ""
            if self._file.tell() >= SEGMENT_BYTES:
                self._begin_file()
        except OSError as error:
            self.problem = f"{error.strerror}: {self.path}"
            if error.errno not in _NO_ROOM or len(self._pending) > PENDING_BYTES_MAX:
                raise

    def _begin_file(self) -> None:
        """Make the full file a segment, and continue in a new one."""
        os.fsync(self._file.fileno())
        if self._compressing is not None:
            self._compressing.join()
        segment = next_segment(self.path)
        self.path.rename(segment)
        try:
            file: IO[bytes] = open(self.path, "wb", buffering=0, opener=private_opener)  # noqa: SIM115
        except OSError:
            segment.rename(self.path)  # the full file goes on growing
            raise
        self._file.close()
        self._file = file
        self._compressing = threading.Thread(
            target=compress_segments, args=(self.path,), name="journal", daemon=True
        )
        self._compressing.start()

    def sync(self) -> bool:
        """Write waiting lines and sync the file to disk; returns whether that succeeded."""
        try:
            self._flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self.problem = self.problem or f"{error.strerror}: {self.path}"
        return not self.problem

    def close(self) -> None:
        """Write waiting lines if possible and close the file; `problem` is set if lines are missing."""
        with contextlib.suppress(OSError):
            self._flush()
        self._file.close()
        if self._compressing is not None:
            self._compressing.join()


@dataclass(frozen=True, slots=True)
class Journals:
    """The journals of a job: measurements (with steps and epochs), and the audit or None."""

    measurements: Journal
    audit: Journal | None

    @property
    def all(self) -> tuple[Journal, ...]:
        """All existing journals."""
        return (self.measurements,) if self.audit is None else (self.measurements, self.audit)

    def sync(self) -> bool:
        """Sync all journals to disk; returns whether that succeeded."""
        synced = [journal.sync() for journal in self.all]
        return all(synced)

    def close(self) -> tuple[str, ...]:
        """Close all journals; returns a warning for each with missing lines."""
        for journal in self.all:
            journal.close()
        return tuple(
            f"{journal.problem}; its last lines are missing" for journal in self.all if journal.problem
        )


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which was being written when the last attempt ended."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        whole = end
        while whole > 0:
            start = max(0, whole - _BLOCK_BYTES)
            file.seek(start)
            found = file.read(whole - start).rfind(b"\n")
            if found >= 0:
                whole = start + found + 1
                break
            whole = start
        if whole < end:
            file.truncate(whole)


@dataclass(frozen=True, slots=True)
class History:
    """Progress of a job at a step, as far as its journal shows it.

    Attributes:
        epochs: Evaluated epochs, except one that ended with the step itself: a job resumed there evaluates it again.
        samples_by_batch: Samples trained, by global batch size.
        elapsed_s: Running time of all attempts when the job last wrote, including undone steps.
        callback_runs: Runs of the callbacks at the ends of epochs, as `epochs`, and that of the step before, if any.
    """

    epochs: tuple[EpochRecord, ...] = ()
    samples_by_batch: tuple[tuple[int, int], ...] = ()
    elapsed_s: float = 0.0
    callback_runs: tuple[CallbackRunRecord, ...] = ()


class _Step(msgspec.Struct, tag_field="kind", tag="step"):
    step: int
    global_batch_size: int
    samples: int
    at_s: float


class EpochLine(msgspec.Struct, tag_field="kind", tag="epoch"):
    """The evaluation of an epoch, as it is written."""

    epoch: int
    step: int
    metrics: dict[str, float | None]
    evaluation_s: float
    at_s: float

    def record(self) -> EpochRecord:
        """Convert to an `EpochRecord`; null stands for NaN, which JSON lacks."""
        metrics = {name: math.nan if value is None else value for name, value in self.metrics.items()}
        return EpochRecord(self.epoch, self.step, metrics, self.evaluation_s, self.at_s)


class _CallbackRun(msgspec.Struct, tag_field="kind", tag="callbacks"):
    epoch: int
    step: int
    state: str
    rate_scale: float
    learning_rate: float | None
    stopped_by: str
    keep_best: bool | None
    batch: int | None = None
    rates_ahead: tuple[float, ...] = ()

    def record(self) -> CallbackRunRecord:
        """Convert to a `CallbackRunRecord`."""
        return CallbackRunRecord(**msgspec.structs.asdict(self))


class ResumedLine(msgspec.Struct, tag_field="kind", tag="resumed"):
    """The steps after this one are undone."""

    step: int


class _Time(msgspec.Struct, tag_field="kind", tag="time"):
    at_s: float


_Record = _Step | EpochLine | _CallbackRun | ResumedLine | _Time


def _records(path: Path) -> Iterator[_Record]:
    """Yield the readable records of a journal line by line, since a long job's journal is large."""
    decoder: msgspec.json.Decoder[_Record] = msgspec.json.Decoder(_Record)
    with contextlib.suppress(OSError, EOFError):
        for line in lines_of(path):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # damaged, or of another kind
                yield decoder.decode(line)


def read_history(path: Path, step: int) -> History:
    """Read the progress of a job at a step, such as that of its newest checkpoint.

    A missing or damaged file yields less information and is no error, since a resumed job does not need it.
    """
    counter = SampleCounter()
    epochs: dict[int, EpochLine] = {}
    runs: dict[int, _CallbackRun] = {}
    within_epoch: _CallbackRun | None = None  # after the step before; those before it have led to its state
    elapsed_s = 0.0

    def undo(after: int) -> None:
        counter.undo(after)
        for number in [number for number, epoch in epochs.items() if epoch.step >= after]:
            del epochs[number]
        for number in [number for number, run in runs.items() if number >= 0 and run.step >= after]:
            del runs[number]

    for found in _records(path):
        match found:
            case _Step():
                counter.add(found.step, found.global_batch_size, found.samples)
                elapsed_s = max(elapsed_s, found.at_s)
            case EpochLine():
                epochs[found.epoch] = found
                elapsed_s = max(elapsed_s, found.at_s)
            case _CallbackRun(batch=None):
                runs[found.epoch] = found
            case _CallbackRun():
                within_epoch = found if found.step == step - 1 else within_epoch
            case _Time():
                elapsed_s = max(elapsed_s, found.at_s)
            case ResumedLine():
                undo(found.step)
    undo(step)
    standing = [runs[number] for number in sorted(runs)] + ([within_epoch] if within_epoch else [])
    return History(
        epochs=tuple(epochs[number].record() for number in sorted(epochs)),
        samples_by_batch=tuple(
            sorted((batch, samples) for batch, samples in counter.by_batch.items() if samples)
        ),
        elapsed_s=elapsed_s,
        callback_runs=tuple(run.record() for run in standing),
    )
