"""The failure policy: avoids hosts on which workers keep failing, and stops a job whose workers all fail."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scavenger.domain.decision import Blacklist, Decision, Hold, Pause, Stop
from scavenger.domain.snapshot import Departure, JobSnapshot

UNHEALTHY_MAX = 0.4
"""Share of the launched workers that may die before their first step; a few failed starts are no create-die loop."""


@dataclass(frozen=True, slots=True)
class AvoidFailures:
    """Blacklist a host after `failures_max` failures within `window_s`; give up after a create-die loop.

    Preemptions and evictions are not the host's fault and do not count. A worker that dies before its first step
    points to a fault of the job or its image rather than of a host. After `give_up` of those within the window, if
    they are more than `UNHEALTHY_MAX` of all workers, further attempts would only cost money.

    Attributes:
        cooldown_s: How long a host is avoided; at least `window_s`, or it would be back only to be
            blacklisted for the same failures.
    """

    failures_max: int = 3
    window_s: float = 600.0
    cooldown_s: float = 1800.0
    give_up: int = 5

    def __post_init__(self) -> None:
        if self.failures_max < 1 or self.give_up < 1 or not 0.0 < self.window_s <= self.cooldown_s:
            raise ValueError(
                f"no policy of {self.failures_max} failures, giving up after {self.give_up}, within "
                f"{self.window_s} s and a cool-down of {self.cooldown_s} s"
            )

    def decide(self, job: JobSnapshot) -> Decision:
        recent = [left for left in job.cluster.departures if left.at_s > job.at_s - self.window_s]
        failures = [left for left in recent if left.kind == "failure"]
        stillborn = sum(1 for left in failures if left.steps == 0)
        share = stillborn / (stillborn + len(job.cluster.workers)) if stillborn else 0.0
        if stillborn >= self.give_up and share > UNHEALTHY_MAX:
            return Stop(
                f"{stillborn} workers died before their first step within {self.window_s:g} s, {share:.0%} of all: "
                "more would die too".replace("%", " %"),
                "failures",
            )
        if not job.cluster.workers and recent and not failures:
            return Pause(f"all workers were taken by the cloud ({len(recent)} within {self.window_s:g} s)")
        return self._blacklist(job, failures)

    def _blacklist(self, job: JobSnapshot, failures: list[Departure]) -> Decision:
        avoided = {host for host, until_s in job.cluster.blacklist if until_s > job.at_s}
        counts = Counter(left.host for left in failures)
        bad = tuple(
            sorted(
                host for host, count in counts.items() if count >= self.failures_max and host not in avoided
            )
        )
        if not bad:
            worst = max(counts.values(), default=0)
            return Hold(f"no host failed {self.failures_max} times within {self.window_s:g} s; most: {worst}")
        named = ", ".join(f"{host} ({counts[host]} failures)" for host in bad)
        if job.cluster.hosts and not set(job.cluster.hosts) - avoided - set(bad):
            return Hold(f"{named} within {self.window_s:g} s, but no other host is left")
        return Blacklist(
            bad,
            job.at_s + self.cooldown_s,
            f"{named} within {self.window_s:g} s; avoided for {self.cooldown_s:g} s",
        )
