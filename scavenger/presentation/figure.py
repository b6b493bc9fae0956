"""Draws the picture of a curve as a figure of plotly, in JSON values: for a page of its own, and for the dashboard.

Colours are placeholders in the data, such as `@ink@`, which the page's script replaces by those of the reader's
theme (`themes`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

import numpy as np

from scavenger.presentation.axes import Axis
from scavenger.presentation.formatting import clean, duration, duration_range, money, money_range, quantity
from scavenger.presentation.picture import SHAPES, Picture, landmarks
from scavenger.presentation.placing import placed_labels

HOVER_WIDTH = 34
"""Longest line of the text over a point, in characters: it fits a telephone."""
FRAME_PT, PIXELS_PER_PT = (480.0, 300.0), 4 / 3
"""Size of the frame for which labels are placed: that of a page which is not narrow."""
NAMED_MAX = 12
"""Most lines that a legend names; if there are more, the text of each point has its batch size."""
_SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "triangle-down"),
    *("cross", "x", "pentagon", "triangle-left", "triangle-right"),
)
assert len(_SYMBOLS) == SHAPES
_SPAN = {"light": (0.0, 0.78), "dark": (0.35, 1.0)}
"""The part of the viridis colours used for batch sizes: those that are visible on the page's background."""
_THEMES = {
    "light": {"@ink@": "#1b1b1b", "@back@": "#ffffff", "@grid@": "#e2e2e2", "@limit@": "#b03a2e"},
    "dark": {"@ink@": "#ececec", "@back@": "#161616", "@grid@": "#3a3a3a", "@limit@": "#ff8a7a"},
}


def themes(batches: int) -> dict[str, dict[str, str]]:
    """The colours of each theme by placeholder; `@b0@` is that of the smallest batch size, and so on."""
    from plotly.colors import sample_colorscale

    return {
        name: {
            **colours,
            **{
                f"@b{place}@": sample_colorscale("Viridis", [share])[0]
                for place, share in enumerate(np.linspace(*_SPAN[name], batches).tolist())
            },
        }
        for name, colours in _THEMES.items()
    }


def picture_figure(picture: Picture) -> dict[str, Any]:
    """The picture as plotly's JSON, with placeholders for colours."""
    traces: list[dict[str, Any]] = []
    if picture.axes is not None:
        traces = [*_intervals(picture), *_series(picture), *_front(picture), *_ring(picture)]
        traces += [*_ruled_out(picture), *_ran(picture), *_limits(picture, picture.axes)]
    x, y = map(_axis, picture.axes) if picture.axes is not None else (axis_look(), axis_look())
    return {"data": traces, "layout": {**layout_of(x=x, y=y), "annotations": list(_labels(picture))}}


def layout_of(*, x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """The layout of every picture of ours with these axes, with placeholders for colours."""
    return {
        "xaxis": x,
        "yaxis": y,
        "hovermode": "closest",
        "hoverlabel": {
            "align": "left",
            "bgcolor": "@back@",
            "bordercolor": "@ink@",
            "font": {"color": "@ink@", "size": 13},
        },
        "font": {"color": "@ink@", "size": 13, "family": "system-ui, sans-serif"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def axis_look() -> dict[str, Any]:
    """What every axis of ours has, with placeholders for colours."""
    return {
        "gridcolor": "@grid@",
        "linecolor": "@ink@",
        "zeroline": False,
        "showline": True,
        "exponentformat": "none",
        "separatethousands": True,
        "automargin": True,
    }


def _axis(axis: Axis) -> dict[str, Any]:
    look = {
        **axis_look(),
        "title": {"text": axis.title},
        "tickprefix": "$" if "dollars" in axis.title else "",
    }
    if not axis.logarithmic:  # plotly's own ticks follow who zooms
        return {**look, "range": [axis.low, axis.high]}
    return {
        **look,
        "type": "log",
        "range": [math.log10(axis.low), math.log10(axis.high)],
        "tickprefix": "",
        "tickvals": [at for at, _ in axis.ticks],
        "ticktext": [text for _, text in axis.ticks],
    }


def _scatter(name: str, x: Iterable[float], y: Iterable[float], **look: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": escape(name), "x": list(x), "y": list(y), **look}


def _series(picture: Picture) -> Iterator[dict[str, Any]]:
    """One line over K for each batch size and VM type; measured points filled, predicted ones hollow."""
    (x, y), measured = picture.at, picture.curve.marks.measured
    for series in picture.series:
        colour, symbol, points = f"@b{series.batch}@", _SYMBOLS[series.shape], list(series.points)
        yield _scatter(
            series.name,
            x[points].tolist(),
            y[points].tolist(),
            mode="lines+markers",
            showlegend=len(picture.series) <= NAMED_MAX,
            line={"color": colour, "width": 1},
            marker={
                "color": colour,
                "size": 10,
                "symbol": [symbol if measured[i] else f"{symbol}-open" for i in points],
                "line": {"color": colour, "width": 2},
            },
            text=[_hover(picture, i) for i in points],
            hovertemplate="%{text}<extra></extra>",
        )


def _hover(picture: Picture, index: int) -> str:
    """The text that is shown over a point, in plotly's subset of HTML."""
    point, choice = picture.curve[index], picture.choice
    names = landmarks(picture.curve, choice).get(index, "") if point.on_front else ""
    what = ["measured" if point.measured else "extrapolated" if point.extrapolated else "predicted"]
    what += ["front"] if point.on_front else []
    what += [names] if names else []
    lines = [
        f"K {point.configuration.workers}, B {point.configuration.global_batch_size:,}",
        clean(point.configuration.vm),
        f"time {duration(point.time_s)} ({duration_range(*point.time_interval_s)})",
        f"cost {money(point.cost_usd)} ({money_range(*point.cost_interval_usd)})",
        f"step {duration(point.step_time_s)}, epochs {quantity(point.epochs)}",
        ", ".join(what),
    ]
    if point.excluded:
        lines += textwrap.wrap(f"ruled out: {clean(point.excluded)}", HOVER_WIDTH)
    elif choice is not None and point.configuration == choice.configuration:
        lines += textwrap.wrap(f"why: {clean(choice.reason)}", HOVER_WIDTH)
    first, *rest = map(escape, lines)
    return "<br>".join((f"<b>{first}</b>", *rest))


def _intervals(picture: Picture) -> Iterator[dict[str, Any]]:
    """Light lines, of each batch size in its shade."""
    batches = picture.curve.configurations.global_batch_size
    lines: dict[int, tuple[list[float | None], list[float | None]]] = {}
    for index in picture.intervals:
        for line, ends in zip(
            lines.setdefault(int(batches[index]), ([], [])), picture.interval(index), strict=True
        ):
            line += [*ends, None]
    for number, (batch, (x, y)) in enumerate(sorted(lines.items())):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "90 % interval",
            "legendgroup": "intervals",
            "showlegend": number == 0,
            "x": x,
            "y": y,
            "line": {"color": f"@b{picture.batches.index(batch)}@", "width": 4},
            "opacity": 0.35,
            "hoverinfo": "skip",
        }


def _front(picture: Picture) -> Iterator[dict[str, Any]]:
    x, y = picture.at
    yield _scatter(
        "front",
        x[picture.front].tolist(),
        y[picture.front].tolist(),
        line={"color": "@ink@", "width": 2},
        hoverinfo="skip",
    )


def _ring(picture: Picture) -> Iterator[dict[str, Any]]:
    """A ring around the chosen configuration."""
    for label in picture.labels:
        if label.kind == "chosen":
            ring = {"symbol": "circle-open", "size": 21, "color": "@ink@"}
            yield _scatter(
                "chosen",
                [label.x],
                [label.y],
                mode="markers",
                marker={**ring, "line": {"color": "@ink@", "width": 2}},
                hoverinfo="skip",
            )


def _ruled_out(picture: Picture) -> Iterator[dict[str, Any]]:
    out, (x, y) = picture.ruled_out.tolist(), picture.at
    if out:
        yield _scatter(
            "ruled out",
            x[out].tolist(),
            y[out].tolist(),
            mode="markers",
            marker={"symbol": "x-thin", "size": 8, "line": {"color": "#888888", "width": 1.5}},
            text=[_hover(picture, i) for i in out],
            hovertemplate="%{text}<extra></extra>",
        )


def _ran(picture: Picture) -> Iterator[dict[str, Any]]:
    """The actual figures of the run, with a line from where it was predicted to come out."""
    if picture.ran is None:
        return
    told = next(label.lines for label in picture.labels if label.kind == "run")
    before = len(picture.way) - 1  # it begins at the chosen point, which is drawn, or at another
    looks = [("diamond-open", 0 if picture.ran.predicted is None else 12, told[-1])] * before
    looks += [("star", 15, told[0])]
    yield _scatter(
        "this run",
        [x for x, _ in picture.way],
        [y for _, y in picture.way],
        mode="lines+markers",
        line={"color": "@ink@", "width": 1.5, "dash": "dot"},
        marker={
            "opacity": 1.0,
            "symbol": [symbol for symbol, _, _ in looks],
            "size": [size for _, size, _ in looks],
            "color": "@ink@",
            "line": {"color": "@ink@", "width": 2},
        },
        text=[escape(text) for _, _, text in looks],
        hovertemplate="%{text}<extra></extra>",
    )


def _limits(picture: Picture, axes: tuple[Axis, Axis]) -> Iterator[dict[str, Any]]:
    """Deadline and budget as lines across the points."""
    across, up = axes
    for limit in picture.limits:
        x, y = (
            ([limit.at] * 2, [up.low, up.high])
            if limit.of_time
            else ([across.low, across.high], [limit.at] * 2)
        )
        yield _scatter(limit.words, x, y, line={"color": "@limit@", "width": 2, "dash": "dash"})


def _labels(picture: Picture) -> Iterator[dict[str, Any]]:
    """Labels as they stand in a frame of a usual size, those of named points and the run with lines to them."""
    if picture.axes is None:
        return
    for placed in placed_labels(picture, *FRAME_PT):
        label, dx, dy = placed.label, placed.dx, placed.dy
        x, y = (
            math.log10(at) if axis.logarithmic else at
            for axis, at in zip(picture.axes, (label.x, label.y), strict=True)
        )
        first, *rest = map(escape, label.lines)
        yield {
            "x": x,
            "y": y,
            "text": "<br>".join((f"<b>{first}</b>" if label.kind == "chosen" else first, *rest)),
            "align": "left" if dx > 0 else "right" if dx < 0 else "center",
            "xanchor": "left" if dx > 0 else "right" if dx < 0 else "center",
            "yanchor": "bottom" if dy > 0 else "top" if dy < 0 else "middle",
            "showarrow": True,
            "arrowhead": 0,
            "arrowwidth": 1 if placed.must else 0.1,
            "arrowcolor": "@ink@" if placed.must else "rgba(0,0,0,0)",
            "ax": dx * PIXELS_PER_PT,
            "ay": -dy * PIXELS_PER_PT,
            "font": {"color": "@ink@", "size": round(placed.size_pt * PIXELS_PER_PT)},
        }
