"""`python -m benchmarks.philly_pictures`: the busiest week of the Philly trace, for docs/pool-rules.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import philly, philly_jobs
from benchmarks.backtest_pictures import GUESS, INK, KNOWN, PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.pools.trace import History

_DAY_S = 86_400.0


def main() -> None:
    """Replay the week and draw it.

    Raises:
        SystemExit: If the trace is not there.
    """
    workload = philly.workloads(philly_jobs.read_philly())[2]
    jobs, _ = philly.mapping()
    found = philly.study(workload, jobs, "", philly.ours(philly.OURS), promised=True)
    mpl.rcParams.update({"svg.hashsalt": "scavenger", "svg.fonttype": "none", "font.size": 7.0})
    figure, (time, ratio, loss) = plt.subplots(
        1, 3, figsize=(9.0, 2.8), layout="constrained", width_ratios=(2.2, 1.0, 1.0)
    )
    _over_time(time, found.history)
    _shares(ratio, loss, found.history)
    figure.savefig(PICTURES / "philly-week.svg", metadata={"Date": None})
    plt.close(figure)


def _over_time(axes: Axes, history: History) -> None:
    begin_s = history.uses[0].at_s
    days = [(use.at_s - begin_s) / _DAY_S for use in history.uses]
    axes.step(
        days, [use.servers for use in history.uses], where="post", color=INK, lw=0.8, label="static servers"
    )
    axes.step(
        days, [use.nodes for use in history.uses], where="post", color=GUESS, lw=0.8, label="shared nodes"
    )
    axes.set_xlabel("days")
    axes.set_ylabel("in use")
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False)


def _shares(ratio: Axes, loss: Axes, history: History) -> None:
    """What share of the time, and of the jobs, has at most this ratio, and this loss."""
    lasting_s = np.diff([use.at_s for use in history.uses])
    ratios = np.array([use.nodes / max(use.servers, 1) for use in history.uses[:-1]])
    order = np.argsort(ratios)
    ratio.plot(ratios[order], np.cumsum(lasting_s[order]) / lasting_s.sum(), color=GUESS, lw=1.0)
    ratio.set_xlabel("nodes over static servers")
    ratio.set_ylabel("share of the time")
    ratio.set_xlim(0.0, 1.05)
    losses = np.sort([one.loss for one in history.finished])
    loss.plot(100.0 * losses, np.arange(1, len(losses) + 1) / len(losses), color=KNOWN, lw=1.0)
    loss.set_xlabel("loss of speed, %")
    loss.set_ylabel("share of the jobs")
    loss.set_xlim(0.0, 10.5)


if __name__ == "__main__":
    main()
