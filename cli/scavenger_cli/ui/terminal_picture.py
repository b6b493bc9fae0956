"""Draws the picture of a curve in characters: one letter per batch size, capital where it was measured."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from scavenger.domain.curve import FloatArray
from scavenger.presentation.axes import Axis
from scavenger.presentation.picture import Label, Picture

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

HEIGHT, WIDTH_MAX, WIDTH_MIN = 16, 120, 34
"""Rows of the plot; most and fewest columns of all."""
GAP = 2
"""Columns between two texts of one line."""
_COLOURS = ("blue", "cyan", "green", "yellow", "magenta", "red")
"""A second sign beside the letters."""
_SYMBOLS = (("chosen", "@"), ("knee", "#"), ("twice as fast", "2"), ("fastest", "!"), ("cheapest", "$"))
"""Symbols of named points; a point of several names has the first's."""
_RUN, _LARGER = "*", "+"
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character's dots, from the top down, left and right."""


class TerminalPicture:
    """A picture with time across and cost up, which needs no colour; ASCII where the terminal knows no more."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(" ".join(self._picture.caption))  # all that matters, for a reader of screens, too
        if self._picture.axes is None or not self._picture.series:
            return
        across, up = self._picture.axes
        margin = max(len(text) for _, text in up.ticks) + 1 if up.ticks else 1
        columns = max(min(options.max_width, WIDTH_MAX), WIDTH_MIN) - margin - 1
        canvas = _Canvas(columns, self._picture.axes, ascii_only=options.ascii_only)
        legend = _fill(canvas, self._picture)
        yield Text(f"\n{up.title}")
        ticks = _rows_of_ticks(up)
        for row, line in enumerate(canvas.lines()):
            yield Text(f"{ticks.get(row, ''):>{margin}}|").append_text(line)
        yield Text(" " * margin + "+" + "-" * columns)
        yield Text(" " * (margin + 1) + _line_of_ticks(across, columns))
        yield Text(f"{across.title:>{margin + 1 + columns}}")
        yield from legend


class _Canvas:
    """Cells of a plot: characters in front of lines of dots."""

    def __init__(self, columns: int, axes: tuple[Axis, Axis], *, ascii_only: bool) -> None:
        self._columns, self._axes, self.ascii_only = columns, axes, ascii_only
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}
        self._dots: dict[tuple[int, int], tuple[int, str]] = {}

    def _at(self, x: FloatArray, y: FloatArray, fine: bool) -> tuple[FloatArray, FloatArray]:
        """Columns and rows from the top, of cells or, if `fine`, of dots; may be outside."""
        width, height = (2 * self._columns, 4 * HEIGHT) if fine else (self._columns, HEIGHT)
        across, up = self._axes
        return np.round(across.share(x) * (width - 1)), np.round((1.0 - up.share(y)) * (height - 1))

    def cell(self, x: float, y: float) -> tuple[int, int] | None:
        """Row and column of a point; None if it is outside."""
        (column,), (row,) = self._at(np.array([x]), np.array([y]), False)
        return (int(row), int(column)) if 0 <= row < HEIGHT and 0 <= column < self._columns else None

    def line(self, x: FloatArray, y: FloatArray, *, style: str = "", every: int = 1) -> None:
        """Dots along a line of straight pieces, each `every`-th of them."""
        across, up = self._at(x, y, True)
        for start, end in zip(range(len(x) - 1), range(1, len(x)), strict=True):
            steps = int(max(abs(across[end] - across[start]), abs(up[end] - up[start]), 1))
            if not np.isfinite(steps):
                continue
            for step in range(0, steps + 1, every):
                share = step / steps
                column = round(across[start] + share * (across[end] - across[start]))
                row = round(up[start] + share * (up[end] - up[start]))
                if 0 <= column < 2 * self._columns and 0 <= row < 4 * HEIGHT:
                    at = (row // 4, column // 2)
                    bits, _ = self._dots.get(at, (0, ""))
                    self._dots[at] = (bits | _DOTS[row % 4][column % 2], style)

    def put(self, at: tuple[int, int], symbol: str, style: str) -> None:
        """A character of a point, in place of one that is there."""
        self._cells[at] = (symbol, style)

    def write(self, at: tuple[int, int], words: str) -> None:
        """Words beside a point, if there is room: nothing is hidden for them."""
        row, column = at
        for start in (column + 2, column - len(words) - 1):
            if start < 0 or start + len(words) > self._columns:
                continue
            place = [(row, start + i) for i in range(-1, len(words) + 1)]
            if all(one == at or (one not in self._cells and one not in self._dots) for one in place):
                for i, letter in enumerate(words):
                    self._cells[(row, start + i)] = (letter, "")
                return

    def lines(self) -> Iterator[Text]:
        """The rows from the top."""
        used = {**self._dots, **self._cells}
        for row in range(HEIGHT):
            line = Text()
            for column in range(max((c for r, c in used if r == row), default=-1) + 1):
                at = (row, column)
                if at in self._cells:
                    symbol, style = self._cells[at]
                elif at in self._dots:
                    bits, style = self._dots[at]
                    symbol = (":" if style else ".") if self.ascii_only else chr(_BRAILLE | bits)
                else:
                    symbol, style = " ", ""
                line.append(symbol, style=style)
            yield line


def _fill(canvas: _Canvas, picture: Picture) -> list[Text]:
    """Draw all, the most important last; return the lines that explain it."""
    assert picture.axes is not None
    across, up = picture.axes
    chosen = {label.point for label in picture.labels if label.kind == "chosen" and label.point is not None}
    for limit in picture.limits:
        side = np.array([limit.at] * 2)
        ends = np.array([up.low, up.high] if limit.of_time else [across.low, across.high])
        canvas.line(*((side, ends) if limit.of_time else (ends, side)), style="dim", every=3)
    for index in chosen.intersection(picture.intervals):
        times, costs = picture.interval(index)
        canvas.line(np.array(times), np.array(costs), style="dim", every=2)
    x, y = picture.at
    canvas.line(x[picture.front], y[picture.front])
    letters, legend = _letters(picture)
    on_front = picture.curve.marks.on_front
    for front in (False, True):
        for series, symbol in zip(picture.series, letters, strict=True):
            style = ("bold " if front else "") + _COLOURS[series.batch % len(_COLOURS)]
            for index in series.points:
                at = canvas.cell(x[index], y[index])
                if bool(on_front[index]) == front and at is not None:
                    measured = picture.curve.marks.measured[index]
                    canvas.put(at, symbol.upper() if measured else symbol, style)
    key = _name(canvas, picture)
    marks = ["capital letter: measured", f"{'dots' if canvas.ascii_only else 'line'}: front"]
    marks += [f"thin: {limit.words}" for limit in picture.limits]
    return [*key, Text("; ".join((legend, *marks)))]


def _letters(picture: Picture) -> tuple[list[str], str]:
    """A letter for each series, or for each batch size if there are too many, and what the letters mean."""
    series, letters = picture.series, string.ascii_lowercase
    if len(picture.curve.configurations.vms) > 1 and len(series) <= len(letters):
        named = [f"{letter} {one.name}" for letter, one in zip(letters, series, strict=False)]
        return list(letters[: len(series)]), "; ".join(named)
    named = [f"{letter} {batch:,}" for letter, batch in zip(letters, picture.batches, strict=False)]
    larger = [f"{_LARGER} larger"] if len(picture.batches) > len(named) else []
    return [
        f"{letters}{_LARGER}"[min(one.batch, len(letters))] for one in series
    ], f"batch: {', '.join(named + larger)}"


def _name(canvas: _Canvas, picture: Picture) -> list[Text]:
    """Put symbols and names of points and of the run, least important first; return a line of figures for each."""
    named = [label for label in picture.labels if label.kind != "point"]
    key = []
    for label in reversed(named):
        symbol = _symbol(label)
        at = canvas.cell(label.x, label.y)
        if at is not None:
            canvas.put(at, symbol, "bold")
    for label in named:
        symbol, (first, *rest) = _symbol(label), label.lines
        words = ", ".join((first, *rest)) if label.kind != "chosen" else f"{first}: {', '.join(rest)}"
        key.append(Text(f"{symbol} {words}"))
        at = canvas.cell(label.x, label.y)
        if at is not None:
            canvas.write(at, first.split(":")[0])
    return key


def _symbol(label: Label) -> str:
    return (
        _RUN
        if label.kind == "run"
        else next((s for name, s in _SYMBOLS if label.lines[0].startswith(name)), "?")
    )


def _rows_of_ticks(axis: Axis) -> dict[int, str]:
    """The text of each row that has a tick, counted from the top."""
    shares = axis.share(np.array([at for at, _ in axis.ticks]))
    rows = np.round((1.0 - shares) * (HEIGHT - 1)).astype(int).tolist()
    return {row: text for row, (_, text) in zip(rows, axis.ticks, strict=True)}


def _line_of_ticks(axis: Axis, columns: int) -> str:
    """The ticks below their places, those that have room."""
    line = ""
    for share, (_, text) in zip(axis.share(np.array([at for at, _ in axis.ticks])), axis.ticks, strict=True):
        start = min(max(round(share * (columns - 1)) - len(text) // 2, 0), columns - len(text))
        if not line or start >= len(line) + GAP:
            line = f"{line:<{start}}{text}"
    return line
