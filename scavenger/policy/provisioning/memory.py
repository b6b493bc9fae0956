"""What whoever provisions remembers between two looks; after a restart it begins anew, which delays and never errs.

Nothing here is a time of day. Ages are *attended* seconds: of the time between two looks at most `gap_max_s` counts,
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
"""A VM may be missing from one listing and be in the next; an hour later it is nobody's concern."""

EXPONENT_MAX = 30
"""Doubling more often than that changes nothing but overflows."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `base_s` to `cap_s`, each times a random factor in [0.5, 1.5) so that no two keep step."""

    base_s: float
    cap_s: float

    def wait_s(self, times: int, rng: Random) -> float:
        """The wait after so many failures in a row."""
        doubled = self.base_s * 2.0 ** min(times - 1, EXPONENT_MAX)
        return min(self.cap_s, doubled) * (0.5 + rng.random())


@dataclass(frozen=True, slots=True)
class Terms:
    """How provisioning goes about; defaults suit VMs that boot in a minute or two.

    Attributes:
        visibility_s: Of the provider: how long a new VM may be missing from its listing.
        look_s: Between two looks.
        look_max_s: A look begins nothing more after that.
        list_every_s: Between two listings.
        call_limit_s: Longest time that one call to the cloud takes.
        lease_s: A service that has not beaten for so long is taken for dead.
        register_s: A VM that has not joined by then is ended.
        silence_s: A VM, or the driver of a job, that has not been heard of for so long is taken for lost.
        life_s: How long a VM lives without being renewed, from its launch on; it ends itself then.
        quarantine_s: How long a VM of ours that the store knows nothing of is only told of.
        creates_per_look, calls_per_look: Most launches, most calls to the cloud.
        health_last: How many of the latest VMs are looked at for a loop of creating and dying.
        health_least: So many have to have died before they joined.
        unhealthy_max: And so great a share.
        alarm_after: Failures in a row of one thing before somebody is told.
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
        """After that, a launch that was not answered shows in a listing, or did not happen."""
        return self.visibility_s + 2 * self.call_limit_s

    @property
    def gap_max_s(self) -> float:
        """What counts, at most, of the time between two looks."""
        return 2 * self.look_s

    def reserved_s(self, drain_s: float) -> float:
        """For how long a VM may be paid for after the decision that it has to end, whatever fails.

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
    """See the module.

    Attributes:
        attended_s: Time that was attended to, up to the latest look.
        barred: What the cloud will not give, by what was asked for, in its words: asking again does not help.
        denied: Why the cloud does not let us, by what we may not do.
        charged_s: When each intent was last charged, monotonic.
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
        """A look begins."""
        if self._last_s is not None:
            self.attended_s += min(max(0.0, now_s - self._last_s), gap_max_s)
        self._last_s = now_s

    def note(self, situation: Situation, listing: Listing | None) -> None:
        """Take in what is seen: ages count from when it last changed."""
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
        """Returns whether it changed."""
        one = self._watched.get((kind, name))
        if one is None or one.value != value:
            self._watched[kind, name] = _Watched(value, self.attended_s, self.attended_s)
            return one is not None
        one.seen_s = self.attended_s
        return False

    def age_s(self, kind: str, name: str) -> float:
        """Attended seconds since this last changed; 0 of what was never noted."""
        one = self._watched.get((kind, name))
        return 0.0 if one is None else self.attended_s - one.since_s

    # ---- waits ---------------------------------------------------------------------------------------------

    def wait(self, key: tuple[Hashable, ...], backoff: Backoff, now_s: float, rng: Random) -> None:
        """This failed: not again before a while, which grows each time."""
        times = self.times(key) + 1
        self._waits[key] = _Wait(times, now_s + backoff.wait_s(times, rng))

    def hold(self, key: tuple[Hashable, ...], seconds: float, now_s: float) -> None:
        """This was done: not again before so many seconds."""
        self._waits[key] = _Wait(0, now_s + seconds)

    def is_due(self, key: tuple[Hashable, ...], now_s: float) -> bool:
        """Whether this need not wait (any more)."""
        one = self._waits.get(key)
        return one is None or now_s >= one.until_s

    def times(self, key: tuple[Hashable, ...]) -> int:
        """How often this failed in a row."""
        one = self._waits.get(key)
        return 0 if one is None else one.times

    def done(self, *keys: tuple[Hashable, ...]) -> None:
        """These need not wait any more."""
        for key in keys:
            self._waits.pop(key, None)

    # ---- places --------------------------------------------------------------------------------------------

    def is_open(self, place: Place, now_s: float) -> bool:
        """Whether a VM may be asked for there now."""
        return not self.bars(place) and self.is_due(("park", *place.key), now_s)

    def is_sold_out(self, place: Place) -> bool:
        """Whether the last launch there found nothing, however long ago."""
        return self.times(("park", *place.key)) > 0

    def bars(self, place: Place) -> str:
        """Why it is of no use to ask there, in the cloud's words; empty where it is."""
        return self.barred.get(("quota", place.vm, place.spot)) or self.barred.get(
            ("refused", *place.key), ""
        )

    def freed(self, place: Place) -> None:
        """A VM of ours has ended: what a quota refused may fit now."""
        self.barred.pop(("quota", place.vm, place.spot), None)
