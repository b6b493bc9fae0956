"""An allocation of VMs: the fleet of a job, and what the job pays for besides its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from scavenger.cloud.local import LocalCloud
from scavenger.control.places.needs import Kind
from scavenger.control.places.offers import CatalogCloud, ChangeCosts, Offered
from scavenger.control.places.place import Allocation, JobContext, Steps
from scavenger.control.places.pool import report_use
from scavenger.control.provisioning.fleet import Fleet
from scavenger.control.provisioning.model_size import largest_share
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.item_meter import ItemMeter
from scavenger.control.training.limits import weights_bytes
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms, VmExtras
from scavenger.domain.job import JobSpec
from scavenger.models.aggregation import AggregatorVms, loop_leader_lack, optimizer_copies
from scavenger.policy.provisioning.slots import is_for_aggregators
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.values import Manifest

DRAIN_MARGIN = 2.0
"""Factor on the time to save at the speed of a slow disk, since VMs send the model over the network."""


@dataclass(frozen=True, slots=True)
class RentalCosts:
    """What a job on VMs pays for besides its workers' time.

    Attributes:
        aggregator: The offer for an aggregator VM.
        aggregators: Number of the job's aggregators.
        aggregator_vms: Number of VMs that are rented for them.
        beside: Whether all but the first are beside the workers.
        pushed: See `AggregatorVms`.
        leader_usd_per_hour: Price of the VM on which this process leads the job; 0 if it does so elsewhere.
    """

    cloud: CatalogCloud
    offered: Offered
    aggregator: Offer
    aggregators: int
    aggregator_vms: int
    leader_usd_per_hour: float
    beside: bool = False
    pushed: float = 1.0

    def extras(self, *, spot: bool = False) -> VmExtras:
        """What a VM has beside its type, on demand or spot."""
        return self.cloud.extras(self.offered.disk_gib, spot=spot)

    def planned_terms(self, aggregator_vms: int) -> CostTerms:
        """Costs besides the workers with so many aggregator VMs, before anything is rented."""
        terms = self._terms(ChangeCosts().replace_s)
        return replace(terms, shared=replace(terms.shared, aggregators=aggregator_vms))

    def terms(self, trainer: Trainer) -> CostTerms:
        """Costs besides the workers, as far as known."""
        offers = self.offered.offers
        ready = {offer.vm: -(-trainer.ready_on(offer.vm) // offer.workers_per_vm) for offer in offers}
        return self._terms(trainer.setup_s or ChangeCosts().replace_s, ready)

    def _terms(self, setup_s: float, ready: Mapping[str, int] | None = None) -> CostTerms:
        terms = self.cloud.terms(self.offered, setup_s=setup_s, ready=ready)
        return replace(terms, shared=replace(terms.shared, usd_per_leader_hour=self.leader_usd_per_hour))

    def of_model(self, manifest: Manifest) -> AggregatorVms:
        """The aggregator VMs with a model; the one with most of it is taken to have the largest shares."""
        offer, vms, layout = self.aggregator, self.aggregator_vms, Layout.of(manifest, self.aggregators)
        return AggregatorVms(
            vms=vms,
            vm=offer.vm,
            vm_bytes=offer.memory_bytes,
            weights_bytes=layout.weights_bytes,
            copies=optimizer_copies(manifest.optimizer),
            largest_share=largest_share(layout, vms),
            # beside the workers, no VM's network is in the way of the others'
            vm_bytes_per_s=None if self.beside else self.cloud.network_bytes_per_s(offer.vm),
            usd_per_hour=offer.price_usd_per_hour + self.extras().usd_per_hour,
            pushed=self.pushed,
        )


class VmAllocation(Allocation):
    """A fleet of VMs; see `Allocation`.

    Args:
        lodgings: The job's aggregators in a pool; None if they are on VMs of its own.

    Attributes:
        at_end: Called once the VMs have ended.
    """

    def __init__(
        self,
        job: JobSpec,
        kind: Kind,
        space: SearchSpace,
        fleet: Fleet,
        costs: RentalCosts,
        context: JobContext,
        lodgings: Lodgings | None = None,
    ) -> None:
        share = None if lodgings is None else ItemMeter(context.store, context.record.id, "share")
        super().__init__(space, fleet.engine, share=share, sequencer_apart=lodgings is not None)
        self._lodgings = lodgings
        self._workers_max = job.worker_counts[-1]
        self._fleet, self._costs, self._warn = fleet, costs, context.warn
        if share is not None:
            fleet.meter.items["share"] = share
        self._memory_known = not kind.meets_at_leader
        self.at_end: Callable[[], None] = lambda: None

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        return self._fleet.meter

    @property
    def vms(self) -> int:
        return sum(one.state != "GONE" for one in self._fleet.vms)

    @property
    def worker_vms(self) -> int:
        return sum(one.state != "GONE" and not is_for_aggregators(one.slot) for one in self._fleet.vms)

    def terms(self, trainer: Trainer) -> CostTerms | None:
        manifest = trainer.supervisor.manifest
        weights = 0 if manifest is None else weights_bytes(manifest)
        return replace(
            self._costs.terms(trainer),
            reserve_s=self._fleet.reserve_s,
            elsewhere=self._fleet.workers_elsewhere,
            traffic_usd_per_step=self._fleet.traffic_usd(weights),
            aggregation_usd_per_step=None if self.share is None else self.share.usd_per_step(trainer.step),
        )

    def aggregator_vms(self, trainer: Trainer) -> AggregatorVms | None:
        manifest = trainer.supervisor.manifest
        rents = self._costs.aggregator_vms > 0
        return self._costs.of_model(manifest) if manifest is not None and rents else None

    def tick(
        self, drain_s: float = 0.0, *, step: int = 0, model_bytes: float = 0.0, steps: Steps = ()
    ) -> None:
        fleet = self._fleet
        self._look_at_memory(model_bytes)
        if (needed_s := DRAIN_MARGIN * drain_s) > 1.2 * fleet.drain_s:
            fleet.drain_s = needed_s
        if self.share is not None and self._lodgings is not None:
            report_use(self._lodgings, self.share, steps, model_bytes)
        fleet.tick(step, model_bytes)

    def _look_at_memory(self, state_bytes: float) -> None:
        """Warn once if the memory of this machine may not do for the workers of a loop, which meet here."""
        if self._memory_known or not state_bytes:
            return
        self._memory_known = True
        memory_bytes = LocalCloud().capacity()[1]
        if lack := loop_leader_lack(state_bytes, self._workers_max, memory_bytes=memory_bytes):
            self._warn(lack)

    def close(self) -> None:
        with ExitStack() as ending:  # whatever fails, the VMs end
            ending.callback(self.at_end)
            ending.callback(self._fleet.close)
