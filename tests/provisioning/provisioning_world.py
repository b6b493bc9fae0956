"""The reconciler in a hostile world of virtual time: crashes, stalls, lost and late answers, one service or two.

The code under test is the one that runs real jobs: `Reconciler.steps`, whose every call to store and cloud is made
here, or not, or twice as late. What is checked all the while, and at the end, stands in `World._made`,
`World._check_gone`, `World._look` and `World.finish`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from made_intents import made_request
from nested import built, changed
from provisioning_cloud import CALM, EPOCH, ZONES, SimulatedCloud, ViolationError, Vm, Weather
from provisioning_store import MemoryStore

from scavenger.control.provisioning.ports import Steps
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.errors import ScavengerError, StoreBusyError
from scavenger.policy.provisioning.actions import Alarm
from scavenger.policy.provisioning.config import Backoff, LookLimits, ProvisioningConfig, RetryWaits, VmLimits
from scavenger.policy.provisioning.slots import aggregator_slot

OWNER = "scavenger-me"
PRICE = 0.36
DRAIN_S = 20.0
CHAOS_S = 400.0
CALM_S = 900.0
CONFIG = ProvisioningConfig(
    visibility_s=20.0,
    remembers_s=150.0,  # of the 400 s less what two services' clocks may differ by
    lease_s=45.0,
    look=LookLimits(interval_s=10.0, actions_s=40.0, list_interval_s=20.0, vm_interval_s=20.0, call_s=15.0),
    vm=VmLimits(register_s=90.0, silence_s=60.0, life_s=240.0, quarantine_s=80.0),
    waits=RetryWaits(
        call=Backoff(5.0, 30.0),
        sold_out=Backoff(10.0, 60.0),
        died=Backoff(5.0, 60.0),
        denied=Backoff(10.0, 60.0),
    ),
)


class Service:
    """A process that looks; it may be stopped and killed between any two calls, and in the middle of one."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.alive = world, name, True
        self.clock_s = world.random.uniform(0, 1e6)
        self.wall_s = world.random.uniform(-100, 100)
        self.reconciler = world.reconciler(
            world.store,
            world.cloud,
            owner=OWNER,
            holder=name,
            renew=world.renew,
            alarm=world.alarmed,
            config=world.config,
            clock=lambda: world.now + self.clock_s,
            wall=lambda: EPOCH + timedelta(seconds=world.now + self.wall_s),
            rng=Random(world.random.random()),
        )
        world.after(world.random.uniform(0, 5), self.look)

    def look(self) -> None:
        if self.alive:
            self._advance(self.reconciler.steps(), lambda steps: next(steps))

    def _advance(self, steps: Steps[bool], move: Callable[[Steps[bool]], Callable[[], Any]]) -> None:
        world = self.world
        if not self.alive:
            steps.close()
            return
        try:
            call = move(steps)
        except StopIteration:
            world.after(CONFIG.look.interval_s, self.look)
        except ScavengerError:
            world.counts["failed looks"] += 1
            world.after(CONFIG.look.interval_s, self.look)
        else:
            world.after(world.pause(self), lambda: self._make(steps, call))

    def _make(self, steps: Steps[bool], call: Callable[[], Any]) -> None:
        world = self.world
        if not self.alive:
            steps.close()
            return
        answer: Any = None
        error: Exception | None = None
        world.delayed_s = 0.0
        try:
            if world.is_hit(0.004):
                raise StoreBusyError("held")
            answer = call()
            if world.is_hit(0.002):
                raise StoreBusyError("nobody knows")
        except ViolationError:
            raise
        except Exception as fault:  # noqa: BLE001 - handed to whoever asked
            error = fault
        world.check_cap()
        if error is None:
            world.after(world.delayed_s, lambda: self._advance(steps, lambda one: one.send(answer)))
        else:
            world.after(world.delayed_s, lambda: self._advance(steps, lambda one: one.throw(error)))


def _slots(vms: int, *, aggregators: int) -> tuple[int, ...]:
    """The slots of so many VMs: those of some aggregators, and workers'."""
    here = min(vms, aggregators)
    return (*(aggregator_slot(index) for index in range(here)), *range(1, 1 + vms - here))


class World:
    """One schedule.

    Args:
        seed: Tells it all.
        reconciler: What is simulated; a broken one, to see that it is noticed.
        fenced: See `MemoryStore`.
        idempotent: See `SimulatedCloud`.
        config: Of the services.
        store: Another store of the same contract.
    """

    def __init__(
        self,
        seed: int,
        *,
        reconciler: type[Reconciler] = Reconciler,
        fenced: bool = True,
        idempotent: bool = True,
        config: ProvisioningConfig = CONFIG,
        store: Callable[[Callable[[], datetime]], Any] = MemoryStore,
    ) -> None:
        self.random = Random(seed)
        self.reconciler, self.config = reconciler, config
        self.now = self.delayed_s = 0.0
        self.chaos = True
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.store = store(lambda: EPOCH + timedelta(seconds=self.now))
        self.store.fenced = fenced
        self.store.overtaken = self._overtaken
        self._fenced = fenced
        self.cloud = SimulatedCloud(
            self.random,
            visibility_s=CONFIG.visibility_s,
            call_limit_s=CONFIG.look.call_s,
            life_s=CONFIG.vm.life_s,
            now=lambda: self.now,
            later=self.after,
            delay=self._delay,
            made=self._made,
            ending=self._ending,
        )
        self.cloud.idempotent = idempotent
        self.cloud.weather = self._weather()
        self.slots = _slots(self.random.randint(1, 3), aggregators=1 + seed % 3)
        self.vms_max = len(self.slots) + self.random.randint(0, 2)
        need = PRICE * CONFIG.reserved_s(DRAIN_S) / 3600
        budget = need * self.random.uniform(1.0, 6.0) if self.random.random() < 0.3 else float("inf")
        self.spec = built(
            FleetSpec,
            job_id="job",
            provider=self.cloud.name,
            region=self.cloud.region,
            slots=tuple(VmSlot(slot) for slot in self.slots),
            options=tuple(
                PlacementOption(
                    "small", zone, self.random.random() < 0.7, PRICE * self.random.uniform(0.5, 1)
                )
                for zone in ZONES[: self.random.randint(1, 3)]
            ),
            vms_max=self.vms_max,
            budget_usd=budget,
            run_max_s=36_000.0,
            drain_s=DRAIN_S,
        )
        self.store.want_vms(self.spec)
        self.services = [Service(self, f"service-{n}") for n in range(self.random.choice((1, 1, 2)))]
        self._strangers()
        self.every(10.0, self._driver)
        self.every(5.0, self.cloud.tick)
        self.every(self.random.uniform(30, 200), self._mishap)

    def _weather(self) -> Weather:
        mild = Weather()
        kind = self.random.random()
        if kind < 0.3:
            return replace(mild, late=0.4, stock_out=0.4)
        if kind < 0.4:
            return replace(mild, throttled=0.3)
        if kind < 0.5:
            return replace(mild, denied=0.1, quota=0.1)
        return mild

    # ---- time ----------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, action))

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            self.after(seconds, again)
            action()

        self.after(seconds * self.random.random(), again)

    def run_until(self, end_s: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= end_s and not unless():
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = max(self.now, min(end_s, self.now if unless() else end_s))

    def _delay(self, seconds: float) -> None:
        self.delayed_s = max(self.delayed_s, seconds)

    def is_hit(self, chance: float) -> bool:
        return self.chaos and self.random.random() < chance

    def pause(self, service: Service) -> float:
        """Between deciding on a call and its being made: here processes are stopped and killed."""
        if self.is_hit(0.012):
            self.counts["crashes"] += 1
            self.kill(service)
        elif self.is_hit(0.01):
            self.counts["stalls"] += 1
            return self.random.uniform(5, 150)
        return self.random.uniform(0.01, 0.3)

    def kill(self, service: Service) -> None:
        service.alive = False
        self.services.remove(service)
        if self.chaos:
            self.after(self.random.choice((1.0, 10.0, 120.0)), self._restart)

    def _restart(self) -> None:
        if self.chaos and len(self.services) < 2:
            self.services.append(Service(self, f"service-{self._number}"))

    # ---- what happens to it --------------------------------------------------------------------------------

    def _strangers(self) -> None:
        """VMs of somebody else, some with tags much like ours; and one of ours that the store has forgotten."""
        other = made_request(token="t-other", owner="somebody", run_max_s=1e9)
        for request in (other, changed(other, token="", owner="scavenger-me2")):
            self.cloud.foreign.add(self.cloud.add(request).id)
        if self.random.random() < 0.2:
            forgotten = self.cloud.add(changed(other, token="forgotten", owner=OWNER))
            forgotten.stray, forgotten.ends_s = True, float("inf")

    def _mishap(self) -> None:
        if not self.chaos:
            return
        alive = self.cloud.alive(OWNER)
        kind = self.random.randrange(6)
        if kind == 0 and self.services:
            service = self.random.choice(self.services)
            service.wall_s += self.random.choice((-3600.0, 3600.0, 7.0, -7.0))
        elif kind == 1 and alive:
            self.cloud.end(self.random.choice(alive).id, "by hand")
        elif kind == 2:
            slots = tuple(VmSlot(one.number, one.generation) for one in self.spec.slots)
            lucky = self.slots[self.random.randrange(len(self.slots))]
            kept = [
                w if w.number != lucky else VmSlot(lucky, w.generation + self.random.randint(1, 3))
                for w in slots
            ]
            self._want(tuple(kept))
        elif kind == 3:
            self._want(tuple(VmSlot(slot) for slot in self.slots[: self.random.randint(0, len(self.slots))]))
        elif kind == 4 and self.services:
            self.counts["releases"] += 1
            self.random.choice(self.services).reconciler.release()
        elif kind == 5 and len(self.services) == 1:
            self._restart()

    def _want(self, slots: tuple[VmSlot, ...]) -> None:
        self.spec = replace(self.spec, slots=slots)
        self.store.want_vms(self.spec)

    def _driver(self) -> None:
        """The job hears of its VMs."""
        self.store.heartbeat("job")
        for vm in self.cloud.alive(OWNER):
            if vm.joins_s <= self.now < vm.stopping_s:
                self.store.acknowledge_vm(vm.request.tags.token)

    def renew(self, intent: Intent, seconds: float) -> bool:
        return not self.is_hit(0.1) and self.cloud.renew(intent.id, seconds)

    def alarmed(self, alarm: Alarm) -> None:
        self.counts[f"alarm {alarm.kind}"] += 1

    # ---- the laws ------------------------------------------------------------------------------------------

    def _intent(self, token: str) -> Intent | None:
        return next((one for one in self.store.intents() if one.id == token), None)

    def _made(self, vm: Vm) -> None:
        self.counts["made"] += 1
        intent = self._intent(vm.request.tags.token)
        if intent is None:
            raise ViolationError("a VM was made of which nothing is written")
        vm.stray = intent.state == "GONE" or (intent.state == "DELETING" and self.cloud.overdue)
        if vm.stray:
            self.counts["strays"] += 1
            if self.random.random() < 0.5:  # and the timer by which it would end itself never started
                vm.ends_s = float("inf")
        same = [
            one
            for one in self.cloud.vms.values()
            if one.request.tags.token
            and (
                one.request.tags.job_id,
                one.request.tags.slot,
                one.request.tags.generation,
                one.request.tags.owner,
            )
            == (vm.request.tags.job_id, vm.request.tags.slot, vm.request.tags.generation, OWNER)
        ]
        if len([one for one in same if one.request.tags.token != "forgotten"]) > 1:
            raise ViolationError("two VMs of one slot and generation")

    def _ending(self, vm: Vm) -> None:
        """A VM is ended by us: only after that was written, whoever decided it however long ago."""
        intent = self._intent(vm.request.tags.token)
        if intent is not None and intent.state in ("PLAN", "UP") and intent.instance_id in ("", vm.id):
            raise ViolationError(f"{vm.id} was ended, and its intent says {intent.state}")

    def check_cap(self) -> None:
        """After every call: no more VMs than allowed, and none alive whose intent was ended."""
        alive = [vm for vm in self.cloud.alive(OWNER) if not vm.stray]
        if len(alive) > self.vms_max:
            raise ViolationError(f"{len(alive)} VMs, at most {self.vms_max} are allowed")
        if alive:
            ended = {one.id for one in self.store.intents() if one.state == "GONE"}
            for vm in alive:
                if vm.request.tags.token in ended:
                    raise ViolationError(f"{vm.id} lives, and its intent was ended")

    def _overtaken(self) -> None:
        self.counts["overtaken"] += 1
        if not self._fenced:
            raise ViolationError("a service that had lost its lease wrote")

    def spent_usd(self) -> float:
        """What the cloud bills for this job; VMs made after their intent had ended are nobody's plan."""
        return sum(
            self.cloud.cost_s(vm) * self._price(vm) / 3600
            for vm in self.cloud.vms.values()
            if vm.request.tags.owner == OWNER and not vm.stray
        )

    def _price(self, vm: Vm) -> float:
        return next(
            place.price_usd_per_hour
            for place in self.spec.options
            if place.key == (vm.request.vm, vm.request.zone, vm.request.spot)
        )

    # ---- the whole story -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Chaos, then calm in which the job gets what it wants, then its end; every law holds."""
        self.run_until(CHAOS_S)
        self.calm_down()
        self.finish()

    def calm_down(self) -> None:
        self.chaos, self.cloud.weather = False, CALM
        for vm in self.cloud.vms.values():
            vm.dies_s = float("inf")
        self._want(tuple(VmSlot(slot, 0) for slot in self.slots))
        if self.random.random() < 0.2:  # nobody is left for a while: every VM ends itself
            for service in list(self.services):
                self.kill(service)
            self.run_until(self.now + CONFIG.vm.life_s + 60)
            if left := [vm for vm in self.cloud.alive(OWNER) if vm.ends_s < self.now - 30]:
                raise ViolationError(f"{left[0].id} did not end itself")
        if not self.services:
            self.services.append(Service(self, "the last"))
        self.run_until(self.now + CALM_S, unless=self._is_served)
        excused = any(self.counts[f"alarm {kind}"] for kind in ("quota", "refused", "loop"))
        if not self._is_served() and not excused and self.spec.budget_usd == float("inf"):
            raise ViolationError("the job does not get its VMs")
        self.counts["served"] += self._is_served()

    def _is_served(self) -> bool:
        up = {one.slot for one in self.store.intents("job", living=True) if one.state == "UP" and one.acks}
        return up == set(self.slots)

    def finish(self) -> None:
        self.store.end_job("job")
        self.run_until(self.now + CALM_S, unless=self._is_over)
        if alive := self.cloud.alive(OWNER):
            raise ViolationError(f"{alive[0].id} was left behind" + (", a stray" if alive[0].stray else ""))
        if not self.store.is_clean("job"):
            raise ViolationError(f"never clean: {self.store.intents('job', living=True)}")
        tick = self.vms_max * PRICE * CONFIG.look.interval_s / 3600
        if self.spent_usd() > max(1.01 * self.spec.budget_usd, self.spec.budget_usd + tick):
            raise ViolationError(f"spent {self.spent_usd():.4f} of {self.spec.budget_usd:.4f}")
        for vm in self.cloud.vms.values():
            intent = self._intent(vm.request.tags.token)
            if intent is not None and not (vm.stray or intent.charges.billed_s):
                raise ViolationError(f"{vm.id} was there, and its intent says that it never was")
        if gone := [one for one in self.cloud.foreign if self.cloud.vms[one].ended_s <= self.now]:
            raise ViolationError(f"{gone} was not ours")

    def _is_over(self) -> bool:
        return not self.cloud.alive(OWNER) and bool(self.store.is_clean("job"))
