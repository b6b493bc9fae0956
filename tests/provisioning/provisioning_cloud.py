"""A cloud in virtual time, with everything that clouds do to those who ask them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from scavenger import errors
from scavenger.domain.vm import DEFAULT_SETTINGS, Quota, VmRequest, VmSeen, VmSettings, VmState

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = ("a", "b", "c")
FORGET_S = 400.0
STOP_S = 12.0
BILLED_MIN_S = 60.0


class ViolationError(AssertionError):
    """A law of provisioning was broken."""


@dataclass(slots=True)
class Vm:
    """A VM as it really is; times are the world's.

    Attributes:
        ends_s: When it ends itself, unless it is renewed.
        ended_s: Not paid for any more from then on.
        stray: A request made it when its intent had ended, or was about to and later than any bound.
    """

    id: str
    request: VmRequest
    made_s: float
    listed_s: float
    joins_s: float
    dies_s: float
    ends_s: float
    stopping_s: float = float("inf")
    ended_s: float = float("inf")
    reason: str = ""
    stray: bool = False

    def state(self, now_s: float) -> VmState:
        if now_s >= self.ended_s:
            return "gone"
        return "stopping" if now_s >= self.stopping_s else "pending" if now_s < self.made_s + 5 else "running"


@dataclass(slots=True)
class Weather:
    """How hostile the world is: chances per call, unless said otherwise."""

    lost: float = 0.06
    late: float = 0.06
    unavailable: float = 0.04
    throttled: float = 0.04
    denied: float = 0.0
    stock_out: float = 0.2
    quota: float = 0.0
    never_joins: float = 0.12
    dies_early: float = 0.05
    preempted_s: float = 400.0


CALM = Weather(0, 0, 0, 0, 0, 0, 0, 0, 0, 1e12)


class SimulatedCloud:
    """A provider; `now` is the world's time, `later` does something later, `delay` makes the present call take longer;
    `made` is told of every VM that is made, `ending` of every one that is asked to end.

    Attributes:
        idempotent: Whether a token makes one VM; False breaks the contract.
        overdue: The launch under way is one of a request that was later than any bound.
    """

    name, region, remembers_s = "sim", "region-1", 150.0

    def __init__(
        self,
        random: Random,
        *,
        visibility_s: float,
        call_limit_s: float,
        life_s: float,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], None],
        delay: Callable[[float], None],
        made: Callable[[Vm], None],
        ending: Callable[[Vm], None],
    ) -> None:
        self.visibility_s, self._limit_s, self._life_s = visibility_s, call_limit_s, life_s
        self._random, self._now, self._later, self._delay = random, now, later, delay
        self._made, self._ending = made, ending
        self.weather = Weather()
        self.idempotent, self.overdue = True, False
        self.vms: dict[str, Vm] = {}
        self.foreign: set[str] = set()
        self._clock_s = random.uniform(-3600, 3600)
        self.calls = 0

    # ---- the provider --------------------------------------------------------------------------------------

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        return ZONES

    def launch(self, request: VmRequest) -> VmSeen:
        self._meet(request)
        fate = self._random.random()
        if fate < self.weather.late:
            late_s = self._random.uniform(0, 2 * self._limit_s)
            if self._random.random() < 0.3:  # beyond any bound
                late_s *= 10
            self._later(late_s, lambda: self._quietly(request, late_s > 2 * self._limit_s))
            self._delay(self._limit_s)
            raise errors.CloudUnavailableError("no answer, and done later")
        vm = self._launch(request)
        if fate < self.weather.late + self.weather.lost:
            self._delay(self._limit_s)
            raise errors.CloudUnavailableError("the answer was lost")
        return self._seen(vm, self._now())

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        self._meet()
        vm = self.vms.get(instance_id)
        if vm is None or self._now() > vm.ended_s + FORGET_S:
            raise errors.GoneError(f"there is no {instance_id}")
        return self._seen(vm, self._now())

    def terminate(self, instance_id: str, zone: str) -> None:
        self._meet()
        if instance_id in self.foreign:
            raise ViolationError(f"{instance_id} is not ours")
        if instance_id in self.vms:
            self._ending(self.vms[instance_id])
        self.end(instance_id, "user")
        if self._random.random() < self.weather.lost:
            self._delay(self._limit_s)
            raise errors.CloudUnavailableError("the answer was lost")

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        self._meet()
        stale_s = self._random.uniform(0, self.visibility_s)
        return tuple(
            self._seen(vm, max(vm.made_s, self._now() - stale_s))
            for vm in self.vms.values()
            if vm.request.tags.owner == owner and vm.listed_s <= self._now() <= vm.ended_s + FORGET_S
        )

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        return {}

    def quotas(self) -> tuple[Quota, ...]:
        return ()

    def console(self, instance_id: str, zone: str) -> str:
        return ""

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        return {}

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        return ()

    # ---- the world -----------------------------------------------------------------------------------------

    def alive(self, owner: str) -> list[Vm]:
        return [vm for vm in self.vms.values() if vm.request.tags.owner == owner and self._now() < vm.ended_s]

    def cost_s(self, vm: Vm) -> float:
        return max(BILLED_MIN_S, min(self._now(), vm.ended_s) - vm.made_s)

    def end(self, instance_id: str, reason: str) -> None:
        vm = self.vms.get(instance_id)
        if vm is not None and self._now() < vm.stopping_s:
            vm.stopping_s, vm.ended_s, vm.reason = self._now(), self._now() + STOP_S, reason

    def tick(self) -> None:
        """VMs come to their own ends."""
        for vm in list(self.vms.values()):
            if vm.id in self.foreign:
                continue
            if self._now() >= vm.ends_s:
                self.end(vm.id, "not renewed")
            elif self._now() >= vm.dies_s:
                self.end(vm.id, "preempted" if vm.request.spot else "failed")

    def renew(self, token: str, seconds: float) -> bool:
        """As its job does over the net: only one that has joined can be reached."""
        for vm in self.vms.values():
            if vm.request.tags.token == token and vm.joins_s <= self._now() < vm.stopping_s:
                vm.ends_s = self._now() + seconds
                return True
        return False

    def add(self, request: VmRequest) -> Vm:
        """A VM comes into being, whoever made it."""
        now, random, weather = self._now(), self._random, self.weather
        joins_s = float("inf") if random.random() < weather.never_joins else now + random.uniform(8, 60)
        dies_s = now + random.expovariate(1 / weather.preempted_s)
        if random.random() < weather.dies_early:
            dies_s = now + random.uniform(1, 30)
        vm = Vm(
            id=f"i-{len(self.vms)}",
            request=request,
            made_s=now,
            listed_s=now + random.uniform(0, 0.95 * self.visibility_s),
            joins_s=joins_s,
            dies_s=dies_s,
            ends_s=now + self._life_s,
        )
        self.vms[vm.id] = vm
        return vm

    def _meet(self, request: VmRequest | None = None) -> None:
        """What a call may meet before it does anything."""
        self.calls += 1
        weather, fate = self.weather, self._random.random()
        if fate < weather.unavailable:
            self._delay(self._random.uniform(0, self._limit_s))
            raise errors.CloudUnavailableError("no answer, and nothing done")
        fate -= weather.unavailable
        if fate < weather.throttled:
            raise errors.ThrottledError("slow down")
        fate -= weather.throttled
        if fate < weather.denied:
            raise errors.CredentialsError("who are you")
        if request is None:
            return
        fate = self._random.random()
        if fate < weather.stock_out:
            raise errors.StockOutError(f"none in {request.zone}")
        if fate < weather.stock_out + weather.quota / 2:
            raise errors.QuotaError("no more", quota="CPUS", region=self.region)
        if fate < weather.stock_out + weather.quota:
            raise errors.ConfigurationError("no such image")

    def _find(self, token: str) -> Vm | None:
        if not self.idempotent:
            return None
        return next((vm for vm in self.vms.values() if vm.request.tags.token == token), None)

    def _launch(self, request: VmRequest) -> Vm:
        vm = self._find(request.tags.token)
        if vm is None:
            vm = self.add(request)
            self._made(vm)
        elif self._now() >= vm.stopping_s:
            raise errors.GoneError("the VM of this token is gone")
        return vm

    def _quietly(self, request: VmRequest, overdue: bool) -> None:
        self.overdue = overdue
        try:
            self._launch(request)
        except errors.GoneError:
            return
        finally:
            self.overdue = False

    def _seen(self, vm: Vm, at_s: float) -> VmSeen:
        request, state = vm.request, vm.state(at_s)

        def told(moment_s: float) -> datetime:
            return EPOCH + timedelta(seconds=moment_s + self._clock_s)

        return VmSeen(
            instance_id=vm.id,
            vm=request.vm,
            zone=request.zone,
            spot=request.spot,
            state=state,
            tags=request.tags,
            launched_at=told(vm.made_s),
            ended_at=told(vm.ended_s) if state == "gone" else None,
            reason=vm.reason if state in ("stopping", "gone") else "",
        )
