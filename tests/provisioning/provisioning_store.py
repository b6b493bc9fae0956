"""A store in memory for simulations; `tests/store/test_intents.py` holds it to the contract of the real one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from nested import changed

from scavenger.domain.intent import Ending, Fence, FleetSpec, Intent, IntentHistory, Lease, RegionSnapshot
from scavenger.domain.vm import VmSeen
from scavenger.errors import StoreError

BILLED_MIN_S = 60.0


class MemoryStore:
    """One job or several in one region.

    Args:
        now: The time that rows are stamped with.

    Attributes:
        fenced: Whether writes show that they may; False breaks the contract.
        overtaken: Told of each write that shows an old token.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.fenced = True
        self.overtaken: Callable[[], None] = lambda: None
        self.leases: dict[str, Lease] = {}
        self.specs: dict[str, FleetSpec] = {}
        self.told: dict[str, dict[str, str]] = {}
        self.rows: dict[str, Intent] = {}
        self.ended_jobs: set[str] = set()
        self.pulses: dict[str, str] = {}

    # ---- leases --------------------------------------------------------------------------------------------

    def lease(self, name: str) -> Lease | None:
        return self.leases.get(name)

    def take_lease(self, name: str, holder: str, seen: Lease | None) -> Lease | None:
        if self.leases.get(name) != seen:
            return None
        self.leases[name] = Lease(name, holder, 1 if seen is None else seen.token + 1, 0)
        return self.leases[name]

    def release_lease(self, fence: Fence) -> None:
        if self._holds(fence):
            self.leases[fence.name] = replace(self.leases[fence.name], holder="")

    def _holds(self, fence: Fence | None) -> bool:
        if fence is None:
            return True
        lease = self.leases.get(fence.name)
        if lease is not None and lease.token == fence.token and lease.holder:
            return True
        self.overtaken()
        return not self.fenced

    # ---- specs --------------------------------------------------------------------------------------------

    def want_vms(self, spec: FleetSpec) -> None:
        self.specs[spec.job_id] = spec

    def report_shortages(
        self, fence: Fence, job_id: str, provider: str, region: str, alarms: Mapping[str, str]
    ) -> bool:
        if not self._holds(fence):
            return False
        self.told[job_id] = dict(alarms)
        return True

    def end_job(self, job_id: str) -> None:
        self.ended_jobs.add(job_id)

    def heartbeat(self, job_id: str) -> None:
        self.pulses[job_id] = str(self._now())

    def situation(self, provider: str, region: str, tokens: Collection[str] = ()) -> RegionSnapshot:
        spec = tuple(one for one in self.specs.values() if one.job_id not in self.ended_jobs)
        living = tuple(one for one in self.rows.values() if one.state != "GONE")
        ended = frozenset(
            token for token in tokens if token in self.rows and self.rows[token].state == "GONE"
        )
        attempts = {one.job_id: one.attempt for one in living} | {one.job_id: one.attempt for one in spec}
        return RegionSnapshot(spec, living, ended, {job: self._past(job, attempts[job]) for job in attempts})

    def _past(self, job_id: str, attempt: int) -> IntentHistory:
        rows = [one for one in self.rows.values() if one.job_id == job_id]
        generations: dict[int, int] = {}
        for one in rows:
            generations[one.slot] = max(one.generation, generations.get(one.slot, -1))
        told = [one for one in rows if one.attempt == attempt]
        told = [one for one in told if one.acks or one.ending in ("never_joined", "died")]
        return IntentHistory(
            generations,
            sum(one.charges.cost_usd for one in rows if one.state == "GONE"),
            tuple(one.acks > 0 for one in reversed(told[-32:])),
            self.pulses.get(job_id, ""),
            any(one.ending == "budget" and one.attempt == attempt for one in rows),
        )

    # ---- intents -------------------------------------------------------------------------------------------

    def write_intent(self, fence: Fence, intent: Intent) -> bool:
        spec = self.specs.get(intent.job_id)
        rows = [one for one in self.rows.values() if one.job_id == intent.job_id]
        living = [one for one in rows if one.state != "GONE"]
        key = (intent.slot, intent.generation)
        committed = sum(one.charges.cost_usd for one in rows) + sum(
            one.charges.reserved_usd for one in living
        )
        if not self._holds(fence) or spec is None or intent.job_id in self.ended_jobs:
            return False
        if intent.id in self.rows or key in {(one.slot, one.generation) for one in rows}:
            return False
        if len(living) >= spec.vms_max or committed + intent.charges.reserved_usd > spec.budget_usd:
            return False
        self.rows[intent.id] = changed(intent, created_at=self._now(), charged_at=self._now())
        return True

    def ask_again(self, fence: Fence, intent_id: str) -> Intent | None:
        return self._change(fence, intent_id, ("PLAN",), asked=True)

    def never_asked(self, fence: Fence, intent_id: str) -> Intent | None:
        return self._change(fence, intent_id, ("PLAN",), asked=False, billed_s=0.0, spent_usd=0.0)

    def mark_up(self, fence: Fence, intent_id: str, vm: VmSeen) -> Intent | None:
        row = self.rows.get(intent_id)
        if row is None or row.state == "GONE" or not self._holds(fence):
            return None
        if row.instance_id not in ("", vm.instance_id):
            raise StoreError(f"intent {intent_id} has VM {row.instance_id}, not {vm.instance_id}")
        state = "UP" if row.state == "PLAN" else row.state
        changes = {
            "instance_id": vm.instance_id,
            "launched_at": vm.launched_at,
            "asked": True,
            "state": state,
        }
        return self._change(fence, intent_id, ("PLAN", "UP", "DELETING"), **changes)

    def mark_deleting(self, fence: Fence, intent_id: str, ending: Ending, reason: str) -> Intent | None:
        return self._change(fence, intent_id, ("PLAN", "UP"), state="DELETING", ending=ending, reason=reason)

    def mark_gone(
        self,
        fence: Fence | None,
        intent_id: str,
        ending: Ending,
        reason: str,
        vm: VmSeen | None,
        *,
        never: bool,
    ) -> Intent | None:
        row = self.rows.get(intent_id)
        if row is None or row.state == "GONE" or not self._holds(fence):
            return None
        changes: dict[str, Any] = {"state": "GONE"}
        if not row.ending:
            changes |= {"ending": ending, "reason": reason}
        if never:
            changes |= {"billed_s": 0.0, "spent_usd": 0.0}
        elif vm is not None:
            launched = vm.launched_at or row.times.launched_at
            changes |= {"instance_id": row.instance_id or vm.instance_id, "launched_at": launched}
            changes |= {"ended_at": vm.ended_at, **_settled(row, launched, vm.ended_at)}
        self.rows[intent_id] = changed(row, **changes)
        return self.rows[intent_id]

    def charge(self, fence: Fence, added: Mapping[str, tuple[float, float]], at: datetime) -> bool:
        if not self._holds(fence):
            return False
        lease = self.leases[fence.name]
        self.leases[fence.name] = replace(lease, beats=lease.beats + 1)
        for key, (seconds, usd) in added.items():
            row = self.rows[key]
            if row.state != "GONE":
                self.rows[key] = changed(
                    row,
                    billed_s=row.charges.billed_s + seconds,
                    spent_usd=row.charges.spent_usd + usd,
                    charged_at=at,
                )
        return True

    def acknowledge_vm(self, intent_id: str) -> bool:
        row = self.rows.get(intent_id)
        if row is None or row.state == "GONE":
            return False
        self.rows[intent_id] = changed(
            row, acks=row.acks + 1, last_ack_at=self._now(), joined_at=row.times.joined_at or self._now()
        )
        return True

    def intents(self, job_id: str | None = None, *, living: bool = False) -> tuple[Intent, ...]:
        return tuple(
            one
            for one in self.rows.values()
            if job_id in (None, one.job_id) and not (living and one.state == "GONE")
        )

    def is_clean(self, job_id: str) -> bool:
        return not self.intents(job_id, living=True)

    def _change(self, fence: Fence, intent_id: str, among: tuple[str, ...], **changes: Any) -> Intent | None:
        row = self.rows.get(intent_id)
        if row is None or row.state not in among or not self._holds(fence):
            return None
        self.rows[intent_id] = changed(row, **changes)
        return self.rows[intent_id]


def _settled(row: Intent, launched: datetime | None, ended: datetime | None) -> dict[str, float]:
    if launched is None or ended is None:
        return {}
    seconds = max(BILLED_MIN_S, (ended - launched).total_seconds())
    mean = (
        row.charges.spent_usd / row.charges.billed_s
        if row.charges.billed_s > 0
        else row.charges.price_usd_per_hour / 3600.0
    )
    return {"billed_s": seconds, "spent_usd": mean * seconds}
