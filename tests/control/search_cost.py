"""What a search costs, over many made-up runs in virtual time: `python -m tests.control.search_cost [JOBS] [FIRST]`.

Each job runs through the real search to its target on a machine of a steady speed, and is compared with the same job
whose workers all start at once on the configuration that is truly the fastest. Prints by how much longer it takes than
that one and than the one that was chosen, the share of the time in which workers that were paid for did nothing, and in
how many searches the first point was measured again; medians and quartiles of the jobs.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from scripted import offer
from synthetic_runs import BATCHES, END_S, WORKERS, Truth, run_job

from scavenger.domain.configuration import Offer
from scavenger.store import Store

JOBS = 40

KINDS: dict[str, tuple[float, float, Offer]] = {
    "processors shared, short": (1.0, 1.0, offer(shared_cpus=4)),
    "processors shared, long": (30.0, 1.0, offer(shared_cpus=4)),
    "own VMs, short": (4.0, 20.0, offer()),
    "own VMs, long": (60.0, 20.0, offer()),
}
"""By how much steps and starts are longer than those of a job of a minute on one machine; and the offer."""


@dataclass(frozen=True)
class Cost:
    """One search: shares of a run without one.

    Attributes:
        fastest, chosen: Longer than at once on the fastest configuration, and on the chosen one.
        dearer: Dearer than at once on the chosen one.
        idle: Worker-seconds in which a worker that is ready was in no view, of all.
        twice: Whether the first point was measured again.
    """

    fastest: float
    chosen: float
    dearer: float
    idle: float
    twice: bool


def steady(random: np.random.Generator, kind: str) -> Truth:
    """A job that does not vary from run to run, so that its search alone makes a difference."""
    steps, starts, _ = KINDS[kind]
    truth = Truth.drawn(random, long=False)
    return replace(
        truth,
        step_s=steps * truth.step_s,
        sample_s=steps * truth.sample_s,
        sync_s=steps * truth.sync_s,
        first_s=starts * truth.first_s,
        further_s=starts * truth.further_s,
        run_log_sd=0.0,
        machine_log_sd=0.0,
        drift_log_sd=0.0,
        step_log_sd=0.05,
        validation=4000,
    )


def costs_of(folder: Path, jobs: int, kind: str, *, seed: int = 0, **job: object) -> list[Cost]:
    """The search of each job that came to a choice."""
    found = []
    for number in range(seed, seed + jobs):
        random = np.random.default_rng((len(kind), number))
        truth, at = steady(random, kind), folder / f"{kind}-{number}"
        at.mkdir()
        with Store.open(f"sqlite:///{at / 's.db'}") as store:
            outcome = run_job(truth, store, at, random, at=KINDS[kind][2], **job)
        if outcome.predicted is None or outcome.chosen is None:
            continue
        times_s = {(k, b): alone_s(truth, k, b) for k in WORKERS for b in BATCHES}
        chosen = outcome.chosen.workers, outcome.chosen.global_batch_size
        price = KINDS[kind][2].price_usd_per_hour / 3600.0
        found.append(
            Cost(
                fastest=outcome.actual.time_s / min(times_s.values()) - 1.0,
                chosen=outcome.actual.time_s / times_s[chosen] - 1.0,
                dearer=outcome.actual.cost_usd / (chosen[0] * price * times_s[chosen]) - 1.0,
                idle=outcome.idle_s / (outcome.actual.cost_usd / price),
                twice=outcome.twice,
            )
        )
    return found


def alone_s(truth: Truth, workers: int, batch: int) -> float:
    """Time of a run whose workers all start at once."""
    steps = math.ceil(truth.epochs_at(batch)) * math.ceil(truth.samples / batch)
    evaluations_s = math.ceil(truth.epochs_at(batch)) * truth.evaluation_s(workers)
    return truth.first_s + steps * truth.step_time_s(workers, batch) + evaluations_s + END_S


def spread(values: Sequence[float]) -> str:
    """Median and quartiles, as percent."""
    low, middle, high = 100.0 * np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:5.1f} ({low:5.1f} to {high:5.1f})"


def main(jobs: int = JOBS, first: int = 0) -> None:
    """Print the table."""
    print(
        "jobs                       n  longer than fastest, %    than chosen, %         dearer, %        idle, %  again"
    )
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            costs = costs_of(Path(folder), jobs, kind, seed=first)
        columns = ([getattr(one, name) for one in costs] for name in ("fastest", "chosen", "dearer", "idle"))
        again = sum(one.twice for one in costs)
        print(
            f"{kind:<25} {len(costs):>2} {'  '.join(map(spread, columns))}  {again}/{len(costs)}", flush=True
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
