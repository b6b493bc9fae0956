"""The fleet: requests the VMs of one job, admits them, and handles their failures until all have ended.

`policy.provisioning.fleet_plan` decides which VMs are wanted and how to react to a shortage. The reconciler launches
the VMs; it runs here on a thread of its own, or in another process that holds the region's lease. Its results are in
the store, which is read about once a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scavenger import errors
from scavenger.cloud.base import Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.provisioning.boot_watch import BootWatch
from scavenger.control.provisioning.booting import boot_document
from scavenger.control.provisioning.fleet_agents import FleetAgents
from scavenger.control.provisioning.fleet_boots import FleetBoots, failure_line
from scavenger.control.provisioning.fleet_keeping import FleetKeeping, Keeper
from scavenger.control.provisioning.fleet_meter import VmCostMeter
from scavenger.control.provisioning.fleet_notes import FleetNotes
from scavenger.control.provisioning.kept_vms import VmTransfer
from scavenger.control.provisioning.leader_meter import leader_of, steady_clock
from scavenger.control.provisioning.ports import provisioning_of
from scavenger.control.provisioning.vm_group import VmGroup, nothing_of
from scavenger.control.training.item_meter import ItemMeter
from scavenger.domain.cost import LedgerEntry
from scavenger.domain.intent import FleetSpec, Intent, VmSlot
from scavenger.models.cost import traffic_gib
from scavenger.policy.provisioning.boots import in_words, register_limit_s
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.fleet_plan import (
    FleetInputs,
    FleetPlan,
    FleetSeen,
    Refusal,
    Shortage,
    first_plan,
    given_up,
    plan_fleet,
    read_shortage,
    slots_of,
)
from scavenger.policy.provisioning.zones import workers_elsewhere
from scavenger.presentation.formatting import plural
from scavenger.store import Store
from scavenger.train.engines.base import Engine
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine, Needs

LOOK_S = 1.0
PLACE_MAX_S = 900.0
"""Longest wait of a process for a VM."""
PLACE_MARGIN_S = 60.0
"""By which a process waits longer than VMs may be sold out, so that this is the reason that is reported."""
DRAINED_S = 120.0
"""Time within which processes leave a machine that is drained; as long as EC2 gives them."""
_MOVED_S = 3.0
"""Longest wait for agents to confirm that they join the study; those that have not heard of it end themselves."""
DENIED_S = 60.0
"""How long the end of a job waits for valid credentials; agents power their VMs off without any."""
_ERRORS: Mapping[str, type[errors.ScavengerError]] = {
    "unaffordable": errors.LimitReachedError,
    "credentials": errors.CredentialsError,
    "no_placement": errors.TransientError,
    "loop": errors.TransientError,
}


class Fleet:
    """The VMs of one job in one region. Nothing is launched before `engine` is called.

    Args:
        store: Holds the fleet's specification and the intents.
        provider: The cloud, in the job's region.
        hosts: The server at which agents join; already started, and closed by `close`.
        inputs: Specification of the VMs and their limits.
        note: Shows a warning to the user.
        verifier: Verifies the identity of VMs that join, if `hosts` waits for that.
        config: Time limits and intervals of the provisioning; None for the defaults.
        kept: Keeps VMs that the job does not need any more for others of its study or pool; None: they end.
        make_engine: Makes the job's engine, as `HostEngine` is made.
        clock: Monotonic clock, seconds.

    Attributes:
        drain_s: Time that the job needs to save its state, seconds; reserved for each VM launched from then on.
    """

    def __init__(
        self,
        store: Store,
        provider: Provider,
        hosts: AgentServer,
        inputs: FleetInputs,
        *,
        note: Callable[[str], None],
        inform: Callable[[str], None] = lambda line: None,
        verifier: IdentityVerifier | None = None,
        config: ProvisioningConfig | None = None,
        kept: Keeper | None = None,
        make_engine: Callable[..., HostEngine] = HostEngine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._provider, self._agent_server, self._inputs, self._clock = (
            store,
            provider,
            hosts,
            inputs,
            clock,
        )
        self._config = config or provisioning_of(provider)
        self._spec = inputs.spec
        self.drain_s = inputs.spec.drain_s
        self.meter = VmCostMeter(inputs, clock=clock)
        self._agents = FleetAgents(store, hosts, inputs, verifier)
        self._kept = (
            None
            if kept is None
            else FleetKeeping(kept, store, provider, verifier, hosts, inputs, self._config)
        )
        self._notes = FleetNotes(note, inputs.offers, inform=inform)
        self._plan = FleetPlan()
        self._wanted: tuple[tuple[VmSlot, ...], float, tuple[str, ...], tuple[str, ...]] | None = None
        self._boots: FleetBoots | None = None
        self._make_engine = make_engine
        self._engine: HostEngine | None = None
        self._group = VmGroup(
            store,
            provider,
            inputs.spec.job_id,
            agents=self._agents,
            show=self._notes.put,
            alarm=self._notes.put,
            config=self._config,
        )
        self._looked_at = -LOOK_S
        self._needs: Needs | None = None
        self._is_clean, self._denied_at = False, math.inf
        self._told_unanswered = False
        self._counted_step: int | None = None
        self._leader = leader_of(os.environ)
        self._utc_s = steady_clock()

    # ---- interface to the job ---------------------------------------------------------------------------------

    def engine(self, log_dir: Path, memory_fd: int, *, command: Sequence[str] | None = None) -> Engine:
        """Create the job's engine, which runs processes on these VMs; for `command` see `HostEngine`."""
        self._plan = first_plan(self._store.intents(self._inputs.spec.job_id), self._inputs.spec.attempt)
        for item in ("traffic", "leader"):
            self.meter.items[item] = ItemMeter(self._store, self._spec.job_id, item, self._clock)
        server = self._agent_server
        boot = boot_document(server.endpoint, server.server_key, self._provider.name, self._inputs.package)
        self._spec = replace(
            self._inputs.spec,
            template=replace(self._inputs.spec.template, user_data=boot),
            boot_key=server.boot_key.hex(),
        )
        place_max_s = max(PLACE_MAX_S, self._inputs.wait_max_s + PLACE_MARGIN_S)
        self._engine = self._make_engine(
            log_dir, self._agent_server, command=command, place_max_s=place_max_s
        )
        self._boots = FleetBoots(
            self._spec,
            self._inputs.package,
            BootWatch(self._provider, interval_s=self._config.look.interval_s),
            self._store.intents(),
            endpoint=server.endpoint,
            note=self._notes.note,
            inform=self._notes.inform,
            folder=log_dir,
        )
        self._boots.start()
        limit_s = register_limit_s(self._boots.usual, self._config.vm.register_s)
        self._spec = replace(self._spec, register_s=limit_s)
        # replace the specification of an earlier attempt that was killed
        self._store.want_vms(self._spec)
        self._group.start()
        return self._engine

    @property
    def reserve_s(self) -> float:
        """Time for which the budget's reserve pays for all VMs."""
        return self._config.reserved_s(self.drain_s)

    @property
    def vms(self) -> tuple[Intent, ...]:
        """Every VM that the job has requested, as of the last check."""
        return self._group.intents

    @property
    def workers_elsewhere(self) -> float:
        """Number of workers in another zone than the aggregators; see `policy.provisioning.zones`."""
        return workers_elsewhere(self.vms, self._agents.processes(), met_in=self._inputs.met_in)

    def traffic_usd(self, weights_bytes: float) -> float:
        """Cost of what one of these workers sends and gets in a step; 0 if the price is unknown."""
        price = self._inputs.traffic_price
        return 0.0 if price is None else traffic_gib(1, 1, weights_bytes) * price.usd_per_gib

    # ---- about once a second -------------------------------------------------------------------------------

    def tick(self, step: int = 0, weights_bytes: float = 0.0) -> None:
        """Read the state of the VMs, and update which are wanted.

        Args:
            step: Number of the job's last step.

        Raises:
            LimitReachedError: If the budget is used up except for its reserve.
            CredentialsError, QuotaError, TransientError: If no VM can be launched and the job has none.
        """
        now = self._clock()
        if self._engine is None:
            return
        needs = self._engine.needs()
        if now - self._looked_at < LOOK_S and needs == self._needs:
            return
        self._needs = needs
        try:
            with self._store.hurried():
                self._look(self._engine, now)
                self._count(step, weights_bytes)
        except (errors.StoreBusyError, errors.StoreReadOnlyError, errors.StoreUnavailableError):
            # the job's recorder reports outages of the store and limits them; the next check catches up
            self._looked_at = now
            self._notes.show_alarms(self._agent_server.alarms())

    def _look(self, engine: HostEngine, now: float) -> None:
        assert self._boots is not None
        drained = () if self._kept is None else self._kept.drained()
        for one in self.vms:
            if drained and one.state == "UP" and one.is_on(drained):
                self._agent_server.give_notice(one.id, DRAINED_S, "its machine is drained")
        self._agents.look(now, engine.placed)
        self.meter.look(self._group.read())
        self._looked_at = now
        self._agents.admit(self.vms, self._plan.types)
        self._group.attend(now)
        self._notes.show_alarms(self._agent_server.alarms())
        self._notes.show_fallbacks(self.vms)
        here = (self._provider.name, self._provider.region)
        shortages = dict(self._store.shortages(self._inputs.spec.job_id, *here))
        self._notes.show_shortages(shortages, in_words(self._inputs.wait_max_s))
        seen = self._seen(engine, now, self._notes.sold_out_s(shortages, now))
        self._boots.look(self.vms, seen.agents, len(slots_of(self._inputs, self._plan)), now)
        if (failure := self._boots.failure) is not None:
            shortages["boot"] = failure_line(failure)
        self._act_on(read_shortage(self._inputs, self._plan, seen, shortages), engine)
        self._plan = plan_fleet(self._inputs, self._plan, self._seen(engine, now))
        engine.retire(given_up(self._inputs, self._plan, self.vms))
        slots = slots_of(self._inputs, self._plan, one_first=self._boots.one_first)
        self._want(slots, tuple(sorted(engine.avoided)), drained)

    def _count(self, step: int, weights_bytes: float) -> None:
        """Meter what the job pays for besides its VMs; steps that are done again after a failure count again."""
        steps = 0 if self._counted_step is None else max(0, step - self._counted_step)
        self._counted_step = step
        workers, price = self.workers_elsewhere, self._inputs.traffic_price
        if steps and workers and price is not None:
            traffic, gib = self.meter.items["traffic"], traffic_gib(steps, workers, weights_bytes)
            basis = f"${price.usd_per_gib:.6g} per GiB ({price})"
            traffic.note(traffic.attempt + LedgerEntry(gib, gib * price.usd_per_gib, basis))
        self._count_leader()
        for meter in self.meter.items.values():
            meter.record()

    def _count_leader(self) -> None:
        if self._leader is not None and "leader" in self.meter.items:
            self.meter.items["leader"].note_total(self._leader.used(self._utc_s()))

    def _seen(self, engine: HostEngine, now: float, sold_out_s: float = 0.0) -> FleetSeen:
        needs = engine.needs()
        return FleetSeen(
            intents=self.vms,
            agents=self._agents.seen(now, avoided=engine.avoided, released=engine.released),
            workers=needs.workers,
            aggregators=needs.aggregators,
            waiting={offer.vm: engine.waiting(offer.vm) for offer in self._inputs.offers},
            sold_out_s=sold_out_s,
            in_doubt=self._agent_server.in_doubt,
        )

    def _act_on(self, verdict: Shortage | Refusal | None, engine: HostEngine) -> None:
        match verdict:
            case Shortage("budget", reason):
                raise errors.LimitReachedError(
                    f"stopped at ${self.meter.spent_usd():.4f}: {reason}", limit="budget"
                )
            case Shortage("boot", reason) if self._boots is not None and self._boots.failure is not None:
                raise self._boots.error(self._boots.failure)
            case Shortage("sold_out", reason):
                raise errors.TransientError(
                    f"no VM was to be had for {in_words(self._inputs.wait_max_s)}: {reason}"
                )
            case Shortage("no_quota", reason):
                raise errors.QuotaError(reason, quota=reason, region=self._spec.region)
            case Shortage(kind, reason):
                raise _ERRORS[kind](reason)
            case Refusal(workers, reason):
                for vm, count in workers.items():
                    engine.refuse_waiting(vm, count, reason)

    def _want(self, slots: tuple[VmSlot, ...], avoided: tuple[str, ...], drained: tuple[str, ...]) -> None:
        """Record which VMs are wanted, and where none should or may be, if that has changed."""
        if self._wanted == (slots, self.drain_s, avoided, drained):
            return
        template = replace(self._spec.template, avoided=avoided, drained=drained)
        spec = replace(self._spec, slots=slots, drain_s=self.drain_s, template=template)
        if self._kept is None:
            self._group.want(spec)
        else:
            self._wanted = None
            if self._exchange(self._kept, spec).waiting:
                return  # it is to be asked again
        self._wanted = (slots, self.drain_s, avoided, drained)
        self._group.wake()

    def _exchange(self, kept: FleetKeeping, spec: FleetSpec) -> VmTransfer:
        """As `want_vms`, but VMs go over to what keeps them, and come from it."""
        done = self._exchanged(kept, spec)
        if done.taken:
            self._agents.admit(self._group.read(), self._plan.types)
            kept.send(done.taken)
            self._notes.inform(f"taken over from another job: {plural(len(done.taken), 'VM')}")
        return done

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, *, limit_s: float | None = None) -> None:
        """End every VM of the job and wait until all are gone. Idempotent; may be called again after a failure.

        Args:
            limit_s: Longest wait, seconds; None to wait as long as an unanswered launch may take to be listed.

        Raises:
            CleanupError: If VMs may be left; the message has a line for each.
        """
        if self._is_clean:
            return
        self._denied_at = math.inf
        if self._boots is not None:
            self._boots.stop()
        self._record_items()
        self._leave_vms()
        self._agent_server.close()  # agents that receive this power off their VMs
        left = self._group.await_end(
            self._inputs.spec, within_s=limit_s, between=self._check_access, clock=self._clock
        )
        if left:
            raise errors.CleanupError(
                f"VMs of this job may be left: {left}; they end themselves within "
                f"{self._config.vm.life_s / 60:.0f} minutes, `scavenger gc` ends them now"
            )
        self._remove_leftovers()
        self._group.stop()
        self._record_items()
        with contextlib.suppress(errors.ScavengerError):
            self._group.read()
        self.meter.look(self.vms, final=True)
        self._is_clean = True

    def _record_items(self) -> None:
        self._count_leader()
        for meter in self.meter.items.values():
            with contextlib.suppress(errors.ScavengerError):
                meter.record(at_once=True)

    def _exchanged(self, kept: FleetKeeping, spec: FleetSpec) -> VmTransfer:
        avoided = frozenset[str]() if self._engine is None else self._engine.avoided
        spent_usd = self.meter.spent_usd()
        return kept.exchange(spec, self.vms, self._agents, avoided=avoided, spent_usd=spent_usd)

    def _leave_vms(self) -> None:
        """Let the study or pool keep the VMs that are sound; the others end."""
        if self._kept is None or self._engine is None:
            return
        try:
            self._group.read()
            self._agents.look(self._clock(), self._engine.placed)
            self._exchanged(self._kept, nothing_of(self._inputs.spec))
        except errors.ScavengerError as error:
            self._notes.note(f"the VMs end, and are not kept for the next job: {error}")
        self._agent_server.await_moves(_MOVED_S)

    def _check_access(self) -> None:
        """Warn if the cloud refuses to show or end VMs, and give up after a while.

        Raises:
            CleanupError: If it still does.
        """
        self._notes.show_alarms(())
        self._tell_unanswered()
        denied, now = self._group.denied, self._clock()
        if not denied:
            self._denied_at = math.inf
            return
        if self._denied_at == math.inf:
            self._denied_at = now
            self._notes.note(
                f"VMs cannot be seen or ended, valid credentials are waited for, {DENIED_S:g} s: {denied}"
            )
        if now - self._denied_at > DENIED_S:
            raise errors.CleanupError(
                f"VMs of this job may be left, as the cloud refuses these credentials: {denied}. They end themselves, "
                f"those that still had contact at once, the others within {self._config.vm.life_s / 60:.0f} minutes; "
                f"with valid credentials, `scavenger gc` ends them and checks that nothing is left: "
                f"{self._group.living}"
            )

    def _tell_unanswered(self) -> None:
        """Say once what is waited for where it is not known whether launches made VMs."""
        count = sum(one.state == "DELETING" and not one.instance_id for one in self._group.intents)
        if count and not self._told_unanswered:
            self._told_unanswered = True
            self._notes.note(
                f"{count} of its launches got no answer, and may have made VMs: that shows within "
                f"{math.ceil(self._config.settle_s / 60)} minutes, and is waited for"
            )

    def _remove_leftovers(self) -> None:
        """Remove the shared resources of the VMs, unless another job needs them."""
        try:
            self._group.remove_shared()
        except errors.ScavengerError as error:
            here = f"{self._provider.name}/{self._provider.region}"
            self._notes.note(f"shared resources of VMs may be left in {here}: {error}")


def new_boot_key() -> bytes:
    """Generate a random boot key, see `FleetSpec.boot_key`."""
    return secrets.token_bytes(32)
