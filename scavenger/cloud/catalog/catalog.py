"""Every machine type that a cloud sells, with its prices, their source and their age.

From the package's snapshot, over it what was refreshed from the clouds, over that the user's own prices. A price that
nobody knows is an error where it is needed, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cached_property

from scavenger.cloud.catalog.compute_engine import Tariff
from scavenger.cloud.catalog.prices import OwnPrices
from scavenger.cloud.stock import GIB, CatalogEntry, Extras, Stock, VmRequirements
from scavenger.domain.configuration import Offer
from scavenger.domain.cost import LIST_DAYS, OLD_DAYS, SPOT_DAYS_MAX, Price, ResourceRates
from scavenger.domain.forms import did_you_mean, shown
from scavenger.errors import ConfigurationError

DEFAULT_REGIONS = {"gcp": "us-central1", "aws": "us-east-1"}
"""Each cloud's own first region, where it sells most types."""
PROVIDERS = tuple(DEFAULT_REGIONS)


class Catalog:
    """Machine types and prices.

    Args:
        stock: What the clouds ask.
        own: What the user pays instead.
        today: By which prices are old.
    """

    def __init__(self, stock: Stock, own: OwnPrices | None = None, *, today: date) -> None:
        self._stock, self._own, self._today = stock, own, today
        self._tariff = Tariff(stock.rates)
        self._listings: dict[tuple[str, str], dict[str, CatalogEntry]] = {}

    def regions(self, provider: str) -> tuple[str, ...]:
        """Where a price is known.

        Raises:
            ConfigurationError: If there is no such provider.
        """
        try:
            return self._regions[provider]
        except KeyError:
            known = ", ".join(self._regions)
            raise ConfigurationError(f"the catalogue has {known}, not {shown(provider)}") from None

    @cached_property
    def _regions(self) -> Mapping[str, tuple[str, ...]]:
        regions: dict[str, set[str]] = {provider: set() for provider in PROVIDERS}
        for provider, region in self._stock.listings:
            regions.setdefault(provider, set()).add(region)
        for price in self._own.content.prices if self._own else ():
            if price.region is not None:
                regions[price.provider].add(price.region)
        return {provider: tuple(sorted(known)) for provider, known in regions.items()}

    def listings(
        self, provider: str, region: str, wanted: VmRequirements | None = None
    ) -> tuple[CatalogEntry, ...]:
        """The types of a region that will do, whatever their caveats, cheapest first, those without a price last.

        Raises:
            ConfigurationError: If there is no such provider or region.
        """
        table = self._table(provider, region)
        found = [listing for listing in table.values() if wanted is None or wanted.admits(listing.machine)]
        named = set(wanted.vms if wanted else ()) - set(table)
        found += [listing for name in sorted(named) if (listing := self._custom(provider, region, name))]
        return tuple(sorted(found, key=_by_price))

    def listing(self, provider: str, region: str, vm: str) -> CatalogEntry:
        """One type; Compute Engine's custom types (`n2-custom-4-16384`) as well.

        Raises:
            ConfigurationError: If there is no such provider, region or type.
        """
        table = self._table(provider, region)
        listing = table.get(vm) or self._custom(provider, region, vm)
        if listing is None:
            hint = did_you_mean(vm, table)
            raise ConfigurationError(
                f"{provider}/{region} has no VM type {shown(vm)} in the catalogue{hint}", key="resources"
            )
        return listing

    def price(self, provider: str, region: str, vm: str, *, spot: bool = False) -> Price:
        """What a VM type costs in an hour.

        Raises:
            ConfigurationError: If there is no such type there, its price is not known, or it is a spot price from long
                ago.
        """
        listing = self.listing(provider, region, vm)
        price = self._price(listing, spot=spot)
        if price is None:
            old = listing.price(spot=spot)
            why = (
                "not known" if old is None else f"{old.age_days(self._today)} days old, too old to decide by"
            )
            raise ConfigurationError(
                f"the {'spot price' if spot else 'price'} of {vm} in {provider}/{region} is {why}: "
                + (
                    f"run `scavenger catalog refresh --provider {provider}`, or write it into the price file"
                    if provider in PROVIDERS
                    else f"its provider {provider} tells the prices"
                )
            )
        return price

    def _price(self, listing: CatalogEntry, *, spot: bool) -> Price | None:
        """Such that one may decide by it; a price that the user wrote down does not age."""
        price = listing.price(spot=spot)
        if price is None or not spot:
            return price
        age_days = self.age_of(price)
        return price if age_days is None or age_days <= SPOT_DAYS_MAX else None

    def age_of(self, price: Price) -> int | None:
        """Age of a price, whole days; None for one that the user wrote down."""
        own = self._own is not None and price.source == self._own.source
        return None if own else price.age_days(self._today)

    def offers(
        self, provider: str, region: str, wanted: VmRequirements | None = None, *, spot: bool = False
    ) -> tuple[Offer, ...]:
        """What may be searched: every type that will do, with a known price, cheapest first.

        Types with a caveat (burstable, shared core, arm64) are offered only where they are named: how fast they are
        in a profile does not say how fast they stay.

        Raises:
            ConfigurationError: If a type is named that does not exist or has no known price, or if nothing will do.
        """
        wanted = wanted or VmRequirements()
        for vm in wanted.vms:
            self.price(provider, region, vm, spot=spot)
        listings = self.listings(provider, region, wanted)
        if not wanted.vms:
            listings = tuple(listing for listing in listings if not listing.machine.caveat)
        priced = [(price, listing) for listing in listings if (price := self._price(listing, spot=spot))]
        if not priced:
            unpriced = f"; {len(listings)} would do, but have no known price of late" if listings else ""
            kind = "spot VM" if spot else "VM"
            raise ConfigurationError(f"{provider}/{region} offers no {kind} with {wanted}{unpriced}")
        priced.sort(key=lambda pair: (pair[0].usd_per_hour, pair[1].machine.name))
        return tuple(self._offer(listing, price, spot=spot) for price, listing in priced)

    def rates(self, region: str, family: str, *, spot: bool = False) -> ResourceRates:
        """What Compute Engine asks for a vCPU and a GiB of a family such as `n2` or `n2_custom`.

        Raises:
            ConfigurationError: If either is not known.
        """
        cpu, ram = (self._stock.rates.get((family, part, region, spot)) for part in ("cpu", "ram"))
        if cpu is None or ram is None:
            families = sorted({name for name, _, where, _ in self._stock.rates if where == region})
            hint = did_you_mean(family, families)
            raise ConfigurationError(f"gcp/{region} has no known rates of {shown(family)}{hint}")
        return ResourceRates(cpu.usd_per_hour, ram.usd_per_hour)

    def extras(self, provider: str, region: str) -> Extras:
        """What the region charges for besides types, as far as it is known."""
        return self._stock.extras.get((provider, region), Extras())

    def is_own(self, provider: str, region: str, vm: str, *, spot: bool) -> bool:
        """Whether the price of a VM type is the user's own; False also for a type that is not known."""
        try:
            price = self.listing(provider, region, vm).price(spot=spot)
        except ConfigurationError:
            return False
        return price is not None and self.age_of(price) is None

    def age_note(self, provider: str, region: str, vms: Iterable[str]) -> str:
        """Say how old the list prices are by which is decided, with what to do; empty where none is old."""
        found = {vm: self.listing(provider, region, vm).on_demand for vm in vms}
        ages = {
            vm: days
            for vm, price in found.items()
            if price is not None and (days := self.age_of(price)) is not None
        }
        old = {vm: days for vm, days in ages.items() if days >= LIST_DAYS}
        if not old or provider not in PROVIDERS:
            return ""
        return (
            f"prices on demand in {provider}/{region} are {max(old.values())} days old ({', '.join(old)}), and may "
            "have changed: costs and choices are no better than they; run `scavenger catalog refresh --provider "
            f"{provider}`"
        )

    def age_days(self, provider: str, region: str, *, spot: bool) -> int | None:
        """Age of the newest price of a region, the user's own aside; None if there is none."""
        listings = self._stock.listings.get((provider, region), {}).values()
        found = [price for listing in listings if (price := listing.price(spot=spot)) is not None]
        return min((price.age_days(self._today) for price in found), default=None)

    def _table(self, provider: str, region: str) -> dict[str, CatalogEntry]:
        key = provider, region
        if key not in self._listings:
            known = self.regions(provider)
            if region not in known:
                hint = did_you_mean(region, known)
                raise ConfigurationError(f"{provider} has no region {shown(region)} in the catalogue{hint}")
            table = self._stock.listings.get(key, {})
            self._listings[key] = self._own.apply(provider, region, table) if self._own else dict(table)
        return self._listings[key]

    def _offer(self, listing: CatalogEntry, price: Price, *, spot: bool) -> Offer:
        machine, age_days = listing.machine, self.age_of(price) or 0
        return Offer(
            provider=machine.provider,
            region=listing.region,
            vm=machine.name,
            price_usd_per_hour=price.usd_per_hour,
            price_source=f"{price}, {age_days} days old" if age_days > OLD_DAYS else str(price),
            cpus=machine.cpus,
            memory_bytes=int(machine.memory_gib * GIB),
            spot=spot,
            workers_per_vm=max(1, machine.accelerators),
        )

    def _custom(self, provider: str, region: str, vm: str) -> CatalogEntry | None:
        listing = self._tariff.custom(vm, region) if provider == "gcp" else None
        if listing is None or self._own is None:
            return listing
        return self._own.apply(provider, region, {vm: listing})[vm]


def _by_price(listing: CatalogEntry) -> tuple[float, str]:
    known = [price.usd_per_hour for price in (listing.on_demand, listing.spot) if price is not None]
    on_demand = listing.on_demand.usd_per_hour if listing.on_demand else None
    return (on_demand or min(known, default=math.inf), listing.machine.name)
