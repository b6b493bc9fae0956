"""Reads traces of jobs, and curves of their models, from CSV files."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scavenger.control.search.tables import number, read_table, whole
from scavenger.domain.curve import FloatArray, IntArray
from scavenger.errors import ConfigurationError
from scavenger.scheduler.jobs.simulation import Workload
from scavenger.scheduler.jobs.values import Claims, Curves

TRACE_MAX_BYTES = 256 * 2**20
"""Size limit of a trace, some million jobs."""

_TIME_MAX_S = 1e10
"""Three centuries, or a time of day since 1970: with more, sums of times are no longer exact to a microsecond."""

_COLUMNS = {
    "submitted": ("submitted_s", "submit_s", "submit_time", "time"),
    "lasts": ("duration_s", "duration"),
    "slots": ("slots", "num_gpus", "num_gpu", "gpus", "num_replicas"),
}
"""What a trace must have, and the names under which public traces have it."""
_OPTIONAL = {
    "user": ("user", "vc"),
    "priority": ("priority",),
    "model": ("model", "model_name", "application"),
}


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order in which they were submitted.

    Attributes:
        submitted_s: Since the first one.
        lasts_s: With the slots that each asked for.
        user: Their names, or "" where the trace has none.
        model: Likewise.
        dropped: Rows that were left out: without slots, or without a time that can be.
    """

    submitted_s: FloatArray
    lasts_s: FloatArray
    slots: IntArray
    priority: IntArray
    user: tuple[str, ...]
    model: tuple[str, ...]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class NamedCurves:
    """Curves by the names of their models."""

    names: tuple[str, ...]
    curves: Curves


def read_trace(path: Path) -> Trace:
    """Read a trace, as CSV or packed by gzip.

    A row is a job: when it was submitted, how long it lasts with its slots, and these; optionally its user, priority
    and model. Times are seconds.

    Raises:
        ConfigurationError: It cannot be read, lacks a column, or has no job.
    """
    rows, header = _rows(path)
    found = {}
    for meaning, names in {**_COLUMNS, **_OPTIONAL}.items():
        at = next((header.index(name) for name in names if name in header), None)
        if at is None and meaning in _COLUMNS:
            raise ConfigurationError(
                f"{path}:1: there is no column {names[0]!r} (or {', '.join(names[1:])}); it has {', '.join(header)}"
            )
        found[meaning] = at

    def column(meaning: str) -> list[str]:
        at = found[meaning]
        return [row[at] if at is not None and at < len(row) else "" for row in rows]

    submitted = np.array([number(cell) for cell in column("submitted")])
    lasts = np.array([number(cell) for cell in column("lasts")])
    slots = np.array([whole(cell) for cell in column("slots")], dtype=np.int64)
    good = (np.abs(submitted) < _TIME_MAX_S) & (lasts > 0.0) & (lasts < _TIME_MAX_S) & (slots > 0)
    if not good.any():
        raise ConfigurationError(f"{path}: no row has a time of submission, a duration and slots")
    order = np.flatnonzero(good)[np.argsort(submitted[good], kind="stable")]
    users, models = column("user"), column("model")
    return Trace(
        submitted_s=submitted[order] - submitted[order[0]],
        lasts_s=lasts[order],
        slots=slots[order],
        priority=np.array([whole(cell) for cell in column("priority")], dtype=np.int64)[order],
        user=tuple(users[row] for row in order),
        model=tuple(models[row] for row in order),
        dropped=int((~good).sum()),
    )


def _rows(path: Path) -> tuple[list[list[str]], list[str]]:
    try:
        with path.open("rb") as stream:
            raw = stream.read(TRACE_MAX_BYTES + 1)
            if raw[:2] == b"\x1f\x8b":
                with gzip.open(io.BytesIO(raw)) as packed:
                    raw = packed.read(TRACE_MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(raw) > TRACE_MAX_BYTES:
        raise ConfigurationError(f"{path}: larger than {TRACE_MAX_BYTES >> 20} MiB: not a trace")
    try:
        lines = [
            [cell.strip() for cell in line]
            for line in csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: not CSV in UTF-8: {error}") from error
    filled = [line for line in lines if any(line)]
    if len(filled) < 2:
        raise ConfigurationError(f"{path}: no row below the names of the columns")
    return filled[1:], filled[0]


def read_rates(path: Path) -> NamedCurves:
    """Read rates by slots: columns model, slots and rate; between two numbers of slots they are interpolated.

    Raises:
        ConfigurationError: It cannot be read, or a number is none.
    """
    points: dict[str, dict[int, float]] = {}
    for line, row in enumerate(read_table(path, ("model", "slots", "rate")), 2):
        slots, rate = whole(row["slots"]), number(row["rate"])
        if slots < 1 or not (math.isfinite(rate) and rate > 0.0):
            raise ConfigurationError(f"{path}:{line}: slots are from 1, and a rate is above 0")
        points.setdefault(row["model"], {})[slots] = rate
    most = max(max(rates) for rates in points.values())
    return NamedCurves(
        tuple(points), Curves(np.stack([interpolated(rates, most) for rates in points.values()]))
    )


def interpolated(rates: dict[int, float], most: int) -> FloatArray:
    """Rates at 0 to `most` slots; beyond those that are known, that of the nearest."""
    known = sorted(rates)
    return np.concatenate(
        [[0.0], np.interp(np.arange(1, most + 1), known, [rates[slots] for slots in known])]
    )


def workload(
    trace: Trace,
    known: NamedCurves | None = None,
    *,
    change_s: float = 0.0,
    error_log_sd: float = 0.0,
    seed: int = 0,
) -> Workload:
    """The jobs of a trace as a simulation takes them.

    Args:
        known: With them jobs are elastic, from one slot to what is of use: the curve of a job is that of its model, or
            one drawn at random where the trace names none. None for jobs that have what they asked for or nothing.
        error_log_sd: Of what policies are told of the work left.

    Raises:
        ConfigurationError: A model of the trace has no curve.
    """
    rng = np.random.default_rng(seed)
    jobs, largest = len(trace), int(trace.slots.max())
    if known is None:
        curves, curve = Curves(np.arange(largest + 1.0)[None]), np.zeros(jobs, dtype=np.int64)
        least = most = trace.slots
    else:
        rates = known.curves.rates
        end = rates.shape[1]
        if largest >= end:
            rates = np.hstack([rates, np.repeat(rates[:, -1:], largest + 1 - end, axis=1)])
        curves, curve = Curves(rates), _curve_of(trace, known.names, rng)
        least, most = np.ones_like(trace.slots), np.maximum(trace.slots, end - 1)
    users = {name: at for at, name in enumerate(dict.fromkeys(trace.user))}
    work = trace.lasts_s * curves.rates[curve, trace.slots]
    error = rng.lognormal(0.0, error_log_sd, jobs) if error_log_sd > 0.0 else np.ones(jobs)
    return Workload(
        claims=Claims(
            user=np.array([users[name] for name in trace.user], dtype=np.int64),
            priority=trace.priority,
            submitted_s=trace.submitted_s,
            least=least,
            asked=trace.slots,
            most=most,
            curve=curve,
        ),
        curves=curves,
        work=work,
        told=work * error,
        told_log_sd=np.full(jobs, error_log_sd),
        change_s=np.full(jobs, change_s),
    )


def _curve_of(trace: Trace, names: Sequence[str], rng: np.random.Generator) -> IntArray:
    if not any(trace.model):
        return rng.integers(0, len(names), len(trace))
    if missing := sorted({model for model in trace.model if model not in names}):
        raise ConfigurationError(
            f"no rates of {missing[0] or 'a job without a model'}; there are {', '.join(names)}"
        )
    return np.array([names.index(model) for model in trace.model], dtype=np.int64)
