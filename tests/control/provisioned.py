"""One service, one job, one scripted cloud, and one clock for all of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from fake import FakeProvider
from nested import built, changed

from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.errors import CloudUnavailableError
from scavenger.policy.provisioning.actions import Alarm
from scavenger.policy.provisioning.config import ProvisioningConfig

OWNER = "scavenger-me"
NO_ANSWER = CloudUnavailableError("no answer")


class Bench:
    """One service, one job, one cloud, one clock."""

    def __init__(self, open_store: Callable[[Callable[[], datetime]], Any], job_id: str = "job") -> None:
        self.cloud = FakeProvider()
        self.wall_jump_s = 0.0
        self.store = open_store(self.wall)
        self.owner, self.job_id = OWNER, job_id
        self.alarms: list[Alarm] = []
        self.renewed: list[str] = []
        self.silent: set[str] = set()
        self.deaf = False
        self.config = ProvisioningConfig(self.cloud.visibility_s, remembers_s=900.0)
        self.service = self.start("first")
        self.spec = built(
            FleetSpec,
            job_id=self.job_id,
            provider=self.cloud.name,
            region=self.cloud.region,
            slots=(VmSlot(0), VmSlot(1)),
            options=(
                PlacementOption("small", "fake-1a", True, 0.36),
                PlacementOption("small", "fake-1b", True, 0.40),
            ),
            vms_max=4,
            budget_usd=float("inf"),
            run_max_s=36_000.0,
        )
        self.store.want_vms(self.spec)

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.cloud.now_s + self.wall_jump_s)

    def start(self, holder: str, **more: Any) -> Reconciler:
        return Reconciler(
            self.store,
            self.cloud,
            owner=self.owner,
            holder=holder,
            renew=self._renew,
            alarm=self.alarms.append,
            config=self.config,
            clock=lambda: self.cloud.now_s,
            wall=self.wall,
            rng=Random(1),
            **more,
        )

    def _renew(self, intent: Intent, seconds: float) -> bool:
        self.renewed.append(intent.id)
        return True

    def want(self, **more: Any) -> None:
        self.spec = changed(self.spec, **more)
        self.store.want_vms(self.spec)

    def pass_(self, seconds: float) -> None:
        """Looks every 5 s, while the job hears of its VMs."""
        until_s = self.cloud.now_s + seconds
        while self.cloud.now_s < until_s:
            self.service.look()
            self.cloud.advance(5.0)
            self.store.heartbeat(self.job_id)
            alive = {fact.token for fact in self.cloud.truth() if fact.alive}
            for intent in self.living():
                if intent.id in alive - self.silent and not self.deaf:
                    self.store.acknowledge_vm(intent.id)

    def living(self) -> tuple[Intent, ...]:
        found: tuple[Intent, ...] = self.store.intents(self.job_id, living=True)
        return found

    def alive(self) -> list[str]:
        return sorted(fact.token for fact in self.cloud.truth() if fact.alive)

    def calls(self, operation: str) -> list[str]:
        return [what for name, what in self.cloud.calls if name == operation]

    def kinds(self) -> list[str]:
        return [alarm.kind for alarm in self.alarms]
