"""Settings of provisioning: intervals, time limits and retries.

The defaults suit VMs that boot in a minute or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from scavenger.policy.provisioning.silence import SilenceLimits

LIST_PAGE, LIST_CALLS = 500, 3
"""VMs that one call of a listing shows at least, and the most calls that a listing in each look may take."""
LIST_THROTTLED_S, THROTTLED_FOR_S = 15.0, 600.0
"""Shortest time between two listings after the cloud has throttled a call, and for how long that holds."""
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
class RetryWaits:
    """Waits between attempts of an action that failed.

    Attributes:
        launch: Of a launch that was not answered.
        call: Of a listing or the end of a VM.
        sold_out: Of a launch with a placement option that had no capacity.
        throttled: Of all calls, after the cloud throttled one.
        died: Of a job's launches, after one of its VMs died before it joined.
        denied: Of all launches, after one was refused for a missing permission.
    """

    launch: Backoff = Backoff(2.0, 60.0)
    call: Backoff = Backoff(5.0, 60.0)
    sold_out: Backoff = Backoff(30.0, 1800.0)
    throttled: Backoff = Backoff(1.0, 60.0)
    died: Backoff = Backoff(10.0, 600.0)
    denied: Backoff = Backoff(30.0, 600.0)


@dataclass(frozen=True, slots=True)
class LookLimits:
    """Intervals of the looks at a region, and limits of each.

    Attributes:
        interval_s: Longest time from the beginning of a look to that of the next, where looks are short.
        pause_s: Shortest time from the end of a look to the beginning of the next.
        actions_s: Time after which a look starts no more actions.
        list_interval_s: Shortest time between two listings: below that between two looks, so that each look lists.
        vm_interval_s: Time between two questions about one VM that listings do not show.
        call_s: Longest time of one call to the cloud.
        creates_max, calls_max: Most launches and most calls to the cloud in one look.
    """

    interval_s: float = 5.0
    pause_s: float = 0.5
    actions_s: float = 60.0
    list_interval_s: float = 2.25
    vm_interval_s: float = 15.0
    call_s: float = 60.0
    creates_max: int = 4
    calls_max: int = 20

    def __post_init__(self) -> None:
        if self.creates_max < 1 or self.calls_max < 1:
            raise ValueError("a look must be allowed to do something")

    def wait_s(self, took_s: float, chance: float) -> float:
        """Time from the end of a look to the beginning of the next.

        Looks begin 0.5 to 0.9 intervals after one another: an end that only the cloud knows of is on record within an
        interval, if a look takes a tenth of it.

        Args:
            took_s: How long the look took.
            chance: In [0, 1), so that the looks of several services spread.
        """
        return max(self.pause_s, (0.5 + 0.4 * chance) * self.interval_s - took_s)

    def list_again_s(self, vms: int, *, throttled: bool) -> float:
        """Time until the next listing.

        Each look lists as long as that takes at most `LIST_CALLS` calls, 51 a minute; beyond that, listings take 36
        calls a minute, of 1,500 that a project of Compute Engine may make, and of 1,200 that an account
        has for EC2's `DescribeInstances` [1]_, [2]_: other tools and other jobs' commands need theirs.

        Args:
            vms: How many the latest listing has shown.
            throttled: Whether the cloud has throttled a call lately.

        References:
            .. [1] https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
            .. [2] https://cloud.google.com/compute/api-quota
        """
        calls = vms // LIST_PAGE + 1
        interval_s = self.list_interval_s
        if calls > LIST_CALLS:
            interval_s = max(interval_s, calls * self.interval_s / LIST_CALLS)
        return max(interval_s, LIST_THROTTLED_S) if throttled else interval_s


@dataclass(frozen=True, slots=True)
class VmLimits:
    """Time limits of one VM.

    Attributes:
        register_s: Time within which a VM has to join, else it is ended.
        silence_s: Time without a record of a message after which a VM counts as lost: as long as processes on VMs are
            waited for while the leader hears none of them, with the time between two records of what was heard.
            Otherwise one VM after the other passes it alone, and is ended while its processes train.
        pulse_s: Time without a sign of the process that runs a job after which its VMs are not renewed.
        life_s: Time after its launch or last renewal at which a VM ends itself.
        quarantine_s: How long a VM of this installation that the store does not know is only reported.
    """

    register_s: float = 600.0
    silence_s: float = SilenceLimits().keep_s + 15.0
    pulse_s: float = 120.0
    life_s: float = 900.0
    quarantine_s: float = 900.0

    def __post_init__(self) -> None:
        if not self.register_s < self.life_s:
            raise ValueError(
                f"a VM that may take {self.register_s} s to join must not end itself after {self.life_s} s"
            )
        if not 3 * self.silence_s <= self.life_s:
            raise ValueError(f"a VM renewed every {self.silence_s} s needs a life of thrice that")


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """When so many VMs die before they join that a job launches no more.

    Attributes:
        vms: Number of latest VMs that are checked.
        deaths_min: Fewest of them that died before they joined.
        share_max: Largest share of them that may do so.
    """

    vms: int = 10
    deaths_min: int = 5
    share_max: float = 0.4


@dataclass(frozen=True, slots=True)
class ProvisioningConfig:
    """Settings of provisioning in one region.

    Attributes:
        visibility_s: How long a new VM may be missing from the provider's listing.
        remembers_s: For how long listings show every VM since its launch, ended or not; see `Provider`.
        lease_s: Time without a heartbeat after which the lease holder counts as dead.
        alarm_after: Consecutive failures of one action before an alarm.
    """

    visibility_s: float
    remembers_s: float = 0.0
    lease_s: float = 180.0
    alarm_after: int = 5
    look: LookLimits = LookLimits()
    vm: VmLimits = VmLimits()
    crash_loop: CrashLoop = CrashLoop()
    waits: RetryWaits = RetryWaits()

    def __post_init__(self) -> None:
        if not 3 * self.look.call_s <= self.lease_s:
            raise ValueError(f"calls of {self.look.call_s} s do not fit into a lease of {self.lease_s} s")

    @property
    def settle_s(self) -> float:
        """Time after which an unanswered launch is visible in a listing, or did not happen."""
        return self.visibility_s + 2 * self.look.call_s

    @property
    def gap_max_s(self) -> float:
        """Largest part of the time between two looks that counts as attended."""
        return 2 * self.look.interval_s

    def reserved_s(self, drain_s: float) -> float:
        """Longest time that a VM may be paid for after the decision to end it, whatever fails.

        The job saves itself, the look that decided may have renewed the VM at its very end, and then it ends itself.
        """
        return drain_s + self.look.actions_s + self.look.call_s + self.vm.life_s
