"""What a search on a cloud is offered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import spot_prices

from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.stock import Stock
from scavenger.control.places.offers import TYPES_MAX, CatalogCloud, ChangeCosts
from scavenger.domain.job import ResourcesSpec
from scavenger.errors import ConfigurationError


def cloud(spot: Any = "never", **more: Any) -> CatalogCloud:
    return CatalogCloud("aws", spot_prices.REGION, spot=spot, catalog=spot_prices.catalog(), **more)


def asked(**resources: Any) -> ResourcesSpec:
    return ResourcesSpec.model_validate(resources)


def names(of: CatalogCloud, resources: ResourcesSpec | None) -> list[str]:
    return [offer.vm for offer in of.offers_for(resources, workers=(1, 8)).offers]


def test_a_job_that_asks_for_nothing_gets_the_cheapest_plain_type_of_four_processors() -> None:
    (offer,) = cloud().offers_for(None, workers=(1, 8)).offers

    assert (offer.vm, offer.price_usd_per_hour, offer.spot) == ("c5.xlarge", 0.17, False)
    assert offer.price_source == "AWS price list, 2026-07-20"


def test_named_types_come_in_the_users_order_with_all_their_caveats() -> None:
    assert names(cloud(), asked(any_of=["m5.xlarge", "t3.xlarge"])) == ["m5.xlarge", "t3.xlarge"]
    with pytest.raises(ConfigurationError, match="did you mean"):
        cloud().offers_for(asked(vm="m5.xlage"), workers=(1, 2))


def test_a_size_gets_what_fits_cheapest_first_and_accelerators_only_where_they_are_asked_for() -> None:
    assert names(cloud(), asked(cpus=4)) == ["c5.xlarge", "m5.xlarge"]
    assert names(cloud(), asked(cpus="8+")) == ["c5.2xlarge", "c5.4xlarge"]
    assert names(cloud(), asked(accelerators="t4")) == ["g4dn.xlarge", "g4dn.2xlarge"]
    assert names(cloud(), asked(accelerators="T4:4")) == ["g4dn.12xlarge"]
    with pytest.raises(ConfigurationError, match="3 T4 on each"):
        names(cloud(), asked(accelerators="T4:3"))


def test_a_worker_of_several_processes_takes_as_many_gpus_of_a_vm() -> None:
    four, halves = asked(accelerators="T4:4"), cloud(processes=2)

    assert [offer.workers_per_vm for offer in cloud().offers_for(four, workers=(1, 8)).offers] == [4]
    assert [offer.workers_per_vm for offer in halves.offers_for(four, workers=(1, 8)).offers] == [2]
    assert [offer.workers_per_vm for offer in halves.offers_for(asked(cpus=4), workers=(1, 8)).offers] == [
        1,
        1,
    ]
    with pytest.raises(ConfigurationError, match=r"the 3 processes .*and g4dn.12xlarge has 4: write"):
        cloud(processes=3).offers_for(four, workers=(1, 8))


def test_of_too_many_types_the_cheapest_are_searched_and_that_is_said() -> None:
    many = [spot_prices.listing(f"x{i}.xlarge", 64, 64.0, 0, 9.0 - i * 0.1, None, "") for i in range(12)]
    big = CatalogCloud("aws", spot_prices.REGION, catalog=spot_prices.catalog(*many))
    offered = big.offers_for(asked(cpus=64), workers=(1, 2))

    assert [offer.vm for offer in offered.offers] == [f"x{i}.xlarge" for i in range(11, 3, -1)]
    assert len(offered.offers) == TYPES_MAX
    assert offered.notes[0].startswith("resources: 12 VM types of aws/us-east-1 would do; the 8 cheapest")


def test_auto_takes_spot_where_it_pays_and_says_why_for_every_type() -> None:
    offered = cloud("auto").offers_for(
        asked(any_of=["c5.large", "m5.xlarge", "g4dn.12xlarge"]), workers=(1, 8)
    )

    assert [offer.spot for offer in offered.offers] == [True, True, False]
    assert [offer.price_usd_per_hour for offer in offered.offers] == [0.03485, 0.06528, 3.912]
    assert set(offered.risks) == {"c5.large", "m5.xlarge"}
    assert [note.split(":")[0] for note in offered.notes] == ["c5.large", "m5.xlarge", "g4dn.12xlarge"]
    assert "no spot price of it from the last 62 days is known" in offered.notes[2]


def test_the_age_of_list_prices_is_said_where_a_choice_rests_on_them() -> None:
    known = [spot_prices.listing("c5.xlarge", 4, 8.0, 0, 0.17, None, "")]
    stock = Stock({("aws", spot_prices.REGION): {one.machine.name: one for one in known}})

    def notes(days: int) -> tuple[str, ...]:
        dated = known[0].on_demand
        assert dated is not None
        catalog = Catalog(stock, today=dated.dated + timedelta(days=days))
        return CatalogCloud("aws", spot_prices.REGION, catalog=catalog).offers_for(None, workers=(1, 2)).notes

    assert notes(29) == ()
    assert notes(633) == (
        "prices on demand in aws/us-east-1 are 633 days old (c5.xlarge), and may have changed: costs and choices are "
        "no better than they; run `scavenger catalog refresh --provider aws`",
    )


def test_slow_replacement_or_a_deadline_keep_a_risky_type_on_demand() -> None:
    """g4dn.2xlarge: nothing bounds how often it is taken."""
    slow = cloud("auto", changes=ChangeCosts(pause_s=600.0, replace_s=1800.0))
    assert not slow.offers_for(asked(vm="g4dn.2xlarge"), workers=(1, 16)).offers[0].spot

    quick = cloud("auto")
    assert quick.offers_for(asked(vm="g4dn.2xlarge"), workers=(1, 16)).offers[0].spot
    limited = quick.offers_for(asked(vm="g4dn.2xlarge"), workers=(1, 16), deadline_s=3600.0)
    assert not limited.offers[0].spot
    assert "deadline" in limited.notes[0]


def test_always_leaves_out_types_without_a_spot_price_unless_they_are_named() -> None:
    assert names(cloud("always"), asked(accelerators="T4")) == ["g4dn.xlarge", "g4dn.2xlarge"]
    offered = cloud("always").offers_for(asked(vm="g4dn.12xlarge"), workers=(1, 2))

    (offer,) = offered.offers
    assert (offer.spot, offer.price_usd_per_hour) == (True, 3.912)
    assert offer.price_source == (
        "price on demand, the most that a spot VM costs: AWS price list, 2026-07-20"
    )
    assert (
        "no spot price of the last 62 days is known, so it is planned with the price on" in offered.notes[0]
    )
    assert set(offered.risks) == {"g4dn.12xlarge"}


def test_always_has_spot_vms_where_no_spot_price_is_known_at_all() -> None:
    """As offline, with the snapshot's prices alone: EC2's spot prices are not in it."""
    known = [spot_prices.listing("c5.xlarge", 4, 8.0, 0, 0.17, None, "")]
    bare = Catalog(
        Stock({("aws", spot_prices.REGION): {one.machine.name: one for one in known}}),
        today=spot_prices.TODAY,
    )
    here = CatalogCloud("aws", spot_prices.REGION, spot="always", catalog=bare)

    for resources in (None, asked(cpus=4), asked(vm="c5.xlarge")):
        (offer,) = here.offers_for(resources, workers=(1, 2)).offers
        assert (offer.vm, offer.spot, offer.price_usd_per_hour) == ("c5.xlarge", True, 0.17)


@pytest.mark.parametrize(
    ("workers", "aggregators"),
    [
        ("c5.xlarge", "c5.xlarge"),
        ("c5.4xlarge", "c5.large"),
        ("g4dn.xlarge", "c5.large"),
        ("t3.xlarge", "t3.xlarge"),
    ],
)
def test_aggregators_get_the_workers_type_unless_it_is_large_or_has_gpus(
    workers: str, aggregators: str
) -> None:
    offer = cloud("always").on_demand_offer(workers)

    assert (offer.vm, offer.spot) == (aggregators, False)


def test_the_terms_hold_all_that_is_paid_beside_the_workers() -> None:
    here = cloud("auto")
    offered = here.offers_for(asked(vm="g4dn.xlarge", disk=30), workers=(1, 8))
    terms = here.terms(offered, setup_s=150.0)

    assert (terms.shared.aggregators, terms.shared.usd_per_aggregator_hour) == (1, 0.085)
    assert terms.shared.usd_per_hour == pytest.approx(0.085 + 30 * spot_prices.DISK_USD_PER_GIB_HOUR + 0.005)
    private = cloud("auto", public=False).extras(30.0, spot=False)
    assert (private.address_usd_per_hour, str(private)) == (0.0, "with its disk")
    assert str(here.extras(30.0, spot=True)) == "with its disk and public address"
    more = cloud("auto", aggregator_vms=3)
    several = more.terms(offered, setup_s=150.0)
    assert more.hardware() != here.hardware() == f"aws/{spot_prices.REGION}"
    assert several.shared.usd_per_hour == pytest.approx(3 * terms.shared.usd_per_hour)
    assert terms.setup_s == 150.0
    assert terms.sources == (
        "g4dn.xlarge $0.18936 per hour (AWS Spot Advisor, 2026-07-20)",
        "boot disk of 30 GiB $0.00328767 per hour (AWS price list, 2026-07-20)",
        "public address $0.005 per hour (AWS price list, 2026-07-20)",
        "traffic to another zone $0.02 per GiB (AWS price list, 2026-07-20)",
    )
    assert terms.risks["g4dn.xlarge"].interruptions_per_hour > 0


def test_spot_is_weighed_by_what_a_vm_is_billed_with_its_disk_its_address_and_the_leader() -> None:
    """c5.large: spot VMs save 59 % of the type's price, but not of a disk of half a terabyte."""

    def factor(disk_gib: int, **more: Any) -> tuple[bool, float]:
        here = cloud("auto", aggregator_vms=0)
        offered = here.offers_for(asked(vm="c5.large", disk=disk_gib), workers=(1, 1), **more)
        (decision,) = offered.decisions
        assert decision.price_factor is not None
        return decision.spot, decision.price_factor

    def billed(disk_gib: int) -> tuple[float, float]:
        extras_usd = disk_gib * spot_prices.DISK_USD_PER_GIB_HOUR + 0.005
        return 0.03485 + extras_usd, 0.085 + extras_usd

    spot_usd, usd = billed(20)
    assert factor(20) == (True, pytest.approx(spot_usd / usd, rel=1e-3))
    spot_usd, usd = billed(8000)
    assert factor(8000) == (False, pytest.approx(spot_usd / usd, rel=1e-3))
    led = factor(20, leader_usd_per_hour=1.0)
    spot_usd, usd = billed(20)
    assert led == (False, pytest.approx((spot_usd + 1.0) / (usd + 1.0), rel=1e-3))
    rented_leader = factor(20, leader_usd_per_hour=None)[1]  # of the same type, on demand
    assert rented_leader == pytest.approx((spot_usd + usd) / (2 * usd), rel=1e-3)


def test_a_spot_price_that_is_not_fresh_is_not_chosen_and_on_demand_is_said_in_one_line() -> None:
    for days, spot in ((62, True), (63, False)):
        catalog = spot_prices.catalog(today=spot_prices.TODAY + timedelta(days=days))
        here = CatalogCloud("aws", spot_prices.REGION, spot="auto", catalog=catalog)
        offered = here.offers_for(asked(vm="c5.xlarge"), workers=(1, 8))

        assert [offer.spot for offer in offered.offers] == [spot]
        why = "c5.xlarge: on demand, as no spot price of it from the last 62 days is known"
        assert (why in offered.notes) is not spot


def test_prices_of_gpus_carry_their_age_and_those_of_ones_own_do_not_age() -> None:
    catalog = spot_prices.catalog(today=spot_prices.TODAY + timedelta(days=120))
    here = CatalogCloud("aws", spot_prices.REGION, catalog=catalog)
    offered = here.offers_for(asked(any_of=["g4dn.xlarge", "c5.xlarge"]), workers=(1, 2))

    (old,) = offered.gpu_prices
    assert str(old) == (
        "the price of g4dn.xlarge, $0.526 an hour, is 120 days old (AWS price list, 2026-07-20)"
    )
    assert offered.offers[0].price_source == "AWS price list, 2026-07-20, 120 days old"
    assert here.terms(offered, setup_s=0.0).old_prices == str(old)
    fresh = CatalogCloud("aws", spot_prices.REGION, catalog=spot_prices.catalog())
    offered = fresh.offers_for(asked(vm="g4dn.xlarge"), workers=(1, 2))
    assert offered.gpu_prices[0].age_days == 0
    assert fresh.terms(offered, setup_s=0.0).old_prices == ""


def test_what_is_not_known_of_a_region_is_told_and_not_counted() -> None:
    known = [spot_prices.listing("c5.xlarge", 4, 8.0, 0, 0.17, None, "")]
    bare = Catalog(
        Stock({("aws", spot_prices.REGION): {one.machine.name: one for one in known}}),
        today=spot_prices.TODAY,
    )
    here = CatalogCloud("aws", spot_prices.REGION, catalog=bare)

    assert [str(one) for one in here.priced_extras(20)] == [
        "boot disk of 20 GiB: not known, and not counted",
        "public address: not known, and not counted",
        "traffic to another zone: not known, and not counted",
    ]
    assert here.extras(20, spot=False).usd_per_hour == 0.0
    assert here.traffic_price is None
