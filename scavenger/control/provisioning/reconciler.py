"""The reconciler: brings the VMs of one region of one cloud to their wanted state, in repeated iterations ("looks").

`policy.provisioning.decider` decides on the actions; the reconciler executes them one after another. For each action it
records the intended request in the store, makes the request to the cloud, and records the result. A crash between any
two of these loses nothing, since the next look finds the actual state. `Reconciler.steps` yields every call to the
store and the cloud before it is made; `perform` makes the calls, and a simulation injects faults between them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import TypeVar

from scavenger import errors
from scavenger.cloud.base import Provider
from scavenger.control.provisioning.ports import IntentStore, Steps, ask, lease_name, perform, provisioning_of
from scavenger.domain.intent import Ending, Fence, Intent, Lease, PlacementOption, RegionSnapshot
from scavenger.domain.vm import VmRequest, VmSeen
from scavenger.policy.provisioning import actions as act
from scavenger.policy.provisioning.config import THROTTLED_FOR_S, ProvisioningConfig
from scavenger.policy.provisioning.decider import CALLS, DENIED, THROTTLE, decide, ending_of
from scavenger.policy.provisioning.memory import Memory
from scavenger.policy.provisioning.money import charges
from scavenger.policy.provisioning.spot_prices import READ_AGAIN_S, SPOT_PRICES, price_changes, spot_types

ALARM_AGAIN_S = 3600.0
"""Interval after which an alarm that still holds is repeated."""

_CHECKS = ("checks",)
"""Key of the time until the cloud's own checks are read again."""

_LATELY = ("throttled lately",)
"""Key of the time in which listings are fewer, since the cloud has throttled a call."""

T = TypeVar("T")


class _OvertakenError(Exception):
    """Another service may hold the lease now."""


def _utc() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """The reconciler of one service in one region; several may stand by, but only the lease holder acts.

    Args:
        store: Holds the fleet specifications and the intents.
        owner: Tag of this installation, `Store.installation()`.
        holder: Name of this service as a lease holder.
        renew: Renews a VM's lease for a number of seconds; returns False if the VM cannot be reached.
        config: Time limits and intervals; None for the defaults with the provider's visibility bound.
        clock: Monotonic clock, seconds.
        wall: The time of day, used only to charge periods without a reconciler.
        rng: Random generator for ids, jitter and turns.
        booted: Puts into the request of a launch what its VM runs, where an intent does not have it.
        is_dead: Whether the named service is known to have ended, so that its lease can be taken at once.
    """

    def __init__(
        self,
        store: IntentStore,
        provider: Provider,
        *,
        owner: str,
        holder: str,
        renew: Callable[[Intent, float], bool],
        alarm: Callable[[act.Alarm], None],
        config: ProvisioningConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = _utc,
        rng: random.Random | None = None,
        booted: Callable[[VmRequest], VmRequest] = lambda request: request,
        is_dead: Callable[[str], bool] = lambda holder: False,
    ) -> None:
        self._booted, self._is_dead = booted, is_dead
        self._store, self._provider, self._owner, self._holder = store, provider, owner, holder
        self._renew, self._alarm = renew, alarm
        self._config = config or provisioning_of(provider)
        self._clock, self._wall = clock, wall
        self._rng = rng or random.SystemRandom()
        self._memory = Memory()
        self._fence: Fence | None = None
        self._heartbeat_at_s = 0.0
        self._other: tuple[Lease | None, float] = (None, 0.0)
        self._reported: dict[tuple[str, str], float] = {}
        self._standing: dict[str, tuple[int, dict[str, str]]] = {}
        self._sold_out = False
        self._quarantined: frozenset[str] | None = None

    @property
    def acts(self) -> bool:
        """Whether this service held the lease when it last looked."""
        return self._fence is not None

    @property
    def denied(self) -> str:
        """Why VMs can be neither seen nor ended: the cloud's words on missing permissions; empty if they can."""
        denied = dict(self._memory.denied)
        return "; ".join(
            dict.fromkeys(denied[what] for what in ("list", "look", "terminate") if what in denied)
        )

    def look(self) -> bool:
        """Run one iteration: read the state, decide and act.

        Returns:
            Whether this service acted; False if another service holds the lease or has taken it over.

        Raises:
            StoreBusyError, StoreReadOnlyError, StoreError: If the store is unavailable; try again later.
        """
        return perform(self.steps())

    def run(self, stop: Event, failed: Callable[[Exception], None], *, wake: Event | None = None) -> None:
        """Run iterations until `stop` is set, then release the lease; run in a thread of its own.

        Args:
            stop: Ends the loop when set.
            failed: Receives the error of a failed iteration; the next one tries again.
            wake: Starts the next iteration at once when set, as after a change of the wanted VMs; set it with `stop`.
        """
        wake = wake or stop
        while not stop.is_set():
            if wake is not stop:
                wake.clear()
            self._sold_out = False
            began_s = self._clock()
            self._attempt(self.look, failed)
            if not self._sold_out:  # else the next placement option is tried at once
                wake.wait(self._config.look.wait_s(self._clock() - began_s, self._rng.random()))
        self._attempt(self.release, failed)

    def _attempt(self, action: Callable[[], object], failed: Callable[[Exception], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - without looks, VMs are not renewed and end themselves
            failed(error)

    def release(self) -> None:
        """Release the lease, so that another service need not wait until it expires."""
        if self._fence is not None:
            fence, self._fence = self._fence, None
            self._store.release_lease(fence)

    # ---- one iteration --------------------------------------------------------------------------------------------

    def steps(self) -> Steps[bool]:
        """One iteration as a generator of its calls; see `look`."""
        try:
            return (yield from self._look())
        except _OvertakenError:
            self._fence = None
            return False

    def _look(self) -> Steps[bool]:
        if self._fence is None:
            yield from self._take()
        began_s = self._clock()
        self._memory.attend(began_s, self._config.gap_max_s)
        listing = yield from self._list()
        tokens = [vm.tags.token for vm in listing.vms if vm.tags.token] if listing is not None else []
        here = (self._provider.name, self._provider.region)
        # List the cloud's VMs before reading the store: an intent is written before its VM can be listed.
        situation = yield from ask(lambda: self._store.situation(*here, tokens))
        situation = yield from self._charge(situation)
        yield from self._read_prices(situation)
        self._memory.note(situation, listing)
        yield from self._read_checks(situation)
        actions = decide(
            situation,
            listing,
            self._memory,
            self._config,
            owner=self._owner,
            now_s=self._clock(),
            rng=self._rng,
        )
        for action in actions:
            if isinstance(action, act.Alarm):
                self._raise_alarm(action)
            elif self._clock() - began_s < self._config.look.actions_s:
                yield from self._do(action)
        yield from self._report_standing(situation, actions)
        return True

    def _report_standing(self, situation: RegionSnapshot, actions: Sequence[act.Action]) -> Steps[None]:
        """Record each job's shortages for the job's process, if they have changed or may have changed before."""
        standing: dict[str, dict[str, str]] = {spec.job_id: {} for spec in situation.fleets}
        for action in actions:
            if isinstance(action, act.Alarm) and action.about in standing:
                standing[action.about][action.kind] = action.message
        if (denied := self._memory.denied.get("launch")) is not None:
            for alarms in standing.values():
                alarms["credentials"] = denied
        fence, here = self._held(), (self._provider.name, self._provider.region)
        for spec in situation.fleets:
            job_id, alarms = spec.job_id, standing[spec.job_id]
            if self._standing.get(job_id) != (spec.attempt, alarms):
                if not (yield from ask(partial(self._store.report_shortages, fence, job_id, *here, alarms))):
                    raise _OvertakenError
                self._standing[job_id] = (spec.attempt, alarms)

    def _take(self) -> Steps[None]:
        """Take the lease if it is free, or if its holder sent no heartbeat for long enough by the local clock."""
        name, now_s = lease_name(self._provider.name, self._provider.region), self._clock()
        seen = yield from ask(lambda: self._store.lease(name))
        if seen is not None and seen.holder and not self._is_dead(seen.holder):
            if self._other[0] != seen:
                self._other = (seen, now_s)
            if now_s - self._other[1] < self._config.lease_s:
                raise _OvertakenError
        sent_at_s = self._clock()
        taken = yield from ask(lambda: self._store.take_lease(name, self._holder, seen))
        if taken is None:
            raise _OvertakenError
        self._fence, self._heartbeat_at_s, self._memory = taken.fence, sent_at_s, Memory()
        self._memory.hold(SPOT_PRICES, READ_AGAIN_S, sent_at_s)
        self._standing.clear()

    def _held(self) -> Fence:
        if self._fence is None:
            raise _OvertakenError
        return self._fence

    def _charge(self, situation: RegionSnapshot) -> Steps[RegionSnapshot]:
        now_s, wall, fence = self._clock(), self._wall(), self._held()
        added = charges(situation, self._memory, now_s, wall, self._config.vm.life_s)
        if not (yield from ask(lambda: self._store.charge(fence, added, wall))):
            raise _OvertakenError
        self._heartbeat_at_s = now_s
        self._memory.charged_s = {intent.id: now_s for intent in situation.intents}
        intents = tuple(
            replace(intent, charges=intent.charges.plus(*added.get(intent.id, (0.0, 0.0))))
            for intent in situation.intents
        )
        return replace(situation, intents=intents)

    def _read_prices(self, situation: RegionSnapshot) -> Steps[None]:
        """Read what spot VMs cost now; where the cloud does not tell, they are metered as before."""
        memory, now_s, types = self._memory, self._clock(), spot_types(situation.intents)
        if not (types and memory.is_due(SPOT_PRICES, now_s) and memory.is_due(THROTTLE, now_s)):
            return
        try:
            read = yield from self._cloud("prices", lambda: self._provider.spot_prices(types))
        except errors.CloudError:
            memory.wait(SPOT_PRICES, self._config.waits.call, self._clock(), self._rng)
            return
        memory.hold(SPOT_PRICES, READ_AGAIN_S, now_s)
        for alarm in price_changes(situation.intents, memory.spot_usd, read):
            self._raise_alarm(alarm)
        memory.spot_usd = read

    def _read_checks(self, situation: RegionSnapshot) -> Steps[None]:
        """Read what the cloud's own checks find of VMs that are silent: whether they have failed, or the network."""
        memory, now_s = self._memory, self._clock()
        silent = [intent.instance_id for intent in memory.unheard(situation.intents)]
        if not silent:
            memory.impaired = {}
        elif memory.is_due(_CHECKS, now_s) and memory.is_due(THROTTLE, now_s):
            memory.hold(_CHECKS, self._config.look.vm_interval_s, now_s)
            with suppress(errors.CloudError):  # then nothing is known of them
                memory.impaired = yield from self._cloud("checks", lambda: self._provider.impaired(silent))

    def _list(self) -> Steps[act.Listing | None]:
        memory, now_s = self._memory, self._clock()
        if not memory.is_due(("list",), now_s) or not memory.is_due(THROTTLE, now_s):
            return None
        began_s = memory.attended_s
        try:
            vms = yield from self._cloud("list", lambda: self._provider.list_owned(self._owner))
        except errors.CloudError:
            memory.wait(("list",), self._config.waits.call, self._clock(), self._rng)
            return None
        again_s = self._config.look.list_again_s(len(vms), throttled=not memory.is_due(_LATELY, now_s))
        memory.hold(("list",), again_s, now_s)
        memory.queued = frozenset(vm.tags.token for vm in vms if vm.queued)
        return act.Listing(vms, began_s)

    def _cloud(self, what: str, call: Callable[[], T]) -> Steps[T]:
        """Make a call to the cloud while the lease is certainly held; remember throttling and refused credentials."""

        def guarded() -> T:
            if self._clock() - self._heartbeat_at_s >= self._config.lease_s:
                raise _OvertakenError
            return call()

        memory = self._memory
        try:
            answer = yield from ask(guarded)
        except errors.ThrottledError:
            memory.wait(THROTTLE, self._config.waits.throttled, self._clock(), self._rng)
            memory.hold(_LATELY, THROTTLED_FOR_S, self._clock())
            raise
        except errors.CredentialsError as error:
            memory.denied[what] = str(error)
            raise
        memory.done(THROTTLE)
        memory.denied.pop(what, None)
        return answer

    # ---- one action ----------------------------------------------------------------------------------------

    def _do(self, action: act.Action) -> Steps[None]:
        now_s = self._clock()
        if now_s - self._heartbeat_at_s >= self._config.lease_s / 3:
            yield from self._send_heartbeat()
        if isinstance(action, CALLS) and not self._memory.is_due(THROTTLE, now_s):
            return  # throttled since the decision
        match action:
            case act.Create(intent):
                yield from self._create(intent)
            case act.Retry(intent):
                yield from self._retry(intent)
            case act.Adopt(intent, vm):
                yield from self._up(intent, vm)
            case act.PollVm(intent):
                yield from self._look_at(intent)
            case act.Drain(intent, ending, reason):
                yield from self._drain(intent, ending, reason)
            case act.Terminate(intent):
                yield from self._terminate(intent.id, intent.instance_id, intent.request.zone)
            case act.Sweep(vm):
                yield from self._terminate(vm.instance_id, vm.instance_id, vm.zone)
            case act.MarkGone(intent, ending, reason, vm, never):
                yield from self._gone(intent, ending, reason, vm, never=never)
            case act.ExtendLife(intent):
                yield from self._renew_vm(intent)
            case act.Quarantine(vms):
                yield from self._put_in_quarantine(vms)

    def _put_in_quarantine(self, vms: tuple[VmSeen, ...]) -> Steps[None]:
        ids = frozenset(vm.instance_id for vm in vms)
        if ids != self._quarantined:
            where = self._provider.name, self._provider.region
            yield from ask(lambda: self._store.set_quarantine(*where, vms))
            self._quarantined = ids

    def _send_heartbeat(self) -> Steps[None]:
        fence, sent_at_s = self._held(), self._clock()
        wall = self._wall()
        if not (yield from ask(lambda: self._store.charge(fence, {}, wall))):
            raise _OvertakenError
        self._heartbeat_at_s = sent_at_s

    def _create(self, intent: Intent) -> Steps[None]:
        fence, now_s, memory = self._held(), self._clock(), self._memory
        if not (memory.is_open(intent.option, now_s) and memory.is_due(DENIED, now_s)):
            return  # an earlier launch in this iteration was refused
        if (yield from ask(lambda: self._store.write_intent(fence, intent))):
            memory.charged_s[intent.id] = now_s
            yield from self._launch(intent, first=True)

    def _retry(self, intent: Intent) -> Steps[None]:
        fence = self._held()
        if not intent.asked and (yield from ask(lambda: self._store.ask_again(fence, intent.id))) is None:
            return
        self._memory.charged_s.setdefault(intent.id, self._clock())
        yield from self._launch(intent, first=not intent.asked)

    def _launch(self, intent: Intent, *, first: bool) -> Steps[None]:
        """Launch a VM and record the result.

        Args:
            intent: Must be recorded as `asked`.
            first: Whether no earlier launch of it can have been accepted, so that a refusal proves that it has no VM.
        """
        memory, now_s, option, key = self._memory, self._clock(), intent.option, ("launch", intent.id)
        try:
            vm = yield from self._cloud("launch", lambda: self._provider.launch(self._booted(intent.request)))
        except (
            errors.StockOutError,
            errors.QuotaError,
            errors.CredentialsError,
            errors.ConfigurationError,
        ) as error:
            ending, reason = self._refused(option, error)
            if first:
                yield from self._gone(intent, ending, reason, None, never=True)
            else:  # an earlier launch, whose answer was lost, may be on its way and yield a VM yet
                yield from self._drain(intent, ending, reason)
        except errors.GoneError:  # the VM may still be stopping, which a listing shows
            yield from self._drain(intent, *ending_of(intent, None))
        except errors.ThrottledError:
            memory.wait(key, self._config.waits.launch, now_s, self._rng)
            if first:
                fence = self._held()
                yield from ask(lambda: self._store.never_asked(fence, intent.id))
        except errors.CloudUnavailableError:
            memory.wait(key, self._config.waits.launch, now_s, self._rng)
        else:
            memory.done(key, ("park", *option.key), DENIED)
            yield from self._up(intent, vm)

    def _refused(self, option: PlacementOption, error: errors.ScavengerError) -> tuple[Ending, str]:
        """Remember which placement option to avoid, and for how long; returns the ending and the reason."""
        memory, now_s, words = self._memory, self._clock(), str(error)
        match error:
            case errors.StockOutError():
                memory.wait(("park", *option.key), self._config.waits.sold_out, now_s, self._rng)
                self._sold_out = True
                return "stock_out", words
            case errors.QuotaError():
                words = f"quota {error.quota} in {error.region} is used up: {words}"
                memory.barred["quota", option.vm, option.spot] = words
                return "quota", words
            case errors.CredentialsError():
                memory.wait(DENIED, self._config.waits.denied, now_s, self._rng)
            case _:
                memory.barred["refused", *option.key] = words
        return "refused", words

    def _up(self, intent: Intent, vm: VmSeen) -> Steps[None]:
        fence = self._held()
        if vm.state == "gone":
            yield from self._gone(intent, *ending_of(intent, vm), vm)
        else:
            yield from ask(lambda: self._store.mark_up(fence, intent.id, vm))

    def _look_at(self, intent: Intent) -> Steps[None]:
        key = ("look", intent.id)
        try:
            vm = yield from self._cloud(
                "look", lambda: self._provider.describe(intent.instance_id, intent.request.zone)
            )
        except errors.GoneError:
            yield from self._gone(intent, *ending_of(intent, None), None)
        except errors.CloudError:
            self._memory.wait(key, self._config.waits.call, self._clock(), self._rng)
        else:
            self._memory.hold(key, self._config.look.vm_interval_s, self._clock())
            if vm.state == "gone":
                yield from self._gone(intent, *ending_of(intent, vm), vm)

    def _drain(self, intent: Intent, ending: Ending, reason: str) -> Steps[None]:
        fence = self._held()
        if (yield from ask(lambda: self._store.mark_deleting(fence, intent.id, ending, reason))) is None:
            return
        self._note_health(intent, ending)
        if intent.state == "PLAN" and ending == "unanswered":
            parked = ("park", *intent.option.key)
            self._memory.wait(parked, self._config.waits.sold_out, self._clock(), self._rng)
        if intent.instance_id and self._memory.is_due(THROTTLE, self._clock()):
            yield from self._terminate(intent.id, intent.instance_id, intent.request.zone)

    def _terminate(self, key: str, instance_id: str, zone: str) -> Steps[None]:
        """Request a VM's end; the request is repeated at intervals until the VM is seen gone."""
        self._memory.wait(("terminate", key), self._config.waits.call, self._clock(), self._rng)
        try:
            yield from self._cloud("terminate", lambda: self._provider.terminate(instance_id, zone))
        except errors.CloudError:
            return

    def _gone(
        self, intent: Intent, ending: Ending, reason: str, vm: VmSeen | None, *, never: bool = False
    ) -> Steps[None]:
        fence, memory = self._held(), self._memory
        gone = yield from ask(
            lambda: self._store.mark_gone(fence, intent.id, ending, reason, vm, never=never)
        )
        if gone is None:
            return
        memory.done(*((what, intent.id) for what in ("launch", "look", "terminate", "renew")))
        if not never:
            memory.freed(intent.option)
            if intent.state != "DELETING" and not intent.acks:
                self._note_health(intent, ending)

    def _note_health(self, intent: Intent, ending: Ending) -> None:
        """Delay further launches for a job after a VM that failed or never joined."""
        if ending in ("never_joined", "died"):
            self._memory.wait(("create", intent.job_id), self._config.waits.died, self._clock(), self._rng)

    def _renew_vm(self, intent: Intent) -> Steps[None]:
        def guarded() -> bool:
            if self._clock() - self._heartbeat_at_s >= self._config.lease_s:
                raise _OvertakenError
            return self._renew(intent, self._config.vm.life_s)

        if (yield from ask(guarded)):
            self._memory.hold(("renew", intent.id), self._config.vm.life_s / 3, self._clock())
            self._memory.done(("create", intent.job_id))

    def _raise_alarm(self, alarm: act.Alarm) -> None:
        key, now_s = (alarm.kind, alarm.about), self._clock()
        if now_s - self._reported.get(key, -ALARM_AGAIN_S) >= ALARM_AGAIN_S:
            self._reported[key] = now_s
            self._alarm(alarm)
