"""`make chaos`: break what a job needs while it trains, and prove that nothing came of it.

First, processes are killed and stopped at random (below); then `chaos_cases` breaks what is around the training: a
full disk, a store that is out of service, a command that stops and is killed, strangers' connections, an unread pipe.

A quiet run of `examples/digits` says what the weights should be. A second one, of the same steps, has a process
killed or stopped every few seconds, drawn by a seed: a worker, an aggregator or the coordinator. At its end every
sample of every epoch must have been applied exactly once, and the weights must be those of the quiet run.

**What "the same weights" means.** Who computes which samples decides the order in which floats are added, so a
loss changes the last bits of a gradient, and training amplifies such differences: in float32 two undisturbed
runs on one and on two workers drift apart until it shows, after some hundred steps. So the network is trained
in float64, where nothing shows for thousands; the quiet run has one worker, so that the bound is on both, the
faults and the number of workers. To prove that the bound tells anything, the run also tells how far off the
weights would be had one single batch been left out.

    python tests/train/chaos.py [--workers 2] [--epochs 12] [--seed 0] [--every 4] [--only CASE ...]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from chaos_cases import CASES, Verdicts
from driving import JOBS, SEED, Run, batches
from processes import ours
from rich.console import Console
from rich.table import Table
from waiting import eventually

from scavenger.train.worker.loading import load_program

B = 64
DATASET = 1437
TOLERANCE = 1e-9
AGGREGATORS = 2
RESTARTS_MAX, RESTARTS_WITHIN_S = 4, 60.0
"""More often than that nobody is hit: the supervisor gives up on what dies again and again, as it should."""
ROLES = ("worker", "worker", "aggregator", "coordinator")
STANDSTILL_MAX_S = 30.0
"""A longer one is a failure: a process that stands still is noticed after 5 s at most, and a worker up after 10."""


@dataclass
class Deed:
    """What was done to a process, and how long no step was applied around it."""

    at_s: float
    step: int
    process: str
    fault: str
    standstill_s: float = 0.0


@dataclass
class Chaos:
    """Chooses victims.

    At most one worker is taken at a time: with none left the job only waits, which is another test's matter.
    """

    random: random.Random
    every_s: float
    deeds: list[Deed] = field(default_factory=list)
    next_at: float = 0.0

    def strike(self, run: Run, began: float) -> None:
        now = time.monotonic()
        if now < self.next_at:
            return
        self.next_at = now + self.every_s * self.random.uniform(0.5, 1.5)
        victims = {
            "worker": [w for w in run.supervisor.workers("training") if run.supervisor.ready > 1],
            "aggregator": [n for n in run.engine.running if n.startswith("aggregator")],
            "coordinator": [run.leader()],
        }
        for role, names in victims.items():
            recent = [deed for deed in self.deeds if now - began - deed.at_s < RESTARTS_WITHIN_S]
            victims[role] = [
                name
                for name in names
                if name in run.engine.running
                and run.engine.pid(name)
                and not run.engine.suspended(name)
                and (
                    role == "worker" or sum(_same(role, deed.process, name) for deed in recent) < RESTARTS_MAX
                )
            ]
        if not any(victims.values()):
            return
        role = self.random.choice([role for role in ROLES if victims[role]])
        victim = self.random.choice(victims[role])
        fault = self.random.choice(["kill", "kill", "stop"])
        os.kill(run.pid(victim), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        self.deeds.append(Deed(now - began, run.steps[-1].step, victim, fault))


def _same(role: str, a: str, b: str) -> bool:
    """Whether two names are of one place: coordinators succeed each other under new names."""
    return a == b or (role == "coordinator" and a.startswith(role))


def train(
    work_dir: Path, workers: int, epochs: int, chaos: Chaos | None
) -> tuple[Run, list[Any], list[tuple[float, int]]]:
    """A run, its weights, and when each step was heard of."""
    heard: list[tuple[float, int]] = []
    with Run(
        "quiet_digits:job",
        work_dir,
        aggregators=AGGREGATORS,
        epochs=epochs,
        replace=True,
    ) as run:
        run.begin(workers, B)
        run.train(10)
        began = time.monotonic()
        if chaos is not None:
            chaos.next_at = began
        while not (run.epochs and run.epochs[-1].epoch + 1 >= epochs):
            known = len(run.steps)
            run.poll()
            heard += [(time.monotonic(), step.step) for step in run.steps[known:]]
            if chaos is not None:
                chaos.strike(run, began)
            assert not heard or time.monotonic() - heard[-1][0] < 4 * STANDSTILL_MAX_S, (
                run.supervisor.processes()
            )
        # what was done last may not have been noticed yet
        run.until(lambda: not any(map(run.engine.suspended, run.engine.running)))
        weights = run.finish()
    return run, weights, [(at - began, step) for at, step in heard]


def standstills(deeds: list[Deed], heard: list[tuple[float, int]]) -> Iterator[float]:
    """The longest time without a step that each deed, until the next one, can have caused."""
    ends = [deed.at_s for deed in deeds[1:]] + [heard[-1][0]]
    for deed, end in zip(deeds, ends, strict=True):
        times = [deed.at_s, *(at for at, _ in heard if deed.at_s <= at <= end), end]
        yield max(b - a for a, b in pairwise(times))


def distance(a: list[Any], b: list[Any]) -> float:
    """The largest difference of a tensor's weights, as a share of its largest weight."""
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(a, b, strict=True))


def without_one_batch(steps: list[Any]) -> list[Any]:
    """The weights after the quiet run's batches but one from the middle."""
    program = load_program("quiet_digits:job", str(JOBS), SEED)
    for number, indices in enumerate(batches(steps, DATASET)):
        if number != len(steps) // 2:
            program.model.train_on_batch(*program.train.batch(indices))
    return list(program.model.get_weights())


def processes_killed(console: Console, work_dir: Path, options: argparse.Namespace) -> Verdicts:
    """Kill and stop processes of a training at random."""
    console.print(f"a quiet run of {options.epochs} epochs on one worker ...")
    quiet, expected, _ = train(work_dir / "quiet", 1, options.epochs, None)
    console.print(
        f"the same on {options.workers} workers, a process killed or stopped every {options.every:g} s ..."
    )
    chaos = Chaos(random.Random(options.seed), options.every)
    run, got, heard = train(work_dir / "chaos", options.workers, options.epochs, chaos)

    for deed, longest in zip(chaos.deeds, standstills(chaos.deeds, heard), strict=True):
        deed.standstill_s = longest
    table = Table("at, s", "after step", "process", "fault", "standstill, s")
    for deed in chaos.deeds:
        row = (f"{deed.at_s:.1f}", str(deed.step), deed.process, deed.fault, f"{deed.standstill_s:.2f}")
        table.add_row(*row)
    console.print(table)

    off, meaning = distance(got, expected), distance(without_one_batch(quiet.steps), expected)
    noticed = len(run.lost) + len(run.recovered)
    longest = max(deed.standstill_s for deed in chaos.deeds)
    try:
        batches(run.steps, DATASET)
        ledger = True
    except AssertionError:
        ledger = False
    return [
        (f"{len(chaos.deeds)} deeds, {noticed} losses and recoveries", len(chaos.deeds) >= 5 and noticed > 0),
        (f"{len(run.steps)} steps, as in the quiet run", len(run.steps) == len(quiet.steps)),
        (f"{sum(step.samples for step in run.steps):,} samples, each exactly once an epoch", ledger),
        (f"weights off by {off:.1e} of the largest, at most {TOLERANCE:g}", off <= TOLERANCE),
        (f"one batch left out would show: {meaning:.1e}", meaning > 1000 * TOLERANCE),
        (f"longest standstill {longest:.1f} s, at most {STANDSTILL_MAX_S:g}", longest <= STANDSTILL_MAX_S),
        ("no process is left", eventually(lambda: not ours())),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="break a job while it trains; exit status 1 if anything shows"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two deeds, on average")
    parser.add_argument("--only", nargs="+", default=[], help="names of cases; default: all")
    options = parser.parse_args()
    console = Console(highlight=False)
    work_dir = Path(tempfile.mkdtemp(prefix="chaos-"))
    cases: dict[str, Callable[[Path], Verdicts]] = {
        "processes_killed": lambda folder: processes_killed(console, folder, options),
        **{case.__name__: case for case in CASES},
    }
    all_good = True
    for name, case in cases.items():
        if options.only and name not in options.only:
            continue
        began = time.monotonic()
        verdicts = case(work_dir / name)
        console.print(f"[bold]{name.replace('_', ' ')}[/] ({time.monotonic() - began:.0f} s)")
        for text, good in verdicts:
            console.print(f"[green]  ok[/] {text}" if good else f"[red]FAIL[/] {text}")
        all_good = all_good and all(good for _, good in verdicts)
    if all_good:
        shutil.rmtree(work_dir)
        return 0
    console.print(f"logs: {work_dir}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
