"""Reads what a program told, from its reports and from lines of its output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from scavenger.domain.command import EPOCH_GROUPS
from scavenger.sdk.report import LINES_BYTES_MAX
from scavenger.train.command.messages import Record

__all__ = ["LogPatterns", "Reports", "parse_report"]

_READ_BYTES = 1 << 20
_WORDS = ("step", "samples", "loss", *EPOCH_GROUPS)


class LogPatterns:
    """Log patterns of a job file: regular expressions with named groups.

    A line with `step` tells of that step; one with `epoch` (from 0) or `epoch1` (from 1) and no step tells that it
    is over. `loss` and `samples` are of the step; `metric` is the goal's; any other group is a metric of that name.

    Args:
        patterns: The expressions; the first that is found in a line counts.
        metric: The name of the metric that the group `metric` stands for.
    """

    def __init__(self, patterns: Sequence[str], metric: str) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._metric = metric or "metric"

    def read(self, line: str, at_s: float) -> Record | None:
        """What a line tells; None if it matches no pattern, or a group is no number."""
        for pattern in self._patterns:
            if (match := pattern.search(line)) is not None:
                return self._record(match.groupdict(), at_s)
        return None

    def _record(self, groups: dict[str, str | None], at_s: float) -> Record | None:
        try:
            values = {name: float(text) for name, text in groups.items() if text is not None}
            step, samples, epoch = (_whole(values, name) for name in ("step", "samples", "epoch"))
            if epoch is None and (from_1 := _whole(values, "epoch1")) is not None:
                epoch = from_1 - 1
        except (ValueError, OverflowError):
            return None
        if (step is None and epoch is None) or min(step or 0, samples or 0, epoch or 0) < 0:
            return None
        metrics = {
            self._metric if name == "metric" else name: value
            for name, value in values.items()
            if name not in _WORDS and math.isfinite(value)
        }
        kind: Literal["step", "epoch"] = "epoch" if step is None else "step"
        return Record(kind, at_s, step, epoch, samples, values.get("loss"), metrics)


def _whole(values: Mapping[str, float], name: str) -> int | None:
    return int(values[name]) if name in values else None


def parse_report(line: bytes) -> Record | None:
    """What a line of `scavenger.sdk.report` tells; None if it is none, as it may be of any program."""
    try:
        return msgspec.convert(json.loads(line), Record)
    except (ValueError, msgspec.ValidationError, RecursionError):
        return None


class Reports:
    """The reports of one attempt, in the files of its folder; files that were read are removed.

    Args:
        folder: `$SCAVENGER_REPORT` of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = self._at = 0
        self._rest = b""

    def read(self) -> list[Record]:
        """What was told since the last call."""
        found: list[Record] = []
        while data := self._read_some():
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()[-_READ_BYTES:]
            found += [record for line in lines if (record := parse_report(line)) is not None]
        return found

    def _read_some(self) -> bytes:
        path = self._path(self._number)
        try:
            with path.open("rb") as file:
                file.seek(self._at)
                data = file.read(_READ_BYTES)
        except OSError:
            return b""
        self._at += len(data)
        if not data and self._at > LINES_BYTES_MAX and self._path(self._number + 1).exists():
            path.unlink(missing_ok=True)
            self._number, self._at = self._number + 1, 0
            return self._read_some()
        return data

    def _path(self, number: int) -> Path:
        return self._folder / (f"report-{number}.jsonl" if number else "report.jsonl")
