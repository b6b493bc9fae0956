"""Figures: repeated measurements as median and spread, the result of a benchmark, and its table and JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

_WIDTH_MIN = 3
"""Smallest width of a column: some Markdown parsers need a rule of so many characters."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity measured `count` times: its median, least and greatest value."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """The figure of at least one value.

        Raises:
            ValueError: If there is none.
        """
        seen = sorted(values)
        if not seen:
            raise ValueError("nothing was measured")
        return cls(statistics.median(seen), seen[0], seen[-1], len(seen))

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """Median and, behind it in brackets, least to greatest, each times `scale`."""
        middle, low, high = (f"{value * scale:.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{middle} ({low} – {high})"


def median_interval(values: Iterable[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return between which two of some values the median of what they are drawn from lies, with that probability.

    Nothing is supposed of its distribution: so many of n values are below the median as a coin falls on one side [1]_.
    Below six values no two tell it with 0.95: then the least and the greatest are returned.

    References:
        .. [1] H. A. David, H. N. Nagaraja, "Order Statistics", 3rd edition, section 7.1.
    """
    seen = sorted(values)
    count, left_out, outside = len(seen), 0, 0.0
    while left_out < (count - 1) // 2:
        outside += math.comb(count, left_out) / 2**count
        beyond = outside + math.comb(count, left_out + 1) / 2**count
        if 2 * beyond > 1 - confidence:
            break
        left_out += 1
    return seen[left_out], seen[count - 1 - left_out]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a benchmark.

    Attributes:
        headers, rows: The table for a person; every row is as long as the headers.
        verdict: Aim and outcome in a sentence.
        figures: For machines: JSON's own types and `Spread`s, units last in the names.
        remarks: What a reader must know to take the figures rightly.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdict: str
    figures: dict[str, Any]
    remarks: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One entry of the table that `python -m benchmarks` runs.

    Attributes:
        repetitions: Unless the command says otherwise.
        run: Measures, given the repetitions and an empty folder that it may fill.
    """

    name: str
    repetitions: int
    run: Callable[[int, Path], Result]


def relative_error(predicted: float, measured: float) -> float:
    """How far a prediction is off, as a share of what was measured, without its sign.

    Raises:
        ValueError: If the measurement is not above 0.
    """
    if not measured > 0.0:
        raise ValueError(f"no error is relative to {measured}")
    return abs(predicted / measured - 1.0)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that reads well as text and as Markdown: the first column to the left, the others to the right.

    Raises:
        ValueError: If a row has not one cell per header.
    """
    lines = [list(headers), *(list(row) for row in rows)]
    if any(len(line) != len(headers) for line in lines):
        raise ValueError("every row needs one cell per header")
    widths = [max(_WIDTH_MIN, *(len(line[column]) for line in lines)) for column in range(len(headers))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    first, *rest = lines
    return "\n".join(_line(cells, widths) for cells in (first, rule, *rest))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cells[0].ljust(widths[0])]
    padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return f"| {' | '.join(padded)} |"


def replace_section(text: str, name: str, body: str) -> str:
    """A document with what stands between its `begin NAME` and `end NAME` comments replaced.

    Raises:
        ValueError: If it does not have each of the two once, in this order.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end) or begin in rest or end in after:
        raise ValueError(f"the document needs one {begin} and behind it one {end}")
    return f"{before}{begin}\n{body.strip()}\n{end}{after}"
