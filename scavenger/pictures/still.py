"""Draws the picture of a curve as SVG, PNG or PDF, with matplotlib (the extra `plots`).

Each batch size and VM type has a marker of its own while there are few, and a shade: steps of viridis, which are in
order for colour-blind people and in grey. The ends of viridis are cut off so that every step is visible on white and
on black. Everything that is not data is drawn in `INK`, which the SVG turns into the reader's own text colour.
"""

from __future__ import annotations

import io
import logging
import re
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from scavenger.errors import ConfigurationError
from scavenger.presentation.axes import Axis
from scavenger.presentation.formatting import clean
from scavenger.presentation.picture import SHAPES, Picture, Series, describe_all
from scavenger.presentation.placing import CHARACTER_WIDTH, placed_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK = "#010203"
"""Placeholder for `currentColor`, which matplotlib does not support; no data has this colour."""
LEGEND_FONT_PT, HANDLE_PT = 9.0, 40.0
"""A legend entry's font size, and the width of its mark with the space around it."""
CAPTION_PER_INCH = 12.5
"""Characters of the caption that fit an inch."""
PNG_DPI = 160
VIRIDIS_SPAN = (0.25, 0.8)
"""The part of viridis used for batch sizes: its colours are visible on white and on black."""
LIMIT, OUT = "#c0392b", "#888888"
_MARKERS = "osD^vPXp<>"
assert len(_MARKERS) == SHAPES
_PREDICTED, _ACTUAL = ("d", 46, "none"), ("*", 130, INK)
"""Marker, size and filling of the run's own figures."""
_FRONT: dict[str, Any] = {"color": INK, "linewidth": 1.8, "alpha": 0.75}
_LIMIT: dict[str, Any] = {"color": LIMIT, "linewidth": 1.3, "linestyle": (0, (5, 3))}
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "font.size": 9.0,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "scavenger",
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"),
        INK,
    ),
}


def figure_of(pictures: Sequence[Picture]) -> Figure:
    """Draw the pictures side by side, with one legend: they are of the same configurations.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    # It would warn that it builds its cache of fonts, in the middle of an answer.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as MakeFigure
    except ImportError as error:
        raise ConfigurationError(
            "pictures need matplotlib: pip install 'scavenger-ml[plots]' "
            "(or use --format terminal, csv or json)"
        ) from error
    with rc_context(_STYLE):
        width = 8.0 if len(pictures) == 1 else 6.2
        figure: Figure = MakeFigure(figsize=(width * len(pictures), 5.4), layout="constrained")
        figure.patch.set_alpha(0.0)
        every = figure.subplots(1, len(pictures), squeeze=False)[0]
        drawn = [
            one for axes, picture in zip(every, pictures, strict=True) if (one := _draw(axes, picture, width))
        ]
        if drawn:
            _legend(figure, drawn[0])
        figure.draw_without_rendering()  # gives the frames their sizes
        for one in drawn:
            _labels(one, 72.0 / figure.dpi)
    return figure


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Axes with a picture in them; `shades` are colours by number of the batch size."""

    axes: Axes
    picture: Picture
    shades: list[Any]

    def marker(self, series: Series) -> str:
        return _MARKERS[series.shape]


def _draw(axes: Axes, picture: Picture, width: float) -> _Drawn | None:
    """Draw a picture, `width` inches wide, without its labels and legend; None if no point can be drawn."""
    axes.patch.set_alpha(0.0)
    axes.set_title(clean(picture.title), loc="left", fontweight="bold")
    if picture.axes is None:
        axes.text(0.5, 0.5, " ".join(picture.caption), ha="center", transform=axes.transAxes)
        return None
    _axes(axes, picture, *picture.axes, width)
    one = _Drawn(axes, picture, _shades(picture, axes))
    _points(one)
    x, y = picture.at
    axes.plot(x[picture.front], y[picture.front], zorder=3, **_FRONT)
    for limit in picture.limits:
        (axes.axvline if limit.of_time else axes.axhline)(limit.at, zorder=2, **_LIMIT)
    for label in picture.labels:
        if label.kind == "chosen":
            axes.scatter(
                [label.x], [label.y], s=150, facecolors="none", edgecolors=INK, linewidths=2.0, zorder=5
            )
    if picture.ran is not None:
        _run(one)
    return one


def _axes(axes: Axes, picture: Picture, across: Axis, up: Axis, width: float) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    words = textwrap.wrap(" ".join(picture.caption), int(CAPTION_PER_INCH * width))
    axes.set_xlabel("\n".join((across.title, *words)))
    axes.set_ylabel(up.title)
    axes.set_xlim(across.low, across.high)
    axes.set_ylim(up.low, up.high)
    for one, axis, scale in ((across, axes.xaxis, axes.set_xscale), (up, axes.yaxis, axes.set_yscale)):
        if one.logarithmic:
            scale("log")
        axis.set_ticks([at for at, _ in one.ticks], labels=[text for _, text in one.ticks])
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", color=OUT, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _named(picture: Picture) -> bool:
    """Whether the legend names each series; otherwise a bar shows the shades of the batch sizes."""
    return len(picture.series) <= SHAPES


def _shades(picture: Picture, axes: Axes) -> list[Any]:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    batches = picture.batches
    places = np.linspace(*VIRIDIS_SPAN, len(batches)) if len(batches) > 1 else np.array([0.4])
    steps = [colormaps["viridis"](place) for place in places]
    if not _named(picture) and len(batches) > 1:
        figure = axes.get_figure(root=True)
        assert figure is not None
        norm = BoundaryNorm(np.arange(len(batches) + 1) - 0.5, len(batches))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(steps)), ax=axes, pad=0.02, aspect=40)
        ticks = range(0, len(batches), -(-len(batches) // 12))
        bar.set_ticks(list(ticks), labels=[f"{batches[i]:,}" for i in ticks])
        bar.set_label("global batch size")
        bar.ax.minorticks_off()
    return steps


def _points(one: _Drawn) -> None:
    """Intervals as light lines behind, a thin line over K, measured points filled, predicted ones hollow."""
    axes, picture = one.axes, one.picture
    shade = {index: one.shades[series.batch] for series in picture.series for index in series.points}
    for index in picture.intervals:
        axes.plot(
            *picture.interval(index),
            color=shade[index],
            alpha=0.35,
            linewidth=2.6,
            solid_capstyle="round",
            zorder=1,
        )
    (x, y), measured = picture.at, picture.curve.marks.measured
    for series in picture.series:
        line, colour = np.array(series.points), one.shades[series.batch]
        axes.plot(x[line], y[line], color=colour, linewidth=0.9, alpha=0.6, zorder=2)
        for filled in (True, False):
            kind = line[measured[line] == filled]
            axes.scatter(
                x[kind],
                y[kind],
                s=34,
                marker=one.marker(series),
                facecolors=[colour] if filled else "none",
                edgecolors=[colour],
                linewidths=1.4,
                zorder=4,
            )
    out = picture.ruled_out
    axes.scatter(x[out], y[out], s=22, marker="x", color=OUT, zorder=3)


def _run(one: _Drawn) -> None:
    """The actual figures of the run, with a line from where it was predicted to come out."""
    picture, ran = one.picture, one.picture.ran
    assert ran is not None
    one.axes.plot(*zip(*picture.way, strict=True), color=INK, linewidth=1.0, linestyle="dotted", zorder=5)
    for place, (marker, size, fill) in ((ran.predicted, _PREDICTED), (ran.actual, _ACTUAL)):
        if place is not None:
            x, y = place
            one.axes.scatter(
                [x], [y], s=size, marker=marker, c=fill, edgecolors=INK, linewidths=1.4, zorder=6
            )


def _labels(one: _Drawn, pt_per_pixel: float) -> None:
    frame = one.axes.get_window_extent()
    for placed in placed_labels(one.picture, frame.width * pt_per_pixel, frame.height * pt_per_pixel):
        label, dx, dy = placed.label, placed.dx, placed.dy
        leader = {"arrowstyle": "-", "color": INK, "linewidth": 0.6, "shrinkB": 5}
        one.axes.annotate(
            "\n".join(label.lines),
            (label.x, label.y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right" if dx < 0 else "center",
            va="bottom" if dy > 0 else "top" if dy < 0 else "center",
            fontsize=placed.size_pt,
            fontweight="bold" if label.kind == "chosen" else "normal",
            arrowprops=leader if placed.must else None,
            zorder=6,
        )


def _legend(figure: Figure, one: _Drawn) -> None:
    """Draw the legend in as many columns as fit the picture."""
    entries = list(_entries(one))
    longest = max(len(str(entry.get_label())) for entry in entries)
    column_pt = longest * LEGEND_FONT_PT * CHARACTER_WIDTH + HANDLE_PT
    columns = max(1, min(len(entries), int(72.0 * figure.get_figwidth() // column_pt)))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=LEGEND_FONT_PT
    )


def _entries(one: _Drawn) -> Iterator[Line2D]:
    from matplotlib.lines import Line2D as MakeLine

    picture, curve = one.picture, one.picture.curve

    def entry(label: str, **style: Any) -> Line2D:
        look = {"linestyle": "none", "markersize": 6, "markeredgewidth": 1.4, **style}
        return MakeLine([], [], label=label, **look)

    if len(picture.front):
        yield entry("front", linestyle="solid", **_FRONT)
    allowed = picture.shown & (curve.marks.excluded == 0)
    if (allowed & curve.marks.measured).any():
        yield entry("measured", marker="o", color=INK)
    if (allowed & ~curve.marks.measured).any():
        yield entry("predicted", marker="o", color=INK, markerfacecolor="none")
    if picture.intervals:
        yield entry("90 % interval", color=INK, linestyle="solid", linewidth=2.6, alpha=0.35)
    if picture.ran is not None:
        yield entry("this run", marker=_ACTUAL[0], color=INK, markersize=9)
        if picture.ran.predicted is not None:
            yield entry("this run, predicted", marker=_PREDICTED[0], color=INK, markerfacecolor="none")
    if len(out := picture.ruled_out):
        assert picture.axes is not None
        beyond = np.zeros(len(out), np.bool_)
        for axis, values in zip(picture.axes, picture.at, strict=True):
            share = axis.share(values[out])
            beyond |= (share < 0.0) | (share > 1.0)
        hidden = int(beyond.sum())
        yield entry(
            f"ruled out ({hidden} beyond the picture)" if hidden else "ruled out", marker="x", color=OUT
        )
    for limit in picture.limits:
        yield entry(limit.words, **_LIMIT)
    if _named(picture):
        for series in picture.series:
            yield entry(
                series.name,
                marker=one.marker(series),
                color=one.shades[series.batch],
                linestyle="solid",
                linewidth=1,
            )
    elif len(curve.configurations.vms) > 1:
        for number, vm in enumerate(curve.configurations.vms):
            yield entry(clean(vm), marker=_MARKERS[number % SHAPES], color=INK)


def svg_of(pictures: Sequence[Picture], *, title: str, inline: bool = False) -> str:
    """The pictures as SVG: real text, title and description, and text colours that follow light or dark.

    Args:
        inline: Whether it becomes part of a page, whose text colour it takes then.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    svg = _saved(figure_of(pictures), format="svg", metadata={"Date": None, "Creator": None}).decode()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    words = describe_all(pictures)
    mark = f"scavenger-{zlib.crc32(f'{title} {words}'.encode()):08x}"  # ids are of the whole page
    style = (
        "<style>svg{color:#1b1b1b;color-scheme:light dark}"
        "@media(prefers-color-scheme:dark){svg{color:#ececec}}</style>"
    )
    head = (
        f'<title id="{mark}-title">{escape(clean(title))}</title>'
        f'<desc id="{mark}-desc">{escape(words)}</desc>{"" if inline else style}'
    )
    start, rest = svg.split(">", 1)
    return f'{start} role="img" aria-labelledby="{mark}-title {mark}-desc">{head}{rest}'


def png_of(pictures: Sequence[Picture]) -> bytes:
    """The pictures as PNG, on white.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    metadata = {"Software": None, "Description": describe_all(pictures)}
    return _saved(figure_of(pictures), format="png", dpi=PNG_DPI, facecolor="white", metadata=metadata)


def pdf_of(pictures: Sequence[Picture], *, title: str) -> bytes:
    """The pictures as PDF, on white.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    metadata = {"Title": clean(title), "Subject": describe_all(pictures), "CreationDate": None}
    return _saved(figure_of(pictures), format="pdf", facecolor="white", metadata=metadata)


def _saved(figure: Figure, **how: Any) -> bytes:
    from matplotlib import rc_context

    raw = io.BytesIO()
    if "facecolor" in how:
        figure.patch.set_alpha(1.0)
    with rc_context(_STYLE):
        figure.savefig(raw, **how)
    return raw.getvalue()
