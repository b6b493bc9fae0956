"""A job's seat in its pool: how many workers it may have, and how it stands, for the server of the pool.

The pool counts slots; here alone these become workers, of which a slot that is a VM has one for each GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from scavenger.control.jobs.workflow import JobWorkflow
from scavenger.control.training.operations import NOT_YET, OperationHandler
from scavenger.domain.configuration import Configuration
from scavenger.domain.infra import Infra
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.pool import JobStanding, PoolShare, PoolVms, RatePoint, slots_for, workers_of
from scavenger.errors import NotSupportedError
from scavenger.policy.batch import batch_rule

_CURVE_S = 5.0
"""How often a job's curve is predicted anew."""


class PoolSeat:
    """The seat of one run of a job.

    Args:
        pool: What decides on its size, for users: `pool gpu`, or `study rates`.
        share: What the job was begun with.
        vms: What is rented for it; None where it is this machine.
        per_slot: Workers on each of its slots.
        token: Of the lease of its runner.
        before: How the job stood by its earlier runners; None if it never did.
        changed: Set when the standing says something else than a moment ago; None for an event of its own.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        pool: str,
        share: PoolShare,
        *,
        vms: PoolVms | None = None,
        per_slot: int = 1,
        token: int = 0,
        before: JobStanding | None = None,
        changed: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool, self.share, self.per_slot, self._vms = pool, share, per_slot, vms
        self.changed = threading.Event() if changed is None else changed
        self._clock = clock
        self._began_at = self._counted_at = clock()
        self._attained_slot_s = 0.0 if before is None else before.attained_slot_s
        self._curve_at, self._looked_at = float("-inf"), clock()
        known = dict[str, tuple[RatePoint, ...]]()
        if before is not None and share.vm:
            known = {**before.others, **({before.vm: before.curve} if before.vm and before.curve else {})}
        own = known.pop(share.vm, ())
        self._now = JobStanding(
            token, "starting", share.told, share.since, curve=own, vm=share.vm, others=known
        )

    # ---- what the job may have -----------------------------------------------------------------------------

    def within(self, job: JobSpec) -> JobSpec:
        """The job as it runs with this share: it searches up to it, and no policy of its own changes its size.

        It searches as many workers as slots can give it. One whose file names a single number searches none, and begins
        with all that it may have.

        Raises:
            NotSupportedError: If its workers have several processes: a slot is for one.
        """
        if job.elastic.processes > 1:
            raise NotSupportedError(
                f"elastic.processes: {job.elastic.processes}: {self.pool} gives out slots for workers of one process; "
                "leave it out, or run the job without a pool",
                key="elastic.processes",
            )
        low, high = job.elastic_range
        told, per_slot = workers_of(self.share.told, self.per_slot, high), self.per_slot
        sizes = {workers_of(slots_for(count, per_slot), per_slot, high) for count in job.worker_counts}
        counts = tuple(sorted(count for count in sizes if count <= told))
        if not counts or len(job.worker_counts) == 1:
            counts = (told,)
        search = job.search.model_copy(update={"workers": counts})
        place: dict[str, object] = {}
        if (vms := self._vms) is not None:
            place = {
                "infra": Infra.parse(vms.infra),
                "resources": ResourcesSpec(
                    vm=vms.vm or self.share.vm, disk=job.resources.disk if job.resources else None
                ),
                "spot": "always" if vms.spot else "never",
            }
        rents = self._vms is not None or job.infra.capabilities.rents
        elastic = job.elastic.model_copy(
            update={
                "min": min(low, told),
                "max": max(high, told),
                "policy": "fixed",
                "straggler": "none",
                **({"aggregator_vms": 1} if rents else {}),
            }
        )
        return job.model_copy(update={"search": search, "elastic": elastic, **place})

    def fitted(self, chosen: Configuration, job: JobSpec) -> Configuration:
        """The configuration that an earlier run has chosen, with the workers of this share."""
        elastic, (_, elastic_max) = job.elastic, job.elastic_range
        rule = batch_rule(elastic.batch, batch_max=elastic.batch_max or job.batch_sizes[-1])
        workers = workers_of(self.share.told, self.per_slot, elastic_max)
        batch = max(workers, rule.global_batch_size(workers, chosen))
        there = {} if self._vms is None else {"vm": self._vms.vm or self.share.vm}
        return replace(chosen, workers=workers, global_batch_size=batch, **there)

    # ---- how it stands -------------------------------------------------------------------------------------

    def look(
        self, workflow: JobWorkflow, operations: OperationHandler, *, pausing: bool, vms: int = 0
    ) -> None:
        """Look how the job stands, about once a second, on the training thread.

        Args:
            vms: Rented VMs of its workers, those that end still among them.
        """
        self._looked_at = self._clock()
        trainer, before = workflow.trainer, self._now
        if before.start_s is None and trainer.configuration is not None:
            before = replace(before, start_s=self._clock() - self._began_at)
        size = slots_for(trainer.wanted, self.per_slot)
        held = max(size, vms, slots_for(sum(trainer.supervisor.existing.values()), self.per_slot))
        now = replace(before, held=held, size=size, obeyed=operations.obeyed, refusing=operations.refusing)
        if pausing:
            now = replace(now, state="pausing")
        elif trainer.configuration is None:
            now = replace(now, state="starting")
        elif operations.refusing:
            searches = operations.refusing == NOT_YET
            now = replace(now, state="searching" if searches else "ending")
        else:
            now = replace(now, state="changing" if operations.waiting else "training")
        told = (before.state, before.held, before.size, before.obeyed, before.refusing)
        differs = told != (now.state, now.held, now.size, now.obeyed, now.refusing)
        if differs or self._clock() - self._curve_at > _CURVE_S:
            self._curve_at = self._clock()
            here = trainer.configuration
            other = (
                None if here is None else replace(here, workers=here.workers + 1)
            )  # of as many workers as it may be
            stall = None if other is None else trainer.stall(other)
            now = replace(
                now,
                rate=workflow.rate,
                left=workflow.left(),
                curve=workflow.rates() or now.curve,
                change_s=None if stall is None else stall.median_s,
                worker_s=trainer.setup_s or None,
            )
        self._now = now
        if differs:
            self.changed.set()

    @property
    def idle_s(self) -> float:
        """Seconds since the training thread has last looked how the job stands; 0 while it has something else to do."""
        return self._clock() - self._looked_at if self._now.state in ("training", "changing") else 0.0

    def pausing(self) -> None:
        """Say that the job saves, and gives all its slots back."""
        self._now = replace(self._now, state="pausing")
        self.changed.set()

    def standing(self) -> JobStanding:
        """How the job stands, for one other thread; what it has attained is counted up to this moment."""
        now, at = self._now, self._clock()
        slots = now.held if now.state in ("training", "changing") else max(now.held, self.share.told)
        self._attained_slot_s += slots * (at - self._counted_at)
        self._counted_at = at
        return replace(now, attained_slot_s=self._attained_slot_s, ran_s=at - self._began_at)
