"""From a free slot of a pool, or one that another job gives up, to the first step of the worker that gets it.

A job has all four slots of a pool; another comes that needs two of them, is soon done, and the first one takes them
again. The next one comes once that change has paid for itself, and so the job may change again. The jobs are played
(`played_job`); their records say when what happened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.public_steps import DATA
from benchmarks.real_pool import RealPool, kinds, real_pool

SLOTS, TAKEN = 4, 2
_KIND = "gpt2 256"
_TURNS = 4
_LIMIT_S = 600.0
_AIM_FREE_S, _AIM_TAKEN_S = 1.0, 2.0
"""Beside the start of the worker; of a job that begins, beside the start of its runner, too."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What happened to the two slots, seconds.

    Attributes:
        decided: From the submission until the first job was told to give them up.
        given: From then until its workers were gone.
        begun: From then until the server began the second job.
        runner: From then until that job's runner had its first worker started.
        ready: From then until its workers were ready.
        joined: From then until its first step had ended.
        seen: From the end of the second job's last worker until the first job was told to grow.
        grown_ready: From then until its new workers were ready.
        grown: From then until its first step with all four had ended.
    """

    decided: float
    given: float
    begun: float
    runner: float
    ready: float
    joined: float
    seen: float
    grown_ready: float
    grown: float

    @property
    def taken(self) -> float:
        """From a victim's slot to its new owner's first step; the starts of runner and worker are not counted."""
        return self.decided + self.given + self.begun + self.joined

    @property
    def free(self) -> float:
        """From a free slot to the first step of the worker that gets it, its start not counted."""
        return self.seen + self.grown


def run(turns: int, work_dir: Path) -> Result:
    """Have the second job come and go."""
    if not (DATA / "elasticflow" / "throughputs_A100").is_dir():
        raise SystemExit(f"the public measurements are not at {DATA}: nothing to play")
    (kind,) = kinds([_KIND], SLOTS)
    known = work_dir / "known"
    with real_pool(known, SLOTS, "even") as pool:  # so that neither job searches later
        spec = kind.spec(epochs=2, epoch_s=4.0, workers=(1, 2, SLOTS), elastic=(1, SLOTS))
        first = pool.submit("known", spec)
        pool.wait(lambda: pool.ended(first), _LIMIT_S)
    with real_pool(work_dir / "pool", SLOTS, "even", known / "store.db") as pool:
        spec = kind.spec(epochs=10_000, epoch_s=4.0, workers=(SLOTS,), elastic=(1, SLOTS))
        first = pool.submit("first", spec)
        found = []
        for turn in range(turns):
            pool.wait(lambda: pool.trains(first, SLOTS) and pool.may_change(first), _LIMIT_S)
            spec = kind.spec(epochs=2, epoch_s=4.0, workers=(TAKEN,), elastic=(TAKEN, TAKEN))
            second = pool.submit(f"second-{turn}", spec)
            pool.wait(partial(pool.ended, second), _LIMIT_S)
            pool.wait(lambda: pool.trains(first, SLOTS), _LIMIT_S)
            found.append((second, pool.submission(second).submitted_at.timestamp()))
        until = pool.steps(first).end_s[-1] + 2.0
        pool.wait(lambda: bool(pool.steps(first).end_s[-1] > until), _LIMIT_S)
        return _result([_turn(pool, first, second, at_s) for second, at_s in found], pool)


def _turn(pool: RealPool, first: str, second: str, submitted_s: float) -> Turn:
    moves = pool.moves()

    def ready(job: str, after_s: float, count: int) -> float:
        at = [
            one for one, message in pool.events(job) if one >= after_s and re.search(r"^w\d+ ready", message)
        ]
        return at[count - 1]

    told_s = moves.first_s(": first shrinks", submitted_s)
    gone_s = [at for at in pool.process_ends_s(first) if at >= told_s][TAKEN - 1]
    begun_s = moves.first_s("begins", gone_s)
    started = next(at for at, message in pool.events(second) if message.startswith("starting"))
    ready_s, steps = ready(second, begun_s, TAKEN), pool.steps(second)
    ended_s = pool.workers_gone_s(second)
    grown_s = moves.first_s(": first grows", ended_s)
    grown_ready_s, again = ready(first, grown_s, TAKEN), pool.steps(first)
    all_s = float(again.end_s[(again.end_s > ended_s) & (again.workers == SLOTS)][0])
    return Turn(
        decided=told_s - submitted_s,
        given=gone_s - told_s,
        begun=begun_s - gone_s,
        runner=started - begun_s,
        ready=ready_s - started,
        joined=float(steps.end_s[0]) - ready_s,
        seen=grown_s - ended_s,
        grown_ready=grown_ready_s - grown_s,
        grown=all_s - grown_ready_s,
    )


def _result(turns: Sequence[Turn], pool: RealPool) -> Result:
    def spread(name: str) -> Spread:
        return Spread.of(getattr(turn, name) for turn in turns)

    names = {
        "decided": "submitted, until the first job is told",
        "given": "told, until its workers are gone",
        "begun": "gone, until the second job is begun",
        "runner": "begun, until its runner starts its first worker",
        "ready": "started, until its workers are ready",
        "joined": "ready, until its first step has ended",
        "taken": "all but runner and worker",
        "seen": "its last worker gone, until the first job is told to grow",
        "grown_ready": "told, until the new workers are ready",
        "grown": "ready, until the first step with them has ended",
        "free": "all but the worker",
    }
    starts = Spread.of(pool.worker_starts_s())
    step_ms = 1e3 / kinds([_KIND], SLOTS)[0].rates[TAKEN - 1]
    free, taken = spread("free"), spread("taken")
    figures: Mapping[str, Any] = {f"{name}_s": spread(name) for name in names}
    return Result(
        ("what", "seconds"),
        tuple((text, spread(name).text(digits=2)) for name, text in names.items()),
        f"aims: a free slot within {_AIM_FREE_S:g} s and the start of a worker: {free.median:.2f} s, "
        f"{'met' if free.median < _AIM_FREE_S else 'missed'}; a victim's within {_AIM_TAKEN_S:g} s and the starts: "
        f"{taken.median:.2f} s, {'met' if taken.median < _AIM_TAKEN_S else 'missed'}; a worker starts in "
        f"{starts.text()} s",
        {**figures, "worker_start_s": starts},
        (
            f"{len(turns)} turns on a pool of {SLOTS} slots, policy even; steps of gpt2 on A100s, played: a step of "
            f"{step_ms:.0f} ms is in what leads to a first step",
        ),
    )


BENCHMARK = Benchmark("hand_over", _TURNS, run)
