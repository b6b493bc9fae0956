"""One aggregator that forms the sums of a step, its workers, and a network that loses, delays and repeats messages."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from scavenger.elastic import sum_events
from scavenger.elastic import sums as s

_STEPS = 3
_TICK_S = 5.0
_REPEAT_S = 7.0
_UNTIL_S = 20_000.0
_LENGTH = 3
"""Elements of a bucket."""


class ViolationError(AssertionError):
    """A law is broken."""


class _Worker:
    """A worker that serves its pieces from its slots, and those of the step alone."""

    def __init__(self, name: str, *, own: bool) -> None:
        self.name, self.own, self.alive = name, own, True
        self.done: dict[int, sum_events.Term] = {}
        self.ordered: set[int] = set()
        self.sent: set[int] = set()


class SumsWorld:
    """A job of some steps with one aggregator; everything follows from the seed.

    Args:
        seed: Of all that happens.
        machine: The state machine, or one with a fault.
        faults: Whether workers die and messages are lost; without it, no payload may be sent twice.
    """

    def __init__(self, seed: int, machine: type[s.Sums] = s.Sums, *, faults: bool = True) -> None:
        self.random = r = random.Random(seed)
        self.sizes = [r.randint(1, 9) for _ in range(r.randint(1, 6))]
        self.budget = r.choice((1, 10, 30, 200))
        self.sums = machine(self.sizes, self.budget)
        self.faults = faults
        self.loss = r.choice((0.0, 0.1, 0.4)) if faults else 0.0
        self.disorder = faults and r.random() < 0.5
        self.slow = r.choice((1.0, 30.0))
        self.now, self._events, self._made = 0.0, list[tuple[float, int, Callable[[], None]]](), 0
        self._links: dict[tuple[str, str], float] = {}
        self.workers = {f"w{i}": _Worker(f"w{i}", own=r.random() < 0.25) for i in range(r.randint(1, 6))}
        self._spare = len(self.workers)
        self.pieces, self.lists, self.step, self.view = 0, 0, 0, 1
        self.expected: sum_events.PieceList | None = None
        self.shares: dict[int, tuple[int, int]] = {}
        self.values: dict[tuple[int, int], np.ndarray] = {}
        self.kept: dict[tuple[int, int], np.ndarray] = {}
        self.totals = [np.zeros(_LENGTH, np.float32) for _ in self.sizes]
        self.arrived: Counter[tuple[int, int]] = Counter()
        self.steps, self.losses = 0, 0

    # ---- time and network ----------------------------------------------------------------------------------

    def at(self, after_s: float, task: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (self.now + after_s, self._made, task))

    def send(self, source: str, target: str, task: Callable[[], None]) -> None:
        """Deliver a message, in the order of its link; or late and twice, if there is disorder; or not at all."""
        if self.random.random() < self.loss:
            return
        for _ in range(1 + (self.disorder and self.random.random() < 0.1)):
            due = self.now + self.random.uniform(0.01, 1.0)
            if not self.disorder:
                due = self._links[source, target] = max(due, self._links.get((source, target), 0.0) + 1e-6)
            self.at(due - self.now, task)

    # ---- the sequencer -------------------------------------------------------------------------------------

    def run(self) -> None:
        self._begin()
        self.at(_TICK_S, self._tick)
        self.at(_REPEAT_S, self._repeat)
        if self.faults:
            self.at(self.random.uniform(0, 20), self._kill)
        while self._events and self.steps < _STEPS:
            self.now, _, task = heapq.heappop(self._events)
            if self.now > _UNTIL_S:
                raise ViolationError(f"stuck in step {self.step}: {self.expected}, added {self.sums._added}")
            task()

    def _begin(self) -> None:
        self.step += 1
        self.view += self.random.random() < 0.2
        alive = self._alive()
        samples = self.random.randint(len(alive), 40)
        cuts = sorted(self.random.sample(range(1, samples), len(alive) - 1)) if samples > 1 else []
        bounds = [0, *cuts, samples]
        spread = list(zip(alive, pairwise(bounds), strict=True))
        count = s.unasked(self.sizes, self.budget, len(spread))
        self.expected = None
        self._list([self._piece(worker, share, count) for worker, share in spread])

    def _piece(self, worker: _Worker, share: tuple[int, int], count: int = 0) -> sum_events.Term:
        self.pieces += 1
        self.shares[self.pieces] = share
        random = np.random.default_rng([self.step, *share])
        for bucket in range(len(self.sizes)):
            self.values[self.pieces, bucket] = random.normal(size=_LENGTH).astype(np.float32)
        return sum_events.Term(self.pieces, worker.name, share[1] - share[0], count)

    def _list(self, terms: list[sum_events.Term]) -> None:
        self.lists += 1
        terms.sort(key=lambda term: self.shares[term.piece])
        self.expected = sum_events.PieceList(self.step, self.view, self.lists, tuple(terms))
        self._tell()

    def _tell(self) -> None:
        expected = self.expected
        assert expected is not None
        self.send("sequencer", "aggregator", lambda: self.feed(expected))
        for term in expected.terms:
            self.send("sequencer", term.worker, lambda term=term: self._ordered(term))  # type: ignore[misc]

    def _repeat(self) -> None:
        self._tell()
        self.at(_REPEAT_S, self._repeat)

    def _alive(self) -> list[_Worker]:
        return [worker for worker in self.workers.values() if worker.alive]

    def _kill(self) -> None:
        """End a worker; another takes its place, and the pieces of the lost one go to some of the others."""
        victim = self.random.choice(self._alive())
        if self.losses < 6:
            victim.alive = False
            self.losses += 1
            name = f"w{self._spare}"
            self._spare += 1
            self.workers[name] = _Worker(name, own=self.random.random() < 0.25)
            self.at(self.random.uniform(0.1, 3), lambda: self._replace(victim))
            self.at(self.random.uniform(0.1, 60), self._kill)

    def _replace(self, victim: _Worker) -> None:
        assert self.expected is not None
        gone = [term for term in self.expected.terms if term.worker == victim.name]
        if not gone:
            return
        alive, terms = self._alive(), [term for term in self.expected.terms if term not in gone]
        for term in gone:
            low, high = self.shares[term.piece]
            middle = self.random.randint(low, high)
            parts = [(a, b) for a, b in ((low, middle), (middle, high)) if a < b]
            terms += [self._piece(self.random.choice(alive), part) for part in parts]
        self._list(terms)

    # ---- workers -------------------------------------------------------------------------------------------

    def _ordered(self, term: sum_events.Term) -> None:
        worker = self.workers[term.worker]
        if not worker.alive or self.shares[term.piece] is None:
            return
        if term.piece in worker.done:
            self._offer(worker, term)
        elif term.piece not in worker.ordered:
            worker.ordered.add(term.piece)
            step = self.step
            self.at(self.random.uniform(0.1, self.slow), lambda: self._compute(worker, term, step))

    def _compute(self, worker: _Worker, term: sum_events.Term, step: int) -> None:
        if not worker.alive or step != self.step:
            return
        worker.done[term.piece] = term
        self._offer(worker, term)

    def _offer(self, worker: _Worker, term: sum_events.Term) -> None:
        if not worker.own and term.piece not in worker.sent:
            worker.sent.add(term.piece)
            for bucket in range(term.unasked):
                self._payload(worker, term.piece, bucket)
        offered = sum_events.PieceOffered(worker.name, term.piece, worker.own)
        self.send(worker.name, "aggregator", lambda: self.feed(offered))

    def _payload(self, worker: _Worker, piece: int, bucket: int) -> None:
        self.send(
            worker.name,
            "aggregator",
            lambda: self._arrive(sum_events.BucketArrived(worker.name, piece, bucket)),
        )

    def _asked(self, ask: sum_events.FetchBuckets) -> None:
        worker = self.workers[ask.worker]
        if not worker.alive or ask.piece not in worker.done:
            return
        for bucket in ask.buckets:
            self._payload(worker, ask.piece, bucket)
        answer = sum_events.Answered(worker.name, ask.piece, ask.question)
        self.send(worker.name, "aggregator", lambda: self.feed(answer))

    # ---- the aggregator ------------------------------------------------------------------------------------

    def _arrive(self, event: sum_events.BucketArrived) -> None:
        self.arrived[event.piece, event.bucket] += 1
        if not self.faults and self.arrived[event.piece, event.bucket] > 1:
            raise ViolationError(f"bucket {event.bucket} of piece {event.piece} was sent twice")
        self.feed(event)

    def _tick(self) -> None:
        self.feed(sum_events.NothingArrived())
        self.at(_TICK_S, self._tick)

    def feed(self, event: sum_events.Event) -> None:
        known = self.sums.expected
        here = (event.piece, event.bucket) if isinstance(event, sum_events.BucketArrived) else None
        for action in self.sums.handle(event):
            match action:
                case sum_events.FetchBuckets():
                    self.send("aggregator", action.worker, lambda ask=action: self._asked(ask))  # type: ignore[misc]
                case sum_events.Keep():
                    if here != (action.piece, action.bucket):
                        raise ViolationError(f"{action} of what is not here")
                    self.kept[here] = self.values[here]
                case sum_events.Drop():
                    del self.kept[action.piece, action.bucket]
                case sum_events.Add():
                    self._add(action, here)
                case sum_events.ListSummed():
                    self._formed(action.expected, again=action.expected == known)
        self._check_memory()

    def _add(self, action: sum_events.Add, here: tuple[int, int] | None) -> None:
        key = action.piece, action.bucket
        worker = next(t.worker for t in self._terms() if t.piece == action.piece)
        if key != here and self.kept.pop(key, None) is None and not self.workers[worker].own:
            raise ViolationError(f"{action} of what is not here")
        share = np.float32(self._term(action.piece).samples / sum(term.samples for term in self._terms()))
        value = self.values[key] * share
        self.totals[action.bucket] = value if action.position == 0 else self.totals[action.bucket] + value

    def _terms(self) -> tuple[sum_events.Term, ...]:
        assert self.sums.expected is not None
        return self.sums.expected.terms

    def _term(self, piece: int) -> sum_events.Term:
        return next(term for term in self._terms() if term.piece == piece)

    def _formed(self, expected: sum_events.PieceList, *, again: bool) -> None:
        whole = sum(term.samples for term in expected.terms)
        for bucket, got in enumerate(self.totals):
            wanted = None
            for term in expected.terms:
                value = self.values[term.piece, bucket] * np.float32(term.samples / whole)
                wanted = value if wanted is None else wanted + value
            assert wanted is not None
            if got.tobytes() != wanted.tobytes():
                raise ViolationError(f"bucket {bucket} is no sum of the list{' any more' if again else ''}")
        if self.expected is not None and (expected.step, expected.number) == (self.step, self.lists):
            covered = [self.shares[term.piece] for term in expected.terms]
            if any(a[1] != b[0] for a, b in pairwise(covered)):
                raise ViolationError(f"the pieces {covered} do not cover the step")
            self.steps += 1
            self._begin()

    def _check_memory(self) -> None:
        kept = sum(self.sizes[bucket] for _, bucket in self.kept)
        most = self.budget + max(self.sizes)
        if self.sums.used_bytes > most or kept > self.sums.used_bytes:
            raise ViolationError(f"{kept} bytes are kept and {self.sums.used_bytes} used of {self.budget}")
