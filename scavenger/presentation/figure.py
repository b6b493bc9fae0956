"""A curve as a figure of plotly, as JSON values: for a page of its own, and for the dashboard.

Colours are placeholders in the data, such as `@ink@`, which the page's script replaces by those of the reader's
theme (`themes`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from scavenger.domain.curve import CurvePoint
from scavenger.presentation.formatting import clean, duration, duration_range, money, money_range, quantity
from scavenger.presentation.panel import (
    Panel,
    axis_span,
    drawn_limits,
    landmarks,
    time_unit,
    with_interval,
)

HOVER_WIDTH = 34
"""Longest line of the text over a point, in characters: it fits a telephone."""
NAMED_MAX = 12
"""Most lines that a legend names; if there are more, the text of each point has its batch size."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star")
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


def panel_figure(panel: Panel) -> dict[str, Any]:
    """The picture as plotly's JSON, with placeholders for colours."""
    curve, shown = panel.curve, panel.shown
    scale, unit = time_unit(curve.time_s[shown]) if shown.any() else (1.0, "seconds")
    traces = [*_intervals(panel, scale), *_lines(panel, scale), *_front(panel, scale)]
    traces += [*_ring(panel, scale), *_excluded(panel, scale), *_run(panel, scale), *_limits(panel, scale)]
    layout = layout_of(
        x=_axis(panel, f"time to target ({unit})", "time_s", scale),
        y=_axis(panel, "cost (US dollars)", "cost_usd", 1.0),
    )
    return {"data": traces, "layout": {**layout, "annotations": list(_names(panel, scale))}}


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


def _axis(panel: Panel, title: str, column: str, scale: float) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": title + (", only ratios are certain" if panel.curve.relative_only else "")},
        **axis_look(),
        "tickprefix": "$" if column == "cost_usd" else "",
    }
    if not panel.shown.any():
        return axis
    low, high, logarithmic = axis_span(panel, column)
    low, high = low / scale, high / scale
    if not logarithmic:
        return {**axis, "range": [low, high]}
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 2.5 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {
        **axis,
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{axis['tickprefix']}{tick:,.6g}" for tick in ticks],
    }


def _lines(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    """One line over K for each batch size and VM type; measured points filled, predicted ones hollow."""
    curve = panel.curve
    batches = sorted({int(batch) for batch in curve.configurations.global_batch_size})
    several = len(curve.configurations.vms) > 1
    for vm in range(len(curve.configurations.vms)):
        symbol = _SYMBOLS[vm % len(_SYMBOLS)]
        for place, batch in enumerate(batches):
            chosen = panel.shown & (curve.marks.excluded == 0)
            chosen &= (curve.configurations.vm_index == vm) & (
                curve.configurations.global_batch_size == batch
            )
            line = np.flatnonzero(chosen)[
                np.argsort(curve.configurations.workers[chosen], kind="stable")
            ].tolist()
            if not line:
                continue
            colour = f"@b{place}@"
            yield {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"batch {batch:,}"
                + (f", {escape(clean(curve.configurations.vms[vm]))}" if several else ""),
                "showlegend": len(batches) * len(curve.configurations.vms) <= NAMED_MAX,
                "x": [float(curve.time_s[i]) / scale for i in line],
                "y": [float(curve.cost_usd[i]) for i in line],
                "line": {"color": colour, "width": 1},
                "marker": {
                    "color": colour,
                    "size": 10,
                    "symbol": [symbol if curve.marks.measured[i] else f"{symbol}-open" for i in line],
                    "line": {"color": colour, "width": 2},
                },
                "text": [_hover(panel, i) for i in line],
                "hovertemplate": "%{text}<extra></extra>",
            }


def _hover(panel: Panel, index: int) -> str:
    """The text that is shown over a point, in plotly's subset of HTML."""
    point = panel.curve[index]
    names = landmarks(panel.curve, panel.choice).get(index, "")
    what = ["measured" if point.measured else "extrapolated" if point.extrapolated else "predicted"]
    what += ["front"] if point.on_front else []
    what += [names] if names else []
    lines = [
        f"K {point.configuration.workers}, B {point.configuration.global_batch_size:,}",
        clean(point.configuration.vm),
        f"time {duration(point.time_s)} ({duration_range(*point.time_interval_s)})",
        f"cost {money(point.cost_usd)} ({money_range(*point.cost_interval_usd)})",
        f"step {duration(point.step_time_s)}, {quantity(point.epochs)} epochs",
        ", ".join(what),
    ]
    why = _why(panel, point)
    lines += textwrap.wrap(why, HOVER_WIDTH) if why else []
    first, *rest = map(escape, lines)
    return "<br>".join((f"<b>{first}</b>", *rest))


def _why(panel: Panel, point: CurvePoint) -> str:
    if point.excluded:
        return f"ruled out: {clean(point.excluded)}"
    if panel.choice is not None and point.configuration == panel.choice.configuration:
        return f"why: {clean(panel.choice.reason)}"
    return ""


def _intervals(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    """One line from the low to the high end: cost is time times price, so both are uncertain together."""
    curve = panel.curve
    batches = sorted({int(batch) for batch in curve.configurations.global_batch_size})
    named = False
    for place, batch in enumerate(batches):
        x: list[float | None] = []
        y: list[float | None] = []
        for i in with_interval(panel):
            if curve.configurations.global_batch_size[i] != batch:
                continue
            (soonest_s, latest_s), (least_usd, most_usd) = (
                curve.time_interval_s[i],
                curve.cost_interval_usd[i],
            )
            x += [at / scale for at in (soonest_s, float(curve.time_s[i]), latest_s)]
            y += [least_usd, float(curve.cost_usd[i]), most_usd]
            x.append(None)
            y.append(None)
        if x:
            yield {
                "type": "scatter",
                "mode": "lines",
                "name": "90 % interval",
                "legendgroup": "intervals",
                "showlegend": not named,
                "x": x,
                "y": y,
                "line": {"color": f"@b{place}@", "width": 4},
                "opacity": 0.4,
                "hoverinfo": "skip",
            }
            named = True


def _front(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    curve = panel.curve
    front = np.flatnonzero(curve.marks.on_front & panel.shown)
    front = front[np.argsort(curve.time_s[front], kind="stable")]
    yield {
        "type": "scatter",
        "mode": "lines",
        "name": "front",
        "x": (curve.time_s[front] / scale).tolist(),
        "y": curve.cost_usd[front].tolist(),
        "line": {"color": "@ink@", "width": 2},
        "hoverinfo": "skip",
    }


def _ring(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    """A ring around the chosen configuration."""
    index = None if panel.choice is None else panel.curve.configurations.index(panel.choice.configuration)
    if index is not None and panel.shown[index]:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "chosen",
            "x": [float(panel.curve.time_s[index]) / scale],
            "y": [float(panel.curve.cost_usd[index])],
            "marker": {
                "symbol": "circle-open",
                "size": 21,
                "color": "@ink@",
                "line": {"color": "@ink@", "width": 2},
            },
            "hoverinfo": "skip",
        }


def _excluded(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    curve = panel.curve
    out = np.flatnonzero(panel.shown & (curve.marks.excluded > 0)).tolist()
    if out:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "ruled out",
            "x": [float(curve.time_s[i]) / scale for i in out],
            "y": [float(curve.cost_usd[i]) for i in out],
            "marker": {"symbol": "x-thin", "size": 8, "line": {"color": "#888888", "width": 1.5}},
            "text": [_hover(panel, i) for i in out],
            "hovertemplate": "%{text}<extra></extra>",
        }


def _run(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    """The predicted and the actual figures of the run, joined by a line."""
    if panel.run is None:
        return
    pair = panel.run
    words = [
        f"<b>this run, {word}</b><br>time {duration(one.time_s)}<br>cost {money(one.cost_usd)}"
        for word, one in zip(("predicted", "actual"), pair, strict=True)
    ]
    yield {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "this run, predicted to actual",
        "x": [one.time_s / scale for one in pair],
        "y": [one.cost_usd for one in pair],
        "line": {"color": "@ink@", "width": 1.5, "dash": "dot"},
        "marker": {
            "opacity": 1.0,
            "symbol": ["diamond-open", "star"],
            "size": [12, 15],
            "color": "@ink@",
            "line": {"color": "@ink@", "width": 2},
        },
        "text": words,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _limits(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    """Deadline and budget as lines across the points."""
    deadline_s, budget_usd = drawn_limits(panel)
    style = {"color": "@limit@", "width": 2, "dash": "dash"}
    if deadline_s is not None:
        name, x = f"deadline {duration(deadline_s)}", deadline_s / scale
        ends = list(axis_span(panel, "cost_usd")[:2])
        yield {"type": "scatter", "mode": "lines", "name": name, "x": [x, x], "y": ends, "line": style}
    if budget_usd is not None:
        ends = [end / scale for end in axis_span(panel, "time_s")[:2]]
        y, name = budget_usd, f"budget {money(budget_usd)}"
        yield {"type": "scatter", "mode": "lines", "name": name, "x": ends, "y": [y, y], "line": style}


def _names(panel: Panel, scale: float) -> Iterator[dict[str, Any]]:
    """Labels of the choice and the other named points, each with a line to its point."""
    curve = panel.curve
    if not panel.shown.any():
        return
    below = 20
    logarithmic = [axis_span(panel, column)[2] for column in ("time_s", "cost_usd")]
    for index, name in landmarks(curve, panel.choice).items():
        if not panel.shown[index]:
            continue
        x, y = float(curve.time_s[index]) / scale, float(curve.cost_usd[index])
        chosen = "chosen" in name
        # nothing lies below the front but intervals; a name above would cover points
        below += 18
        yield {
            "x": math.log10(x) if logarithmic[0] else x,
            "y": math.log10(y) if logarithmic[1] else y,
            "text": f"<b>{escape(name)}</b>" if chosen else escape(name),
            "showarrow": True,
            "arrowhead": 0,
            "arrowwidth": 1,
            "arrowcolor": "@ink@",
            "ax": 0,
            "ay": below,
            "font": {"color": "@ink@", "size": 13},
        }
