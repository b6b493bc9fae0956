"""Rounds of a custom training loop: which gradients are in a step, which workers apply it, join and leave.

There is no master copy: every worker holds a replica, and all apply the same mean, so all stay the same (Wu et al.,
"Elastic Deep Learning in Multi-Tenant GPU Clusters", sections 3 and 4). Events in, instructions out. A worker is::

    starting --Arrived--> standby --chosen for a view, at a boundary--> fresh --Start--> current --Finished--> gone
    any --Gone--> gone, its part of the round with it; a current one that a view leaves out --Leave--> gone

and a round, the step after the `step` that the ledger has committed::

    open     each current member reads what it was granted and pushes its part, or is idle: it asked in vain
    sealed   every member has pushed or is idle, at least one has pushed: the ledger may apply it -> Average
    open     Averaged: the ledger commits, the newest view takes effect, and all that are left get the mean (Publish)

Between two rounds lies the boundary: only there do workers join, by the state of a current one (`Donate`, then
`StartWorker`), and only there do they leave gracefully. Nobody waits for a worker that joins: it gets a state, then the
means of the steps that are made meanwhile without it, and its view takes effect when it has applied all of them. A
member that dies leaves the round at once. Which samples are read is the ledger's: what a round has not committed is
granted again from where the last one left off, so every sample is in one step of its epoch. A part that comes late,
twice, from an old view or under a lease that has ended is not in any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scavenger.elastic import leases as le
from scavenger.elastic import round_events as r
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.membership import Membership, WorkerState
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.sample_queue import SampleQueue
from scavenger.elastic.steps import Announce
from scavenger.elastic.view import split


class Rounds:
    """The rounds of one job. Not thread-safe; feed it one event at a time.

    Args:
        ledger: The shard ledger or sample queue, whose `step` is the last one that was applied.
        held: Whether the caller has the state of that step, such as a snapshot, for the first members to load.
        view: Number of the newest view so far; new views get higher numbers.
        behind_max: By so many steps may a worker that joins be behind before the others wait for it; 0 has them wait
            from the beginning.
    """

    def __init__(
        self, ledger: ShardLedger | SampleQueue, *, held: bool = False, view: int = 0, behind_max: int = 0
    ) -> None:
        self.ledger = ledger
        self.view = view
        self.behind_max = behind_max
        self.finishing = False
        self._held = ledger.step if held else None
        self._membership = Membership()
        self._membership.restore(view, None, ())
        self._hosts: dict[str, str] = {}
        self._members: tuple[str, ...] = ()
        self._current: set[str] = set()
        self._idle: dict[str, int] = {}
        """Members whose request found no samples, and its epoch."""
        self._granted: dict[str, le.Grant] = {}
        self._pushed: dict[str, le.LeasedSamples] = {}
        self._sealed: le.Proposed | None = None
        self._divides = False
        self._in_effect: Announce | None = None
        self._share_of: dict[str, int] = {}
        self._donor: str | None = None
        self._wanted = False
        self._joining: tuple[str, ...] = ()
        """Members of the newest view, which waits for them."""
        self._following: dict[str, int] = {}
        """Those of them that have a state and apply each step, and the last one that they told of."""
        self._caught_up: dict[str, int] = {}
        """Those of them that have applied the newest step, and the epoch that they want to read."""
        self._heirs: set[str] = set()
        """Members in this round that followed others, which are all gone: they do not know of the view yet."""

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last step that was applied."""
        return self.ledger.step

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one."""
        return self.ledger.epoch + self.ledger.over

    @property
    def members(self) -> tuple[str, ...]:
        """Members of the view that are alive."""
        return self._members

    @property
    def followers(self) -> Collection[str]:
        """Workers that join, and apply the steps until their view takes effect."""
        return self._following.keys()

    @property
    def followed(self) -> int:
        """The newest step that all of them have applied."""
        return min(self._following.values(), default=self.step)

    @property
    def missing(self) -> tuple[str, ...]:
        """Members that the round waits for."""
        return tuple(name for name in self._members if name not in self._pushed and name not in self._idle)

    @property
    def done(self) -> bool:
        """Whether training has ended at every member."""
        return self.finishing and not self._members

    def alive(self, *states: WorkerState) -> tuple[str, ...]:
        """Workers in any of the states; by default all that are not gone."""
        return self._membership.workers(*states) if states else self._membership.alive

    @property
    def in_effect(self) -> Announce | None:
        """The view in effect, with its members as of its beginning; None before the first."""
        return self._in_effect

    @property
    def settled(self) -> bool:
        """Whether the newest view is in effect, and all of its members train."""
        newest = self._membership.announced
        return newest is not None and newest.number == self.view and not self._fresh()

    def share(self, worker: str) -> int:
        """Samples that a member is to read in the next step; 0 if it chooses that itself."""
        return self._share_of.get(worker, int(self._divides and worker in self._following))

    @property
    def stride(self) -> int:
        """Samples of a step; 0 if members choose them themselves."""
        return self.ledger.stride if isinstance(self.ledger, SampleQueue) else 0

    def spare(self, keep: int) -> tuple[str, ...]:
        """Workers in standby that may go so that `keep` stay, the newest first."""
        return self._membership.spare(keep)

    # ---- what happens --------------------------------------------------------------------------------------

    def handle(self, event: r.Happening) -> list[r.Order]:
        """Process one event; returns the resulting orders, in order.

        Raises:
            ValueError: If a name comes twice, there would be no worker, or nothing was to be averaged.
        """
        match event:
            case r.WorkerLaunched():
                self._membership.launch(event.worker)
                return []
            case r.WorkerArrived():
                if not self._membership.knows(event.worker):
                    return [r.Leave(event.worker, "it was given up")]
                self._hosts[event.worker] = event.host
                self._membership.ready(event.worker)
                return self._between()
            case r.Resized():
                self._divides = event.global_batch_size > 0
                self._membership.resize(
                    event.workers,
                    event.global_batch_size or event.workers,
                    event.reason,
                    without=event.without,
                    lr_scale=event.lr_scale,
                )
                return self._between()
            case r.Asked():
                return self._asked(event)
            case r.Pushed():
                return self._push(event)
            case r.Averaged():
                return self._averaged(event)
            case r.Donated():
                return self._donated(event)
            case r.WorkerGone():
                return self._gone(event.worker, event.cause)
            case r.WorkerFinished():
                return self._finished(event.worker)

    def want_state(self) -> list[r.Order]:
        """Have a member donate its state as it is after `step`, for a snapshot together with `ledger.snapshot()`."""
        self._wanted = True
        return self._seek_donor()

    def _asked(self, event: r.Asked) -> list[r.Order]:
        worker = event.worker
        if worker in self._following:
            return self._followed(event)
        if worker not in self._current:
            return [r.Leave(worker, "it is no member")]
        if event.step != self.step or worker in self._pushed or self._sealed is not None:
            return []  # a duplicate, or too late
        if event.epoch > self.epoch:
            return [r.Evict(worker, f"asked for epoch {event.epoch} in epoch {self.epoch}")]
        orders: list[r.Order] = []
        if event.epoch == self.ledger.epoch + 1:
            orders += self._take(self.ledger.handle(le.BeginEpoch(event.epoch)))
        orders += self._grant(worker, event.epoch)
        return [*orders, *self._regrant(), *self._complete()]

    def _followed(self, event: r.Asked) -> list[r.Order]:
        """Note how far a worker is that follows; it gets the mean of the next step instead of samples."""
        self._following[event.worker] = event.step
        if event.step == self.step:
            self._caught_up[event.worker] = event.epoch
        return self._tell_over()

    def _tell_over(self) -> list[r.Order]:
        """Tell those that follow if the epoch that they want to read is over, though no step has ended it."""
        first = self.epoch
        over = [r.Over(worker, epoch) for worker, epoch in self._caught_up.items() if epoch < first]
        for told in over:
            del self._caught_up[told.worker]
        return [*over]

    def _grant(self, worker: str, epoch: int) -> list[r.Order]:
        """Grant samples to a worker, if there are any."""
        self._idle.pop(worker, None)
        if epoch < self.ledger.epoch or self.ledger.over:
            return [r.Over(worker, epoch)]
        orders: list[r.Order] = []
        for answer in self.ledger.handle(le.RequestSamples(worker, self._hosts[worker])):
            if isinstance(answer, le.Wait):
                self._idle[worker] = epoch
            elif isinstance(answer, le.Grant):
                self._granted[worker] = answer
                orders.append(answer)
        return orders

    def _regrant(self) -> list[r.Order]:
        """Grant samples that have become free to the workers whose requests found none."""
        if self._sealed is not None:
            return []
        granted = [
            order for worker, epoch in list(self._idle.items()) for order in self._grant(worker, epoch)
        ]
        return [*granted, *self._tell_over()]

    def _push(self, event: r.Pushed) -> list[r.Order]:
        worker = event.worker
        if worker not in self._current:
            return [r.Leave(worker, "it is no member")]
        if event.step <= self.step or worker in self._pushed:
            return []  # it came twice
        if refusal := self._refusal(event):
            return [r.Evict(worker, refusal)]
        self._pushed[worker] = event.part
        return self._complete()

    def takes(self, event: r.Pushed) -> bool:
        """Whether a part would be in the step that is in progress."""
        return event.worker in self._current and event.worker in self.missing and not self._refusal(event)

    def _refusal(self, event: r.Pushed) -> str:
        """Why a part of a member cannot be in the step; empty if it can."""
        grant = self._granted.get(event.worker)
        right_view = event.view == self.view or event.worker in self._heirs
        if event.step != self.step + 1 or not right_view or self._sealed is not None:
            return f"pushed step {event.step} of view {event.view} out of turn"
        return (
            ""
            if grant is not None and event.part.attempt == grant.attempt
            else "pushed samples that are not its own"
        )

    def _complete(self) -> list[r.Order]:
        """Seal the round if it is complete."""
        if self._sealed is not None or not self._pushed or self.missing:
            return []
        contributions = [(name, self._pushed[name]) for name in self._members if name in self._pushed]
        proposal = le.Proposed(self.step + 1, tuple(part for _, part in contributions))
        answer = self.ledger.handle(proposal)
        if answer == [le.ApplyParts(proposal.step, proposal.parts)]:
            self._sealed = proposal
            return [r.Average(proposal.step, tuple(contributions))]
        refused = {entry.part for entry in answer if isinstance(entry, le.RefuseParts)}
        orders: list[r.Order] = []
        for name, part in contributions:
            if part in refused or None in refused:
                del self._pushed[name]  # so it is missed, until it is gone
                orders.append(r.Evict(name, f"pushed samples that are not next: {answer[0]}"))
        return orders

    def _averaged(self, event: r.Averaged) -> list[r.Order]:
        if self._sealed is None or self._sealed.step != event.step:
            raise ValueError(f"step {event.step} was not to be averaged")
        sealed, self._sealed = self._sealed, None
        for part in sealed.parts:
            self._granted = {
                name: grant
                for name, grant in self._granted.items()
                if grant.attempt != part.attempt or grant.stop != part.stop
            }
        heard = (*(name for name in self._members if name in self._current), *self._following)
        epoch = self.ledger.epoch
        orders = self._take(self.ledger.handle(le.Committed(sealed.step, sealed.parts)))
        self._pushed, self._idle, self._donor = {}, {}, None
        boundary = self._install()
        self._caught_up, self._heirs = {}, set()
        publish = r.Publish(
            step=self.step,
            epoch=epoch,
            over=self.ledger.over,
            view=self.view,
            members=len(self._members),
            workers=tuple(name for name in heard if name in self._current),
            followers=tuple(name for name in heard if name in self._following),
        )
        # a donor must have applied this step first
        return [*orders, publish, *boundary, *self._seek_donor(), *self._stranded()]

    # ---- views ---------------------------------------------------------------------------------------------

    def _between(self) -> list[r.Order]:
        """Put the newest view into effect at once if no round is in progress."""
        if self._current or self._sealed is not None:
            return []
        followed, asked = self._following, self._caught_up
        orders = self._install()
        self._heirs = followed.keys() & self._current
        orders += self._seek_donor()
        for worker in sorted(self._heirs & asked.keys()):
            orders += self._asked(r.Asked(worker, self.step, asked[worker]))
        return orders

    def _install(self) -> list[r.Order]:
        """Put the newest view into effect at a boundary."""
        announced = self._membership.announced
        if self.finishing or announced is None or announced.number == self.view:
            return []
        self._joining = tuple(
            member.worker for member in announced.members if member.worker not in self._current
        )
        if self._awaits_joining():
            return []
        before, self.view, self._in_effect = self._members, announced.number, announced
        self._members = tuple(member.worker for member in announced.members)
        shares = split(0, announced.global_batch_size if self._divides else 0, len(self._members))
        self._share_of = {name: one.samples for name, one in zip(self._members, shares, strict=True)}
        self._membership.installed(self.view, self._members)
        if isinstance(self.ledger, SampleQueue):
            self.ledger.divide([(name, self.share(name)) for name in self._members])
        orders: list[r.Order] = []
        self._current |= self._following.keys() & set(self._members)
        gone = [worker for worker in self._following if worker not in self._members]
        self._following, self._caught_up, self._joining = {}, {}, ()
        for worker in (*before, *gone):
            if worker not in self._members:
                orders += self._take(self._forget(worker, Cause.EVICTED))
                self._membership.release(worker)
                orders.append(r.Leave(worker, announced.reason))
        return orders

    def _awaits_joining(self) -> bool:
        """Whether the newest view waits for members that have not applied the steps before; the round does not."""
        if not self._current or all(worker in self._caught_up for worker in self._joining):
            return False
        behind = [
            self.step - step for worker, step in self._following.items() if worker not in self._caught_up
        ]
        return self.behind_max > 0 and max(behind, default=0) <= self.behind_max

    def _fresh(self) -> tuple[str, ...]:
        return tuple(name for name in self._members if name not in self._current)

    def _seek_donor(self) -> list[r.Order]:
        """Ask a current member for its state if a new member needs it."""
        fresh = self._fresh()
        if fresh and not self._current:
            if self._held == self.step:
                return [self._start(worker, load=True) for worker in fresh]
            if self.step > 0:
                return []
            # the first worker's replica becomes everybody's
            return [self._start(fresh[0], load=False), *self._seek_donor()]
        if self._donor is not None or not (fresh or self._stateless() or self._wanted):
            return []
        able = [name for name in self._members if name in self._current]
        if not able:
            return []
        self._donor = able[0]
        return [r.Donate(self._donor, self.step)]

    def _donated(self, event: r.Donated) -> list[r.Order]:
        if event.worker not in self._current:
            return []  # at the first step, another replica may have become everybody's since
        self._wanted = False
        if event.step != self.step:
            return []  # good enough for a snapshot of that step
        self._donor = None
        stateless = self._stateless()
        self._following |= dict.fromkeys(stateless, self.step)
        follow = (r.StartWorker(worker, self.step, self.epoch, self.view, load=True) for worker in stateless)
        return [*(self._start(worker, load=True) for worker in self._fresh()), *follow]

    def _stateless(self) -> tuple[str, ...]:
        """Workers that the newest view waits for, and that have no state yet."""
        return tuple(worker for worker in self._joining if worker not in self._following)

    def _start(self, worker: str, *, load: bool) -> r.StartWorker:
        self._current.add(worker)
        return r.StartWorker(worker, self.step, self.epoch, self.view, load)

    # ---- endings -------------------------------------------------------------------------------------------

    def _gone(self, worker: str, cause: Cause) -> list[r.Order]:
        if not self._membership.knows(worker) or self._membership.state(worker) is WorkerState.GONE:
            return []
        self._membership.lost(worker)
        orders = self._take(self._forget(worker, cause))
        return [
            *orders,
            *self._stranded(),
            *self._between(),
            *self._seek_donor(),
            *self._regrant(),
            *self._complete(),
        ]

    def _finished(self, worker: str) -> list[r.Order]:
        if worker not in self._current and worker not in self._following:
            return []
        orders: list[r.Order] = []
        if not self.finishing:
            self.finishing = True
            # no replica is left that they could join
            standing_by = self.alive(WorkerState.STARTING, WorkerState.STANDBY)
            others = (*self._fresh(), *self._joining, *standing_by)
            orders += self._dismiss((one for one in others if one != worker), "training has ended")
        return [*orders, *self._gone(worker, Cause.EVICTED)]

    def _dismiss(self, workers: Iterable[str], reason: str) -> list[r.Order]:
        """Have workers leave that are no members."""
        orders: list[r.Order] = []
        for name in dict.fromkeys(workers):
            self._membership.lost(name)
            self._forget(name, Cause.EVICTED)
            orders.append(r.Leave(name, reason))
        return orders

    def _forget(self, worker: str, cause: Cause) -> list[le.Instruction]:
        """Remove a worker from the round; its uncommitted samples become free again."""
        self._members = tuple(name for name in self._members if name != worker)
        self._current.discard(worker)
        self._idle.pop(worker, None)
        self._granted.pop(worker, None)
        self._following.pop(worker, None)
        self._caught_up.pop(worker, None)
        self._joining = tuple(name for name in self._joining if name != worker)
        if self._sealed is None:
            self._pushed.pop(worker, None)
        if self._donor == worker:
            self._donor = None
        return self.ledger.handle(le.HolderLost(worker, cause))

    def _stranded(self) -> list[r.Order]:
        lost = not self._current and self.step > 0 and self._held != self.step
        if not lost or self.finishing or self._sealed is not None:
            return []
        announced = self._membership.announced
        if announced is not None and any(one.worker in self._following for one in announced.members):
            return []  # they have the means of all steps, and go on as members
        return [
            *self._dismiss(list(self._following), "no replica is left that it could follow"),
            r.Stranded(self.step),
        ]

    def _take(self, instructions: Collection[le.Instruction]) -> list[r.Order]:
        """Convert the ledger's instructions to orders."""
        return [
            entry
            for entry in instructions
            if isinstance(entry, le.Grant | le.Revoke | le.Requeued | le.Found | le.EpochCommitted)
        ]
