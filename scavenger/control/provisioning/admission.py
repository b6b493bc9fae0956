"""Leaves out the sizes of pods that a cluster takes under no circumstances, before one of them is started."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.domain.configuration import Offer
from scavenger.errors import ConfigurationError
from scavenger.policy.spot import SpotMode


def admitted(
    offers: tuple[Offer, ...], aggregator: str, refusal: Callable[[str, bool], str], *, spot: SpotMode
) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """The offers whose pods can be started, and a note for each other one.

    Args:
        offers: Of the search.
        aggregator: Size of the aggregators' pods; empty for none.
        refusal: Tells why no pod of a size can be started, on spot nodes or others; empty if one can.
        spot: Whether pods may be on spot nodes.

    Raises:
        ConfigurationError: If no offer is left, or the aggregators' pods cannot be started.
    """
    if aggregator and (why := refusal(aggregator, False)):
        raise ConfigurationError(f"the aggregators cannot be started: {why}", key="resources")

    def refused(offer: Offer) -> str:
        why = refusal(offer.vm, offer.spot)
        return refusal(offer.vm, False) if why and offer.spot and spot == "auto" else why

    said = {offer: refused(offer) for offer in offers}
    left = tuple(offer for offer, why in said.items() if not why)
    if not left:
        raise ConfigurationError(next(iter(said.values())), key="resources")
    return left, tuple(f"{offer.vm} is left out: {why}" for offer, why in said.items() if why)
