"""Where the labels of a picture stand: each where it covers least, or left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from scavenger.domain.curve import FloatArray
from scavenger.presentation.axes import Axis
from scavenger.presentation.picture import Label, Picture

Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in typographic points from the lower left corner of the frame."""

CHARACTER_WIDTH, LINE_HEIGHT = 0.62, 1.3
"""As multiples of the font size: a little more than sans-serif fonts take, since the reader's font is unknown."""
SIZES_PT = {"chosen": 9.5, "named": 8.5, "run": 8.5, "point": 7.0}
SHARE = np.linspace(0.0, 1.0, 25)[:, None]
"""Sampled positions along a stroke, shape (25, 1): closer together than a label is wide."""
LEADER_WEIGHT = 8
"""A line from a label to its point is dark, and hides more than the thin lines of the data."""
NEAR_PT, FAR_PT = (5.0,), (10.0, 16.0, 24.0, 34.0, 46.0, 60.0)
"""Distances of a label from its point that are tried: a long line from one to the other would be taken for data."""
PER_PT = 0.02
"""Harm of each point of distance."""


@dataclass(frozen=True, slots=True)
class PlacedLabel:
    """A label with its offset from what it labels, points to the right and up: its nearest corner or side is there."""

    label: Label
    dx: float
    dy: float

    @property
    def size_pt(self) -> float:
        return SIZES_PT[self.label.kind]

    @property
    def must(self) -> bool:
        """Whether it is there even where it covers something; it has a line to its point, then."""
        return self.label.kind != "point"


def placed_labels(picture: Picture, width_pt: float, height_pt: float) -> list[PlacedLabel]:
    """Places of the labels in a frame, in their order of importance, clear of points, lines and each other."""
    if picture.axes is None:
        return []
    frame = np.array([width_pt, height_pt])
    points = _shares(picture.axes, *(values[picture.shown] for values in picture.at)) * frame
    strokes = np.concatenate([np.empty((0, 2)), *_strokes(picture, picture.axes, frame)])
    taken: list[Box] = []
    found = []
    for label in picture.labels:
        at = _shares(picture.axes, np.array([label.x]), np.array([label.y]))[0] * frame
        size_pt, must = SIZES_PT[label.kind], label.kind != "point"
        width = max(map(len, label.lines)) * size_pt * CHARACTER_WIDTH
        height = len(label.lines) * size_pt * LINE_HEIGHT
        best: tuple[float, tuple[float, float], Box] | None = None
        for dx, dy in _offsets(FAR_PT if must else NEAR_PT):
            left = at[0] + dx - width * (1.0 - np.sign(dx)) / 2
            bottom = at[1] + dy - height * (1.0 - np.sign(dy)) / 2
            box = (left, bottom, left + width, bottom + height)
            harm = _harm(box, points, strokes, taken, frame) + PER_PT * math.hypot(dx, dy)
            if best is None or harm < best[0]:
                best = (harm, (dx, dy), box)
        if best is None or (not must and best[0] >= 1.0):
            continue
        _, (dx, dy), box = best
        taken.append(box)
        if must:
            middle = np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
            leader = np.repeat(at + SHARE * (middle - at), LEADER_WEIGHT, axis=0)
            strokes = np.concatenate([strokes, leader])
        found.append(PlacedLabel(label, dx, dy))
    return found


def _shares(axes: tuple[Axis, Axis], x: FloatArray, y: FloatArray) -> FloatArray:
    return np.column_stack([axes[0].share(x), axes[1].share(y)])


def _strokes(picture: Picture, axes: tuple[Axis, Axis], frame: FloatArray) -> Iterator[FloatArray]:
    """Points along every line drawn but the intervals, which are light enough to write on, shape (n, 2) each."""
    x, y = picture.at
    lines = [(x[list(series.points)], y[list(series.points)]) for series in picture.series]
    lines.append((x[picture.front], y[picture.front]))
    across, up = axes
    for limit in picture.limits:
        ends = (
            ([limit.at] * 2, [up.low, up.high])
            if limit.of_time
            else ([across.low, across.high], [limit.at] * 2)
        )
        lines.append((np.array(ends[0]), np.array(ends[1])))
    if picture.way:
        lines.append((np.array([at for at, _ in picture.way]), np.array([at for _, at in picture.way])))
    for line in lines:
        for start, end in itertools.pairwise(_shares(axes, *line) * frame):
            yield start + SHARE * (end - start)


def _offsets(reaches: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Candidate offsets from the labelled point, nearest first."""
    for reach in reaches:
        # nothing beats the front, so there is most room to the left of it and below
        for dx, dy in ((-1, -1), (-1, 0), (0, -1), (1, 1), (1, -1), (-1, 1), (1, 0), (0, 1)):
            yield dx * reach, dy * reach


def _harm(
    box: Box, points: FloatArray, strokes: FloatArray, taken: Iterable[Box], frame: FloatArray
) -> float:
    """The cost of a position: 1 per point under the box, less for strokes, 4 per label, 40 outside the frame."""
    left, bottom, right, top = box

    def under(at: FloatArray, margin: float) -> float:
        x, y = at[:, 0], at[:, 1]
        return float(
            ((x > left - margin) & (x < right + margin) & (y > bottom - margin) & (y < top + margin)).sum()
        )

    labels = sum(left < r and right > x and bottom < t and top > b for x, b, r, t in taken)
    outside = left < 0.0 or bottom < 0.0 or right > frame[0] or top > frame[1]
    return under(points, 3.0) + 0.1 * under(strokes, 0.0) + 4.0 * labels + 40.0 * outside
