"""A pool in virtual time: jobs arrive, get slots from `allot`, do their work, and leave.

Time goes from event to event: an arrival, the end of a job, and what a policy names as the time at which it would say
something else. Between two events rates are constant. After each change of its share, its beginning included, a job
holds its slots for some seconds without progress; slots that it has got besides are idle until workers have started.
A run begins with an empty pool, or with one that stands. The slots of a pool are given, or VMs are rented for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.scheduler.jobs.allotting import Rules, allot
from scavenger.scheduler.jobs.renting import Rental, rent
from scavenger.scheduler.jobs.seeing import CHANGES_MAX
from scavenger.scheduler.jobs.values import (
    Allotment,
    Claims,
    Curves,
    Nodes,
    PoolSeen,
    Shares,
    Standing,
)
from scavenger.scheduler.jobs.virtual_vms import VirtualVms, VmsUsed

_DONE = 1e-9
"""Of a job's work: with less left it has ended."""

_STEP_S = 1e-6
"""No event that a policy names comes sooner: times of a long trace are not exact beyond that."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Curves of jobs that change as they train: the best batch size grows with the noise of the gradient.

    Attributes:
        ends: For each row of the curves: with so much work left, a job of this curve goes on with that of the next row.
            0 for a curve that stays to the end.
    """

    ends: FloatArray


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of a trace, in the order in which they are submitted.

    Attributes:
        claims: One row for each job; `submitted_s` from the beginning of the trace, never less than in the row
            before.
        work: What each job has to do, in the unit of its curve, above 0; infinite for one that never ends.
        told: What policies are told of it: the truth, or an estimate, or NaN.
        told_log_sd: Standard deviation of the logarithm of what they are told.
        change_s: Seconds without progress after each change.
        stages: None if each job has one curve.
        begin_s: The same after it has got slots when it had none; None: as after any change.
        worker_s: Seconds for which slots that a job gets besides those that it has are idle; None: none.
    """

    claims: Claims
    curves: Curves
    work: FloatArray
    told: FloatArray
    told_log_sd: FloatArray
    change_s: FloatArray
    stages: Stages | None = None
    begin_s: FloatArray | None = None
    worker_s: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.work)


@dataclass(frozen=True, slots=True)
class Run:
    """What came out.

    Attributes:
        began_s: From the beginning of the run to each job's first slot; 0 for whoever had some, infinite for nobody's.
        completion_s: From the submission of each job to its end; infinite for one that has not ended.
        waited_s: Of these, without any slot.
        slot_s: Slot-seconds that each job held.
        usd: What they cost.
        changes: Of each job's share, its beginning included.
        stopped_s: Seconds that each job held slots without progress.
        events: How often it was decided.
        makespan_s: From the first submission to the last end.
        used: Times of the changes of the number of slots in use, and the number from then on.
        vms: What was rented; None for a pool whose slots are given.
    """

    began_s: FloatArray
    completion_s: FloatArray
    waited_s: FloatArray
    slot_s: FloatArray
    usd: FloatArray
    changes: IntArray
    stopped_s: FloatArray
    events: int
    makespan_s: float
    used: tuple[FloatArray, IntArray]
    vms: VmsUsed | None = None

    @property
    def mean_s(self) -> float:
        """Mean time from submission to end."""
        return float(self.completion_s.mean())


def simulate(
    workload: Workload,
    nodes: Nodes | Rental,
    rules: Rules,
    *,
    every_s: float = 0.0,
    standing: PoolSeen | None = None,
    until_s: float = inf,
    decisions_max: int | None = None,
    usd_per_slot_s: FloatArray | None = None,
    accepts: Callable[[PoolSeen, int], bool] | None = None,
    rests: bool = False,
) -> Run:
    """Run all jobs to their ends.

    Args:
        nodes: Those of the pool, or what is rented for it; with that, it begins empty and has one price.
        every_s: Decisions are taken at multiples of it only; 0 for at each event.
        standing: The pool at the beginning. Its jobs are the first rows of the workload, with `submitted_s` up to 0;
            those that cannot change can after the time of a change.
        until_s: Nothing that comes later is of interest.
        decisions_max: Nor what comes after so many decisions.
        usd_per_slot_s: Price of each node's slots; None for none.
        accepts: Whether a job that has come, by its row, is let in; if not it never ends.
        rests: Whether a job that has changed keeps its share until that has paid for itself, as real jobs do.

    Raises:
        ValueError: Jobs are left that never get a slot, and there is no `until_s`.
    """
    running = _Simulation(workload, nodes, rules, usd_per_slot_s, rests=rests)
    running.accepts = accepts
    if standing is not None:
        running.begin(standing)
    next_s = 0.0
    while not running.over and running.now_s < until_s and running.decisions != decisions_max:
        running.advance(min(next_s, until_s))
        if every_s and running.now_s < next_s - _DONE:
            continue
        again_s = running.decide()
        next_s = running.now_s + max(again_s, _STEP_S)
        if every_s and (again_s < inf or running.goes_on):
            next_s = (np.floor(running.now_s / every_s + _DONE) + 1.0) * every_s
    return running.run()


_INTEGERS = {
    name: row
    for row, name in enumerate(
        ("job", "user", "priority", "least", "asked", "most", "curve", "level", "held", "fixed")
    )
}
_NOW = (
    "submitted",
    "attained",
    "waited",
    "ran",
    "left",
    "rate",
    "stop",
    "told",
    "log_sd",
    "change",
    "begin",
    "worker",
    "rest",
    "deadline",
)
_FLOATS = {name: row for row, name in enumerate((*_NOW, "usd_per_s", "no_slot_s", "slot_s", "usd"))}


class _Simulation:
    """The jobs that are there, in columns of which the first `count` count, and what became of the others."""

    def __init__(
        self,
        workload: Workload,
        pool: Nodes | Rental,
        rules: Rules,
        usd_per_slot_s: FloatArray | None = None,
        *,
        rests: bool = False,
    ) -> None:
        self._rest_s = 1.0 / CHANGES_MAX if rests else 0.0
        self._rental = pool if isinstance(pool, Rental) else None
        self._vms = None if self._rental is None else VirtualVms(self._rental)
        if isinstance(pool, Rental):
            nodes, usd_per_slot_s = Nodes.of(0), np.array([pool.usd_per_s])
        else:
            nodes = pool
        self._wanted = 0
        self._workload, self._nodes, self._rules = workload, nodes, rules
        self._price = np.zeros(len(nodes.slots)) if usd_per_slot_s is None else usd_per_slot_s
        self._whole = np.zeros((len(_INTEGERS), 256), dtype=np.int64)
        self._real = np.zeros((len(_FLOATS), 256))
        self._count = self._arrived = self.ended = self.decisions = self._number = 0
        self._shares = Shares.none()
        self._weights = np.random.default_rng(0).integers(1, 2**30, len(nodes.slots))
        self.now_s = 0.0
        jobs = len(workload)
        ends = np.isfinite(workload.work)
        self._ends = int(ends.sum())
        self._done = np.where(ends, _DONE * workload.work, -1.0)
        self._began_s, self._completion_s = np.full(jobs, inf), np.full(jobs, inf)
        self._total_waited_s, self._usd = np.zeros(jobs), np.zeros(jobs)
        self._slot_s, self._stopped_s = np.zeros(jobs), np.zeros(jobs)
        self._changes = np.zeros(jobs, dtype=np.int64)
        self._used: list[tuple[float, int]] = []
        self.accepts: Callable[[PoolSeen, int], bool] | None = None
        self._refused: list[int] = []

    def begin(self, seen: PoolSeen) -> None:
        """Begin with a pool that stands."""
        self._add(seen.jobs)
        self._shares, self._number = seen.shares, seen.number
        now, held = seen.standing, seen.held
        for name, whole in (("level", now.level), ("held", held), ("fixed", now.fixed)):
            self._int(name)[:] = whole
        for name, real in (
            ("attained", now.attained_slot_s),
            ("waited", now.waited_s),
            ("ran", now.ran_s),
            ("rate", seen.rate_on(seen.shares)),
            ("stop", np.where(now.fixed, now.change_s, 0.0)),
            ("usd_per_s", self._usd_per_s(seen.shares)),
        ):
            self._float(name)[:] = real
        self._int("fixed")[self._float("stop") == 0.0] = 0
        self._began_s[: seen.jobs][held > 0] = 0.0
        self._used.append((0.0, int(held.sum())))

    def _usd_per_s(self, shares: Shares) -> FloatArray:
        """What each job's share costs."""
        return np.bincount(shares.job, shares.slots * self._price[shares.node], self._count).astype(float)

    @property
    def over(self) -> bool:
        """Whether every job has ended that ever will."""
        return self.ended == self._ends and self._arrived == len(self._workload)

    @property
    def goes_on(self) -> bool:
        """Whether anything will happen, whatever the policy says next: a job comes, ends, or can change again."""
        moves = (self._float("rate") > 0.0) | (self._int("fixed") > 0)
        return self._arrived < len(self._workload) or bool(moves.any())

    def _int(self, name: str) -> IntArray:
        column: IntArray = self._whole[_INTEGERS[name], : self._count]
        return column

    def _float(self, name: str) -> FloatArray:
        column: FloatArray = self._real[_FLOATS[name], : self._count]
        return column

    def advance(self, until_s: float) -> None:
        """Go to the next arrival, the next end, or that time, whichever comes first.

        Raises:
            ValueError: Nothing will ever happen again.
        """
        workload = self._workload
        if self._arrived < len(workload):
            until_s = min(until_s, float(workload.claims.submitted_s[self._arrived]))
        if self._count:
            rate, left, stop = self._float("rate"), self._float("left"), self._float("stop")
            if workload.stages is not None:
                left = left - workload.stages.ends[self._int("curve")]
            with np.errstate(divide="ignore"):
                until_s = min(until_s, self.now_s + float((stop + left / rate).min()))
            if (rest := self._float("rest")).any():
                until_s = min(until_s, self.now_s + float(rest[rest > 0.0].min()))
            if (fixed := self._int("fixed") > 0).any():
                until_s = min(until_s, self.now_s + float(stop[fixed].min()))
        if self._vms is not None:
            until_s = min(until_s, max(self._vms.next_s(self.now_s, self._wanted), self.now_s + _STEP_S))
        if until_s == inf:
            raise ValueError(f"{len(workload) - self.ended} jobs are left that never get a slot")
        began_s = self.now_s
        self._progress(max(0.0, until_s - began_s))
        self.now_s = max(self.now_s, until_s)
        if self._vms is not None:
            self._vms.advance(self.now_s, max(0.0, until_s - began_s))
        self._end()
        self._arrive()
        self._turn()

    @property
    def _least_step(self) -> FloatArray:
        """What each job does in the shortest time that can be told from none so late in a trace."""
        step: FloatArray = self._float("rate") * np.spacing(self.now_s)
        return step

    def _turn(self) -> None:
        """Jobs that are through with a stage go on with the next."""
        stages = self._workload.stages
        if stages is None:
            return
        curve, left = self._int("curve"), self._float("left")
        slack, turned = np.maximum(self._done[self._int("job")], self._least_step), False
        while (done := (stages.ends[curve] > 0.0) & (left - stages.ends[curve] <= slack)).any():
            curve[done] += 1
            turned = True
        if turned:
            self._float("rate")[:] = self._seen().rate_on(self._shares)

    def _progress(self, for_s: float) -> None:
        if not self._count or for_s == 0.0:
            return
        held, stop = self._int("held"), self._float("stop")
        self._float("left")[:] -= self._float("rate") * np.maximum(for_s - stop, 0.0)
        np.maximum(stop - for_s, 0.0, out=stop)
        rest = self._float("rest")
        np.maximum(rest - for_s, 0.0, out=rest)
        rest[rest <= _STEP_S] = 0.0
        fixed = self._int("fixed")
        fixed[stop <= _STEP_S] = 0
        self._float("attained")[:] += held * for_s
        runs_s = (held > 0) * for_s
        self._float("ran")[:] += runs_s
        self._float("slot_s")[:] += held * for_s
        self._float("usd")[:] += self._float("usd_per_s") * for_s
        waits_s = for_s - runs_s
        self._float("waited")[:] += waits_s
        self._float("no_slot_s")[:] += waits_s

    def _end(self) -> None:
        jobs = self._int("job")
        done = self._float("left") <= np.maximum(self._done[jobs], self._least_step)
        if not done.any():
            return
        gone = jobs[done]
        self._completion_s[gone] = self.now_s - self._workload.claims.submitted_s[gone]
        self._tell(done)
        self.ended += len(gone)
        kept = ~done
        count = int(kept.sum())
        self._whole[:, :count] = self._whole[:, : self._count][:, kept]
        self._real[:, :count] = self._real[:, : self._count][:, kept]
        rows, shares = np.cumsum(kept) - 1, self._shares
        stays = kept[shares.job]
        self._shares = Shares(rows[shares.job[stays]], shares.node[stays], shares.slots[stays])
        self._count = count
        self._used.append((self.now_s, int(self._int("held").sum())))

    def _tell(self, rows: BoolArray) -> None:
        """What these have had so far."""
        jobs = self._int("job")[rows]
        self._total_waited_s[jobs] = self._float("no_slot_s")[rows]
        self._slot_s[jobs] = self._float("slot_s")[rows]
        self._usd[jobs] = self._float("usd")[rows]

    def _arrive(self) -> None:
        last = int(np.searchsorted(self._workload.claims.submitted_s, self.now_s, side="right"))
        new = last - self._arrived
        if new <= 0:
            return
        self._add(new)
        if self.accepts is None:
            return
        # all but the first wait to be asked about: they claim nothing meanwhile
        names = ("least", "asked", "most")
        claimed = {name: self._int(name)[-new:].copy() for name in names}
        for name in names:
            self._int(name)[-new:] = 0
        for at, row in enumerate(range(self._count - new, self._count)):
            for name in names:
                self._int(name)[row] = claimed[name][at]
            if not self.accepts(self._seen(), row):
                self._refused.append(int(self._int("job")[row]))
                self._float("left")[row] = -1.0
                for name in names:
                    self._int(name)[row] = 0

    def _add(self, new: int) -> None:
        """The next rows of the workload are there, without slots."""
        if not new:
            return
        workload, last = self._workload, self._arrived + new
        claims = workload.claims
        if self._count + new > self._whole.shape[1]:
            self._whole = np.pad(self._whole, ((0, 0), (0, self._count + new)))
            self._real = np.pad(self._real, ((0, 0), (0, self._count + new)))
        at = slice(self._arrived, last)
        self._whole[:, self._count : self._count + new] = 0
        self._real[:, self._count : self._count + new] = 0.0
        self._count += new
        for name in ("user", "priority", "least", "asked", "most", "curve"):
            self._int(name)[-new:] = getattr(claims, name)[at]
        self._int("job")[-new:] = np.arange(self._arrived, last)
        for name, values in (
            ("submitted", claims.submitted_s),
            ("deadline", claims.deadline_s),
            ("left", workload.work),
            ("told", workload.told),
            ("log_sd", workload.told_log_sd),
            ("change", workload.change_s),
            ("begin", workload.change_s if workload.begin_s is None else workload.begin_s),
            ("worker", np.zeros(len(workload)) if workload.worker_s is None else workload.worker_s),
        ):
            self._float(name)[-new:] = values[at]
        self._float("told")[-new:] /= workload.work[at]
        self._arrived = last

    def _seen(self) -> PoolSeen:
        """What a policy is shown: views, which change with the next event."""
        whole, real, count = self._whole, self._real, self._count
        _, user, priority, least, asked, most, curve, level, _, fixed = whole[:, :count]
        submitted, attained, waited, ran, left, _, _, told, log_sd, change, _, worker, rest, deadline, *_ = (
            real[:, :count]
        )
        return PoolSeen(
            nodes=self._nodes,
            claims=Claims(user, priority, submitted, least, asked, most, curve, deadline),
            standing=Standing(
                level=level,
                attained_slot_s=attained,
                waited_s=waited,
                ran_s=ran,
                left=left * told,
                left_log_sd=log_sd,
                change_s=change,
                fixed=(fixed > 0) | (rest > 0.0),
                worker_s=worker,
            ),
            shares=self._shares,
            curves=self._workload.curves,
            number=self._number,
            now_s=self.now_s,
        )

    def decide(self) -> float:
        """Ask for an allotment and take it; returns the seconds until it is to be asked again."""
        self.decisions += 1
        if not self._count and self._vms is None:
            return inf
        seen = self._seen()
        allotment = allot(seen, self._rules) if self._vms is None else self._rent(seen, self._vms)
        self._int("level")[:] = allotment.level
        if allotment.promoted.any():
            self._float("attained")[allotment.promoted] = 0.0
        if allotment.number != self._number:
            self._take(seen, allotment)
        return allotment.again_s

    def _rent(self, seen: PoolSeen, vms: VirtualVms) -> Allotment:
        """Ask how many VMs there shall be, too, and do so."""
        assert self._rental is not None
        renting = rent(seen, self._rules, self._rental, vms.seen)
        vms.take(self.now_s, renting)
        self._wanted = renting.wanted
        return renting.allotment

    def _take(self, seen: PoolSeen, allotment: Allotment) -> None:
        before, shares = seen.shares, allotment.shares
        slots = shares.by_job(self._count)
        held = self._int("held")
        # sums of integers below 2**53 are exact; two parts of equal size have the same sum once in a billion times
        changed = (slots != held) | (
            np.bincount(before.job, before.slots * self._weights[before.node], self._count)
            != np.bincount(shares.job, shares.slots * self._weights[shares.node], self._count)
        )
        begins = (held == 0) & changed
        pauses = (slots == 0) & changed
        self._float("waited")[pauses] = 0.0
        self._float("ran")[begins | pauses] = 0.0
        goes_on = changed & ~pauses
        jobs = self._int("job")
        self._began_s[jobs[begins]] = np.minimum(self._began_s[jobs[begins]], self.now_s)
        stop = self._float("stop")
        rate, before_rate = seen.rate_on(shares), self._float("rate")
        # a job that grows goes on as before until its workers have started: so much of that time is lost
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where((slots > held) & (rate > before_rate), 1.0 - before_rate / rate, 0.0)
        change = np.where(begins, self._float("begin"), self._float("change") + part * self._float("worker"))
        self._stopped_s[jobs[goes_on]] += change[goes_on] - stop[goes_on] * ~begins[goes_on]
        stop[goes_on] = change[goes_on]
        again = goes_on & ~begins
        self._float("rest")[again] = self._rest_s * self._float("change")[again]
        self._float("rest")[pauses] = 0.0
        self._changes[jobs[changed]] += 1
        held[:] = slots
        self._float("rate")[:] = rate
        if self._price.any():
            self._float("usd_per_s")[:] = self._usd_per_s(shares)
        self._shares, self._number = shares, allotment.number
        self._used.append((self.now_s, int(slots.sum())))

    def run(self) -> Run:
        """What came out, once every job has ended."""
        self._tell(np.ones(self._count, dtype=bool))
        self._completion_s[self._refused] = inf
        times, used = np.array([*self._used, (self.now_s, 0)]).T
        return Run(
            began_s=self._began_s,
            completion_s=self._completion_s,
            waited_s=self._total_waited_s,
            slot_s=self._slot_s,
            usd=self._usd,
            changes=self._changes,
            stopped_s=self._stopped_s,
            events=self.decisions,
            makespan_s=self.now_s - float(self._workload.claims.submitted_s.min(initial=self.now_s)),
            used=(times, used.astype(np.int64)),
            vms=None if self._vms is None else self._vms.used(self.now_s),
        )
