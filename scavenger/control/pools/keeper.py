"""The VMs that a pool keeps between its jobs, of which its server is the owner while they wait.

They are on record as a job is, so they are found, charged, renewed and ended as those of any job, and what they cost
while they wait is that record's bill. Jobs leave VMs in its seats and take them by the store
(`control/provisioning/kept_by_pool.py`); the server follows: it expects who comes, tells who has gone where to join,
and ends those that nobody needs. If it dies, they end themselves within minutes, and so does any other process end
them: the next server, or a job in the region.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from scavenger.cloud.base import Provider
from scavenger.control.places.launching import address_of
from scavenger.control.pools.rented import KEEPER_NAME, keepers_of
from scavenger.control.provisioning.joining import endpoint_of
from scavenger.control.provisioning.kept_by_pool import seat_name
from scavenger.control.provisioning.kept_place import LOOK_S, Region, WarmPool
from scavenger.control.provisioning.ports import provisioning_of
from scavenger.control.provisioning.providers import open_provider, open_verifier
from scavenger.control.settings import settings_of
from scavenger.domain.infra import Infra
from scavenger.domain.intent import Intent, RegionSnapshot
from scavenger.domain.pool import Pool, PoolVms
from scavenger.errors import ScavengerError, StoreBusyError
from scavenger.logs import Repeated
from scavenger.policy.provisioning.keeping import KeptVm, to_end
from scavenger.scheduler.jobs.renting import Renting, idle_ended
from scavenger.store import Store
from scavenger.store.operations import VMS_OF

_SEATS_MAX = 64
"""So many VMs may come at a time."""
_PARTS_MAX = 500
"""A record of so many VMs is followed by another one as soon as none waits: it is read every second."""
_REAP_S = 5.0

logger = logging.getLogger(__name__)


class PoolKeeper:
    """Keeps the VMs of one pool, once its jobs rent some.

    Args:
        pool: It rents its VMs.
        open_region: Opens where they are; None by its settings.
        clock: Monotonic seconds.

    Attributes:
        renting: How many VMs there shall be, and may be, as last decided; None before.
        idle_s: How long a VM waits.
    """

    def __init__(
        self,
        store: Store,
        pool: Pool,
        *,
        open_region: Callable[[Store, PoolVms], Region] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert pool.vms is not None
        self._store, self._pool, self._vms, self._clock = store, pool, pool.vms, clock
        self._open_region = region_of if open_region is None else open_region
        infra = Infra.parse(pool.vms.infra)
        self._here = infra.provider, infra.region
        self.renting: Renting | None = None
        self.idle_s = 0.0 if pool.vms.idle_s is None else pool.vms.idle_s
        self._place: WarmPool | None = None
        self._seats: set[int] = set()
        self._last_seat = 0
        self._since: dict[str, float] = {}
        self._reaped_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"scavenger-pool-{pool.name}", daemon=True)

    def start(self) -> None:
        """Keep VMs from now on."""
        self._thread.start()

    def close(self) -> None:
        """End all VMs that wait, and wait until they are gone. Idempotent."""
        self._stopping.set()
        if self._thread.ident:
            self._thread.join()
        self._end_record()

    # ---- about once a second -------------------------------------------------------------------------------

    def _run(self) -> None:
        problem = Repeated(logger)
        while not self._stopping.wait(LOOK_S):
            try:
                self.look(self._clock())
                problem.over()
            except StoreBusyError:
                continue
            except ScavengerError as error:
                problem.warn(f"pool {self._pool.name} keeps no VMs: {error}")
            except Exception:  # whoever ends VMs must not end before them
                logger.exception("internal fault")

    def look(self, now: float) -> None:
        """See who has come and gone, and end what nobody needs.

        Raises:
            ScavengerError: The store or the cloud cannot be used.
        """
        if now - self._reaped_at >= _REAP_S:
            self._reaped_at = now
            self._store.reap_dead_jobs()
        situation = self._store.situation(*self._here)
        place = self._place
        if place is None:
            if not self._is_needed(situation):
                return
            place = self._place = self._opened()
        self._send_on(place, situation)
        place.read()
        for one in self._waiting(place.job_id, situation.intents):
            if one.id not in self._since:
                self._since[one.id] = now
                place.agents.arrives(one.id, seat_name(one.slot))
        place.attend(now)
        for text in place.server.alarms():
            logger.warning("pool %s: %s", self._pool.name, text)
        self._settle(place, situation, self._ending(place, situation, now))
        place.server.await_moves(0.0)
        place.keep_record(now)
        if not self._since and len(place.intents) > _PARTS_MAX:
            self._end_record()

    def _is_needed(self, situation: RegionSnapshot) -> bool:
        """Whether jobs of the pool want VMs, or an earlier server has left some."""
        if any(fleet.pool == self._pool.name for fleet in situation.fleets):
            return True
        return bool(self._store.vms_of_pool(self._pool.name, *self._here))

    def _opened(self) -> WarmPool:
        name = self._pool.name
        region = self._open_region(self._store, self._vms)
        return WarmPool(
            KEEPER_NAME, {VMS_OF: name}, f"VMs of pool {name} between its jobs", region, pool=name
        )

    def _send_on(self, place: WarmPool, situation: RegionSnapshot) -> None:
        """Tell the agents of VMs that have gone to a job where to join it."""
        living = {one.id: one for one in situation.intents}
        fleets = {fleet.job_id: fleet for fleet in situation.fleets}
        for id in list(self._since):
            one = living.get(id)
            if one is not None and one.job_id == place.job_id and one.state == "UP":
                continue
            del self._since[id]
            name = place.agents.names.pop(id)
            fleet = None if one is None or one.job_id == place.job_id else fleets.get(one.job_id)
            end = None if fleet is None else endpoint_of(fleet)
            if end is None:
                place.server.gone(name, "its VM has ended")
            else:
                logger.info(
                    "pool %s: VM %s goes to job %s", self._pool.name, id[:8], fleet and fleet.job_id[:8]
                )
                place.server.move(name, end.order(id))

    def _ending(self, place: WarmPool, situation: RegionSnapshot, now: float) -> Mapping[str, str]:
        """Why VMs that wait end now, by their ids."""
        seen, renting = self._seen(place, situation, now), self.renting
        ending = to_end(seen, float("inf")) | self._drained(place, situation)
        idle = sorted((vm.id for vm in seen if vm.id not in ending), key=lambda id: self._since[id])
        if renting is None:
            return ending
        over = sum(now - self._since[id] >= self.idle_s for id in idle)
        used, vacant = self._of_jobs(situation)
        lacking = vacant - (renting.most - used - len(idle))
        count = idle_ended(len(idle), over, used + len(idle), renting, lacking)
        return ending | dict.fromkeys(idle[:count], "no job has taken it")

    def _drained(self, place: WarmPool, situation: RegionSnapshot) -> dict[str, str]:
        last = self._store.allotment(self._pool.name) if self._since else None
        drained = () if last is None else last.drained
        waiting = self._waiting(place.job_id, situation.intents)
        return {one.id: "its machine is drained" for one in waiting if one.is_on(drained)}

    def _waiting(self, job_id: str, intents: Iterable[Intent]) -> list[Intent]:
        """The VMs that wait in seats; what is to end has none, and is there for some seconds."""
        seats = self._seats
        return [one for one in intents if one.job_id == job_id and one.state == "UP" and one.slot in seats]

    def _of_jobs(self, situation: RegionSnapshot) -> tuple[int, int]:
        """VMs that the pool's jobs have and want, and those that they want and have not."""
        filled = {(one.job_id, one.slot) for one in situation.intents if one.state in ("PLAN", "UP")}
        wanted = {
            (fleet.job_id, slot.number)
            for fleet in situation.fleets
            if fleet.pool == self._pool.name and fleet.launches
            for slot in fleet.slots
        }
        return len(wanted & filled), len(wanted - filled)

    def _seen(self, place: WarmPool, situation: RegionSnapshot, now: float) -> list[KeptVm]:
        agents = {vm.spec.intent: vm for vm in place.server.vms()}
        found = []
        for one in self._waiting(place.job_id, situation.intents):
            id, since = one.id, self._since[one.id]
            agent = agents.get(place.agents.names[id])
            found.append(
                KeptVm(
                    id,
                    one.option.key,
                    (),
                    one.request.template.run_max_s,
                    now - since,
                    joined=agent is not None and agent.joined and one.acks > 0,
                    silent_s=0.0 if agent is None else agent.heard_s_ago,
                    is_ending=agent is not None and agent.preemption is not None,
                )
            )
        return found

    def _settle(self, place: WarmPool, situation: RegionSnapshot, ending: Mapping[str, str]) -> None:
        """Keep the others, with as many seats as VMs that may come."""
        used, renting = self._of_jobs(situation)[0], self.renting
        there = used + len(self._since) - len(ending)
        full = renting is None or there > renting.most or (self.idle_s <= 0.0 and there > renting.wanted)
        room = 0 if full else min(_SEATS_MAX, used)
        had = {one.slot for one in place.intents}
        vacant = sorted(seat for seat in self._seats if seat not in had)
        waiting = {one.slot for one in self._waiting(place.job_id, situation.intents)}
        if not ending and len(vacant) == room and self._seats == {*vacant, *waiting}:
            return
        fresh = range(self._last_seat + 1, self._last_seat + 1 + max(0, room - len(vacant)))
        for seat in fresh:
            place.server.expect(seat_name(seat), role="worker", vm=self._vms.vm, threads=1)
        self._last_seat += len(fresh)
        with self._store.together():  # who has come meanwhile stays, and who has gone is a job's
            here = self._waiting(place.job_id, place.read())
            stay = {one.slot for one in here if one.id not in ending}
            seats = {*vacant[:room], *fresh, *stay}
            place.want(place.spec(sorted(seats)))
        self._seats = seats
        for seat in set(vacant) - seats:
            place.server.gone(seat_name(seat), "it is not needed any more")
        for id in ending.keys() & {one.id for one in here}:
            why = ending[id]
            logger.info("pool %s: VM %s ends: %s", self._pool.name, id[:8], why)
            place.server.gone(place.agents.names.pop(id), why)
            del self._since[id]

    def _end_record(self) -> None:
        place, self._place = self._place, None
        if place is None:
            return
        place.server.close()  # agents that receive this power off their VMs
        before: list[str] = []
        with suppress(ScavengerError):  # else the next process ends what an earlier server has left
            living = {one.job_id for one in self._store.vms_of_pool(self._pool.name, *self._here)}
            before = [one.id for one in keepers_of(self._store, self._pool) if one.id in living and one.ended]
        place.end_record(place.spec(()), before=before, clock=self._clock)
        self._since, self._seats = {}, set()


def region_of(store: Store, vms: PoolVms, environment: Mapping[str, str] = os.environ) -> Region:
    """Where a pool's VMs are, by the settings of its server.

    Raises:
        ScavengerError: The cloud cannot be used, or VMs cannot reach this machine.
    """
    infra = Infra.parse(vms.infra)
    settings = settings_of(infra, environment)
    provider: Provider = open_provider(infra.provider, infra.region, environment, settings)
    address, port = address_of(environment)
    verifier = open_verifier(infra, settings, environment)
    return Region(store, provider, verifier, provisioning_of(provider), address, port)


class PoolKeepers:
    """The keepers of a server's pools that rent their VMs; none of others."""

    def __init__(self, store: Store, pools: Mapping[str, Pool]) -> None:
        self._store, self._pools = store, {name: one for name, one in pools.items() if one.vms is not None}
        self._keepers: dict[str, PoolKeeper] = {}

    def start(self) -> None:
        """Keep VMs from now on."""
        self._keepers = {name: PoolKeeper(self._store, pool) for name, pool in self._pools.items()}
        for keeper in self._keepers.values():
            keeper.start()

    def told(self, name: str, renting: Renting, idle_s: float) -> None:
        """Note how many VMs of a pool there shall be."""
        if (keeper := self._keepers.get(name)) is not None:
            keeper.renting, keeper.idle_s = renting, idle_s

    def close(self) -> None:
        """End all VMs that wait. Idempotent."""
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers = {}
