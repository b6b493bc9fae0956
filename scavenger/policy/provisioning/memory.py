"""What the provisioning process remembers between two looks. Losing it in a restart delays actions, never errs.

No value is a time of day. Ages are *attended* seconds: of the time between two looks at most `gap_max_s` counts,
so that a process that was stopped, or a machine that slept, finds nothing expired when it wakes up. Waits are seconds
of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from random import Random

from scavenger.domain.intent import Place, Situation
from scavenger.policy.provisioning.actions import Listing

__all__ = ["Backoff", "Memory", "Terms"]

FORGET_S = 3600.0
"""Time after which a VM that is missing from all listings is forgotten."""

EXPONENT_MAX = 30
"""Largest number of doublings; more would overflow without changing the wait."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `base_s` to `cap_s`, each times a random factor in [0.5, 1.5) to spread retries."""

    base_s: float
    cap_s: float

    def wait_s(self, times: int, rng: Random) -> float:
        """The wait after this many consecutive failures."""
        doubled = self.base_s * 2.0 ** min(times - 1, EXPONENT_MAX)
        return min(self.cap_s, doubled) * (0.5 + rng.random())


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of provisioning; the defaults suit VMs that boot in a minute or two.

    Attributes:
        visibility_s: How long a new VM may be missing from the provider's listing.
        look_s: Time between two looks.
        look_max_s: Time after which a look starts no more actions.
        list_every_s: Time between two listings.
        call_limit_s: Longest time of one call to the cloud.
        lease_s: Time without a heartbeat after which the lease holder counts as dead.
        register_s: Time within which a VM has to join, else it is ended.
        silence_s: Time without a message after which a VM, or the process that runs a job, counts as lost.
        life_s: Time after its launch or last renewal at which a VM ends itself.
        quarantine_s: How long a VM of this installation that the store does not know is only reported.
        creates_per_look, calls_per_look: Most launches and most calls to the cloud in one look.
        health_last: Number of latest VMs that are checked for a create-die loop.
        health_least: Fewest of them that died before they joined, for a loop.
        unhealthy_max: Largest share of them that may die before they join.
        alarm_after: Consecutive failures of one action before an alarm.
    """

    visibility_s: float
    look_s: float = 5.0
    look_max_s: float = 60.0
    list_every_s: float = 15.0
    call_limit_s: float = 60.0
    lease_s: float = 180.0
    register_s: float = 600.0
    silence_s: float = 120.0
    life_s: float = 900.0
    quarantine_s: float = 900.0
    creates_per_look: int = 4
    calls_per_look: int = 20
    health_last: int = 10
    health_least: int = 5
    unhealthy_max: float = 0.4
    alarm_after: int = 5
    launching: Backoff = Backoff(2.0, 60.0)
    ending: Backoff = Backoff(5.0, 60.0)
    parking: Backoff = Backoff(30.0, 1800.0)
    throttling: Backoff = Backoff(1.0, 60.0)
    failing: Backoff = Backoff(10.0, 600.0)
    denied: Backoff = Backoff(30.0, 600.0)

    def __post_init__(self) -> None:
        if not self.register_s < self.life_s:
            raise ValueError(
                f"a VM that may take {self.register_s} s to join must not end itself after {self.life_s} s"
            )
        if not 3 * self.silence_s <= self.life_s:
            raise ValueError(f"a VM renewed every {self.silence_s} s needs a life of thrice that")
        if not 3 * self.call_limit_s <= self.lease_s:
            raise ValueError(f"calls of {self.call_limit_s} s do not fit into a lease of {self.lease_s} s")
        if self.creates_per_look < 1 or self.calls_per_look < 1:
            raise ValueError("a look must be allowed to do something")

    @property
    def settle_s(self) -> float:
        """Time after which an unanswered launch is visible in a listing, or did not happen."""
        return self.visibility_s + 2 * self.call_limit_s

    @property
    def gap_max_s(self) -> float:
        """Largest part of the time between two looks that counts as attended."""
        return 2 * self.look_s

    def reserved_s(self, drain_s: float) -> float:
        """Longest time that a VM may be paid for after the decision to end it, whatever fails.

        The job saves itself, the look that decided may have renewed the VM at its very end, and then it ends itself.
        """
        return drain_s + self.look_max_s + self.call_limit_s + self.life_s


@dataclass(slots=True)
class _Watched:
    value: Hashable
    since_s: float
    seen_s: float


@dataclass(slots=True)
class _Wait:
    times: int
    until_s: float


class Memory:
    """Memory of one provisioning process; see the module.

    Attributes:
        attended_s: Attended time up to the latest look.
        barred: Permanent refusals of the cloud: its message by what was requested.
        denied: Missing permissions: the cloud's message by action.
        charged_s: Monotonic time at which each intent was last charged.
    """

    def __init__(self) -> None:
        self.attended_s = 0.0
        self.barred: dict[tuple[Hashable, ...], str] = {}
        self.denied: dict[str, str] = {}
        self.charged_s: dict[str, float] = {}
        self._last_s: float | None = None
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._waits: dict[tuple[Hashable, ...], _Wait] = {}

    def attend(self, now_s: float, gap_max_s: float) -> None:
        """Start a look: advance the attended time."""
        if self._last_s is not None:
            self.attended_s += min(max(0.0, now_s - self._last_s), gap_max_s)
        self._last_s = now_s

    def note(self, situation: Situation, listing: Listing | None) -> None:
        """Note the observations; their ages count from the last change."""
        for intent in situation.intents:
            self._watch("intent", intent.id, (intent.state, intent.instance_id))
            self._watch("acks", intent.id, intent.acks)
        for job_id, past in situation.past.items():
            self._watch("pulse", job_id, past.pulse)
        for desired in situation.desired:
            if self._watch("desired", desired.job_id, desired):  # other words, which the cloud may take
                self.barred = {key: words for key, words in self.barred.items() if key[0] != "refused"}
        for vm in listing.vms if listing is not None else ():
            self._watch("vm", vm.instance_id, "")
        known = {intent.id for intent in situation.intents}
        self.charged_s = {key: at for key, at in self.charged_s.items() if key in known}
        for key in [key for key, one in self._watched.items() if self.attended_s - one.seen_s > FORGET_S]:
            del self._watched[key]

    def _watch(self, kind: str, name: str, value: Hashable) -> bool:
        """Note one value; returns whether it changed."""
        one = self._watched.get((kind, name))
        if one is None or one.value != value:
            self._watched[kind, name] = _Watched(value, self.attended_s, self.attended_s)
            return one is not None
        one.seen_s = self.attended_s
        return False

    def age_s(self, kind: str, name: str) -> float:
        """Attended seconds since this value last changed; 0 if it was never noted."""
        one = self._watched.get((kind, name))
        return 0.0 if one is None else self.attended_s - one.since_s

    # ---- waits ---------------------------------------------------------------------------------------------

    def wait(self, key: tuple[Hashable, ...], backoff: Backoff, now_s: float, rng: Random) -> None:
        """Note a failure: the action waits for a time that grows with each failure."""
        times = self.times(key) + 1
        self._waits[key] = _Wait(times, now_s + backoff.wait_s(times, rng))

    def hold(self, key: tuple[Hashable, ...], seconds: float, now_s: float) -> None:
        """Block an action for this many seconds."""
        self._waits[key] = _Wait(0, now_s + seconds)

    def is_due(self, key: tuple[Hashable, ...], now_s: float) -> bool:
        """Whether the action need not wait (any more)."""
        one = self._waits.get(key)
        return one is None or now_s >= one.until_s

    def times(self, key: tuple[Hashable, ...]) -> int:
        """Number of consecutive failures of an action."""
        one = self._waits.get(key)
        return 0 if one is None else one.times

    def done(self, *keys: tuple[Hashable, ...]) -> None:
        """End the waits of these actions."""
        for key in keys:
            self._waits.pop(key, None)

    # ---- places --------------------------------------------------------------------------------------------

    def is_open(self, place: Place, now_s: float) -> bool:
        """Whether a launch with this placement option may be tried now."""
        return not self.bars(place) and self.is_due(("park", *place.key), now_s)

    def is_sold_out(self, place: Place) -> bool:
        """Whether the last launch with this placement option found no capacity."""
        return self.times(("park", *place.key)) > 0

    def bars(self, place: Place) -> str:
        """Why launches with this placement option cannot succeed, in the cloud's words; empty if they can."""
        return self.barred.get(("quota", place.vm, place.spot)) or self.barred.get(
            ("refused", *place.key), ""
        )

    def freed(self, place: Place) -> None:
        """Note that a VM has ended, so that a launch that a quota refused may now succeed."""
        self.barred.pop(("quota", place.vm, place.spot), None)
