"""What clouds charge for traffic between the zones of a region, and for the public address of a VM.

Traffic within a zone is free at both. AWS charges the sending and the receiving VM $0.01 per GB each, Google Cloud the
sending one $0.01 per GiB. Neither the snapshot nor the refreshed prices have these, and the prices here are not read
from the clouds' own lists.
"""

from __future__ import annotations

from datetime import date

from scavenger.domain.cost import Price, TrafficPrice

_PRICES = {
    "aws": TrafficPrice(
        0.02, "EC2 data transfer between zones, out and in, as third parties list it", date(2026, 6, 25)
    ),
    "gcp": TrafficPrice(
        0.01, "VPC network pricing between zones, as third parties list it", date(2026, 9, 20)
    ),
}
_EC2_ADDRESS = Price(0.005, "public IPv4 addresses of Amazon VPC, in every region", date(2024, 2, 1))
_GCP_ADDRESSES = "VPC network pricing of external addresses, as third parties list it"
_ADDRESSES = {
    ("aws", False): _EC2_ADDRESS,
    ("aws", True): _EC2_ADDRESS,
    ("gcp", False): Price(0.005, _GCP_ADDRESSES, date(2026, 10, 16)),
    ("gcp", True): Price(0.0025, _GCP_ADDRESSES, date(2026, 10, 16)),
}
"""By provider, and whether the VM is a spot VM."""


def traffic_price(provider: str) -> TrafficPrice | None:
    """The price of traffic between zones of a region; None where it is not known."""
    return _PRICES.get(provider)


def address_price(provider: str, *, spot: bool) -> Price | None:
    """The price of a VM's public IPv4 address in an hour; None where there is none."""
    return _ADDRESSES.get((provider, spot))
