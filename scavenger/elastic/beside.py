"""Which aggregators share a model that aggregators beside the workers hold, and which of them go to another host.

One aggregator is beside the workers of each host, so that each host's link carries about the model once each way in a
step, however many there are. The first aggregator, which sequences the steps, has a host of its own, and holds a share
only while fewer than two others do: what it holds, every worker's link carries, and what is beside a worker, not its
own. Aggregators beyond the hosts with workers are at that host, too, and hold nothing. Values in, values out::

    seen                                            follows
    a host with workers, without an aggregator      one of those that wait at home goes there
    an aggregator on a host without workers         it gives up its share and goes home, or to another host
    two aggregators on one host                     the later one goes
    a host that will be taken                       its aggregator gives up its share
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_ENOUGH = 2
"""So many beside workers share the model without the first; a single one would have all of it, and lose it with its
host."""


@dataclass(frozen=True, slots=True)
class HostSeen:
    """A host for workers.

    Attributes:
        name: What it is known by.
        has_workers: Whether some run there, or did a moment ago.
        stays: Whether processes may stay there.
        aggregators: Indices of those that run there.
    """

    name: str
    has_workers: bool
    stays: bool = True
    aggregators: tuple[int, ...] = ()

    @property
    def lacks_one(self) -> bool:
        """Whether an aggregator should come here."""
        return self.has_workers and self.stays and not self.aggregators


@dataclass(frozen=True, slots=True)
class Beside:
    """Where a job's aggregators should be.

    Attributes:
        sharing: Indices of those that are to hold the model.
        leaving: Indices of those that should start again elsewhere, once they hold nothing.
    """

    sharing: frozenset[int]
    leaving: frozenset[int]


def beside_workers(
    hosts: Sequence[HostSeen], home: Collection[int], *, on_their_way: int, again: Collection[int] = ()
) -> Beside:
    """Decide where aggregators should be.

    Args:
        hosts: All hosts for workers.
        home: Indices of the aggregators where the first one is.
        on_their_way: Number of aggregators that have no host yet, and will go to one that lacks one.
        again: Indices of those of them that begin again in their place, where they hold what they held.
    """
    sharing, leaving = {*again}, set[int]()
    for host in hosts:
        first, *others = sorted(host.aggregators) or [0]
        leaving.update(others)
        if first and host.has_workers and host.stays:
            sharing.add(first)
        elif first and host.stays:
            leaving.add(first)
    lacking = sum(host.lacks_one for host in hosts) - on_their_way - len(leaving)
    leaving.update(sorted(index for index in home if index)[: max(0, lacking)])
    if len(sharing) < _ENOUGH:
        sharing.add(0)
    return Beside(frozenset(sharing), frozenset(leaving))
