"""What a user pays instead of the list price: prices of their own, and discounts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, model_validator

from scavenger.cloud.stock import CatalogEntry, MachineType
from scavenger.domain.cost import Price
from scavenger.domain.forms import FrozenModel, VmName, fault, is_number, shown
from scavenger.errors import ConfigurationError

USD_PER_HOUR_MAX = 10_000.0
"""No VM costs a tenth of that: a price above is a slip of the keyboard."""


def _usd_per_hour(value: object) -> float:
    text = value[1:] if isinstance(value, str) and value.startswith("$") else ""
    try:
        usd = float(text) if text else value
    except ValueError:
        usd = value
    if not is_number(usd):
        raise fault(f"must be US dollars per hour such as 0.096 or $0.096, not {shown(value)}")
    if not (math.isfinite(usd) and 0 < usd <= USD_PER_HOUR_MAX):
        raise fault(f"must be above $0 and at most ${USD_PER_HOUR_MAX:g} per hour, not {shown(value)}")
    return float(usd)


def _above_zero(value: object) -> float:
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise fault(f"must be a number above 0, not {shown(value)}")
    return float(value)


def _percent(value: object) -> float:
    if not (is_number(value) and math.isfinite(value) and 0 < value < 100):
        raise fault(f"must be a number of percent above 0 and below 100, not {shown(value)}")
    return float(value)


UsdPerHour = Annotated[float, PlainValidator(_usd_per_hour)]
Region = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Provider = Literal["gcp", "aws"]


class OwnPrice(FrozenModel):
    """The price of a VM type, in one region or in all; with its size, also of a type that the catalogue lacks."""

    provider: Provider
    vm: VmName
    region: Region | None = None
    on_demand: UsdPerHour | None = None
    spot: UsdPerHour | None = None
    cpus: int | None = Field(default=None, ge=1, le=10_000)
    memory: Annotated[float, PlainValidator(_above_zero)] | None = Field(default=None, description="GiB.")
    gpu: VmName | None = None
    gpus: int | None = Field(default=None, ge=1, le=64)

    @model_validator(mode="after")
    def _check(self) -> OwnPrice:
        if self.on_demand is None and self.spot is None:
            raise fault("must have a price: on_demand, spot or both")
        if (self.cpus is None) != (self.memory is None):
            raise fault("must have both cpus and memory, or neither")
        if (self.gpu is None) != (self.gpus is None):
            raise fault("must have both gpu and gpus, or neither")
        if self.gpu is not None and self.cpus is None:
            raise fault("must have cpus and memory in addition to its gpu")
        return self


class Discount(FrozenModel):
    """Percent off the list price of a provider, or of one of its families such as `m5` or `n2`."""

    provider: Provider
    family: VmName | None = None
    percent: Annotated[float, PlainValidator(_percent)]
    of: Literal["on_demand", "spot", "both"] = "on_demand"


class PriceFile(FrozenModel):
    """`prices.yaml`."""

    version: Literal[1]
    prices: tuple[OwnPrice, ...] = Field(default=(), strict=False)
    discounts: tuple[Discount, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _check(self) -> PriceFile:
        seen: set[tuple[object, ...]] = set()
        for index, own in enumerate(self.prices):
            key: tuple[object, ...] = (own.provider, own.vm, own.region)
            if key in seen:
                raise fault(
                    f"is a second price of {own.vm} in {own.region or 'all regions'}", "prices", index
                )
            seen.add(key)
        for index, discount in enumerate(self.discounts):
            for kind in ("on_demand", "spot"):
                if discount.of in (kind, "both"):
                    key = (discount.provider, discount.family, kind)
                    if key in seen:
                        words = discount.family or "all families"
                        raise fault(f"is a second discount of {words}, {kind}", "discounts", index)
                    seen.add(key)
        return self


@dataclass(frozen=True, slots=True)
class OwnPrices:
    """A price file with where it was read and when it was last changed.

    A price of one region beats one of all regions. A discount is taken off list prices, not off own prices; a
    family's beats a provider's, they do not add up.
    """

    content: PriceFile
    source: str
    dated: date

    def apply(
        self, provider: str, region: str, listings: Mapping[str, CatalogEntry]
    ) -> dict[str, CatalogEntry]:
        """The listings of one region with own prices and discounts; types that only the file has are added.

        Raises:
            ConfigurationError: If the file gives a known type another size.
        """
        result = {name: self._discounted(listing) for name, listing in listings.items()}
        own = [p for p in self.content.prices if p.provider == provider and p.region in (None, region)]
        for price in sorted(own, key=lambda price: price.region is not None):
            listing = self._listing(price, region, result.get(price.vm))
            if listing is not None:
                result[price.vm] = replace(
                    listing,
                    on_demand=self._own(price.on_demand) or listing.on_demand,
                    spot=self._own(price.spot) or listing.spot,
                )
        return result

    def _listing(self, price: OwnPrice, region: str, known: CatalogEntry | None) -> CatalogEntry | None:
        """What an own price is of; None for a type that neither the catalogue nor the file describes."""
        if price.cpus is None or price.memory is None:
            return known
        if known is None:
            gpus = price.gpus or 0
            return CatalogEntry(
                MachineType(price.provider, price.vm, price.cpus, price.memory, price.gpu or "", gpus), region
            )
        machine = known.machine
        if (price.cpus, price.memory) != (machine.cpus, machine.memory_gib):
            raise ConfigurationError(
                f"{self.source}: {price.vm} has {machine.cpus} vCPUs and {machine.memory_gib:g} GiB, not "
                f"{price.cpus} and {price.memory:g}; leave cpus and memory out"
            )
        return known

    def _own(self, usd: float | None) -> Price | None:
        return None if usd is None else Price(usd, self.source, self.dated)

    def _discounted(self, listing: CatalogEntry) -> CatalogEntry:
        return replace(
            listing,
            on_demand=self._less(listing, listing.on_demand, "on_demand"),
            spot=self._less(listing, listing.spot, "spot"),
        )

    def _less(self, listing: CatalogEntry, price: Price | None, kind: str) -> Price | None:
        machine = listing.machine
        for family in (machine.family, None):
            for discount in self.content.discounts:
                fits = discount.provider == machine.provider and discount.of in (kind, "both")
                if price is not None and fits and discount.family == family:
                    percent = discount.percent
                    usd = price.usd_per_hour * (1 - percent / 100)
                    return Price(usd, f"{price.source}, less {percent:g} % by {self.source}", price.dated)
        return price
