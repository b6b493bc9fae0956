"""Compute Engine's machine shapes, and their prices from rates per vCPU, GiB and GPU.

Google prices a VM by its parts. The snapshot and the billing API have the rates, the names say the parts: families,
sizes and GiB per vCPU below are those of Google's page "Machine families".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scavenger.cloud.catalog.types import CatalogEntry, MachineType, Rates
from scavenger.domain.cost import Price

_SHARED_CORE = "shared core: its speed is not its own"
_CUSTOM = re.compile(r"(?:(n1|n2|n2d|e2)-)?custom-([1-9][0-9]{0,2})-([1-9][0-9]{0,6})(-ext)?")
_CUSTOM_GIB_MAX = {"n1": 6.5, "n2": 8.0, "n2d": 8.0, "e2": 8.0}
"""Of memory per vCPU; what is above is extended memory, dearer, and asked for by `-ext`. E2 has none."""
_CUSTOM_CPUS_MAX = {"n1": 96, "n2": 128, "n2d": 224, "e2": 32}
_CUSTOM_STEP_MIB = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """A machine type with what is charged for it.

    Attributes:
        parts: (family of the rate, resource, amount).
    """

    machine: MachineType
    parts: tuple[tuple[str, str, float], ...]


def _plain(name: str, family: str, cpus: int, memory_gib: float) -> Shape:
    return Shape(
        MachineType("gcp", name, cpus, memory_gib), ((family, "cpu", cpus), (family, "ram", memory_gib))
    )


def _with_gpus(name: str, cpus: int, memory_gib: float, gpu: str, count: int) -> Shape:
    family = name.partition("-")[0]
    machine = MachineType("gcp", name, cpus, memory_gib, gpu, count)
    return Shape(machine, ((family, "cpu", cpus), (family, "ram", memory_gib), (gpu, "gpu", count)))


def _shared(name: str, cpus: int, memory_gib: float, parts: tuple[tuple[str, str, float], ...]) -> Shape:
    return Shape(MachineType("gcp", name, cpus, memory_gib, caveat=_SHARED_CORE), parts)


_N1_SIZES = (1, 2, 4, 8, 16, 32, 64, 96)
_N2_SIZES = (2, 4, 8, 16, 32, 48, 64, 80, 96)
_C2D_SIZES = (2, 4, 8, 16, 32, 56, 112)
_C3_SIZES = (4, 8, 22, 44, 88, 176)
_SERIES: tuple[tuple[str, tuple[int, ...], float], ...] = (
    ("e2-standard", (2, 4, 8, 16, 32), 4.0),
    ("e2-highmem", (2, 4, 8, 16), 8.0),
    ("e2-highcpu", (2, 4, 8, 16, 32), 1.0),
    ("n1-standard", _N1_SIZES, 3.75),
    ("n1-highmem", _N1_SIZES[1:], 6.5),
    ("n1-highcpu", _N1_SIZES[1:], 0.9),
    ("n2-standard", (*_N2_SIZES, 128), 4.0),
    ("n2-highmem", _N2_SIZES, 8.0),
    ("n2-highcpu", _N2_SIZES, 1.0),
    ("n2d-standard", (*_N2_SIZES, 128, 224), 4.0),
    ("n2d-highmem", _N2_SIZES, 8.0),
    ("n2d-highcpu", (*_N2_SIZES, 128, 224), 1.0),
    ("c2-standard", (4, 8, 16, 30, 60), 4.0),
    ("c2d-standard", _C2D_SIZES, 4.0),
    ("c2d-highmem", _C2D_SIZES, 8.0),
    ("c2d-highcpu", _C2D_SIZES, 2.0),
    ("c3-standard", _C3_SIZES, 4.0),
    ("c3-highmem", _C3_SIZES, 8.0),
    ("c3-highcpu", _C3_SIZES, 2.0),
    ("t2d-standard", (1, 2, 4, 8, 16, 32, 48, 60), 4.0),
)
"""Name, vCPUs, GiB per vCPU."""

_SINGLE: tuple[Shape, ...] = (
    _plain("n2-highmem-128", "n2", 128, 864.0),
    _plain("m1-ultramem-40", "m1", 40, 961.0),
    _plain("m1-ultramem-80", "m1", 80, 1922.0),
    _plain("m1-ultramem-160", "m1", 160, 3844.0),
    _plain("m1-megamem-96", "m1", 96, 1433.6),
    # A fraction of a core is charged for, though two vCPUs show; f1 and g1 are charged as one piece.
    _shared("e2-micro", 2, 1.0, (("e2", "cpu", 0.25), ("e2", "ram", 1.0))),
    _shared("e2-small", 2, 2.0, (("e2", "cpu", 0.5), ("e2", "ram", 2.0))),
    _shared("e2-medium", 2, 4.0, (("e2", "cpu", 1.0), ("e2", "ram", 4.0))),
    _shared("f1-micro", 1, 0.6, (("f1", "cpu", 1.0),)),
    _shared("g1-small", 1, 1.7, (("g1", "cpu", 1.0),)),
    *(_with_gpus(f"a2-highgpu-{n}g", 12 * n, 85.0 * n, "A100", n) for n in (1, 2, 4, 8)),
    _with_gpus("a2-megagpu-16g", 96, 1360.0, "A100", 16),
    *(_with_gpus(f"a2-ultragpu-{n}g", 12 * n, 170.0 * n, "A100-80GB", n) for n in (1, 2, 4, 8)),
    *(
        _with_gpus(f"g2-standard-{cpus}", cpus, 4.0 * cpus, "L4", count)
        for cpus, count in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))
    ),
)

SHAPES: Mapping[str, Shape] = {
    shape.machine.name: shape
    for shape in (
        *(
            _plain(f"{series}-{cpus}", series.partition("-")[0], cpus, cpus * gib)
            for series, sizes, gib in _SERIES
            for cpus in sizes
        ),
        *_SINGLE,
    )
}
"""Predefined types by name."""


def custom_shape(name: str) -> Shape | None:
    """The shape of a custom type such as `n2-custom-4-16384` or `custom-2-4096`; None where there is no such type."""
    match = _CUSTOM.fullmatch(name)
    if match is None:
        return None
    family, cpus, mib, extended = match[1] or "n1", int(match[2]), int(match[3]), match[4] is not None
    gib = mib / 1024
    plain_gib = min(gib, cpus * _CUSTOM_GIB_MAX[family])
    if (
        cpus > _CUSTOM_CPUS_MAX[family]
        or (cpus > 1 and cpus % 2)
        or mib % _CUSTOM_STEP_MIB
        or (gib > plain_gib and not extended)
        or (extended and family == "e2")
    ):
        return None
    parts = [(f"{family}_custom", "cpu", float(cpus)), (f"{family}_custom", "ram", plain_gib)]
    if gib > plain_gib:
        parts.append((f"{family}_custom_extended", "ram", gib - plain_gib))
    return Shape(MachineType("gcp", name, cpus, gib), tuple(parts))


def listing_of_shape(shape: Shape, region: str, rates: Rates) -> CatalogEntry:
    """A shape with its prices in a region; a price is known only if that of every part is."""
    return CatalogEntry(
        shape.machine,
        region,
        on_demand=_priced(shape, region, rates, spot=False),
        spot=_priced(shape, region, rates, spot=True),
    )


def _priced(shape: Shape, region: str, rates: Rates, *, spot: bool) -> Price | None:
    found = [
        (amount, rates.get((family, resource, region, spot))) for family, resource, amount in shape.parts
    ]
    known = [(amount, rate) for amount, rate in found if rate is not None]
    if len(known) < len(found):
        return None
    usd = math.fsum(amount * rate.usd_per_hour for amount, rate in known)
    oldest = min((rate for _, rate in known), key=lambda rate: rate.dated)
    return Price(usd, oldest.source, oldest.dated)
