"""The cost of indicators, records, reports and heartbeats in a step, by switching them off in alternate windows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic_process import is_bare
from benchmarks.elastic_supervisor import Training
from benchmarks.figures import Benchmark, Result, Spread

_WORKERS = 2
_WINDOW = 10
"""Steps in a row with them, then without: few, so that other load affects both, and no process seems silent."""
_AIM, _AIM_STEP_S = 0.02, 0.05
_AIMED = "cnn"
_BATCHES = {"cnn": 64, "mlp": 32}
"""So that a step of the small network takes about 50 ms, as the aim has it; the other one for comparison."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Medians of neighbouring windows with and without what is watched, seconds."""

    full_s: float
    bare_s: float


def paired(step_times_s: dict[int, float], window: int) -> list[_Pair]:
    """Neighbouring whole windows with and without; the first pair, in which everything is new, is left out."""
    pairs = []
    for begin in range(2 * window, max(step_times_s, default=0) + 1, 2 * window):
        full = [step_times_s.get(step) for step in range(begin, begin + window)]
        bare = [step_times_s.get(step) for step in range(begin + window, begin + 2 * window)]
        assert not is_bare(begin, window)
        assert is_bare(begin + window, window)
        if None not in full and None not in bare:
            pairs.append(
                _Pair(
                    statistics.median(taken for taken in full if taken is not None),
                    statistics.median(taken for taken in bare if taken is not None),
                )
            )
    return pairs


def run(repetitions: int, work_dir: Path) -> Result:
    """So many pairs of windows of each network."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    clocked_s: dict[str, float] = {}
    for network, batch in _BATCHES.items():
        folder = work_dir / network
        with Training(f"benchmarks.peers.keras_jobs:{network}", folder, window=_WINDOW) as training:
            training.begin(_WORKERS, batch)
            # nothing is said of bare steps, so those that are heard of are half of them
            training.go_to(2 * _WINDOW * (repetitions + 1) + 1)
        sequencer = training.measured()["aggregator-0"]
        pairs = paired(sequencer["step"], _WINDOW)
        full, bare = Spread.of(pair.full_s for pair in pairs), Spread.of(pair.bare_s for pair in pairs)
        # the median of differences: a slow moment of the machine meets both windows of a pair
        added = Spread.of(pair.full_s - pair.bare_s for pair in pairs)
        watching = Spread.of(
            taken
            for step, taken in sequencer["watching"].items()
            if step > _WINDOW and not is_bare(step, _WINDOW)
        )
        clocked_s[network] = watching.median
        rows.append(
            (
                f"{network}, B = {batch}",
                str(len(pairs)),
                *(spread.text(1e3, 2) for spread in (full, bare, added)),
                watching.text(1e3, 2),
                f"{watching.median / full.median:.1%}",
            )
        )
        figures[network] = {
            "full_s": full,
            "bare_s": bare,
            "added_s": added,
            "watching_s": watching,
            "share": watching.median / full.median,
        }
    return Result(
        headers=(
            "network",
            "n",
            "step with, ms",
            "step without, ms",
            "difference, ms",
            "clocked, ms",
            "share",
        ),
        rows=tuple(rows),
        verdict=f"aim: below {_AIM:.0%} of a step of {_AIM_STEP_S * 1e3:.0f} ms: "
        f"{clocked_s[_AIMED] / _AIM_STEP_S:.1%} with the small network",
        figures=figures,
        remarks=(
            f"K = {_WORKERS}, one thread per process; n pairs of windows of {_WINDOW} steps with and {_WINDOW} without "
            "norms, records of the step, its report and heartbeats, within one run",
            "clocked: norms, records, report and the state machine of pieces, timed one by one in every step with "
            "them, threads added up; share: that of a step with them; the difference tells whether something was "
            "forgotten, but for the state machine, which cannot be left out",
            "mlp: 25 million parameters; three norms of 100 MB each are what it adds there",
        ),
    )


BENCHMARK = Benchmark("elastic_watching", 25, run)
