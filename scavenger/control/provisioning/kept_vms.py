"""The VMs that a study keeps between its trials.

They are on record as a job is, with the study's process as its owner: so they are found, charged, renewed and ended as
those of any job, and what they cost while they wait is that record's bill. A VM goes over from a trial to this record
and on to the next trial in one transaction each, so it is one job's at any time; only then is its agent told where to
join. Whatever dies in between, its owner is a process that is gone: it ends itself, and any other process ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from scavenger.control.provisioning.joining import Endpoint
from scavenger.control.provisioning.kept_place import (
    DRAIN_S,
    KEEPER_NAME,
    LOOK_S,
    Region,
    WarmPool,
    place_of,
)
from scavenger.domain.intent import FleetSpec, Handover, Intent, VmSlot
from scavenger.errors import ScavengerError
from scavenger.policy.provisioning.keeping import (
    KeptVm,
    OpenSlot,
    TrialWants,
    idle_limit_usd,
    to_end,
    to_take,
    unsuited,
)
from scavenger.policy.provisioning.money import reserve_usd
from scavenger.store import Store
from scavenger.store.operations import KEPT
from scavenger.train.engines.vm import messages as m

Budgeted = Callable[[float, float, float], bool]
"""Told what waiting has cost, what it may cost yet, and what a trial that ends leaves of its budget; sets the second
aside, and returns whether there is so much."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VmTransfer:
    """What has gone over.

    Attributes:
        orders: For the agents of VMs that the trial has left, by intent.
        taken: Intents of VMs that it has taken.
        waiting: Whether slots are not wanted yet, as VMs for them are on their way: it is to ask again.
    """

    orders: Mapping[str, m.Move]
    taken: tuple[str, ...]
    waiting: bool = False


@dataclass(slots=True)
class _Kept:
    """A VM that waits.

    Attributes:
        name: By which it joins here; another one each time.
        ends_at: When the cloud ends it, monotonic.
        since: When it was left.
    """

    intent: Intent
    slot: int
    name: str
    made_of: Hashable
    ends_at: float
    since: float
    left_by: str


class KeptVms:
    """Keeps the VMs of one study; its trials' fleets call it from their threads. Nothing is opened before it is needed.

    Args:
        idle_s: How long a VM waits for a trial; 0: none is kept.
        clock: Monotonic seconds.

    Attributes:
        budgeted: The study's budget.
    """

    def __init__(self, study: str, idle_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._study, self._idle_s, self._clock = study, idle_s, clock
        self.budgeted: Budgeted = lambda spent_usd, more_usd, returned_usd: True
        self._trials = 0
        self._lock = threading.RLock()
        self._place: WarmPool | None = None
        self._vms: dict[str, _Kept] = {}
        self._ends_at: dict[str, float] = {}
        self._slots = self._visits = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scavenger-kept", daemon=True)

    @property
    def pool(self) -> tuple[str, int]:
        """See `Keeper`."""
        return "", 0

    def drained(self, store: Store) -> tuple[str, ...]:
        """See `Keeper`."""
        return ()

    @property
    def waiting(self) -> int:
        """Number of VMs that wait."""
        return len(self._vms)

    @property
    def ready(self) -> int:
        """Number of these that a trial could have at once."""
        with self._lock:
            return len(self._ready(self._clock()))

    def _ready(self, now: float) -> frozenset[str]:
        return frozenset(vm.id for vm in self._seen(now) if vm.is_sound)

    @property
    def record_id(self) -> str:
        """Id of the record on whose bill they are while they wait; empty if there never were any."""
        return "" if self._place is None else self._place.job_id

    @property
    def spent_usd(self) -> float:
        """What VMs have cost while they waited."""
        return 0.0 if self._place is None else self._place.spent_usd

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A trial runs: VMs that do not suit it are kept only as long as others run."""
        with self._lock:
            self._trials += 1
        try:
            yield
        finally:
            with self._lock:
                self._trials -= 1

    # ---- for a trial's fleet -------------------------------------------------------------------------------

    def exchange(
        self,
        region: Region,
        spec: FleetSpec,
        wants: TrialWants,
        *,
        leaving: Sequence[Intent] = (),
        vacant: Sequence[VmSlot] = (),
        returned_usd: float = 0.0,
    ) -> VmTransfer:
        """See `Keeper.exchange`."""
        with self._lock:
            place = self._open(region, bool(leaving))
            if place is None:
                region.store.want_vms(spec)
                return VmTransfer({}, ())
            now = self._clock()
            if vacant and self.ready < self.waiting:
                self._look(place, now)
            kept = self._is_kept(place, leaving, returned_usd)
            arriving = self._arriving(leaving, wants, now) if kept else []
            chosen, ready = self._chosen(wants, vacant, now), self._ready(now)
            taken = {slot: id for slot, id in chosen.items() if id in ready}
            spec = replace(
                spec,
                slots=tuple(one for one in spec.slots if one.number not in chosen or one.number in taken),
            )
            slots = {vm.slot for vm in self._vms.values()} - {self._vms[id].slot for id in taken.values()}
            if vacant:  # a trial that begins, or grows
                gone = unsuited(self._seen(now), wants, self._trials - 1)
                slots -= {vm.slot for id, vm in self._vms.items() if id in gone}
            keeping = place.spec([*slots, *(vm.slot for vm in arriving)])
            generations = {slot.number: slot.generation for slot in spec.slots}
            went = region.store.exchange_vms(
                [spec, keeping],
                [
                    *(self._to_here(place, spec, vm) for vm in arriving),
                    *(
                        self._to_trial(place, spec, slot, generations[slot], self._vms[id])
                        for slot, id in taken.items()
                    ),
                ],
            )
            arrived = [vm for vm in arriving if vm.intent.id in went]
            done = self._carried_out(place, arrived, slots, taken, went)
            return replace(done, waiting=len(taken) < len(chosen))

    def send(self, region: Region, intents: Sequence[str], leader: Endpoint) -> None:
        """See `Keeper.send`."""
        with self._lock:
            if self._place is not None:
                for intent_id in intents:
                    name = self._place.agents.names.pop(intent_id, "")
                    self._place.server.move(name, leader.order(intent_id))

    def _open(self, region: Region, needed: bool) -> WarmPool | None:
        """The place, opened if there are VMs to keep; None if there are none, or they are elsewhere."""
        if self._closing.is_set() or not self._idle_s:
            return None
        if self._place is None and needed:
            detail = f"VMs between trials of study {self._study}"
            self._place = WarmPool(KEEPER_NAME, {KEPT: self._study}, detail, region)
            self._thread.start()
            atexit.register(self.close)
        place = self._place
        if place is None or place_of(place.region.provider) != place_of(region.provider):
            return None
        return place

    def _is_kept(self, place: WarmPool, leaving: Sequence[Intent], returned_usd: float) -> bool:
        """Whether the study's budget has what these VMs may cost while they wait."""
        if not leaving:
            return False
        rates = {one.id: one.charges.usd_per_hour for one in leaving}
        more_usd = idle_limit_usd(rates, dict.fromkeys(rates, 0.0), self._idle_s)
        limit_usd = self._limit_usd(self._clock()) + more_usd
        return self.budgeted(place.spent_usd, limit_usd, returned_usd)

    def _limit_usd(self, now: float) -> float:
        rates = {id: vm.intent.charges.usd_per_hour for id, vm in self._vms.items()}
        return idle_limit_usd(rates, {id: now - vm.since for id, vm in self._vms.items()}, self._idle_s)

    def _arriving(self, leaving: Sequence[Intent], wants: TrialWants, now: float) -> list[_Kept]:
        found = []
        for intent in leaving:
            self._slots += 1
            self._visits += 1
            times, most_s = intent.times, intent.request.template.run_max_s
            begun = times.created_at  # by this machine's clock; of one that comes again, its end is known
            lived_s = 0.0 if begun is None else max(0.0, (datetime.now(UTC) - begun).total_seconds())
            ends_at = self._ends_at.setdefault(intent.id, now + most_s - lived_s)
            name = f"{intent.id}-{self._visits}"
            found.append(_Kept(intent, self._slots, name, wants.made_of, ends_at, now, intent.job_id))
        return found

    def _chosen(self, wants: TrialWants, vacant: Sequence[VmSlot], now: float) -> dict[int, str]:
        open_slots = [OpenSlot(one.number, tuple(option.key for option in one.options)) for one in vacant]
        return to_take(self._seen(now), wants, open_slots)

    def _seen(self, now: float) -> list[KeptVm]:
        if self._place is None:
            return []
        agents = {vm.spec.intent: vm for vm in self._place.server.vms()}
        # the store has it that an agent has joined, too: else its VM cannot go over
        known = {one.id for one in self._place.intents if one.acks}
        found = []
        for id, vm in self._vms.items():
            agent = agents.get(vm.name)
            found.append(
                KeptVm(
                    id,
                    vm.intent.option.key,
                    vm.made_of,
                    vm.ends_at - now,
                    now - vm.since,
                    joined=agent is not None and agent.joined and id in known,
                    silent_s=0.0 if agent is None else agent.heard_s_ago,
                    is_ending=agent is not None and agent.preemption is not None,
                    left_by=vm.left_by,
                )
            )
        return found

    def _to_here(self, place: WarmPool, spec: FleetSpec, vm: _Kept) -> Handover:
        reserved_usd = reserve_usd(vm.intent.charges.usd_per_hour, DRAIN_S, place.region.config)
        return Handover(vm.intent.id, spec.job_id, place.job_id, vm.slot, 1, reserved_usd)

    def _to_trial(self, place: WarmPool, spec: FleetSpec, slot: int, generation: int, vm: _Kept) -> Handover:
        reserved_usd = reserve_usd(vm.intent.charges.usd_per_hour, spec.drain_s, place.region.config)
        return Handover(vm.intent.id, place.job_id, spec.job_id, slot, spec.attempt, reserved_usd, generation)

    def _carried_out(
        self,
        place: WarmPool,
        arrived: Sequence[_Kept],
        slots: set[int],
        taken: Mapping[int, str],
        went: frozenset[str],
    ) -> VmTransfer:
        """Note who has gone where; what has neither gone nor a slot any more ends."""
        for id in [id for id, vm in self._vms.items() if id in went or vm.slot not in slots]:
            vm = self._vms.pop(id)
            if id not in went:
                log.info("VM %s is ended: the trial wants others", vm.intent.instance_id)
                place.server.gone(vm.name, "it is not needed any more")
                place.agents.names.pop(id, None)
        here = Endpoint(place.server.endpoint, place.server.server_key, place.server.boot_key)
        orders = {}
        for vm in arrived:
            self._vms[vm.intent.id] = vm
            place.agents.arrives(vm.intent.id, vm.name)
            place.server.expect(vm.name, role="worker", vm=vm.intent.request.vm, threads=1)
            orders[vm.intent.id] = here.order(vm.name)
        place.wake()
        return VmTransfer(orders, tuple(id for id in taken.values() if id in went))

    # ---- while they wait -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            with self._lock, contextlib.suppress(ScavengerError):
                if self._place is not None and not self._closing.is_set():
                    self._look(self._place, self._clock())

    def _look(self, place: WarmPool, now: float) -> None:
        living = {one.id: one for one in place.read() if one.state == "UP"}
        place.attend(now)
        if any(not living[id].acks for id in self._vms.keys() & living.keys()):
            place.read()
        place.server.await_moves(0.0)
        for text in place.server.alarms():
            log.warning("%s", text)
        ending = to_end(self._seen(now), self._idle_s)
        ending |= {id: "it has ended" for id in self._vms if id not in living}
        if ending:
            self._end(place, ending)
        self.budgeted(place.spent_usd, self._limit_usd(now), math.inf)  # it was there when they were left
        place.keep_record(now)

    def _end(self, place: WarmPool, ending: Mapping[str, str]) -> None:
        left = {id: vm for id, vm in self._vms.items() if id not in ending}
        place.want(place.spec([vm.slot for vm in left.values()]))
        for id in self._vms.keys() - left.keys():
            log.info("VM %s is ended: %s", self._vms[id].intent.instance_id, ending[id])
            place.server.gone(self._vms[id].name, ending[id])
            place.agents.names.pop(id, None)
        self._vms = left

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all VMs that wait, and wait until they are gone; from now on none is kept. Idempotent."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            place = self._place
        atexit.unregister(self.close)
        if place is None:
            return
        self._thread.join(10.0)
        try:
            place.server.close()  # agents that receive this power off their VMs
            place.end_record(place.spec(()), clock=self._clock)
        finally:
            self._vms = {}
            self.budgeted(place.spent_usd, 0.0, 0.0)
