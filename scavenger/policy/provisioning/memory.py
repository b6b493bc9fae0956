"""What the provisioning process remembers between two looks. Losing it in a restart delays actions, never errs.

No value is a time of day. Ages are *attended* seconds: of the time between two looks at most `gap_max_s` counts,
so that a process that was stopped, or a machine that slept, finds nothing expired when it wakes up. Waits are seconds
of the caller's monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from scavenger.domain.intent import Intent, PlacementOption, RegionSnapshot
from scavenger.policy.provisioning.actions import Listing
from scavenger.policy.provisioning.config import Backoff

FORGET_S = 3600.0
"""Time after which a VM that is missing from all listings is forgotten."""
CHECKED_S = 30.0
"""Silence of a VM from which on the cloud's own checks of it count; what is heard is recorded every ten seconds."""


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
        queued: Intents whose VMs waited in a queue when they were last listed.
        impaired: VMs that the cloud's own checks found broken when they were asked for last: why, by id.
        spot_usd: US dollars per hour of spot VMs, by VM type and zone, as they were read last.
    """

    def __init__(self) -> None:
        self.attended_s = 0.0
        self.barred: dict[tuple[Hashable, ...], str] = {}
        self.denied: dict[str, str] = {}
        self.charged_s: dict[str, float] = {}
        self.queued: frozenset[str] = frozenset()
        self.spot_usd: Mapping[tuple[str, str], float] = {}
        self.impaired: Mapping[str, str] = {}
        self._last_s: float | None = None
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._waits: dict[tuple[Hashable, ...], _Wait] = {}

    def attend(self, now_s: float, gap_max_s: float) -> None:
        """Start a look: advance the attended time."""
        if self._last_s is not None:
            self.attended_s += min(max(0.0, now_s - self._last_s), gap_max_s)
        self._last_s = now_s

    def note(self, situation: RegionSnapshot, listing: Listing | None) -> None:
        """Note the observations; their ages count from the last change."""
        for intent in situation.intents:
            self._watch("intent", intent.id, (intent.state, intent.instance_id, intent.job_id))
            self._watch("acks", intent.id, intent.acks)
        for job_id, past in situation.past.items():
            self._watch("pulse", job_id, past.pulse)
        for spec in situation.fleets:
            if self._watch("spec", spec.job_id, spec):  # other words, which the cloud may take
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

    def unseen_s(self, intent: Intent) -> float:
        """Attended seconds since an intent's VM was listed or heard last, or the intent changed."""
        one = self._watched.get(("vm", intent.instance_id))
        listed_s = math.inf if one is None else self.attended_s - one.seen_s
        return min(listed_s, self.age_s("intent", intent.id), self.age_s("acks", intent.id))

    def was_listed(self, intent: Intent) -> bool:
        """Whether this process has seen an intent's VM in a listing."""
        return ("vm", intent.instance_id) in self._watched

    def unheard(self, intents: Iterable[Intent]) -> tuple[Intent, ...]:
        """Those whose VMs are silent for so long that the cloud's own checks of them are worth asking for."""
        return tuple(
            one
            for one in intents
            if one.state == "UP" and one.acks and self.age_s("acks", one.id) >= CHECKED_S
        )

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

    # ---- options -------------------------------------------------------------------------------------------

    def is_open(self, option: PlacementOption, now_s: float) -> bool:
        """Whether a launch with this placement option may be tried now."""
        return not self.bars(option) and self.is_due(("park", *option.key), now_s)

    def is_sold_out(self, option: PlacementOption) -> bool:
        """Whether the last launch with this placement option found no capacity."""
        return self.times(("park", *option.key)) > 0

    def bars(self, option: PlacementOption) -> str:
        """Why launches with this placement option cannot succeed, in the cloud's words; empty if they can."""
        return self.barred.get(("quota", option.vm, option.spot)) or self.barred.get(
            ("refused", *option.key), ""
        )

    def has_no_quota(self, option: PlacementOption) -> bool:
        """Whether a quota bars launches with this placement option."""
        return ("quota", option.vm, option.spot) in self.barred

    def freed(self, option: PlacementOption) -> None:
        """Note that a VM has ended, so that a launch that a quota refused may now succeed."""
        self.barred.pop(("quota", option.vm, option.spot), None)
