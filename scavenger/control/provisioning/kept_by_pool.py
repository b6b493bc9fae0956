"""A job's side of the VMs that its pool keeps between jobs: by the store, since each job has a process of its own.

The pool's server keeps them (`control/pools/keeper.py`), on record as a job is. Its spec has a slot, a *seat*, for each
VM that waits and for each that may come. A job that gives a VM back has it go over to a vacant seat, and one that lacks
a VM takes one that waits, in one transaction with what the job wants; so each VM is one record's at any time, whose
process has it renewed and ended. The agent is told afterwards, by whoever it is connected to: of a VM that was left by
the job, of one that was taken by the server, which sees in the store where it has gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from scavenger.control.provisioning.joining import Endpoint, endpoint_of, made_as
from scavenger.control.provisioning.kept_place import DRAIN_S, Region
from scavenger.control.provisioning.kept_vms import VmTransfer
from scavenger.domain.intent import FleetSpec, Handover, Intent, VmSlot
from scavenger.policy.provisioning.keeping import KeptVm, OpenSlot, TrialWants, to_take
from scavenger.policy.provisioning.money import reserve_usd
from scavenger.store import Store
from scavenger.store.owner import is_owner_alive


def seat_name(slot: int) -> str:
    """The name by which a VM joins what keeps it, by its seat, which no other VM ever has."""
    return f"seat-{slot}"


class KeptByPool:
    """See `fleet_keeping.Keeper`, which this is.

    Args:
        pool, vms_max: Name of the pool, and VMs that all its jobs may have.
        user: Whose job it is. It takes VMs that jobs of this user alone have had: what the code of another has done to
            a VM, on which it is root, nobody can undo.
    """

    def __init__(self, pool: str, vms_max: int, user: str) -> None:
        self.pool, self._user = (pool, vms_max), user

    def drained(self, store: Store) -> tuple[str, ...]:
        """See `Keeper.drained`."""
        last = store.allotment(self.pool[0])
        return () if last is None else last.drained

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
        store, config = region.store, region.config
        with store.together():
            keeper = self._keeper(region) if leaving or vacant else None
            if keeper is None or (end := endpoint_of(keeper)) is None:
                store.want_vms(spec)
                return VmTransfer({}, ())
            past = store.intents(keeper.job_id)
            waiting = {one.id: one for one in past if one.state == "UP"}
            open_slots = [OpenSlot(one.number, tuple(option.key for option in one.options)) for one in vacant]
            chosen = to_take(self._seen(store, waiting, spec), wants, open_slots) if vacant else {}
            taken = {slot: id for slot, id in chosen.items() if waiting[id].acks}
            slots = tuple(one for one in spec.slots if one.number not in chosen or one.number in taken)
            used = {one.slot for one in past}
            seats = [seat.number for seat in keeper.slots if seat.number not in used]
            left = dict(zip((one.id for one in leaving), seats, strict=False))
            rates = {one.id: one.charges.usd_per_hour for one in (*leaving, *waiting.values())}
            generations = {slot.number: slot.generation for slot in spec.slots}
            went = store.exchange_vms(
                [replace(spec, slots=slots)],
                [
                    *(
                        Handover(
                            id, spec.job_id, keeper.job_id, seat, 1, reserve_usd(rates[id], DRAIN_S, config)
                        )
                        for id, seat in left.items()
                    ),
                    *(
                        Handover(
                            id,
                            keeper.job_id,
                            spec.job_id,
                            slot,
                            spec.attempt,
                            reserve_usd(rates[id], spec.drain_s, config),
                            generations[slot],
                        )
                        for slot, id in taken.items()
                    ),
                ],
            )
        orders = {id: end.order(seat_name(seat)) for id, seat in left.items() if id in went}
        return VmTransfer(
            orders, tuple(id for id in taken.values() if id in went), waiting=len(taken) < len(chosen)
        )

    def send(self, region: Region, intents: Sequence[str], leader: Endpoint) -> None:
        """See `Keeper.send`: the server does, as soon as it sees in the store where they have gone."""
        region.store.wake_servers()

    def _keeper(self, region: Region) -> FleetSpec | None:
        """What the pool's server wants; None if no server keeps VMs of the pool."""
        store, provider = region.store, region.provider
        for fleet in store.situation(provider.name, provider.region).fleets:
            if fleet.pool == self.pool[0] and not fleet.launches:
                record = store.job(fleet.job_id)
                if is_owner_alive(record.owner, record.heartbeat_at, at=datetime.now(UTC)):
                    return fleet
        return None

    def _seen(self, store: Store, waiting: Mapping[str, Intent], spec: FleetSpec) -> list[KeptVm]:
        """The VMs that wait and that jobs of this user alone have had."""
        now, parts = datetime.now(UTC), store.parts_of([one.instance_id for one in waiting.values()])
        found = []
        for id, one in waiting.items():
            before = [part for part in parts if part.instance_id == one.instance_id and part.id != id]
            jobs = {part.job_id for part in before} - {one.job_id}
            users = {job.job.user for job in map(store.submission, jobs) if job is not None}
            # of a VM that the job itself has left in this attempt, its server knows the name as that of one gone
            again = any((part.job_id, part.attempt) == (spec.job_id, spec.attempt) for part in before)
            if users != {self._user} or again:
                continue
            began = min((part.times.created_at or now for part in (*before, one)), default=now)
            heard = one.times.last_ack_at or one.times.taken_at or now
            found.append(
                KeptVm(
                    id,
                    one.option.key,
                    made_as(one),
                    one.request.template.run_max_s - (now - began).total_seconds(),
                    waited_s=(now - (one.times.taken_at or now)).total_seconds(),
                    joined=one.acks > 0,
                    silent_s=max(0.0, (now - heard).total_seconds()),
                )
            )
        return found
