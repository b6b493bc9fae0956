"""The user's own prices and discounts."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.catalog.prices import OwnPrices
from scavenger.cloud.stock import CatalogEntry, MachineType, Stock
from scavenger.control.provisioning.prices import load_price_file, parse_price_file
from scavenger.domain.cost import Price
from scavenger.errors import ConfigurationError, JobFileError

DAY = date(2026, 3, 1)
LONG_AGO = date(2020, 1, 1)
M5 = MachineType("aws", "m5.xlarge", 4, 16.0)
C5 = MachineType("aws", "c5.xlarge", 4, 8.0)
STOCK = Stock(
    {
        ("aws", region): {
            machine.name: CatalogEntry(
                machine, region, Price(usd, "a list", DAY), Price(usd / 4, "a list", DAY)
            )
            for machine, usd in ((M5, 0.2), (C5, 0.16))
        }
        for region in ("r-1", "r-2")
    }
)


def catalog(text: str) -> Catalog:
    own = OwnPrices(
        parse_price_file("version: 1\n" + text, path="prices.yaml"), "price file prices.yaml", LONG_AGO
    )
    return Catalog(STOCK, own, today=DAY)


def usd(shop: Catalog, vm: str, region: str = "r-1", *, spot: bool = False) -> float:
    return shop.price("aws", region, vm, spot=spot).usd_per_hour


def test_an_own_price_beats_the_list_and_one_of_a_region_that_of_all() -> None:
    shop = catalog(
        "prices:\n- {provider: aws, vm: m5.xlarge, region: r-2, on_demand: $0.11}\n"
        "- {provider: aws, vm: m5.xlarge, on_demand: 0.15, spot: 0.02}\n"
    )

    assert (usd(shop, "m5.xlarge"), usd(shop, "m5.xlarge", "r-2")) == (0.15, 0.11)
    assert usd(shop, "m5.xlarge", "r-2", spot=True) == 0.02
    assert usd(shop, "c5.xlarge") == 0.16
    assert str(shop.price("aws", "r-1", "m5.xlarge")) == "price file prices.yaml, 2020-01-01"


def test_an_own_spot_price_does_not_age() -> None:
    shop = catalog("prices:\n- {provider: aws, vm: m5.xlarge, spot: 0.02}\n")

    assert shop.offers("aws", "r-1", spot=True)[0].price_usd_per_hour == 0.02


def test_a_discount_is_taken_off_the_list_not_off_own_prices_and_not_twice() -> None:
    shop = catalog(
        "prices:\n- {provider: aws, vm: m5.xlarge, region: r-2, on_demand: 0.11}\n"
        "discounts:\n- {provider: aws, percent: 10}\n- {provider: aws, family: m5, percent: 50, of: both}\n"
    )

    assert usd(shop, "m5.xlarge") == pytest.approx(0.1)
    assert usd(shop, "m5.xlarge", spot=True) == pytest.approx(0.025)
    assert usd(shop, "c5.xlarge") == pytest.approx(0.144)
    assert usd(shop, "c5.xlarge", spot=True) == pytest.approx(0.04)
    assert usd(shop, "m5.xlarge", "r-2") == 0.11
    assert "less 50 % by price file" in shop.price("aws", "r-1", "m5.xlarge").source


@given(percent=st.floats(0.01, 99.99))
def test_a_discounted_price_is_above_zero_and_below_the_list(percent: float) -> None:
    shop = catalog(f"discounts:\n- {{provider: aws, percent: {percent:.4f}}}\n")

    assert 0 < usd(shop, "m5.xlarge") < 0.2


def test_a_type_that_the_catalogue_lacks_is_added_with_its_size() -> None:
    shop = catalog(
        "prices:\n- {provider: aws, vm: p9.xlarge, region: r-1, on_demand: 3, cpus: 8, memory: 64, gpu: X1, gpus: 2}\n"
    )
    (offer,) = [offer for offer in shop.offers("aws", "r-1") if offer.vm == "p9.xlarge"]

    assert (offer.cpus, offer.memory_bytes, offer.workers_per_vm) == (8, 64 * 2**30, 2)
    with pytest.raises(ConfigurationError, match=r"no VM type 'p9.xlarge'"):
        shop.price("aws", "r-2", "p9.xlarge")


def test_a_known_type_keeps_its_size() -> None:
    shop = catalog("prices:\n- {provider: aws, vm: m5.xlarge, on_demand: 1, cpus: 8, memory: 16}\n")
    with pytest.raises(ConfigurationError, match=r"m5\.xlarge has 4 vCPUs and 16 GiB, not 8 and 16; leave"):
        shop.offers("aws", "r-1")


PRICE = "prices:\n- {provider: aws, vm: m5.xlarge, on_demand: %s}\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (PRICE % "0", "p.yaml:3:34: prices[0].on_demand must be above $0 and at most $10000 per hour, not 0"),
        (PRICE % "-1", "must be above $0"),
        (PRICE % ".nan", "must be above $0"),
        (PRICE % ".inf", "must be above $0"),
        (PRICE % "true", "must be US dollars per hour such as 0.096"),
        (PRICE % "cheap", "must be US dollars per hour such as 0.096 or $0.096, not 'cheap'"),
        (PRICE % "$nan", "must be above $0"),
        (
            "discounts:\n- {provider: aws, percent: 100}\n",
            "must be a number of percent above 0 and below 100",
        ),
        ("discounts:\n- {provider: aws, percent: 0}\n", "must be a number of percent above 0"),
        (
            "discounts:\n- {provider: azure, percent: 5}\n",
            "p.yaml:3:4: discounts[0].provider cannot be 'azure'",
        ),
        (
            "discounts:\n- {provider: aws, percnt: 5}\n",
            "is not a key of the price file; did you mean 'percent'?",
        ),
        (
            "prices:\n- {provider: aws, vm: m5.xlarge}\n",
            "prices[0] must have a price: on_demand, spot or both",
        ),
        (
            "prices:\n- {provider: aws, vm: x, spot: 1, cpus: 4}\n",
            "must have both cpus and memory, or neither",
        ),
        (
            PRICE % "1" + "- {provider: aws, vm: m5.xlarge, spot: 1}\n",
            "p.yaml:4:3: prices[1] is a second price of",
        ),
        (
            "discounts:\n- {provider: aws, percent: 5}\n- {provider: aws, percent: 6, of: both}\n",
            "second discount",
        ),
        ("prices: 3\n", "prices cannot be 3"),
        ("prices: []\nprices: []\n", "key 'prices' is given twice"),
    ],
)
def test_what_a_price_file_may_not_say_is_refused_in_one_line_with_its_place(
    text: str, complaint: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_price_file("version: 1\n" + text, path="p.yaml")
    message = str(caught.value)
    assert complaint in message
    assert message.startswith("p.yaml:")
    assert "\n" not in message


def test_a_price_file_needs_its_version_and_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"p\.yaml:1:1: version is missing"):
        parse_price_file("prices: []\n", path="p.yaml")
    with pytest.raises(JobFileError, match="cannot be read: No such file"):
        load_price_file(tmp_path / "prices.yaml")


def test_the_example_in_the_docs_is_a_price_file() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs" / "costs.md"
    example = docs.read_text().partition("```yaml\n")[2].partition("```")[0]
    parsed = parse_price_file(example, path="costs.md")

    assert (len(parsed.prices), len(parsed.discounts)) == (3, 2)
