"""The tradeoff curve in plain characters: one letter per batch size, capital where it was measured."""

from __future__ import annotations

import math
import string
from collections.abc import Callable

import numpy as np
from rich.text import Text

from scavenger.domain.curve import Choice, FloatArray, TradeoffCurve
from scavenger.presentation.formatting import duration, money

HEIGHT = 16
MARGIN = 11
"""Columns to the left of the frame, for the costs."""
LOG_RATIO = 10.0
_COLOURS = ("blue", "cyan", "green", "yellow", "magenta", "red")


def terminal_plot(curve: TradeoffCurve, choice: Choice | None, *, width: int = 80) -> Text:
    """A plot with time across and cost up; `@` is the choice, `#` the knee. It is ASCII and needs no colour."""
    shown = np.flatnonzero(
        np.isfinite(curve.time_s) & np.isfinite(curve.cost_usd) & (curve.marks.excluded == 0)
    )
    if not len(shown):
        return Text("No allowed configuration has a predicted time and cost.")
    columns = max(min(width, 120) - MARGIN - 2, 20)
    across, x_at = _scale(curve.time_s[shown], columns)
    up, y_at = _scale(curve.cost_usd[shown], HEIGHT)
    batches = sorted({int(b) for b in curve.configurations.global_batch_size[shown]})
    letters = string.ascii_lowercase
    cells: dict[tuple[int, int], tuple[int, str, str]] = {}
    for number, index in enumerate(shown):
        point = curve[int(index)]
        series = batches.index(point.configuration.global_batch_size)
        letter = letters[series] if series < len(letters) else "+"
        chosen = choice is not None and point.configuration == choice.configuration
        rank = 4 if chosen else 3 if index == curve.knee else 2 if point.on_front else int(point.measured)
        symbol = (
            "@" if chosen else "#" if index == curve.knee else letter.upper() if point.measured else letter
        )
        style = ("bold " if point.on_front else "") + _COLOURS[series % len(_COLOURS)]
        cell = (int(up[number]), int(across[number]))
        if rank >= cells.get(cell, (-1, "", ""))[0]:
            cells[cell] = (rank, symbol, style)
    text = Text("cost\n")
    for row in reversed(range(HEIGHT)):
        tick = money(y_at(row)) if row in (0, HEIGHT // 2, HEIGHT - 1) else ""
        text.append(f"{tick:>{MARGIN - 1}} |")
        line = {column: drawn for (at, column), drawn in cells.items() if at == row}
        for column in range(max(line, default=-1) + 1):
            _, symbol, style = line.get(column, (0, " ", ""))
            text.append(symbol, style=style)
        text.append("\n")
    text.append(" " * MARGIN + "+" + "-" * columns + "\n")
    left, middle, right = (duration(x_at(c)) for c in (0, columns // 2, columns - 1))
    axis = f"{left:<{columns // 2}}{middle}"
    text.append(" " * (MARGIN + 1) + f"{axis:<{max(columns - len(right), 0)}}{right}\n")
    named = [f"{letters[i]} {batch}" for i, batch in enumerate(batches[: len(letters)])]
    legend = "batch: " + ", ".join(named) + (", + larger" if len(batches) > len(letters) else "")
    symbols = {symbol for _, symbol, _ in cells.values()}
    marks = [f"{mark}: {words}" for mark, words in (("@", "chosen"), ("#", "knee")) if mark in symbols]
    text.append(f"{legend}\n")
    text.append("; ".join(("time across", "capital letter: measured", "bold: front", *marks)))
    return text


def _scale(values: FloatArray, cells: int) -> tuple[FloatArray, Callable[[int], float]]:
    """The cell of each value, and the value of a cell; logarithmic beyond a decade."""
    low, high = float(values.min()), float(values.max())
    if high == low:
        return np.full(len(values), cells // 2), lambda _: low
    if low > 0 and high / low > LOG_RATIO:
        span = math.log(high / low)
        placed = np.log(values / low) / span
        return np.round(placed * (cells - 1)), lambda cell: low * math.exp(span * cell / (cells - 1))
    placed = (values - low) / (high - low)
    return np.round(placed * (cells - 1)), lambda cell: low + (high - low) * cell / (cells - 1)
