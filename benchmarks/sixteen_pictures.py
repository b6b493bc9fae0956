"""`python -m benchmarks.sixteen_pictures`: how fast the pool of `sixteen` was over time, from the JSON of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.backtest_pictures import GUESS, INK, KNOWN, PICTURES
from benchmarks.sixteen import ASKED, SLOTS, STATIC

_COLOURS = {"worth": GUESS, "elastic-tiresias": KNOWN, STATIC: INK}


def main() -> None:
    """Draw the picture of the last run.

    Raises:
        SystemExit: There is none.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent / "results" / "sixteen.json"
    parser.add_argument("json", nargs="?", type=Path, default=default)
    path = parser.parse_args().json
    if not path.is_file():
        raise SystemExit(f"{path} is not there: `python -m benchmarks sixteen` writes it")
    figures = json.loads(path.read_text())["figures"]
    mpl.rcParams.update({"svg.hashsalt": "scavenger", "svg.fonttype": "none", "font.size": 7.0})
    figure, axes = plt.subplots(figsize=(4.5, 2.4), layout="constrained")
    for policy, colour in _COLOURS.items():
        if policy in figures:
            speed, bin_s = np.array(figures[policy]["speed"]), figures[policy]["bin_s"]
            axes.step(bin_s * np.arange(len(speed)), speed, where="post", color=colour, lw=1.0, label=policy)
    axes.axhline(SLOTS / ASKED, color=INK, lw=0.5, ls=":")
    axes.set_xlabel("seconds since the first job was submitted")
    axes.set_ylabel("speed, in jobs on four workers")
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False)
    figure.savefig(PICTURES / "sixteen-speed.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
