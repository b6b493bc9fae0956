"""Searches over hyperparameters, replayed: dollars until a complete trial is nearly as good as the best there is.

Every search begins, follows and prunes trials through Optuna's own interface, as a search of real jobs does. A trial's
metric and dollars are read from a table in place of a job: all searches share the table, and seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from threadpoolctl import threadpool_limits

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.search_tables import EPOCHS, GRID, Table, tables
from scavenger.integrations.optuna_search import CostPruner, CostSampler, note_epoch

REGRETS = (0.25, 0.1)
"""Of what a median trial lacks to the best."""
BUDGET_TRIALS = 40
"""Each search may spend what so many whole trials cost on average."""

Make = Callable[[int], tuple[BaseSampler, BasePruner]]


def _hyperband() -> BasePruner:
    return HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3)


METHODS: dict[str, Make] = {
    "random, median pruner": lambda seed: (RandomSampler(seed=seed), MedianPruner(n_startup_trials=3)),
    "TPE, Hyperband": lambda seed: (TPESampler(seed=seed), _hyperband()),
    "TPE, our pruner": lambda seed: (TPESampler(seed=seed), CostPruner()),
    "our sampler, Hyperband": lambda seed: (CostSampler(seed=seed), _hyperband()),
    "our sampler, our pruner": lambda seed: (CostSampler(seed=seed), CostPruner()),
}
BASELINE, OURS = "TPE, Hyperband", "our sampler, our pruner"


def replay(table: Table, make: Make, seed: int, budget_usd: float) -> list[tuple[float, float]]:
    """Dollars spent and regret after each complete trial that was better than all before.

    Returns:
        Pairs of dollars and regret, relative to what a median trial lacks to the best.
    """
    sign = 1.0 if table.mode == "min" else -1.0
    finals = sign * table.finals
    best, unit = float(finals.min()), float(np.median(finals) - finals.min())
    sampler, pruner = make(seed)
    search = optuna.create_study(
        study_name=str(seed),  # Hyperband draws brackets by it
        direction="minimize" if table.mode == "min" else "maximize",
        sampler=sampler,
        pruner=pruner,
    )
    shape = [len(choices) for choices in GRID.values()]
    seen: set[int] = set()
    spent_usd, found = 0.0, [(0.0, math.inf)]
    while spent_usd < budget_usd:
        trial = search.ask()
        at = [trial.suggest_int(name, 0, many - 1) for name, many in zip(GRID, shape, strict=True)]
        row = int(np.ravel_multi_index(at, shape))
        cost_usd = 0.0 if row in seen else table.start_usd
        state = optuna.trial.TrialState.COMPLETE
        for epoch in range(1, EPOCHS + 1):
            cost_usd += 0.0 if row in seen else float(table.epoch_usd[row])
            note_epoch(trial, epoch, EPOCHS, table.start_usd + epoch * float(table.epoch_usd[row]))
            trial.report(float(table.values[row, epoch - 1]), epoch)
            if trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        seen.add(row)
        spent_usd += cost_usd
        if state == optuna.trial.TrialState.COMPLETE:
            value = float(table.finals[row])
            search.tell(trial, value)
            found.append((spent_usd, min(found[-1][1], (sign * value - best) / unit)))
        else:
            search.tell(trial, state=state)
    return found


def dollars_to(found: list[tuple[float, float]], regret: float, budget_usd: float) -> float:
    """What was spent when the regret was reached; the budget if it was not."""
    return next((usd for usd, left in found if left <= regret), budget_usd)


def run(repetitions: int, work_dir: Path) -> Result:
    """So many seeds of every method on every table."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = Path(__file__).resolve().parent / "results"
    began = time.perf_counter()
    dollars: dict[str, dict[float, list[float]]] = {name: {r: [] for r in REGRETS} for name in METHODS}
    missed = {name: dict.fromkeys(REGRETS, 0) for name in METHODS}
    ratios: dict[str, dict[float, list[float]]] = {name: {r: [] for r in REGRETS} for name in METHODS}
    found = tables(folder)
    for table in found:
        whole_usd = float(table.start_usd + EPOCHS * table.epoch_usd.mean())
        budget_usd = BUDGET_TRIALS * whole_usd
        of_table: dict[str, dict[float, list[float]]] = {}
        for name, make in METHODS.items():
            with threadpool_limits(1):  # matrices are small: threads only wait for processors that others use
                runs = [replay(table, make, seed, budget_usd) for seed in range(repetitions)]
            of_table[name] = {r: [dollars_to(one, r, budget_usd) for one in runs] for r in REGRETS}
            for r in REGRETS:
                dollars[name][r] += [usd / whole_usd for usd in of_table[name][r]]
                missed[name][r] += sum(usd >= budget_usd for usd in of_table[name][r])
        for name in METHODS:
            for r in REGRETS:
                ratios[name][r].append(float(np.mean(of_table[name][r]) / np.mean(of_table[BASELINE][r])))
    rows = tuple(
        (
            name,
            *(cell for r in REGRETS for cell in _cells(dollars[name][r], missed[name][r], ratios[name][r])),
        )
        for name in METHODS
    )
    return Result(
        headers=(
            "sampler, pruner",
            *(
                head
                for r in REGRETS
                for head in (f"cost to a regret of {r:.0%}", "not reached", f"of {BASELINE}, by task")
            ),
        ),
        rows=rows,
        verdict=_verdict(ratios),
        figures={
            name: {
                f"regret_{r}": {"trials": Spread.of(dollars[name][r]), "ratios": ratios[name][r]}
                for r in REGRETS
            }
            for name in METHODS
        },
        remarks=(
            f"{len(found)} tasks with {len(found[0].points)} trials each, {repetitions} seeds of each",
            "costs are means (10 %, 50 %, 90 % of the searches), in whole trials of mean cost",
            f"a search that does not reach the regret counts with its budget of {BUDGET_TRIALS} trials",
            "regret: of a complete trial, relative to what the median trial of the table lacks to the best one",
            f"the last column of each: mean dollars relative to {BASELINE}, geometric mean over tasks (least – "
            "greatest)",
            "dollars are replayed from tables: a busy machine changes only how long the replay takes",
            f"the replay takes {time.perf_counter() - began:.0f} s",
        ),
    )


def _verdict(ratios: dict[str, dict[float, list[float]]]) -> str:
    said = [
        f"{100 * math.exp(np.mean(np.log(ratios[OURS][r]))):.0f} % (by task {100 * min(ratios[OURS][r]):.0f} to "
        f"{100 * max(ratios[OURS][r]):.0f} %) at a regret of {r:.0%}"
        for r in REGRETS
    ]
    return (
        f"our sampler and pruner need, of the dollars of {BASELINE}: {', '.join(said)} (aim: clearly fewer)"
    )


def _cells(trials: list[float], missed: int, ratios: list[float]) -> tuple[str, str, str]:
    low, middle, high = np.quantile(trials, (0.1, 0.5, 0.9))
    return (
        f"{np.mean(trials):.1f} ({low:.1f}, {middle:.1f}, {high:.1f})",
        f"{100 * missed / len(trials):.0f} %",
        f"{math.exp(np.mean(np.log(ratios))):.2f} ({min(ratios):.2f} – {max(ratios):.2f})",
    )


BENCHMARK = Benchmark("sampler", 8, run)
