"""Reads tables of measurements from CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from scavenger.errors import ConfigurationError
from scavenger.models.backtest import PlacementRow, RunRow
from scavenger.models.backtest_curves import CurveRun

TABLE_MAX_BYTES = 64 * 2**20
"""Size limit of a table, about a million rows."""


def read_header(path: Path) -> list[str]:
    """Read the column names of a CSV file.

    Raises:
        ConfigurationError: As `read_table`, but for any columns.
    """
    return _lines(path, "workload, ...")[0]


def read_table(
    path: Path, required: Sequence[str], *, optional: Sequence[str] = ()
) -> list[Mapping[str, str]]:
    """Read the rows of a CSV file with a header; columns that are not asked for are ignored.

    Returns:
        One mapping per row, with every required and optional column; missing cells are empty.

    Raises:
        ConfigurationError: If the file cannot be read, is too large, is not text, has no header, lacks a required
            column, repeats one, or has no row.
    """
    header, *lines = _lines(path, ", ".join(required))
    for name in required:
        if name not in header:
            close = get_close_matches(name, header, n=1)
            hint = f"; did you mean {close[0]!r} for it?" if close else f"; it has {', '.join(header)}"
            raise ConfigurationError(f"{path}:1: there is no column {name!r}{hint}")
    wanted = [*required, *optional]
    for name in wanted:
        if header.count(name) > 1:
            raise ConfigurationError(f"{path}:1: column {name!r} occurs twice")
    if not lines:
        raise ConfigurationError(f"{path}: no row below the names of the columns")
    indices = {name: header.index(name) for name in wanted if name in header}
    return [
        {
            name: line[indices[name]] if name in indices and indices[name] < len(line) else ""
            for name in wanted
        }
        for line in lines
    ]


def _lines(path: Path, expected: str) -> list[list[str]]:
    """Read the stripped cells of every line that is not empty; at least one line."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(TABLE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    if len(raw) > TABLE_MAX_BYTES:
        raise ConfigurationError(
            f"{path}: larger than {TABLE_MAX_BYTES >> 20} MiB: not a table of measurements"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not a text in UTF-8: byte {error.start}") from error
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        lines = [[cell.strip() for cell in line] for line in reader]
    except csv.Error as error:
        raise ConfigurationError(f"{path}:{reader.line_num}: not CSV: {error}") from error
    if not (filled := [line for line in lines if any(line)]):
        raise ConfigurationError(f"{path}: empty; the first line must name the columns: {expected}")
    return filled


def number(cell: str) -> float:
    """Parse a cell as a number; NaN if it is none. The fits count and drop such rows."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def whole(cell: str) -> int:
    """Parse a cell as a whole number; 0, an invalid count, if it is none."""
    value = number(cell)
    return int(value) if math.isfinite(value) and value == math.floor(value) and abs(value) < 2**53 else 0


def read_runs(path: Path) -> list[RunRow]:
    """Read training runs, one per row: workload, global_batch_size, epochs to the target, and optionally source.

    Raises:
        ConfigurationError: As `read_table`.
    """
    rows = read_table(path, ("workload", "global_batch_size", "epochs"), optional=("source",))
    return [
        RunRow(
            source=row["source"],
            workload=row["workload"],
            global_batch_size=number(row["global_batch_size"]),
            epochs=number(row["epochs"]),
        )
        for row in rows
    ]


def read_placements(path: Path) -> list[PlacementRow]:
    """Read mean step times, one placement per row: workload, workers, step_time_s, and a local or global batch size.

    Defaults for missing columns: one worker per node, one cluster, unknown synchronization time, no marked points.

    Raises:
        ConfigurationError: As `read_table`; or if both batch size columns are missing.
    """
    optional = (
        "cluster",
        "workers_per_node",
        "local_batch_size",
        "global_batch_size",
        "sync_time_s",
        "profiled",
    )
    rows = read_table(path, ("workload", "workers", "step_time_s"), optional=optional)
    if not any(row["local_batch_size"] or row["global_batch_size"] for row in rows):
        raise ConfigurationError(
            f"{path}:1: there is no column 'local_batch_size' and no 'global_batch_size'"
        )
    placements = []
    for row in rows:
        workers = whole(row["workers"])
        local, total = number(row["local_batch_size"]), number(row["global_batch_size"])
        placements.append(
            PlacementRow(
                workload=row["workload"],
                cluster=row["cluster"],
                workers_per_node=whole(row["workers_per_node"]) if row["workers_per_node"] else 1,
                workers=workers,
                local_batch_size=total / workers if math.isnan(local) and workers > 0 else local,
                global_batch_size=local * workers if math.isnan(total) else total,
                step_time_s=number(row["step_time_s"]),
                sync_time_s=number(row["sync_time_s"]),
                marked=row["profiled"].lower() in ("1", "1.0", "true", "yes"),
            )
        )
    return placements


def read_curves(path: Path) -> list[CurveRun]:
    """Read learning curves, one evaluation per row: workload, run, step, metric, mode (min or max) and value.

    Optional columns are source and learning_rate. Rows whose step is not positive, or whose step or value is not
    finite, are left out and counted, as are repeated steps of a run.

    Raises:
        ConfigurationError: As `read_table`; or if a mode is neither.
    """
    columns = ("workload", "run", "step", "metric", "mode", "value")
    groups: dict[tuple[str, str, str, str], list[tuple[float, float, float]]] = {}
    modes: dict[tuple[str, str, str, str], str] = {}
    for row in read_table(path, columns, optional=("source", "learning_rate")):
        key = (row["source"], row["workload"], row["run"], row["metric"])
        if modes.setdefault(key, row["mode"]) != row["mode"] or row["mode"] not in ("min", "max"):
            raise ConfigurationError(
                f"{path}: mode {row['mode']!r} of {row['workload']}, {row['run']}: give min or max, one for a run"
            )
        evaluation = (number(row["step"]), number(row["value"]), number(row["learning_rate"]))
        groups.setdefault(key, []).append(evaluation)
    runs = []
    for key, rows in groups.items():
        usable = {
            step: (value, rate)
            for step, value, rate in rows
            if 0.0 < step < math.inf and math.isfinite(value)
        }
        if not usable:
            continue
        steps = np.array(sorted(usable))
        values, rates = np.array([usable[step] for step in sorted(usable)]).T
        runs.append(
            CurveRun(
                *key[:3],
                mode="min" if modes[key] == "min" else "max",
                steps=steps,
                values=values,
                learning_rates=rates if bool(np.all((rates > 0.0) & np.isfinite(rates))) else None,
                dropped=len(rows) - len(usable),
            )
        )
    return runs
