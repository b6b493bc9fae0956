"""`python -m tests.docs.transcript_picture`: draws docs/images/digits-curve.svg from the transcript in docs/report.md.

So that picture and text are of one run, and the picture is as `scavenger curves` draws it now.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from scavenger.domain.curve import Choice, CurveConfigurations, Interval, PointMarks, TradeoffCurve
from scavenger.domain.report import Actual, Predicted
from scavenger.pictures.still import svg_of
from scavenger.presentation.picture import draw

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "images" / "digits-curve.svg"
TITLE = "digits-cnn: predicted time and cost"
_SECONDS = {"min": 60.0, "s": 1.0}
_ROW = re.compile(
    r"^(?P<marks>[>*kme]*) +(?P<k>\d+) +(?P<b>\d+) +(?P<time>\d+ min(?: \d+ s)?) +(?P<times>[\d.]+-[\d.]+) min"
    r" +\$(?P<cost>[\d.]+) +\$(?P<costs>[\d.]+-[\d.]+)$",
    re.MULTILINE,
)
_RUN = re.compile(r"^time +([^$]+?)  +\S+ min  +(.+?)  .*\ncost +\$([\d.]+) +\S+ +\$([\d.]+)", re.MULTILINE)


def drawn() -> str:
    """The picture of the transcript's run."""
    text = (DOCS / "report.md").read_text("utf-8")
    rows = list(_ROW.finditer(text))
    (run,) = _RUN.findall(text)
    times, costs = (
        np.array([[float(end) for end in row[name].split("-")] for row in rows])
        for name in ("times", "costs")
    )
    curve = TradeoffCurve(
        configurations=CurveConfigurations(
            ("local-1",),
            np.zeros(len(rows), np.int64),
            np.array([int(row["k"]) for row in rows]),
            np.array([int(row["b"]) for row in rows]),
        ),
        time_s=np.array([_seconds(row["time"]) for row in rows]),
        time_interval_s=Interval(60.0 * times[:, 0], 60.0 * times[:, 1]),
        cost_usd=np.array([float(row["cost"]) for row in rows]),
        cost_interval_usd=Interval(costs[:, 0], costs[:, 1]),
        step_time_s=np.full(len(rows), np.nan),
        epochs=np.full(len(rows), np.nan),
        marks=PointMarks(
            *(np.array([mark in row["marks"] for row in rows]) for mark in "*me"),
            excluded=np.zeros(len(rows), np.int64),
        ),
    )
    (chosen,) = (i for i, row in enumerate(rows) if ">" in row["marks"])
    ends = (("fastest", int(curve.time_s.argmin())), ("cheapest", int(curve.cost_usd.argmin())))
    choice = Choice(curve[chosen], "knee", "", tuple((name, curve[at]) for name, at in ends))
    predicted_s, actual_s = map(_seconds, run[:2])
    predicted_usd, actual_usd = map(float, run[2:])
    predicted = Predicted(predicted_s, (0.0, 0.0), predicted_usd, (0.0, 0.0), 0.0, 0.0)
    actual = Actual(actual_s, actual_usd, 0.0, 0.0)
    return svg_of([draw(curve, choice, TITLE, run=(predicted, actual))], title=TITLE)


def _seconds(words: str) -> float:
    parts = words.split()
    return sum(float(count) * _SECONDS[unit] for count, unit in zip(parts[::2], parts[1::2], strict=True))


if __name__ == "__main__":
    PICTURE.write_text(drawn(), "utf-8")
