"""What clouds charge for traffic between the zones of a region; traffic within a zone is free at both.

AWS charges the sending and the receiving VM $0.01 per GB each, Google Cloud the sending one $0.01 per GiB. Neither the
snapshot nor the refreshed prices have these, and the prices here are not read from the clouds' own lists.
"""

from __future__ import annotations

from datetime import date

from scavenger.domain.cost import TrafficPrice

_PRICES = {
    "aws": TrafficPrice(
        0.02, "EC2 data transfer between zones, out and in, as third parties list it", date(2026, 6, 25)
    ),
    "gcp": TrafficPrice(
        0.01, "VPC network pricing between zones, as third parties list it", date(2026, 9, 20)
    ),
}


def traffic_price(provider: str) -> TrafficPrice | None:
    """The price of traffic between zones of a region; None where it is not known."""
    return _PRICES.get(provider)
