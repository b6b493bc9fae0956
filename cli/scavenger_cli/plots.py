"""The tradeoff curve as a picture, with matplotlib (the extra `plots`).

Batch sizes are ordered, so their colours are steps of viridis, readable for colour-blind people and in grey;
its ends are cut off so that every step shows on white and on black. VM types differ by marker.
Everything that is not data is drawn in `INK`, which the SVG turns into the reader's own text colour.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from scavenger.domain.curve import BoolArray, Choice, FloatArray, TradeoffCurve
from scavenger.errors import ConfigurationError
from scavenger_cli.formatting import clean, duration, money
from scavenger_cli.labels import Label, place_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "Panel",
    "curve_figure",
    "curve_svg",
    "describe",
    "describe_panels",
    "landmarks",
    "panels_figure",
    "panels_svg",
]

INK = "#010203"
"""Stands for `currentColor`, which matplotlib cannot say; no data has this colour."""
LEGEND_MAX = 9
"""Batch sizes told apart in a legend; more get a colour bar."""
COUNTS_MAX = 24
"""Points up to which each says its K: beyond, the numbers hide the points."""
LOG_RATIO = 10.0
"""An axis that spans more than this is logarithmic."""
_MARKERS = "osD^vPX*<>"
_TIME_UNITS = (
    (86400.0, "days"),
    (3600.0, "hours"),
    (60.0, "minutes"),
    (1.0, "seconds"),
    (1e-3, "milliseconds"),
)
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


def landmarks(curve: TradeoffCurve, choice: Choice | None) -> dict[int, str]:
    """The points worth a name: index -> `chosen, knee`, in that order of importance."""
    marks: list[tuple[str, int | None]] = [("knee", curve.knee)]
    if choice is not None:
        marks.insert(0, ("chosen", curve.index(choice.configuration)))
        marks += [(clean(name), curve.index(point.configuration)) for name, point in choice.alternatives]
    named: dict[int, list[str]] = {}
    for name, index in marks:
        if index is not None and name not in named.setdefault(index, []):
            named[index].append(name)
    return {index: ", ".join(words) for index, words in named.items()}


def describe(curve: TradeoffCurve, choice: Choice | None) -> str:
    """The picture in words, for those who cannot see it."""
    shown = np.isfinite(curve.time_s) & np.isfinite(curve.cost_usd)
    if not shown.any():
        return "No configuration has a predicted time and cost."
    times, costs = curve.time_s[shown], curve.cost_usd[shown]
    text = (
        f"{int(shown.sum())} configurations, from {duration(float(times.min()))} to "
        f"{duration(float(times.max()))} and from {money(float(costs.min()))} to "
        f"{money(float(costs.max()))}; "
        f"{int(curve.on_front.sum())} on the front, {int(curve.measured.sum())} measured."
    )
    for index, name in landmarks(curve, choice).items():
        point = curve[index]
        text += f" {name[0].upper()}{name[1:]}: {clean(point.configuration)}, "
        text += f"{duration(point.time_s)}, {money(point.cost_usd)}."
    return text


Panel = tuple[str, TradeoffCurve, Choice | None]
"""A title, a curve, and what was chosen of it."""


def curve_figure(curve: TradeoffCurve, choice: Choice | None, *, title: str) -> Figure:
    """Draw every point: time across, cost up, one line per batch size and VM type over K.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    return panels_figure([(title, curve, choice)])


def panels_figure(panels: Sequence[Panel]) -> Figure:
    """As `curve_figure`, for curves of the same configurations side by side, with one legend.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
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
        drawn = []
        for axes, (title, curve, choice) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            axes.patch.set_alpha(0.0)
            shown = np.isfinite(curve.time_s) & np.isfinite(curve.cost_usd)
            axes.set_title(clean(title), loc="left", fontweight="bold")
            if not shown.any():
                axes.text(0.5, 0.5, describe(curve, choice), ha="center", transform=axes.transAxes)
                continue
            scale, unit = _time_unit(float(curve.time_s[shown].max()))
            _axes(axes, curve, shown, scale, unit)
            colours = _colours(curve, figure, axes)
            _points(axes, curve, shown, scale, colours)
            _front(axes, curve, shown, scale)
            names = landmarks(curve, choice)
            _ring(axes, curve, names, scale)
            drawn.append((axes, curve, shown, names, scale, colours))
        if drawn:
            axes, curve, shown, _, scale, colours = drawn[0]
            _legend(axes, curve, shown, scale, colours)
        figure.draw_without_rendering()  # labels are placed in pixels
        for axes, curve, shown, names, scale, _ in drawn:
            points = np.column_stack([curve.time_s[shown] / scale, curve.cost_usd[shown]])
            place_labels(axes, _labels(curve, shown, names, scale), points, colour=INK)
    return figure


def _time_unit(longest_s: float) -> tuple[float, str]:
    return next((pair for pair in _TIME_UNITS if longest_s >= pair[0]), _TIME_UNITS[-1])


def _axes(axes: Axes, curve: TradeoffCurve, shown: BoolArray, scale: float, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    unsure = ", only ratios are certain" if curve.relative_only else ""
    axes.set_xlabel(f"time to target ({unit}{unsure})")
    axes.set_ylabel(f"cost (US dollars{unsure})")
    time_s = (curve.time_s / scale, curve.time_low_s / scale, curve.time_high_s / scale)
    cost_usd = (curve.cost_usd, curve.cost_low_usd, curve.cost_high_usd)
    for axis, (values, lows, highs), sign in ((axes.xaxis, time_s, ""), (axes.yaxis, cost_usd, "$")):
        low, high = _limits(values, lows, highs, shown, curve.excluded == 0)
        set_scale, set_limits = (
            (axes.set_yscale, axes.set_ylim) if axis is axes.yaxis else (axes.set_xscale, axes.set_xlim)
        )
        logarithmic = low > 0 and high / low > LOG_RATIO
        if logarithmic:
            set_scale("log")
            decades = math.log10(high / low)
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
            axis.set_minor_formatter(NullFormatter())
            pad = (high / low) ** 0.06
            set_limits(low / pad, high * pad)
            form = ",.6g"
        else:
            pad = 0.06 * (high - low) or abs(high) * 0.5 or 1.0
            set_limits(low - pad if low > pad else -0.3 * pad, high + pad)
            if high == 0:  # free: nothing to read off this axis but that
                axis.set_ticks([0.0])
            form = f",.{_decimals(axis.get_majorticklocs())}f"
        axis.set_major_formatter(
            FuncFormatter(lambda value, _, sign=sign, form=form: f"{sign}{value:{form}}")
        )
    axes.grid(visible=True, which="major", color="#888888", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _decimals(ticks: FloatArray) -> int:
    """As few as tell the ticks exactly."""
    return next((d for d in range(9) if np.allclose(np.round(ticks, d), ticks, rtol=1e-9, atol=1e-12)), 9)


def _limits(
    values: FloatArray, lows: FloatArray, highs: FloatArray, shown: BoolArray, allowed: BoolArray
) -> tuple[float, float]:
    """Every allowed point, and intervals and ruled-out points as far as the rest stays readable."""
    core = values[shown & allowed] if (shown & allowed).any() else values[shown]
    low, high = float(core.min()), float(core.max())
    reach = (high - low) or abs(high)
    wide = np.concatenate([values[shown], lows[shown & allowed], highs[shown & allowed]])
    wide = wide[np.isfinite(wide)]
    return max(float(wide.min()), low - reach), min(float(wide.max()), high + reach)


def _colours(curve: TradeoffCurve, figure: Figure, axes: Axes) -> dict[int, Any]:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    batches = sorted({int(b) for b in curve.global_batch_size})
    places = np.linspace(0.18, 0.88, len(batches)) if len(batches) > 1 else np.array([0.4])
    steps = [colormaps["viridis"](place) for place in places]
    if len(batches) > LEGEND_MAX:
        norm = BoundaryNorm(np.arange(len(batches) + 1) - 0.5, len(batches))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(steps)), ax=axes, pad=0.02, aspect=40)
        ticks = range(0, len(batches), -(-len(batches) // 12))
        bar.set_ticks(list(ticks), labels=[f"{batches[i]:,}" for i in ticks])
        bar.set_label("global batch size")
        bar.ax.minorticks_off()
    return dict(zip(batches, steps, strict=True))


def _points(
    axes: Axes, curve: TradeoffCurve, shown: BoolArray, scale: float, colours: dict[int, Any]
) -> None:
    """Intervals as thin bars behind, a thin line over K, measured points filled, predicted ones hollow."""
    crowded = 0.22 if shown.sum() > COUNTS_MAX else 0.45
    for vm in range(len(curve.vms)):
        for batch, colour in colours.items():
            chosen = shown & (curve.vm_index == vm) & (curve.global_batch_size == batch)
            line = np.flatnonzero(chosen)[np.argsort(curve.workers[chosen], kind="stable")]
            if not len(line):
                continue
            x, y = curve.time_s[line] / scale, curve.cost_usd[line]
            axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.6, zorder=2)
            sure = line[curve.excluded[line] == 0]
            for index in sure:
                _interval(axes, curve, int(index), scale, colour, crowded)
            for filled in (True, False):
                kind = curve.measured[sure] == filled
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
            out = line[curve.excluded[line] > 0]
            axes.scatter(
                curve.time_s[out] / scale, curve.cost_usd[out], s=22, marker="x", color="#888888", zorder=3
            )


def _interval(axes: Axes, curve: TradeoffCurve, i: int, scale: float, colour: Any, alpha: float) -> None:
    x, y = curve.time_s[i] / scale, curve.cost_usd[i]
    style = {"color": colour, "alpha": alpha, "linewidth": 1.0, "zorder": 1}
    times = (curve.time_low_s[i] / scale, curve.time_high_s[i] / scale)
    costs = (curve.cost_low_usd[i], curve.cost_high_usd[i])
    if np.isfinite(times).all():
        axes.plot(times, (y, y), **style)
    if np.isfinite(costs).all():
        axes.plot((x, x), costs, **style)


def _front(axes: Axes, curve: TradeoffCurve, shown: BoolArray, scale: float) -> None:
    front = np.flatnonzero(curve.on_front & shown)
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


def _legend(
    axes: Axes, curve: TradeoffCurve, shown: BoolArray, scale: float, colours: dict[int, Any]
) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **style: Any) -> Line2D:
        return Line2D(
            [], [], **{"linestyle": "none", "markersize": 6, "markeredgewidth": 1.4, **style}, label=label
        )

    entries = [entry("front", color=INK, linestyle="solid", linewidth=1.6, alpha=0.75)]
    allowed = shown & (curve.excluded == 0)
    if (allowed & curve.measured).any():
        entries.append(entry("measured", marker="o", color=INK))
    if (allowed & ~curve.measured).any():
        entries.append(entry("predicted", marker="o", color=INK, markerfacecolor="none"))
    out = np.flatnonzero(shown & (curve.excluded > 0))
    if len(out):
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        x, y = curve.time_s[out] / scale, curve.cost_usd[out]
        hidden = int(((x < left) | (x > right) | (y < bottom) | (y > top)).sum())
        words = f"ruled out ({hidden} beyond the picture)" if hidden else "ruled out"
        entries.append(entry(words, marker="x", color="#888888"))
    if len(curve.vms) > 1:
        entries += [
            entry(clean(vm), marker=_MARKERS[i % len(_MARKERS)], color=INK) for i, vm in enumerate(curve.vms)
        ]
    if len(colours) <= LEGEND_MAX:
        entries += [
            entry(f"batch {b:,}", marker="o", color=c, linestyle="solid", linewidth=1)
            for b, c in colours.items()
        ]
    axes.figure.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), 6), frameon=False)


def _labels(curve: TradeoffCurve, shown: BoolArray, names: dict[int, str], scale: float) -> Iterator[Label]:
    """Names first, then K at the points while there are few."""
    for index, name in names.items():
        configuration = curve[index].configuration
        vm = f" {clean(configuration.vm)}" if len(curve.vms) > 1 else ""
        text = f"{name}\n{configuration.workers} x{vm} batch {configuration.global_batch_size}"
        x, y = float(curve.time_s[index]) / scale, float(curve.cost_usd[index])
        yield Label(text, x, y, 9.0, must=True, bold="chosen" in name)
    if int(shown.sum()) <= COUNTS_MAX:
        for index in np.flatnonzero(shown).tolist():
            if index not in names:
                x, y = float(curve.time_s[index]) / scale, float(curve.cost_usd[index])
                yield Label(f"K={curve.workers[index]}", x, y, 7.0)


def curve_svg(curve: TradeoffCurve, choice: Choice | None, *, title: str) -> str:
    """The picture as SVG: real text, title and description, and text colours that follow light or dark.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    return panels_svg([(title, curve, choice)], title=title)


def panels_svg(panels: Sequence[Panel], *, title: str) -> str:
    """As `curve_svg`, for curves of the same configurations side by side.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    figure = panels_figure(panels)
    from matplotlib import rc_context

    with rc_context(_STYLE):
        raw = io.StringIO()
        figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None})
    svg = raw.getvalue()
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


def describe_panels(panels: Sequence[Panel]) -> str:
    """Several curves in words; one alone is not called by its title."""
    if len(panels) == 1:
        return describe(panels[0][1], panels[0][2])
    return " ".join(f"{clean(title)}: {describe(curve, choice)}" for title, curve, choice in panels)
