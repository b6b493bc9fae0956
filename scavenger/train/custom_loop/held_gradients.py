"""Gradients that workers hold where they were computed, while a process group of theirs forms the mean.

The rounds know nothing of it. A part of a step that is held is told to them when the group has formed the mean at every
member, or when its gradient has been pushed after all: where a member is lost meanwhile, where one has no samples in
the step, or where a worker follows, which needs the mean, too. So whatever becomes of a group, nothing has happened to
the step, and no worker has applied it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from scavenger.elastic import round_events as r
from scavenger.elastic.exchange_ways import ExchangeWays, Group
from scavenger.elastic.rounds import Rounds
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.workers import LoopWorkers


class HeldGradients:
    """What the members of a round hold, and what their group has made of it.

    Args:
        workers: Reaches the workers.
        ways: Decides by which way means are formed.
        limit_s: How long a group may take to be made, and for one mean.
        clock: Monotonic seconds.

    Attributes:
        ways: See above.
        formed: What each member has told of the mean of the step that is told to the rounds; empty if there is none.
    """

    def __init__(
        self, workers: LoopWorkers, ways: ExchangeWays, *, limit_s: float, clock: Callable[[], float]
    ) -> None:
        self.ways, self._workers, self._limit_s, self._clock = ways, workers, limit_s, clock
        self.formed: dict[str, lm.Reduced] = {}
        self._held: dict[str, tuple[r.Pushed, tuple[lm.TensorHeader, ...]]] = {}
        self._told: dict[str, lm.Reduced] = {}
        self._reducing: frozenset[str] = frozenset()
        """Members that were asked to form the mean."""
        self._given = False
        """Whether those that hold gradients were asked to push them."""
        self._request, self._since = 0, 0.0
        self._to_make: Group | None = None

    def clear(self) -> None:
        """Forget what is held."""
        self._held, self._told, self._reducing, self._given, self.formed = {}, {}, frozenset(), False, {}

    @property
    def holding(self) -> Collection[str]:
        """Members that have done their part of the step, as long as they need not push it."""
        return () if self._given else self._held.keys()

    def hold(self, pushed: r.Pushed, headers: tuple[lm.TensorHeader, ...]) -> None:
        """Note that a worker holds its gradient of a part of the step."""
        self._held[pushed.worker] = pushed, headers

    def gone(self, worker: str) -> None:
        """Forget a worker that has pushed its gradient, or is lost."""
        self._held.pop(worker, None)
        self._given = self._given and bool(self._held)

    def answered(self, worker: str, told: lm.Reduced) -> None:
        """Take what a member tells of the mean."""
        if told.request == self._request and worker in self._reducing:
            self._told[worker] = told

    def look(self, rounds: Rounds) -> list[r.Pushed]:
        """Carry the round on as far as it can; returns the parts of which every member has the mean."""
        self._make()
        if not self._held or self._given:
            return []
        if not self._reducing:
            if self._held.keys() != set(rounds.missing):
                return []  # somebody is computing
            if self._by_group(rounds):
                self._begin()
            else:
                self._give()
            return []
        failures = [f"{worker}: {told.failure}" for worker, told in self._told.items() if told.failure]
        if self._clock() > self._since + self._limit_s:
            failures.append(f"no mean within {self._limit_s:.0f} s")
        if failures or self._held.keys() != self._reducing:
            self.ways.failed(failures[0] if failures else "a member was lost")
            self._give()
        elif self._told.keys() == self._reducing:
            if not self._by_group(rounds):  # a worker follows since then
                self._give()
                return []
            pushed, formed = [part for part, _ in self._held.values()], self._told
            self.clear()
            self.formed = formed
            return pushed
        return []

    def _by_group(self, rounds: Rounds) -> bool:
        """Whether the mean of the step is one that the group can form, and that nobody else needs."""
        group = self.ways.group
        parts = [pushed for pushed, _ in self._held.values()]
        return (
            group is not None
            and set(group.members) == set(rounds.members) == self._held.keys() == set(rounds.missing)
            and not rounds.followers
            and len({headers for _, headers in self._held.values()}) == 1
            and all(rounds.takes(part) for part in parts)
        )

    def _begin(self) -> None:
        """Have all that hold gradients form the mean."""
        self._request += 1
        self._reducing, self._told, self._since = frozenset(self._held), {}, self._clock()
        samples = {worker: pushed.part.stop - pushed.part.start for worker, (pushed, _) in self._held.items()}
        for worker, count in samples.items():
            self._workers.send(worker, lm.Reduce(self._request, count / sum(samples.values())))

    def _give(self) -> None:
        """Have all that hold gradients push them."""
        self._reducing, self._given = frozenset(), True
        for worker in self._held:
            self._workers.send(worker, lm.GiveGradients())

    def next_step(self, members: tuple[str, ...]) -> int:
        """Number of the group for which members are to hold their gradients of the next step; 0 for none."""
        self._to_make = self.ways.to_make(members) or self._to_make
        return self.ways.by_group()

    def _make(self) -> None:
        """Have members make their group, once they have the mean of the step, which may be that of the one before."""
        group, self._to_make = self._to_make, None
        folder = self._workers.engine.socket_dir
        if group is None or group is not self.ways.group or folder is None:
            return
        for rank, worker in enumerate(group.members):
            file = str(Path(folder, f"group-{group.number}"))
            self._workers.send(
                worker, lm.MakeGroup(group.number, rank, len(group.members), file, self._limit_s)
            )
