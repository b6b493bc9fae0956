"""The tradeoff curve as a picture, with matplotlib (the extra `plots`).

Batch sizes are ordered, so their colours are steps of viridis, readable for colour-blind people and in grey;
the ends of viridis are cut off so that every step is visible on white and on black. VM types differ by marker.
Everything that is not data is drawn in `INK`, which the SVG turns into the reader's own text colour.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, TradeoffCurve
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, duration, money
from scavenger.presentation.panel import (
    COUNTS_MAX,
    Panel,
    axis_span,
    describe,
    describe_panels,
    drawn_limits,
    landmarks,
    limit_words,
    time_unit,
    with_interval,
)
from scavenger_cli.ui.labels import CHARACTER_WIDTH, Label, place_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK = "#010203"
"""Placeholder for `currentColor`, which matplotlib does not support; no data has this colour."""
LEGEND_MAX = 9
"""Most batch sizes in a legend; more get a colour bar."""
LEGEND_FONT_PT, HANDLE_PT = 9.0, 40.0
"""A legend entry's font size, and the width of its mark with the space around it."""
PNG_DPI = 160
VIRIDIS_SPAN = (0.25, 0.8)
"""The part of viridis used for batch sizes: its colours are visible on white and on black."""
LIMIT = "#c0392b"
_MARKERS = "osD^vPX*<>"
_PREDICTED, _ACTUAL = ("D", 46, "none"), ("*", 130, INK)
"""Marker, size and filling of the run's own figures."""
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


def panels_figure(panels: Sequence[Panel]) -> Figure:
    """Draw every point: time across, cost up, one line per batch size and VM type over K.

    Curves of the same configurations stand side by side, with one legend.

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
        width = 8.0 if len(panels) == 1 else 6.2 * len(panels)
        figure: Figure = MakeFigure(figsize=(width, 5.4), layout="constrained")
        figure.patch.set_alpha(0.0)
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        drawn = [
            one for one in (_draw(axes, panel) for axes, panel in zip(every, panels, strict=True)) if one
        ]
        if drawn:
            _legend(figure, drawn[0])
        figure.draw_without_rendering()  # labels are placed in pixels
        for one in drawn:
            curve, shown = one.panel.curve, one.panel.shown
            points = np.column_stack([curve.time_s[shown] / one.scale, curve.cost_usd[shown]])
            place_labels(one.axes, _labels(one), points, colour=INK)
    return figure


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Axes with a curve in them.

    Attributes:
        scale: Seconds of the time axis's unit.
        colours: By batch size.
    """

    axes: Axes
    panel: Panel
    scale: float
    colours: dict[int, Any]


def _draw(axes: Axes, panel: Panel) -> _Drawn | None:
    """Draw a curve without its labels and legend; None if no point can be drawn."""
    axes.patch.set_alpha(0.0)
    axes.set_title(clean(panel.title), loc="left", fontweight="bold")
    curve, shown = panel.curve, panel.shown
    if not shown.any():
        axes.text(0.5, 0.5, describe(panel), ha="center", transform=axes.transAxes)
        return None
    scale, unit = time_unit(curve.time_s[shown])
    _axes(axes, panel, scale, unit)
    figure = axes.get_figure(root=True)
    assert figure is not None
    one = _Drawn(axes, panel, scale, _colours(curve, figure, axes))
    _points(one)
    _front(axes, curve, shown, scale)
    _limit_lines(one)
    _ring(axes, curve, landmarks(curve, panel.choice), scale)
    _run(one)
    return one


def _axes(axes: Axes, panel: Panel, scale: float, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    curve, shown = panel.curve, panel.shown
    unsure = ", only ratios are certain" if curve.relative_only else ""
    beyond = limit_words(panel)
    below = f"\nbeyond the picture: {', '.join(beyond)}" if beyond else ""
    axes.set_xlabel(f"time to target ({unit}{unsure}){below}")
    axes.set_ylabel(f"cost (US dollars{unsure})")
    for axis, column, one, sign in (
        (axes.xaxis, "time_s", scale, ""),
        (axes.yaxis, "cost_usd", 1.0, "$"),
    ):
        low, high, logarithmic = axis_span(panel, column)
        low, high = low / one, high / one
        set_scale, set_limits = (
            (axes.set_yscale, axes.set_ylim) if axis is axes.yaxis else (axes.set_xscale, axes.set_xlim)
        )
        if logarithmic:
            set_scale("log")
            decades = math.log10(high / low)
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
            axis.set_minor_formatter(NullFormatter())
            set_limits(low, high)
            form = ",.6g"
        else:
            set_limits(low, high)
            if not curve.cost_usd[shown].any() and column == "cost_usd":  # free: nothing to read off but that
                axis.set_ticks([0.0])
            form = f",.{_decimals(axis.get_majorticklocs())}f"
        axis.set_major_formatter(
            FuncFormatter(lambda value, _, sign=sign, form=form: f"{sign}{value:{form}}")
        )
    axes.grid(visible=True, which="major", color="#888888", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _decimals(ticks: FloatArray) -> int:
    """The fewest decimals that show the ticks exactly."""
    return next((d for d in range(9) if np.allclose(np.round(ticks, d), ticks, rtol=1e-9, atol=1e-12)), 9)


def _colours(curve: TradeoffCurve, figure: Figure, axes: Axes) -> dict[int, Any]:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    batches = sorted({int(b) for b in curve.configurations.global_batch_size})
    places = np.linspace(*VIRIDIS_SPAN, len(batches)) if len(batches) > 1 else np.array([0.4])
    steps = [colormaps["viridis"](place) for place in places]
    if len(batches) > LEGEND_MAX:
        norm = BoundaryNorm(np.arange(len(batches) + 1) - 0.5, len(batches))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(steps)), ax=axes, pad=0.02, aspect=40)
        ticks = range(0, len(batches), -(-len(batches) // 12))
        bar.set_ticks(list(ticks), labels=[f"{batches[i]:,}" for i in ticks])
        bar.set_label("global batch size")
        bar.ax.minorticks_off()
    return dict(zip(batches, steps, strict=True))


def _points(one: _Drawn) -> None:
    """Intervals as light lines behind, a thin line over K, measured points filled, predicted ones hollow."""
    axes, curve, scale = one.axes, one.panel.curve, one.scale
    for index in with_interval(one.panel):
        _interval(one, index)
    of = curve.configurations
    for vm in range(len(of.vms)):
        for batch, colour in one.colours.items():
            chosen = one.panel.shown & (of.vm_index == vm) & (of.global_batch_size == batch)
            line = np.flatnonzero(chosen)[np.argsort(of.workers[chosen], kind="stable")]
            if not len(line):
                continue
            x, y = curve.time_s[line] / scale, curve.cost_usd[line]
            axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.6, zorder=2)
            sure = line[curve.marks.excluded[line] == 0]
            for filled in (True, False):
                kind = curve.marks.measured[sure] == filled
                axes.scatter(
                    curve.time_s[sure][kind] / scale,
                    curve.cost_usd[sure][kind],
                    s=34,
                    marker=_MARKERS[vm % len(_MARKERS)],
                    facecolors=[colour] if filled else "none",
                    edgecolors=[colour],
                    linewidths=1.4,
                    zorder=4,
                )
            out = line[curve.marks.excluded[line] > 0]
            axes.scatter(
                curve.time_s[out] / scale, curve.cost_usd[out], s=22, marker="x", color="#888888", zorder=3
            )


def _interval(one: _Drawn, i: int) -> None:
    """One line from the low to the high end: cost is time times price, so both are uncertain together."""
    curve = one.panel.curve
    times_s = np.array([curve.time_interval_s.low[i], curve.time_s[i], curve.time_interval_s.high[i]])
    costs_usd = [curve.cost_interval_usd.low[i], curve.cost_usd[i], curve.cost_interval_usd.high[i]]
    colour = one.colours[int(curve.configurations.global_batch_size[i])]
    one.axes.plot(
        times_s / one.scale,
        costs_usd,
        color=colour,
        alpha=0.35,
        linewidth=2.6,
        solid_capstyle="round",
        zorder=1,
    )


def _limit_lines(one: _Drawn) -> None:
    deadline_s, budget_usd = drawn_limits(one.panel)
    style: dict[str, Any] = {"color": LIMIT, "linewidth": 1.3, "linestyle": (0, (5, 3)), "zorder": 2}
    if deadline_s is not None:
        one.axes.axvline(deadline_s / one.scale, **style)
    if budget_usd is not None:
        one.axes.axhline(budget_usd, **style)


def _run(one: _Drawn) -> None:
    """Draw the predicted and the actual figures of the run, joined by a line."""
    if one.panel.run is None:
        return
    predicted, actual = one.panel.run
    times, costs = [p.time_s / one.scale for p in (predicted, actual)], [predicted.cost_usd, actual.cost_usd]
    one.axes.plot(times, costs, color=INK, linewidth=1.0, linestyle="dotted", zorder=5)
    for x, y, (marker, size, fill) in zip(times, costs, (_PREDICTED, _ACTUAL), strict=True):
        one.axes.scatter([x], [y], s=size, marker=marker, c=fill, edgecolors=INK, linewidths=1.4, zorder=6)


def _front(axes: Axes, curve: TradeoffCurve, shown: BoolArray, scale: float) -> None:
    front = np.flatnonzero(curve.marks.on_front & shown)
    front = front[np.argsort(curve.time_s[front], kind="stable")]
    axes.plot(
        curve.time_s[front] / scale, curve.cost_usd[front], color=INK, linewidth=1.6, alpha=0.75, zorder=3
    )


def _ring(axes: Axes, curve: TradeoffCurve, names: dict[int, str], scale: float) -> None:
    for index, name in names.items():
        important = "chosen" in name
        if important or "knee" in name:
            axes.scatter(
                [curve.time_s[index] / scale],
                [curve.cost_usd[index]],
                s=150,
                facecolors="none",
                edgecolors=INK,
                linewidths=2.0 if important else 1.0,
                linestyles="solid" if important else "dotted",
                zorder=5,
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

    curve, shown = one.panel.curve, one.panel.shown

    def entry(label: str, **style: Any) -> Line2D:
        look = {"linestyle": "none", "markersize": 6, "markeredgewidth": 1.4, **style}
        return MakeLine([], [], label=label, **look)

    yield entry("front", color=INK, linestyle="solid", linewidth=1.6, alpha=0.75)
    allowed = shown & (curve.marks.excluded == 0)
    if (allowed & curve.marks.measured).any():
        yield entry("measured", marker="o", color=INK)
    if (allowed & ~curve.marks.measured).any():
        yield entry("predicted", marker="o", color=INK, markerfacecolor="none")
    if with_interval(one.panel):
        yield entry("90 % interval", color=INK, linestyle="solid", linewidth=2.6, alpha=0.35)
    if one.panel.run is not None:
        yield entry("this run, predicted", marker=_PREDICTED[0], color=INK, markerfacecolor="none")
        yield entry("this run, actual", marker=_ACTUAL[0], color=INK, markersize=9)
    out = np.flatnonzero(shown & (curve.marks.excluded > 0))
    if len(out):
        (left, right), (bottom, top) = one.axes.get_xlim(), one.axes.get_ylim()
        x, y = curve.time_s[out] / one.scale, curve.cost_usd[out]
        hidden = int(((x < left) | (x > right) | (y < bottom) | (y > top)).sum())
        words = f"ruled out ({hidden} beyond the picture)" if hidden else "ruled out"
        yield entry(words, marker="x", color="#888888")
    deadline_s, budget_usd = drawn_limits(one.panel)
    dashed = {"color": LIMIT, "linestyle": (0, (5, 3)), "linewidth": 1.3}
    if deadline_s is not None:
        yield entry(f"deadline {duration(deadline_s)}", **dashed)
    if budget_usd is not None:
        yield entry(f"budget {money(budget_usd)}", **dashed)
    if len(curve.configurations.vms) > 1:
        for i, vm in enumerate(curve.configurations.vms):
            yield entry(clean(vm), marker=_MARKERS[i % len(_MARKERS)], color=INK)
    if len(one.colours) <= LEGEND_MAX:
        for batch, colour in one.colours.items():
            yield entry(f"batch {batch:,}", marker="o", color=colour, linestyle="solid", linewidth=1)


def _labels(one: _Drawn) -> Iterator[Label]:
    """Labels in order of importance: names, the run's own figures, then K at the points if there are few."""
    curve, shown, scale = one.panel.curve, one.panel.shown, one.scale
    names = landmarks(curve, one.panel.choice)
    for index, name in names.items():
        configuration = curve[index].configuration
        vm = f" {clean(configuration.vm)}" if len(curve.configurations.vms) > 1 else ""
        text = f"{name}\n{configuration.workers} x{vm} batch {configuration.global_batch_size}"
        x, y = float(curve.time_s[index]) / scale, float(curve.cost_usd[index])
        yield Label(text, x, y, 9.0, must=True, bold="chosen" in name)
    if one.panel.run is not None:
        for word, figures in zip(("predicted", "actual"), one.panel.run, strict=True):
            text = f"this run, {word}\n{duration(figures.time_s)}, {money(figures.cost_usd)}"
            yield Label(text, figures.time_s / scale, figures.cost_usd, 8.0, must=True)
    if int(shown.sum()) <= COUNTS_MAX:
        for index in np.flatnonzero(shown).tolist():
            if index not in names:
                x, y = float(curve.time_s[index]) / scale, float(curve.cost_usd[index])
                yield Label(f"K={curve.configurations.workers[index]}", x, y, 7.0)


def panels_svg(panels: Sequence[Panel], *, title: str) -> str:
    """The picture as SVG: real text, title and description, and text colours that follow light or dark.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    svg = _saved(panels_figure(panels), format="svg", metadata={"Date": None, "Creator": None}).decode()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head = (
        f'<title id="scavenger-title">{escape(clean(title))}</title>'
        f'<desc id="scavenger-desc">{escape(describe_panels(panels))}</desc>'
        "<style>svg{color:#1b1b1b;color-scheme:light dark}"
        "@media(prefers-color-scheme:dark){svg{color:#ececec}}</style>"
    )
    start, rest = svg.split(">", 1)
    return f'{start} role="img" aria-labelledby="scavenger-title scavenger-desc">{head}{rest}'


def panels_png(panels: Sequence[Panel]) -> bytes:
    """The picture as PNG, on white.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    metadata = {"Software": None, "Description": describe_panels(panels)}
    return _saved(panels_figure(panels), format="png", dpi=PNG_DPI, facecolor="white", metadata=metadata)


def panels_pdf(panels: Sequence[Panel], *, title: str) -> bytes:
    """The picture as PDF, on white.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    metadata = {"Title": clean(title), "Subject": describe_panels(panels), "CreationDate": None}
    return _saved(panels_figure(panels), format="pdf", facecolor="white", metadata=metadata)


def _saved(figure: Figure, **how: Any) -> bytes:
    from matplotlib import rc_context

    raw = io.BytesIO()
    if "facecolor" in how:
        figure.patch.set_alpha(1.0)
    with rc_context(_STYLE):
        figure.savefig(raw, **how)
    return raw.getvalue()
