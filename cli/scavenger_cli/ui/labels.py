"""Placement of a picture's labels: each where it covers least, or left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scavenger.domain.curve import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import BboxBase

Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in pixels."""

CHARACTER_WIDTH, LINE_HEIGHT = 0.62, 1.3
"""As multiples of the font size: a little more than sans-serif fonts take, since the reader's font is unknown."""
SHARE = np.linspace(0.0, 1.0, 25)[:, None]
"""Sampled positions along a stroke, shape (25, 1): closer together than a label is wide."""
LEADER_WEIGHT = 8
"""A line from a label to its point is dark, and hides more than the thin lines of the data."""
NEAR_PT, FAR_PT = (5.0,), (14.0, 26.0, 44.0, 70.0, 100.0, 140.0, 190.0)


@dataclass(frozen=True, slots=True)
class Label:
    """Text next to a point (x, y) in data units; with `must` it is drawn even where it covers something."""

    text: str
    x: float
    y: float
    size_pt: float
    must: bool = False
    bold: bool = False


def place_labels(axes: Axes, labels: Iterable[Label], points: FloatArray, *, colour: str) -> None:
    """Draw the labels in their order of importance, clear of points (n, 2), lines and each other."""
    pixels, strokes = axes.transData.transform(points), _strokes(axes)
    frame = axes.get_window_extent()
    figure = axes.get_figure(root=True)
    assert figure is not None
    scale = figure.dpi / 72.0
    taken: list[Box] = []
    for label in labels:
        at = axes.transData.transform((label.x, label.y))
        lines = label.text.split("\n")
        width = max(map(len, lines)) * label.size_pt * CHARACTER_WIDTH * scale
        height = len(lines) * label.size_pt * LINE_HEIGHT * scale
        best: tuple[float, tuple[float, float], Box] | None = None
        for dx, dy in _offsets(FAR_PT if label.must else NEAR_PT):
            left = at[0] + dx * scale - width * (1.0 - np.sign(dx)) / 2
            bottom = at[1] + dy * scale - height * (1.0 - np.sign(dy)) / 2
            box = (left, bottom, left + width, bottom + height)
            harm = _harm(box, pixels, strokes, taken, frame) + 0.01 * math.hypot(dx, dy)
            if best is None or harm < best[0]:
                best = (harm, (dx, dy), box)
        if best is None or (not label.must and best[0] >= 1.0):
            continue
        _, (dx, dy), box = best
        taken.append(box)
        if label.must:
            middle = np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
            leader = np.repeat(at + SHARE * (middle - at), LEADER_WEIGHT, axis=0)
            strokes = np.concatenate([strokes, leader])
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right" if dx < 0 else "center",
            va="bottom" if dy > 0 else "top" if dy < 0 else "center",
            fontsize=label.size_pt,
            fontweight="bold" if label.bold else "normal",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 5}
            if label.must
            else None,
            zorder=6,
        )


def _strokes(axes: Axes) -> FloatArray:
    """Points along every line drawn, in pixels, shape (n, 2)."""
    pieces = []
    for line in axes.lines:
        ends = axes.transData.transform(np.column_stack(line.get_data()).astype(float))
        pieces += [start + SHARE * (end - start) for start, end in itertools.pairwise(ends)]
    return np.concatenate(pieces) if pieces else np.empty((0, 2))


def _offsets(reaches: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Candidate offsets from the labelled point, in typographic points, nearest first."""
    for reach in reaches:
        for dx, dy in ((1, 1), (1, -1), (-1, -1), (-1, 1), (1, 0), (-1, 0), (0, 1), (0, -1)):
            yield dx * reach, dy * reach


def _harm(box: Box, pixels: FloatArray, strokes: FloatArray, taken: Iterable[Box], frame: BboxBase) -> float:
    """The cost of a position: 1 per point under the box, less for strokes, 4 per label, 40 outside the frame."""
    left, bottom, right, top = box

    def under(at: FloatArray, margin: float) -> float:
        x, y = at[:, 0], at[:, 1]
        return float(
            ((x > left - margin) & (x < right + margin) & (y > bottom - margin) & (y < top + margin)).sum()
        )

    labels = sum(left < r and right > x and bottom < t and top > b for x, b, r, t in taken)
    outside = left < frame.x0 or right > frame.x1 or bottom < frame.y0 or top > frame.y1
    return under(pixels, 4.0) + 0.1 * under(strokes, 0.0) + 4.0 * labels + 40.0 * outside
