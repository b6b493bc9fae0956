"""The VMs of one job: says which are wanted, lets them in and lives with what becomes of them, until none is left.

What is wanted follows from the processes that the job's engine has, or cannot place yet (`policy.slots`). Getting the
VMs is the reconciler's, which runs here on a thread of its own, or in another process that acts for the region. Its
answers are in the store, which is looked at about once a second.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scavenger.cloud.base import Provider
from scavenger.control.booting import BootingProvider, boot_document
from scavenger.control.clearing import LIMIT_S
from scavenger.control.costing import AGGREGATOR_SLOT
from scavenger.control.holder import holder_name, is_known_dead
from scavenger.control.reconciler import Reconciler
from scavenger.domain.configuration import Offer
from scavenger.domain.intent import Desired, Intent, Place, Wish
from scavenger.errors import (
    CleanupError,
    CloudError,
    CredentialsError,
    LimitReachedError,
    ScavengerError,
    StoreBusyError,
    TransientError,
)
from scavenger.policy.provisioning_actions import Alarm
from scavenger.policy.provisioning_memory import Terms
from scavenger.policy.slots import Slot, SlotSeen, plan_slots
from scavenger.store import Store
from scavenger.train.engine_base import Engine
from scavenger.train.vm_engine import VmEngine
from scavenger.train.vm_hosts import Hosts
from scavenger.train.vm_values import Vm

__all__ = ["Fleet"]

AGGREGATORS = ""
"""Stands for the type of the aggregators' VM among those of the workers; it has a slot of its own."""
AGGREGATORS_PER_VM = 64
"""All of a job's are on one VM."""
LOOK_S = 1.0
ACKNOWLEDGE_S = 10.0
"""Between two notes that a VM was heard of; a fraction of the silence after which one is given up."""
RUN_MAX_S = 14 * 86_400.0
"""The platform's own limit on a VM, the last net, where the job has no deadline."""
RUN_MARGIN_S = 3_600.0
REFUSING_S = 10.0
"""So long after it was told that no more VMs can be had, those asked for in place of others are refused, too."""


class Fleet:
    """One job's VMs in one region.

    Args:
        store: Where wishes and intents are.
        provider: The cloud, in the job's region.
        hosts: Where VMs join; closed with this.
        places: Where and what the workers' VMs may be, by their type, in the order to try.
        aggregators: The same of the aggregators' VM.
        offers: The types of the workers' VMs.
        threads: Processors of each type, the aggregators' too.
        workers_max: The most workers that the job may have.
        budget_usd: What all its VMs may cost, in all attempts; infinite where there is no limit.
        deadline_s: Of the whole job; None where there is none.
        package: What a VM installs, see `cloud.boot.package_of`.
        disk_gib: Of each VM's boot disk.
        disk_usd_per_hour: What that costs; 0 where it is not known.
        image: That VMs start from; empty for the cloud's default.
        note: Is told what the user should know.
        terms: None for the defaults.
    """

    def __init__(
        self,
        store: Store,
        provider: Provider,
        hosts: Hosts,
        *,
        job_id: str,
        attempt: int,
        places: Mapping[str, tuple[Place, ...]],
        aggregators: tuple[Place, ...],
        offers: Sequence[Offer],
        threads: Mapping[str, int],
        workers_max: int,
        budget_usd: float,
        deadline_s: float | None,
        package: str,
        disk_gib: int,
        disk_usd_per_hour: float,
        image: str,
        note: Callable[[str], None],
        terms: Terms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._provider, self._hosts, self._job_id = store, provider, hosts, job_id
        self._places = {**places, AGGREGATORS: aggregators}
        self._offers, self._threads = {offer.vm: offer for offer in offers}, threads
        self._room = {AGGREGATORS: AGGREGATORS_PER_VM} | {o.vm: o.workers_per_vm for o in offers}
        self._note, self._clock = note, clock
        self._terms = terms or Terms(provider.visibility_s)
        self._desired = Desired(
            job_id=job_id,
            provider=provider.name,
            region=provider.region,
            wishes=(),
            places=(),
            # all are replaced at once at worst, or are waited for on another type of VM
            vms_max=2 * workers_max + 2,
            budget_usd=budget_usd,
            run_max_s=RUN_MAX_S if deadline_s is None else deadline_s + RUN_MARGIN_S,
            user_data=boot_document(hosts.endpoint, hosts.server_key, provider.name, package),
            image=image,
            disk_gib=disk_gib,
            boot_key=hosts.boot_key.hex(),
            attempt=attempt,
        )
        past = [intent for intent in store.intents(job_id) if intent.attempt < attempt]
        self._first = 1 + max((intent.slot for intent in past), default=AGGREGATOR_SLOT)
        # a VM of an earlier attempt knows nothing of this one
        self._generation = 1 + max((i.generation for i in past if i.slot == AGGREGATOR_SLOT), default=-1)
        self._disk_usd_per_hour = disk_usd_per_hour
        self._before_usd = self._charged(intent for intent in past if intent.state == "GONE")
        self._slots: tuple[Slot, ...] = ()
        self._aggregating = False
        self._types: dict[int, str] = {AGGREGATOR_SLOT: AGGREGATORS}
        self._engine: VmEngine | None = None
        self._intents: tuple[Intent, ...] = ()
        self._looked_at = -LOOK_S
        self._spent_usd = 0.0
        self._told_gone: set[str] = set()
        self._acknowledged: dict[str, float] = {}
        self._renewed: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        self._alarms: deque[Alarm | str] = deque()
        self._refusing_until, self._refusal = -math.inf, ""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._reconciler = Reconciler(
            store,
            BootingProvider(provider, store),
            owner=store.installation(),
            holder=holder_name(),
            renew=self._renew,
            alarm=self._alarms.append,
            terms=self._terms,
            is_dead=is_known_dead,
        )
        self._thread = threading.Thread(
            target=self._reconciler.run,
            args=(self._stop, self._failed),
            kwargs={"wake": self._wake},
            name="scavenger-fleet",
            daemon=True,
        )
        self._started = self._closed = False

    # ---- what the job sees ---------------------------------------------------------------------------------

    def engine(self, log_dir: Path, memory_fd: int, *, command: Sequence[str] | None = None) -> Engine:
        """The job's engine, whose processes run on these VMs; for `command` see `VmEngine`."""
        self._engine = VmEngine(log_dir, self._hosts, command=command)
        self._begin()
        return self._engine

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self._thread.start()

    def spent_usd(self) -> float:
        """See `Meter.spent_usd`: as charged at the last look, and at the present rate since."""
        return self._spent_usd + self.usd_per_hour() * max(0.0, self._clock() - self._looked_at) / 3600.0

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        """See `Meter.usd_per_hour`."""
        living = sum(map(self._rate_of, self._paid_for()))
        coming = sum(count * self._offers[vm].price_usd_per_hour for vm, count in (joining or {}).items())
        return living + coming

    def shared_usd_per_hour(self) -> float:
        """See `Meter.shared_usd_per_hour`: the aggregators' VM."""
        return sum(self._rate_of(one) for one in self._paid_for() if one.slot == AGGREGATOR_SLOT)

    def _rate_of(self, intent: Intent) -> float:
        return intent.price_usd_per_hour + self._disk_usd_per_hour

    def _paid_for(self) -> list[Intent]:
        return [one for one in self._intents if one.state != "GONE" and one.asked]

    @property
    def reserve_s(self) -> float:
        """For how long all VMs are paid for from what is set aside of the budget."""
        return self._terms.reserved_s(self._desired.drain_s)

    def _charged(self, intents: Iterable[Intent]) -> float:
        """What VMs have cost with their disks, which the budget's own sums leave out."""
        return sum(one.spent_usd + one.billed_s / 3600.0 * self._disk_usd_per_hour for one in intents)

    @property
    def vms(self) -> tuple[Intent, ...]:
        """Every VM that the job has asked for, as of the last look."""
        return self._intents

    # ---- about once a second -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at what there is, and say what is wanted.

        Raises:
            LimitReachedError: The budget is used up but for what ends the VMs.
            CredentialsError, TransientError: No VM can be had, and the job has none.
        """
        now = self._clock()
        if now - self._looked_at < LOOK_S or self._engine is None:
            return
        try:
            with self._store.hurried():
                self._look(now)
        except StoreBusyError:
            self._note_alarms()  # the store is held; everything is seen again at the next look

    def _look(self, now: float) -> None:
        vms = {vm.intent: vm for vm in self._hosts.vms()}
        self._intents = self._store.intents(self._job_id)
        self._looked_at = now
        self._spent_usd = max(0.0, self._charged(self._intents) - self._before_usd)
        for intent in self._intents:
            if intent.slot in self._types and intent.attempt == self._desired.attempt:
                self._admit(intent, self._types[intent.slot], vms.get(intent.id))
        self._acknowledge(now)
        self._let_live(vms, now)
        needs = self._needs(vms)
        aggregators = needs.pop(AGGREGATORS) > 0
        slots = plan_slots(self._seen(vms, now), needs, self._room, self._first)
        if (slots, aggregators) != (self._slots, self._aggregating):
            self._want(slots, aggregators=aggregators)
        self._note_alarms()

    def _admit(self, intent: Intent, vm: str, host: Vm | None) -> None:
        """Let a VM join once it is asked for, and tell of its end.

        One that the cloud shows as ending without having been asked to is as good as gone, unless it was told of its
        end: then its worker is on its way out.
        """
        if intent.state in ("PLAN", "UP"):
            self._hosts.expect(
                intent.id,
                role="aggregator" if vm == AGGREGATORS else "worker",
                vm=vm,
                threads=self._threads[intent.request.vm],
                places=self._room[vm],
            )
            return
        taken = intent.ending in ("preempted", "died") and (host is None or host.doomed is None)
        if (intent.state == "GONE" or taken) and intent.id not in self._told_gone:
            self._told_gone.add(intent.id)
            self._hosts.gone(intent.id, intent.reason or "its VM has ended")

    def _acknowledge(self, now: float) -> None:
        for intent in self._hosts.heard():
            if now - self._acknowledged.get(intent, -ACKNOWLEDGE_S) >= ACKNOWLEDGE_S:
                self._store.acknowledge_vm(intent)
                self._acknowledged[intent] = now

    def _let_live(self, vms: Mapping[str, Vm], now: float) -> None:
        """Renew the job's own VMs where another process acts for the region, which cannot reach them."""
        if self._reconciler.acts:
            return
        for intent in self._intents:
            due = now - self._renewed.get(intent.id, -self._terms.life_s) >= self._terms.life_s / 3
            lives = due and intent.state == "UP" and intent.id in vms
            if lives and self._hosts.renew(intent.id, self._terms.life_s):
                self._renewed[intent.id] = now

    def _needs(self, vms: Mapping[str, Vm]) -> dict[str, int]:
        """Processes that are, or wait for, a VM that stays: those that go down with theirs need no other."""
        assert self._engine is not None
        needs = self._engine.needs()
        found = {**needs.workers, AGGREGATORS: needs.aggregators}
        for intent in self._intents:
            if intent.state in ("DELETING", "GONE") and intent.id in vms:
                found[self._types[intent.slot]] -= len(vms[intent.id].processes)
        return found

    def _seen(self, vms: Mapping[str, Vm], now: float) -> list[SlotSeen]:
        latest = {one.slot: one for one in self._intents if one.state in ("PLAN", "UP")}
        found = []
        for slot in self._slots:
            intent = latest.get(slot.number)
            vm = None if intent is None else vms.get(intent.id)
            if intent is None or vm is None or not vm.joined:
                found.append(SlotSeen(slot))
                continue
            if vm.processes:
                self._idle_since.pop(intent.id, None)
            since = now if vm.processes else self._idle_since.setdefault(intent.id, now)
            ends_in_s = None if vm.doomed is None else vm.doomed.in_s
            if vm.doomed is not None and ends_in_s is None and not vm.processes:
                ends_in_s = 0.0  # at risk, so that nothing is placed there any more
            found.append(SlotSeen(slot, True, len(vm.processes), now - since, ends_in_s))
        return found

    def _want(self, slots: tuple[Slot, ...], *, aggregators: bool) -> None:
        wishes = [Wish(slot.number, places=self._places[slot.vm]) for slot in slots]
        if aggregators:  # they come first: without them, no worker has anything to do
            wishes.insert(0, Wish(AGGREGATOR_SLOT, self._generation, self._places[AGGREGATORS]))
        self._store.want_vms(replace(self._desired, wishes=tuple(wishes)))
        self._slots, self._aggregating = slots, aggregators
        self._types |= {slot.number: slot.vm for slot in slots}
        self._first = max((self._first, *(slot.number + 1 for slot in slots)))
        self._wake.set()

    # ---- what the reconciler says, on its thread -----------------------------------------------------------

    def _renew(self, intent: Intent, life_s: float) -> bool:
        """VMs of other jobs are renewed by those who lead them."""
        return intent.job_id != self._job_id or self._hosts.renew(intent.id, life_s)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, StoreBusyError):
            self._alarms.append(f"looking after VMs failed, and is tried again: {error}")

    # ---- alarms --------------------------------------------------------------------------------------------

    def _note_alarms(self) -> None:
        for told in self._hosts.alarms():
            self._note(told)
        while self._alarms:
            alarm = self._alarms.popleft()
            if isinstance(alarm, str):
                self._note(alarm)
            elif alarm.about == self._job_id and alarm.kind == "budget":
                raise LimitReachedError(f"stopped at ${self.spent_usd():.4f}: {alarm.message}")
            else:
                self._note(alarm.message)
                self._heed(alarm)
        if self._clock() < self._refusing_until and self._engine is not None:
            self._engine.refuse_waiting(self._refusal)

    def _heed(self, alarm: Alarm) -> None:
        """What it means for workers that wait for a VM: go on without them, or end where no worker is there.

        A job that has a worker trains on with what it has. That something is sold out for now is waited for.
        """
        ours = alarm.about == self._job_id
        hopeless = alarm.kind in ("credentials", "refused", "quota") or (
            ours and alarm.kind in ("loop", "unaffordable")
        )
        if not hopeless:
            return
        if any(vm.joined and vm.role == "worker" for vm in self._hosts.vms()):
            self._refusing_until = self._clock() + REFUSING_S
            self._refusal = f"no VM could be had for it: {alarm.message}"
        elif alarm.kind == "unaffordable":
            raise LimitReachedError(alarm.message)
        elif alarm.kind in ("credentials", "quota"):
            raise CredentialsError(alarm.message)
        else:
            raise TransientError(f"no VM can be had: {alarm.message}")

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, *, limit_s: float = LIMIT_S) -> None:
        """End every VM of the job, and wait until all are seen gone. Idempotent.

        Raises:
            CleanupError: Some may be left after `limit_s`; a line for each.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._store.want_vms(replace(self._desired, wishes=(), boot_key="", user_data=""))
            self._wait_until_clean(limit_s)
            self._remove_leftovers()
        finally:
            self._stop.set()
            self._wake.set()
            if self._thread.is_alive():
                self._thread.join(self._terms.look_max_s)
            self._hosts.close()
            with contextlib.suppress(ScavengerError):
                self._intents = self._store.intents(self._job_id)
                self._looked_at = self._clock()
                self._spent_usd = self._charged(self._intents) - self._before_usd

    def _wait_until_clean(self, limit_s: float) -> None:
        if not self._store.is_clean(self._job_id):
            self._begin()
        until = self._clock() + limit_s
        while not self._store.is_clean(self._job_id):
            self._wake.set()
            if self._clock() > until:
                left = self._store.intents(self._job_id, living=True)
                lines = "; ".join(f"{intent}: {intent.reason}" for intent in left)
                raise CleanupError(f"not seen to end within {limit_s:g} s: {lines}; run `scavenger gc`")
            time.sleep(min(LOOK_S, self._terms.look_s))

    def _remove_leftovers(self) -> None:
        """What was made beside VMs, once no other job needs it."""
        here = (self._provider.name, self._provider.region)
        if any((one.provider, one.region) == here for one in self._store.intents(living=True)):
            return
        try:
            self._provider.remove_leftovers(self._store.installation())
        except CloudError as error:
            self._note(f"what was made beside VMs may be left in {'/'.join(here)}: {error}")


def new_boot_key() -> bytes:
    """See `Desired.boot_key`."""
    return secrets.token_bytes(32)
