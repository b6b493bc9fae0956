"""EC2 types and prices of the snapshot, and the law by which its prices are mended.

libcloud's table of EC2 prices has two faults. A price may be 0: not known. And a price may be that of a dedicated
instance, 6 to 10 % more, instead of a shared one. Both show, because EC2's list prices follow a law: inside a family
and region they are proportional to size (an xlarge costs two large), and where they are not, as with GPUs, the ratio
between two regions is that of the family. A price that stands out above the law is replaced by the law's; one that is
missing is filled in. Both say so in their source.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median_low
from typing import Any

from scavenger.cloud.catalog.types import MachineType

AGREE = 0.01
"""Prices within 1 % agree: list prices are rounded to 0.1 cents, and the dedicated surcharge is at least 6 %."""
PROPORTIONAL_SHARE = 0.6
"""Of a family's prices that must agree with proportionality to size before it is believed. With any share from 0.4
to 0.7, 97.8 to 98.2 % of the prices are within 0.5 % of a second source's (docs/costs.md)."""
LONE_TYPES = 2
"""Families of fewer types cannot be checked against themselves."""

MendedPrice = tuple[float, str]
"""US dollars per hour, and how it was come by: empty for as found, else `corrected`, `derived` or `unchecked`."""

Law = Callable[[tuple[str, str]], float | None]
"""The logarithm of a price by (type, region); None where the law says nothing."""

_SIZES = {"nano": 0.25, "micro": 0.5, "small": 1.0, "medium": 2.0, "large": 4.0}
"""Amazon's normalisation factors."""
_XLARGE = re.compile(r"(?:metal-)?(\d*)x(?:large|l)")

_GPUS = {
    "g2": "K520",
    "g3": "M60",
    "g3s": "M60",
    "g4ad": "V520",
    "g4dn": "T4",
    "g5": "A10G",
    "g5g": "T4G",
    "g6": "L4",
    "g6e": "L40S",
    "gr6": "L4",
    "p2": "K80",
    "p3": "V100",
    "p3dn": "V100",
    "p4d": "A100",
    "p4de": "A100-80GB",
    "p5": "H100",
    "p5e": "H200",
    "p5en": "H200",
}
"""By family; the snapshot has their number, not their name."""
_NETWORK = re.compile(r"(?:Up to )?([0-9]+(?:\.[0-9]+)?) (Giga|Mega)bit")
_BURSTABLE = ("t1", "t2", "t3", "t3a", "t4g")
_AMD_GPUS = ("g4ad",)
_OTHER_ACCELERATORS = ("Machine Learning ASIC Instances", "FPGA Instances", "Media Accelerator Instances")


def ec2_machine(name: str, attributes: Mapping[str, Any], *, memory_gib: float) -> MachineType | None:
    """A type from its attributes in Amazon's price list; None where it does not say how many vCPUs it has."""
    cpus = str(attributes.get("vcpu", ""))
    if not (cpus.isdecimal() and int(cpus) and memory_gib > 0):
        return None
    family = name.partition(".")[0]
    gpus = str(attributes.get("gpu", "0"))
    count = int(gpus) if gpus.isdecimal() else 0
    processor = str(attributes.get("physicalProcessor", ""))
    caveat = ""
    if family in _BURSTABLE or family.endswith("-flex"):
        caveat = "burstable: its speed falls when its credits are used up"
    elif "Graviton" in processor:
        caveat = "arm64"
    elif attributes.get("instanceFamily") in _OTHER_ACCELERATORS or family in _AMD_GPUS:
        caveat = "accelerators that are not used"
    elif attributes.get("currentGeneration") == "No":
        caveat = "previous generation: may not be had, or lack the instructions that TensorFlow needs"
    label = _GPUS.get(family, "GPU") if count else ""
    network_gbits = _gbits(str(attributes.get("networkPerformance", "")))
    return MachineType("aws", name, int(cpus), memory_gib, label, count, caveat, network_gbits)


def _gbits(words: str) -> float | None:
    """Bandwidth from the price list's words, such as `Up to 10 Gigabit` or `12500 Megabit`; None for `Moderate`."""
    match = _NETWORK.fullmatch(words)
    return None if match is None else float(match[1]) / (1000.0 if match[2] == "Mega" else 1.0)


def mend(table: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], MendedPrice]:
    """Prices by (type, region), with the dedicated ones corrected and missing ones derived where the law allows.

    Args:
        table: Dollars per hour by type and region; 0 where it is not known.
    """
    families: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for name, regions in table.items():
        family = families[name.partition(".")[0]]
        for region, price in regions.items():
            if math.isfinite(price) and price >= 0:
                family[name, region] = price
    mended: dict[tuple[str, str], MendedPrice] = {}
    for prices in families.values():
        mended.update(_mend_family(prices))
    return mended


def _mend_family(prices: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], MendedPrice]:
    logs = {key: math.log(price) for key, price in prices.items() if price > 0}
    if len({name for name, _ in logs}) < LONE_TYPES:
        return {key: (prices[key], "unchecked") for key in logs}
    lawful = _by_size(logs, {name for name, _ in prices}) or _by_type_and_region(logs)
    mended: dict[tuple[str, str], MendedPrice] = {}
    for key, price in prices.items():
        log = lawful(key)
        if price > 0 and (log is None or logs[key] - log <= AGREE):
            mended[key] = (price, "")
        elif log is not None:
            mended[key] = (math.exp(log), "corrected" if price > 0 else "derived")
    return mended


def _by_size(logs: Mapping[tuple[str, str], float], names: set[str]) -> Law | None:
    """The law that prices are proportional to size in each region; None where too few of them agree."""
    sizes = {name: size for name in names if (size := _size(name)) is not None}
    largest = max(sizes.values(), default=None)
    if largest is not None:
        sizes.update((name, largest) for name in names if name.endswith(".metal"))
    units: dict[str, list[float]] = defaultdict(list)
    for (name, region), log in logs.items():
        if name in sizes:
            units[region].append(log - math.log(sizes[name]))
    unit = {region: median_low(values) for region, values in units.items()}
    agreeing = sum(abs(log - unit[region]) <= AGREE for region, values in units.items() for log in values)
    if len({name for name, _ in logs}) <= LONE_TYPES or agreeing < PROPORTIONAL_SHARE * len(logs):
        return None

    def lawful(key: tuple[str, str]) -> float | None:
        name, region = key
        return unit[region] + math.log(sizes[name]) if name in sizes and region in unit else None

    return lawful


def _by_type_and_region(logs: Mapping[tuple[str, str], float]) -> Law:
    """The law that the ratio between two regions is that of the family.

    The ratio is the low median over all types that have a price in both; a price is the low median of what the type's
    prices in the other regions say. Low, because a mix-up only ever raises a price.
    """
    of_type: dict[str, dict[str, float]] = defaultdict(dict)
    of_region: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, region), log in logs.items():
        of_type[name][region] = of_region[region][name] = log

    @cache
    def ratio(region: str, other: str) -> float | None:
        here, there = of_region[region], of_region[other]
        both = [here[name] - there[name] for name in here.keys() & there.keys()]
        return median_low(both) if both else None

    def lawful(key: tuple[str, str]) -> float | None:
        name, region = key
        if name not in of_type or region not in of_region:
            return None
        others = [(log, ratio(region, other)) for other, log in of_type[name].items() if other != region]
        said = [log + ratio_ for log, ratio_ in others if ratio_ is not None]
        return median_low(said) if said else None

    return lawful


def _size(name: str) -> float | None:
    size = name.partition(".")[2]
    if match := _XLARGE.fullmatch(size):
        return 8.0 * int(match[1] or 1)
    return _SIZES.get(size)
