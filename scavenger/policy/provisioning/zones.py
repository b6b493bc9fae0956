"""The zones of a job's VMs: one for all of them unless capacity is missing there.

Gradients and weights cross the network at every step, and clouds charge for what leaves a zone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scavenger.domain.intent import Intent, PlacementOption
from scavenger.policy.provisioning.slots import is_for_aggregators


def common_first(zones: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Order the zones of each VM type: those first that have most of the types, so that all VMs can be in one.

    Args:
        zones: Zones of each VM type, in the order to try.
    """
    types = Counter(zone for found in zones.values() for zone in found)
    return {vm: tuple(sorted(found, key=lambda zone: -types[zone])) for vm, found in zones.items()}


def near_first(options: Sequence[PlacementOption], living: Iterable[Intent]) -> tuple[PlacementOption, ...]:
    """Order placement options: among those of one kind (VM type, spot), the zones first where the job already is.

    The aggregators' zone comes before all others, since every worker exchanges its data with them, and the zone of
    most of them first. Another kind is
    not preferred for its zone: it costs more than the traffic.

    Args:
        options: In the order to try for a job without VMs.
        living: Intents of the job whose VMs are to stay.
    """
    kinds = list(dict.fromkeys((option.vm, option.spot) for option in options))
    vms: Counter[str] = Counter()
    aggregators: Counter[str] = Counter()
    for intent in living:
        (aggregators if is_for_aggregators(intent.slot) else vms)[intent.request.zone] += 1
    return tuple(
        sorted(
            options,
            key=lambda option: (
                kinds.index((option.vm, option.spot)),
                -aggregators[option.zone],
                -vms[option.zone],
            ),
        )
    )


def workers_elsewhere(intents: Iterable[Intent], processes: Mapping[str, int], *, met_in: str = "") -> float:
    """Number of workers in other zones than the aggregators, with which they exchange data at every step.

    If aggregator VMs are in several zones, a worker counts as the share of them that is not in its own.

    Args:
        intents: Intents of the job.
        processes: Number of processes on each VM, by its intent.
        met_in: The zone where they exchange it if there is no aggregator VM; empty if it is not known.
    """
    here = [intent for intent in intents if intent.state in ("PLAN", "UP")]
    zones = Counter(intent.request.zone for intent in here if is_for_aggregators(intent.slot))
    if not zones and met_in:
        zones[met_in] = 1
    if not zones:
        return 0.0
    return sum(
        processes.get(intent.id, 0) * (1.0 - zones[intent.request.zone] / zones.total())
        for intent in here
        if not is_for_aggregators(intent.slot)
    )
