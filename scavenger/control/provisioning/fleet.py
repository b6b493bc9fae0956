"""The VMs of one job: says which are wanted, lets them in and lives with what becomes of them, until none is left.

What is wanted follows from the processes that the job's engine has, or cannot place yet (`policy.slots`). Getting the
VMs is the reconciler's, which runs here on a thread of its own, or in another process that acts for the region. Its
answers are in the store, which is looked at about once a second.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scavenger.cloud.base import Provider
from scavenger.control.provisioning.bill import AGGREGATOR_SLOT
from scavenger.control.provisioning.booting import BootingProvider, boot_document
from scavenger.control.provisioning.clean_up import LIMIT_S
from scavenger.control.provisioning.lease_holder import holder_name, is_known_dead
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.configuration import Offer
from scavenger.domain.intent import Desired, Intent, Place, Wish
from scavenger.errors import (
    CleanupError,
    CredentialsError,
    LimitReachedError,
    ScavengerError,
    StoreBusyError,
    StoreReadOnlyError,
    StoreUnavailableError,
    TransientError,
)
from scavenger.policy.provisioning_actions import Alarm
from scavenger.policy.provisioning_memory import Terms
from scavenger.policy.slots import Slot, SlotSeen, plan_slots
from scavenger.store import Store
from scavenger.train.engines.base import Engine
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import VmEngine
from scavenger.train.engines.vm.values import AgentStatus

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
SILENT_S = 45.0
"""A VM that was not heard of for so long is given up, unless most are silent: what ran there is lost already."""
_OF_ALL = ("undeletable", "unknown_vm", "silence", "blind")
_HOPELESS = ("unaffordable", "credentials", "no_place", "loop")
_ERRORS: Mapping[str, type[ScavengerError]] = {
    "unaffordable": LimitReachedError,
    "credentials": CredentialsError,
    "no_place": TransientError,
    "loop": TransientError,
}


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
        before_usd: Of what they have cost, what earlier attempts are known to have spent.
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
        hosts: AgentServer,
        *,
        job_id: str,
        attempt: int,
        places: Mapping[str, tuple[Place, ...]],
        aggregators: tuple[Place, ...],
        offers: Sequence[Offer],
        threads: Mapping[str, int],
        workers_max: int,
        budget_usd: float,
        before_usd: float,
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
        self._before_usd = before_usd
        self._slots: tuple[Slot, ...] = ()
        self._wanted: tuple[tuple[Slot, ...], int | None, float] = ((), None, 0.0)
        self.drain_s = self._desired.drain_s
        """What the job needs to save itself; set aside for each VM that is started from then on."""
        self._types: dict[int, str] = {AGGREGATOR_SLOT: AGGREGATORS}
        self._engine: VmEngine | None = None
        self._intents: tuple[Intent, ...] = ()
        self._looked_at = -LOOK_S
        self._spent_usd = 0.0
        self._charged_last = (0.0, clock())
        self._told_gone: set[str] = set()
        self._acknowledged: dict[str, float] = {}
        self._renewed: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        self._alarms: deque[Alarm | str] = deque()
        self._heard: dict[str, str] = {}
        self._fallen_back: set[str] = set()
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
        self._started = self._clean = False

    # ---- what the job sees ---------------------------------------------------------------------------------

    def engine(self, log_dir: Path, memory_fd: int, *, command: Sequence[str] | None = None) -> Engine:
        """The job's engine, whose processes run on these VMs; for `command` see `VmEngine`."""
        self._engine = VmEngine(log_dir, self._hosts, command=command)
        # wishes of an attempt that was killed are not this one's
        self._store.want_vms(self._desired)
        self._begin()
        return self._engine

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self._thread.start()

    def spent_usd(self) -> float:
        """See `Meter.spent_usd`: as it was charged last, and at the present rate since; it never shrinks."""
        charged_usd, at = self._charged_last
        since_s = 0.0 if self._clean else max(0.0, self._clock() - at)
        now_usd = charged_usd + self.usd_per_hour() * since_s / 3600.0
        if not self._clean:
            now_usd = self._spent_usd = max(self._spent_usd, now_usd)
        return now_usd

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

    def reserved_usd(self) -> float:
        """See `Meter.reserved_usd`."""
        return sum(intent.reserved_usd for intent in self._paid_for())

    @property
    def reserve_s(self) -> float:
        """For how long all VMs are paid for from what is set aside of the budget."""
        return self._terms.reserved_s(self.drain_s)

    def _note_charged(self, now: float) -> None:
        charged_usd = max(0.0, self._charged(self._intents) - self._before_usd)
        if charged_usd != self._charged_last[0]:
            self._charged_last = (charged_usd, now)

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
        except (StoreBusyError, StoreReadOnlyError, StoreUnavailableError):
            # the store does not serve, which the job's recorder tells and limits; all is seen again at the next look
            self._looked_at = now
            self._note_alarms()

    def _look(self, now: float) -> None:
        vms = {vm.intent: vm for vm in self._hosts.vms()}
        self._intents = self._store.intents(self._job_id)
        self._looked_at = now
        self._note_charged(now)
        for intent in self._intents:
            if intent.slot in self._types and intent.attempt == self._desired.attempt:
                self._admit(intent, self._types[intent.slot], vms.get(intent.id))
        self._acknowledge(now)
        self._let_live(vms, now)
        self._note_alarms()
        self._note_fallbacks()
        here = (self._provider.name, self._provider.region)
        self._heed(self._store.told(self._job_id, *here), vms)
        needs = self._needs(vms)
        aggregators = needs.pop(AGGREGATORS) > 0
        for intent in self._intents:
            if intent.slot == AGGREGATOR_SLOT and intent.id in self._silent(vms):
                self._generation = max(self._generation, intent.generation + 1)
        slots = plan_slots(self._seen(vms, now), needs, self._room, self._first)
        slots = slots[: self._desired.vms_max - 1]
        wanted = (slots, self._generation if aggregators else None, self.drain_s)
        if wanted != self._wanted:
            self._want(slots, aggregators=aggregators)
            self._wanted = wanted

    def _admit(self, intent: Intent, vm: str, host: AgentStatus | None) -> None:
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

    def _let_live(self, vms: Mapping[str, AgentStatus], now: float) -> None:
        """Renew the job's own VMs where another process acts for the region, which cannot reach them."""
        if self._reconciler.acts:
            return
        for intent in self._intents:
            due = now - self._renewed.get(intent.id, -self._terms.life_s) >= self._terms.life_s / 3
            lives = due and intent.state == "UP" and intent.id in vms
            if lives and self._hosts.renew(intent.id, self._terms.life_s):
                self._renewed[intent.id] = now

    def _needs(self, vms: Mapping[str, AgentStatus]) -> dict[str, int]:
        """Processes that are, or wait for, a VM that stays: those that go down with theirs need no other."""
        assert self._engine is not None
        needs = self._engine.needs()
        found = {**dict.fromkeys(self._offers, 0), **needs.workers, AGGREGATORS: needs.aggregators}
        for intent in self._intents:
            if intent.state in ("DELETING", "GONE") and intent.id in vms:
                found[self._types[intent.slot]] -= len(vms[intent.id].processes)
        return found

    def _seen(self, vms: Mapping[str, AgentStatus], now: float) -> list[SlotSeen]:
        latest = {one.slot: one for one in self._intents if one.state in ("PLAN", "UP")}
        silent = self._silent(vms)
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
            if intent.id in silent:
                ends_in_s = 0.0
            avoided = self._engine is not None and vm.address in self._engine.avoided
            found.append(SlotSeen(slot, True, len(vm.processes), now - since, ends_in_s, avoided))
        return found

    def _silent(self, vms: Mapping[str, AgentStatus]) -> frozenset[str]:
        """VMs that have fallen silent; none where most have, since then it is likelier this side that hears nothing."""
        joined = [vm for vm in vms.values() if vm.joined]
        silent = frozenset(vm.intent for vm in joined if vm.heard_s_ago > SILENT_S)
        return silent if len(silent) <= 1 or 2 * len(silent) <= len(joined) else frozenset()

    def _want(self, slots: tuple[Slot, ...], *, aggregators: bool) -> None:
        wishes = [Wish(slot.number, places=self._places[slot.vm]) for slot in slots]
        if aggregators:  # they come first: without them, no worker has anything to do
            wishes.insert(0, Wish(AGGREGATOR_SLOT, self._generation, self._places[AGGREGATORS]))
        self._store.want_vms(replace(self._desired, wishes=tuple(wishes), drain_s=self.drain_s))
        self._slots = slots
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

    # ---- what is told --------------------------------------------------------------------------------------

    def _note_alarms(self) -> None:
        """Pass on what concerns nobody's wishes, or a type of VM that the job may have."""
        for told in self._hosts.alarms():
            self._note(told)
        while self._alarms:
            alarm = self._alarms.popleft()
            if isinstance(alarm, str) or alarm.kind in _OF_ALL:
                self._note(alarm if isinstance(alarm, str) else alarm.message)
            elif alarm.kind in ("quota", "refused") and set(alarm.about.split()) & self._offers.keys():
                self._note(alarm.message)

    def _heed(self, told: Mapping[str, str], vms: Mapping[str, AgentStatus]) -> None:
        """How the wishes stand, by whoever acts for the region: what it means for workers that wait for a VM.

        A job trains on with the workers that it has, and those whose VMs are on their way. That something is sold out
        for now is waited for.

        Raises:
            LimitReachedError: The budget is used up, or carries no VM.
            CredentialsError, TransientError: No VM can be had.
        """
        for kind, message in told.items():
            if self._heard.get(kind) != message:
                self._heard[kind] = message
                if kind != "budget":
                    self._note(message)
        if "budget" in told:
            raise LimitReachedError(f"stopped at ${self.spent_usd():.4f}: {told['budget']}")
        hopeless = next((kind for kind in _HOPELESS if kind in told), None)
        if hopeless is None or self._engine is None:
            return
        coming, working = self._room_coming(vms)
        # without aggregators, workers have nothing to do
        alone = self._needs(vms)[AGGREGATORS] > 0 and not coming[AGGREGATORS]
        if alone or not (working or any(coming[vm] for vm in self._offers)):
            if any(self._engine.waiting(vm) for vm in self._offers):
                raise _ERRORS[hopeless](told[hopeless])
            return
        for vm in self._offers:
            excess = self._engine.waiting(vm) - coming[vm]
            if excess > 0:
                self._engine.refuse_waiting(vm, excess, told[hopeless])

    def _room_coming(self, vms: Mapping[str, AgentStatus]) -> tuple[dict[str, int], int]:
        """Processes that living VMs have room for, by type, those included that still boot; and workers that run."""
        room, working = dict.fromkeys((AGGREGATORS, *self._offers), 0), 0
        for intent in self._intents:
            if intent.state in ("PLAN", "UP") and intent.slot in self._types:
                vm, host = self._types[intent.slot], vms.get(intent.id)
                busy = 0 if host is None else len(host.processes)
                if vm == AGGREGATORS:
                    room[vm] += self._room[vm]
                    continue
                working += busy
                avoided = (
                    host is not None and self._engine is not None and host.address in self._engine.avoided
                )
                if host is None or (host.doomed is None and not avoided):
                    room[vm] += self._room[vm] - busy
        return room, working

    def _note_fallbacks(self) -> None:
        """Where no spot VM could be had, what the job pays instead is told once for each type."""
        for intent in self._intents:
            offer = self._offers.get(intent.request.vm)
            if intent.slot == AGGREGATOR_SLOT or intent.state != "UP" or offer is None:
                continue
            if offer.spot and not intent.request.spot and offer.vm not in self._fallen_back:
                self._fallen_back.add(offer.vm)
                self._note(
                    f"no spot VM of {offer.vm} could be had: on demand at ${intent.price_usd_per_hour:.6g} per hour "
                    f"instead of ${offer.price_usd_per_hour:.6g}, with which time and cost were predicted"
                )

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, *, limit_s: float | None = None) -> None:
        """End every VM of the job, and wait until all are seen gone. Again where that failed; nothing once it is done.

        Args:
            limit_s: Longest wait; as long as a launch that was not answered may take to show, unless told.

        Raises:
            CleanupError: Some may be left; a line for each.
        """
        if self._clean:
            return
        until = self._clock() + (max(LIMIT_S, 1.5 * self._terms.settle_s) if limit_s is None else limit_s)
        self._hosts.close()  # agents that hear it power their VMs off
        self._give_all_back(until)
        while not self._is_clean():
            self._wake.set()
            if self._clock() > until:
                raise CleanupError(f"not seen to end in time: {self._living()}; run `scavenger gc`")
            time.sleep(min(LOOK_S, self._terms.look_s))
        self._remove_leftovers()
        self._stop.set()
        self._wake.set()
        if self._started:
            self._thread.join(self._terms.look_max_s)
        with contextlib.suppress(ScavengerError):
            self._intents = self._store.intents(self._job_id)
            self._note_charged(self._clock())
        self._clean = True

    def _give_all_back(self, until: float) -> None:
        """Want nothing any more, also where the store is held for a while."""
        nothing = replace(self._desired, wishes=(), boot_key="", user_data="")
        while True:
            try:
                self._store.want_vms(nothing)
                if not self._store.is_clean(self._job_id):
                    self._begin()
                return
            except ScavengerError as error:
                if self._clock() > until:
                    raise CleanupError(
                        f"VMs of this job may be left: {error}; they end themselves within "
                        f"{self._terms.life_s / 60:.0f} minutes, `scavenger gc` ends them now"
                    ) from error
                time.sleep(LOOK_S)

    def _is_clean(self) -> bool:
        try:
            self._store.heartbeat(self._job_id)  # the job lives until its VMs have ended
            return self._store.is_clean(self._job_id)
        except ScavengerError:
            return False  # the store is held

    def _living(self) -> str:
        try:
            left = self._store.intents(self._job_id, living=True)
        except ScavengerError as error:
            return f"VMs of job {self._job_id[:8]} ({error})"
        return "; ".join(f"{intent}: {intent.reason}" for intent in left)

    def _remove_leftovers(self) -> None:
        """What was made beside VMs, once no other job needs it."""
        here = (self._provider.name, self._provider.region)
        try:
            if not any((one.provider, one.region) == here for one in self._store.intents(living=True)):
                self._provider.remove_leftovers(self._store.installation())
        except ScavengerError as error:
            self._note(f"what was made beside VMs may be left in {'/'.join(here)}: {error}")


def new_boot_key() -> bytes:
    """See `Desired.boot_key`."""
    return secrets.token_bytes(32)
