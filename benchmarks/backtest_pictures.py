"""`python -m benchmarks.backtest_pictures`: measured against predicted, as pictures for docs/models.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from benchmarks.backtest import DATA
from scavenger.control.search.tables import read_placements, read_runs
from scavenger.models.backtest import GroupResult
from scavenger.models.backtest_epochs import backtest_epochs
from scavenger.models.backtest_steps import backtest_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "images"

INK, GUESS, KNOWN = "#333333", "#0072b2", "#d55e00"
"""Colours of measured, predicted and fitted points; colour-blind people can distinguish them, too."""


def main() -> None:
    """Draw both pictures again.

    Raises:
        SystemExit: If the data is not there.
    """
    if not DATA.is_dir():
        raise SystemExit(f"the public measurements are not at {DATA}: nothing to draw")
    PICTURES.mkdir(exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "scavenger", "svg.fonttype": "none", "font.size": 7.0})
    _epochs(PICTURES / "backtest-epochs.svg")
    _steps(PICTURES / "backtest-step-time.svg")


def _epochs(path: Path) -> None:
    """Epochs by batch size, each workload in a panel, relative to the fewest."""
    rows = read_runs(DATA / "convergence.csv")
    found = [one for one in backtest_epochs(rows, 3) if isinstance(one, GroupResult)]
    columns = 5
    figure, panels = plt.subplots(
        math.ceil(len(found) / columns), columns, figsize=(9.0, 7.2), layout="constrained"
    )
    for one, axes in zip(found, panels.flat, strict=False):
        means: dict[float, list[float]] = {}
        for row in rows:
            if (row.source, row.workload) == (one.origin, one.workload) and 0.0 < row.epochs < math.inf:
                means.setdefault(row.global_batch_size, []).append(row.epochs)
        sizes = np.array(sorted(means))
        truth = np.array([np.mean(means[size]) for size in sizes])
        unit = truth.min()
        at = np.array([float(p.at.removeprefix("batch ")) for p in one.predictions])
        middle, low, high = (
            np.array([getattr(p, name) for p in one.predictions]) / unit
            for name in ("predicted", "low", "high")
        )
        axes.errorbar(at, middle, (middle - low, high - middle), fmt="_", color=GUESS, ms=7, lw=1)
        axes.plot(sizes, truth / unit, "o", color=INK, ms=2.5)
        profiled = np.array([float(name.removeprefix("batch ")) for name in one.profiled])
        axes.plot(
            profiled, [np.mean(means[size]) / unit for size in profiled], "s", color=KNOWN, ms=4.5, mfc="none"
        )
        axes.set_xscale("log", base=2)
        axes.set_title(f"{one.origin.split('-')[0]}: {one.workload}", fontsize=6.5)
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    _legend(panels.flat[-1])
    figure.supxlabel("global batch size, samples")
    figure.supylabel("epochs, relative to the fewest measured")
    _save(figure, path)


def _steps(path: Path) -> None:
    """Predicted by measured step time, each workload in a panel, from six points chosen by the model."""
    found = [
        one
        for one in backtest_steps(read_placements(DATA / "step_times.csv"), 6)
        if isinstance(one, GroupResult)
    ]
    figure, panels = plt.subplots(2, math.ceil(len(found) / 2), figsize=(7.5, 5.0), layout="constrained")
    for one, axes in zip(found, panels.flat, strict=True):
        truth, middle, low, high = (
            np.array([getattr(p, name) for p in one.predictions])
            for name in ("truth", "predicted", "low", "high")
        )
        ends = np.array([truth.min(), truth.max()])
        axes.plot(ends, ends, color=INK, lw=0.8)
        axes.errorbar(truth, middle, (middle - low, high - middle), fmt="o", color=GUESS, ms=2, lw=0.6)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FormatStrFormatter("%g"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{one.workload}, {one.workers_per_node} a node")
    figure.supxlabel("measured step time, s")
    figure.supylabel("predicted, s, with its 90 % interval")
    _save(figure, path)


def _legend(axes: Axes) -> None:
    axes.set_axis_off()
    axes.plot([], [], "s", color=KNOWN, mfc="none", label="fitted to")
    axes.plot([], [], "o", color=INK, ms=2.5, label="measured")
    axes.errorbar([], [], [], fmt="_", color=GUESS, label="predicted, 90 %")
    axes.legend(loc="center", frameon=False)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
