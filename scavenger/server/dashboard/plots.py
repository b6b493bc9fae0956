"""Parts of plotly's figures in the dashboard's look; colours are placeholders (`presentation.figure`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from scavenger.presentation import figure
from scavenger.presentation.formatting import clean

_COLOURS = {
    "light": {
        "@accent@": "#1f5f8b",
        "@second@": "#a2560b",
        "@third@": "#2c7a4b",
        "@band@": "rgba(31, 95, 139, 0.16)",
    },
    "dark": {
        "@accent@": "#7cc4f5",
        "@second@": "#f2b36b",
        "@third@": "#7fd6a0",
        "@band@": "rgba(124, 196, 245, 0.2)",
    },
}
"""The dashboard's own colours of each theme, beside those of a curve."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture.

    Attributes:
        title: Its heading.
        words: What it shows, for people who cannot see it, and where there are no scripts.
        plot: `data` and `layout` of plotly; None where there is nothing to draw yet, which `words` then says.
    """

    title: str
    words: str
    plot: dict[str, Any] | None


def line(
    name: str,
    x: Sequence[Any],
    y: Sequence[float],
    *,
    colour: str,
    mode: str = "lines",
    dash: str = "solid",
    shape: str = "linear",
    y_axis: str = "",
    hover: Sequence[str] | None = None,
) -> dict[str, Any]:
    """One trace of lines or markers; `hover` are texts of its points, in plotly's subset of HTML."""
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": mode,
        "name": escape(name),
        "x": list(x),
        "y": [value if math.isfinite(value) else None for value in y],
        "line": {"color": colour, "width": 2, "dash": dash, "shape": shape},
        "marker": {"color": colour, "size": 6},
        "yaxis": f"y{y_axis}",
    }
    if hover is None:
        return {**trace, "hoverinfo": "skip"}
    return {**trace, "text": list(hover), "hovertemplate": "%{text}<extra></extra>"}


def days(moments: Iterable[datetime]) -> list[str]:
    """Times of day for an axis of type `date`, in UTC."""
    return [at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] for at in moments]


def axis(own: dict[str, Any]) -> dict[str, Any]:
    """An axis in the dashboard's look, with its own settings."""
    return {**figure.axis_look(), "tickangle": 0, **own, "title": {**own["title"], "standoff": 8}}


def layout_of(*, x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """The layout of a figure with these axes."""
    return figure.layout_of(x=axis(x), y=axis(y))


def wrapped(text: str, width: int = 44, lines_max: int = 6) -> str:
    """Text on several short lines for plotly's subset of HTML, escaped."""
    lines, line = [], ""
    for word in clean(text).split(" "):
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "<br>".join(escape(one) for one in [*lines, line][:lines_max])


def figures_document(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Figures with the colours of both themes, for the page's script."""
    batches = 1 + max((_batch_number(trace) for one in figures.values() for trace in _traces(one)), default=0)
    colours = figure.themes(batches)
    return {
        "themes": {name: {**colours[name], **own} for name, own in _COLOURS.items()},
        "figures": {
            id: {"title": one.title, "words": one.words, "plot": one.plot} for id, one in figures.items()
        },
    }


def _traces(figure: Figure) -> list[dict[str, Any]]:
    return [] if figure.plot is None else list(figure.plot["data"])


def _batch_number(trace: dict[str, Any]) -> int:
    """The number of the batch size whose colour a trace has (`@b3@`); 0 if it has another."""
    found = re.fullmatch(r"@b(\d+)@", str(trace.get("line", {}).get("color", "")))
    return int(found[1]) if found else 0
