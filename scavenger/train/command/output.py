"""Reads what a program told, from its reports and from lines of its output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from scavenger.domain.command import DONE_GROUP, EPOCH_GROUPS, NUMBER, regular_expression
from scavenger.sdk.report import LINES_BYTES_MAX
from scavenger.train.command.messages import Record

_READ_BYTES = 1 << 20
_WORDS = ("step", "samples", "loss", *EPOCH_GROUPS)
_ORDER = {"step": 0, "epoch": 1, "done": 2}
_ENDS = re.compile(rb"[\r\n]")
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_NUMBER = re.compile(NUMBER)
_LINE_BYTES_MAX = 1 << 16
"""A line of a program's output that is longer is cut."""
_REASON_MAX = 500


class Lines:
    """Cuts output into lines: each ends with a line feed, or with a carriage return as those of progress bars do."""

    def __init__(self) -> None:
        self._rest = b""
        self._read_s: float | None = None

    def timed(self, data: bytes, now: float) -> list[tuple[str, float]]:
        """The lines of `take`, each with the time at which it was written, as far as that is known.

        A reader on a busy machine gets several lines at once. They were written one after the other since it read
        before: steps of which only the first took any time would have a median of 0.

        Args:
            now: Of this read, monotonic seconds.
        """
        since, self._read_s = now if self._read_s is None else self._read_s, now
        lines = self.take(data)
        return [(line, since + (now - since) * number / len(lines)) for number, line in enumerate(lines, 1)]

    def take(self, data: bytes) -> list[str]:
        """The lines that end in some output, without what colours them; see `rest`."""
        *lines, rest = _ENDS.split(self._rest + data)
        if len(rest) > _LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        return [self._text(line) for line in lines if line]

    def rest(self) -> list[str]:
        """The last line, which nothing has ended."""
        rest, self._rest = self._rest, b""
        return [self._text(rest)] if rest else []

    @staticmethod
    def _text(line: bytes) -> str:
        return _COLOURS.sub("", line.decode(errors="replace"))


class LogPatterns:
    """Log patterns of a job file: regular expressions with named groups.

    A match with `step` tells of that step; one with `epoch` (from 0) or `epoch1` (from 1) and no step tells that it
    is over; one with `done` why training is. `loss` and `samples` are of the step; `metric` is the goal's; any other
    group is a metric of that name.

    Args:
        patterns: The expressions.
        metric: The name of the metric that the group `metric` stands for.
        doubt: Called with the name of a group and a message for users, the first time that what the group captured is
            a part of a number, or none.
    """

    def __init__(self, patterns: Sequence[str], metric: str, doubt: Callable[[str, str], None]) -> None:
        self._patterns = [regular_expression(pattern) for pattern in patterns]
        self._metric, self._doubt = metric or "metric", doubt
        self._doubted: set[str] = set()

    def read(self, line: str, at_s: float) -> list[Record]:
        """What a line tells: steps before ends of epochs; matches for the same one are one record."""
        found: dict[tuple[str, int | None], Record] = {}
        for pattern in self._patterns:
            for match in pattern.finditer(line):
                record = self._record(match, at_s)
                if record is not None:
                    key = record.kind, record.epoch if record.step is None else record.step
                    found[key] = _merged(found[key], record) if key in found else record
        return sorted(found.values(), key=lambda one: (_ORDER[one.kind], one.step or 0, one.epoch or 0))

    def _record(self, match: re.Match[str], at_s: float) -> Record | None:
        given = {name for name, text in match.groupdict().items() if text is not None}
        values = {name: value for name in given if (value := self._value(match, name)) is not None}
        if given & {"step", *EPOCH_GROUPS} - values.keys():
            return None  # whose values they are is not known
        try:
            step, samples, epoch = (_whole(values, name) for name in ("step", "samples", "epoch"))
            if epoch is None and (from_1 := _whole(values, "epoch1")) is not None:
                epoch = from_1 - 1
        except (ValueError, OverflowError):
            return None
        if min(step or 0, samples or 0, epoch or 0) < 0:
            return None
        if step is None and epoch is None:
            reason = match[DONE_GROUP][:_REASON_MAX].strip() if DONE_GROUP in given else ""
            return Record("done", at_s, done=reason or "its own decision") if DONE_GROUP in given else None
        metrics = {
            self._metric if name == "metric" else name: value
            for name, value in values.items()
            if name not in _WORDS and math.isfinite(value)
        }
        kind: Literal["step", "epoch"] = "epoch" if step is None else "step"
        done = match[DONE_GROUP][:_REASON_MAX].strip() if kind == "epoch" and DONE_GROUP in given else ""
        return Record(kind, at_s, step, epoch, samples, values.get("loss"), metrics, done=done)

    def _value(self, match: re.Match[str], group: str) -> float | None:
        """The number that a group captured, as a whole; None if it is none."""
        if group == DONE_GROUP:
            return None
        line, captured, start = match.string, match[group], match.start(group)
        begins = start
        if line[start - 1 : start] in ("-", "+") and not line[max(0, start - 2) : start - 1].isalnum():
            begins -= 1
        whole = _NUMBER.match(line, begins)
        try:
            value = float(captured)
        except ValueError:
            self._tell(group, f"{captured!r}, which is no number")
            return None
        if whole is not None and whole.end() >= match.end(group):
            all_of_it = float(whole[0])
            if all_of_it != value and not (math.isnan(all_of_it) and math.isnan(value)):
                self._tell(group, f"{captured!r} of the number {whole[0]}, which counts as a whole")
                return all_of_it
        return value

    def _tell(self, group: str, what: str) -> None:
        if group not in self._doubted:
            self._doubted.add(group)
            words = f"run.log: the group {group} captures {what}; write (?P<{group}>{{number}})"
            self._doubt(group, "".join(one if one.isprintable() else "?" for one in words)[:_REASON_MAX])


def _merged(first: Record, second: Record) -> Record:
    """What two matches tell of the same step or epoch; where both tell a value, that of the first."""
    return msgspec.structs.replace(
        first,
        samples=second.samples if first.samples is None else first.samples,
        loss=second.loss if first.loss is None else first.loss,
        metrics={**second.metrics, **first.metrics},
    )


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
