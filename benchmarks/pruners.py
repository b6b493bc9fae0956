"""Pruners on public learning curves: every run of a workload is a trial, in an order by chance, that a pruner may stop.

There is nothing to propose, so only the rule that stops trials is compared.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import pandas as pd  # type: ignore[import-untyped]
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import RandomSampler

from benchmarks.curves import DATA
from benchmarks.figures import Benchmark, Result, Spread
from scavenger.integrations.optuna_search import CostPruner, note_epoch

EVALUATIONS_MAX, RUNS_MIN, START = 30, 6, 0.01
"""Evaluations of a run, evenly thinned out; runs of a workload; price of a start, relative to a mean run."""
REGRET = 0.1
"""Of what the median run lacks to the best."""

METHODS: dict[str, Callable[[int], BasePruner]] = {
    "none": lambda _: NopPruner(),
    "median": lambda _: MedianPruner(n_startup_trials=2),
    "Hyperband": lambda most: HyperbandPruner(min_resource=1, max_resource=most, reduction_factor=3),
    "ours": lambda _: CostPruner(),
}


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as a trial: losses at evaluations, best value, and what it cost by then, in samples or steps."""

    losses: tuple[float, ...]
    spent: tuple[float, ...]


def _workloads() -> dict[str, list[_Run]]:
    table = pd.read_csv(DATA)
    found: dict[str, list[_Run]] = defaultdict(list)
    for (source, workload, _, mode), rows in table.groupby(["source", "workload", "run", "mode"]):
        thinned = rows.iloc[
            np.unique(np.linspace(0, len(rows) - 1, min(EVALUATIONS_MAX, len(rows))).round().astype(int))
        ]
        batch = thinned["batch_size"].fillna(1.0).to_numpy()
        losses = thinned["value"].to_numpy() * (1.0 if mode == "min" else -1.0)
        spent = thinned["step"].to_numpy() * batch
        found[f"{source} {workload}"].append(_Run(tuple(losses.tolist()), tuple(spent.tolist())))
    return {name: runs for name, runs in found.items() if len(runs) >= RUNS_MIN}


def _replay(runs: list[_Run], make: Callable[[int], BasePruner], seed: int) -> float:
    """What was spent until a complete run was good enough, relative to all runs whole; 1 if none was."""
    finals = np.array([min(run.losses) for run in runs])
    goal = finals.min() + REGRET * (np.median(finals) - finals.min())
    start = START * float(np.mean([run.spent[-1] for run in runs]))
    whole = math.fsum(run.spent[-1] + start for run in runs)
    search = optuna.create_study(
        study_name=str(seed),  # Hyperband draws brackets by it
        direction="minimize",
        sampler=RandomSampler(seed=seed),
        pruner=make(max(len(run.losses) for run in runs)),
    )
    total = 0.0
    for number in np.random.default_rng(seed).permutation(len(runs)):
        run, trial = runs[number], search.ask()
        stopped = False
        for epoch, (loss, spent) in enumerate(zip(run.losses, run.spent, strict=True), start=1):
            note_epoch(trial, epoch, len(run.losses), spent + start)
            trial.report(loss, epoch)
            if epoch < len(run.losses) and trial.should_prune():
                stopped = True
                break
        total += spent + start
        search.tell(
            trial,
            None if stopped else min(run.losses),
            state=optuna.trial.TrialState.PRUNED if stopped else optuna.trial.TrialState.COMPLETE,
        )
        if not stopped and min(run.losses) <= goal:
            return float(total / whole)
    return 1.0


def run(repetitions: int, work_dir: Path) -> Result:
    """So many orders of the runs of every workload.

    Raises:
        SystemExit: If the data is not there.
    """
    if not DATA.exists():
        raise SystemExit(f"the learning curves are not at {DATA}: nothing to replay")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    began = time.perf_counter()
    workloads = _workloads()
    costs = {
        name: [[_replay(runs, make, seed) for seed in range(repetitions)] for runs in workloads.values()]
        for name, make in METHODS.items()
    }
    ratios = {
        name: [np.mean(a) / np.mean(b) for a, b in zip(costs[name], costs["Hyperband"], strict=True)]
        for name in METHODS
    }
    rows = tuple(
        (
            name,
            f"{100 * np.mean(costs[name]):.0f} %",
            f"{100 * np.mean(np.array(costs[name]) >= 1.0):.0f} %",
            f"{math.exp(np.mean(np.log(ratios[name]))):.2f} ({min(ratios[name]):.2f} – {max(ratios[name]):.2f})",
        )
        for name in METHODS
    )
    ours = math.exp(np.mean(np.log(ratios["ours"])))
    return Result(
        headers=("pruner", "spent, of all runs whole", "good runs lost", "of Hyperband, by workload"),
        rows=rows,
        verdict=f"our pruner needs {100 * ours:.0f} % of what Hyperband needs for a good run (aim: less)",
        figures={name: {"share": Spread.of(np.ravel(costs[name]).tolist())} for name in METHODS},
        remarks=(
            f"{len(workloads)} workloads of {RUNS_MIN} to 14 runs, {repetitions} orders of each; a search that stopped "
            "every good run counts as all runs whole",
            f"a good run lacks at most {REGRET:.0%} of what the median run lacks to the best; costs are samples, or "
            "steps where no batch size is told",
            "the last column: geometric mean over workloads (least – greatest)",
            f"all of it takes {time.perf_counter() - began:.0f} s",
        ),
    )


BENCHMARK = Benchmark("pruners", 20, run)
