"""Snapshots with known answers, and a cluster in virtual time whose throughput curve is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nested import built, changed

from scavenger.domain.configuration import Configuration
from scavenger.domain.decision import ChangeSize, Decision, Replace, Stop
from scavenger.domain.snapshot import JobSnapshot, Throughput, WorkerSnapshot
from scavenger.policy.base import Policy

BATCH = 1024
Curve = Callable[[int], float]


def at(workers: int, batch: int = BATCH) -> Configuration:
    return Configuration("vm", workers, batch)


def supervisor(workers: int) -> tuple[WorkerSnapshot, ...]:
    return tuple(WorkerSnapshot(f"w{i}", f"h{i}") for i in range(workers))


def job(
    known: Mapping[int, float] | None = None,
    *,
    workers: int = 4,
    reference: int | None = None,
    **rest: object,
) -> JobSnapshot:
    """A job on `workers` workers of which the throughput at some sizes is known, each from 100 steps."""
    snapshot = built(
        JobSnapshot,
        at_s=1000.0,
        step=100,
        epoch=1,
        view=3,
        configuration=at(workers),
        reference=at(workers if reference is None else reference),
        workers=supervisor(workers),
        price_usd_per_hour=1.0,
        throughput=tuple(Throughput(at(size), rate, 100) for size, rate in (known or {}).items()),
        elapsed_s=1000.0,
        cost_usd=1.0,
    )
    return changed(snapshot, **rest)


def paced(*paces: Sequence[float], samples: int = 64, **rest: object) -> JobSnapshot:
    """A job whose workers took so many times 64 ms of computing in each of their last steps."""
    workers = tuple(
        WorkerSnapshot(
            f"w{i}",
            f"h{i}",
            compute_s=tuple(0.001 * samples * pace for pace in series),
            samples=(samples,) * len(series),
        )
        for i, series in enumerate(paces)
    )
    return changed(job(workers=len(paces)), workers=workers, **rest)


@dataclass
class Cluster:
    """A job that trains `samples` samples in virtual time, at `curve(K)` samples/s with noise of 1 %.

    Changes of size take `boot_s`, during which the old workers train on and both are paid for.
    """

    curve: Curve
    workers: int
    samples: float = 1e6
    look_every_s: float = 10.0
    boot_s: float = 30.0
    drain_s: float = 20.0
    price_usd_per_hour: float = 1.0
    budget_usd: float | None = None
    deadline_s: float | None = None
    knows_remaining: bool = True
    batch: int = BATCH
    seed: int = 0
    at_s: float = 0.0
    cost_usd: float = 0.0
    done: float = 0.0
    history: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.configuration = self.reference = at(self.workers, self.batch)
        self.seen: dict[Configuration, list[float]] = {}
        self.history.append(self.workers)

    def run(self, policy: Policy, looks: int = 2000) -> JobSnapshot:
        """Until the job is done or stopped; the last snapshot."""
        snapshot = self.snapshot()
        for _ in range(looks):
            if self.done >= self.samples:
                break
            decision = policy.decide(snapshot)
            self.decisions.append(decision)
            if isinstance(decision, Stop):
                self.pay(self.drain_s, len(snapshot.cluster.workers))
                return self.snapshot()
            if isinstance(decision, ChangeSize):
                both = max(decision.workers, self.configuration.workers)
                target = at(decision.workers, decision.global_batch_size)
                # booting lasts several looks, at each of which the guard is asked again
                for _ in range(round(self.boot_s / self.look_every_s)):
                    self.train(both)
                    verdict = policy.decide(self.snapshot(starting=both - self.configuration.workers))
                    if isinstance(verdict, Stop):
                        self.decisions.append(verdict)
                        self.pay(self.drain_s, both)
                        return self.snapshot()
                self.configuration = target
                self.history.append(target.workers)
            assert not isinstance(decision, Replace)
            self.train(self.configuration.workers)
            snapshot = self.snapshot()
        return snapshot

    def train(self, paid: int) -> None:
        rate = self.curve(self.configuration.workers) * self.rng.uniform(0.99, 1.01)
        self.seen.setdefault(self.configuration, []).append(rate)
        self.done += rate * self.look_every_s
        self.pay(self.look_every_s, paid)

    def pay(self, seconds: float, workers: int) -> None:
        self.at_s += seconds
        self.cost_usd += seconds * workers * self.price_usd_per_hour / 3600.0

    def snapshot(self, starting: int = 0) -> JobSnapshot:
        joining = tuple(WorkerSnapshot(f"n{i}", f"m{i}", "starting") for i in range(starting))
        return built(
            JobSnapshot,
            at_s=self.at_s,
            step=len(self.history),
            epoch=0,
            view=len(self.history),
            configuration=self.configuration,
            reference=self.reference,
            workers=supervisor(self.configuration.workers) + joining,
            price_usd_per_hour=self.price_usd_per_hour,
            throughput=tuple(
                Throughput(configuration, sum(rates) / len(rates), 10 * len(rates))
                for configuration, rates in self.seen.items()
            ),
            cost_usd=self.cost_usd,
            elapsed_s=self.at_s,
            remaining_samples=max(0.0, self.samples - self.done) if self.knows_remaining else None,
            budget_usd=self.budget_usd,
            deadline_s=self.deadline_s,
            drain_s=self.drain_s,
            look_every_s=self.look_every_s,
            setup_s=self.boot_s,
        )


def saturating(one: float, overhead: float) -> Curve:
    """Strong scaling: a step of 1024 samples computes 1024 / (K one) s and synchronises `overhead` K s."""
    return lambda workers: BATCH / (BATCH / (workers * one) + overhead * workers)
