"""`curves --pricing`: ways of pricing workers, applied to a report, which `curves` then draws."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from scavenger.domain.cost import ResourceRates
from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.report import RunReport
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import quantity

Pricing = Literal["vm", "size", "both"]
FAMILY = "e2"
REGION = "us-central1"
"""Default source of the rates: Google's list prices for the VMs of Scavenger (Tyagi and Sharma), section V."""
_MEMORY = re.compile(r"([0-9.]+)(?:\+([0-9.]+))?")
_RATES = re.compile(r"cpu=([0-9.e-]+),gib=([0-9.e-]+)")
_LOCAL = re.compile(r"local-([0-9]+)")


@dataclass(frozen=True, slots=True)
class SizePricing:
    """How workers are priced.

    Attributes:
        kinds: `vm`, `size`, or both.
        rates: Prices of a vCPU and a GiB, US dollars per hour.
        rates_from: Source of the rates.
        cpus: vCPUs of a worker; None: those of its VM type.
        memory_gib: Memory of a worker and of each sample, GiB; None: as measured.
        usd_per_vm_hour: Price of a worker's VM; None: the curve's price.
    """

    kinds: tuple[str, ...]
    rates: ResourceRates
    rates_from: str
    cpus: float | None = None
    memory_gib: tuple[float, float] | None = None
    usd_per_vm_hour: float | None = None

    @classmethod
    def of(
        cls,
        pricing: Pricing | None,
        rates: str | None,
        cpus: float | None,
        memory: str | None,
        price: float | None,
    ) -> SizePricing | None:
        """Parse the options of the command line; None if no pricing is asked for.

        Raises:
            ConfigurationError: If an option is not valid, or the rates of the family are not known.
        """
        if pricing is None:
            if not (rates is None and cpus is None and memory is None):
                raise ConfigurationError(
                    "--rates, --cpus and --memory go with --pricing size or --pricing both"
                )
            return None
        if cpus is not None and not (math.isfinite(cpus) and cpus > 0):
            raise ConfigurationError(f"--cpus: the number of vCPUs is above 0, not {cpus:g}")
        if price is not None and not (math.isfinite(price) and price > 0):
            raise ConfigurationError(f"--price: a price is above 0 US dollars per hour, not {price:g}")
        kinds = ("vm", "size") if pricing == "both" else (pricing,)
        found, source = _rates(rates) if "size" in kinds else (ResourceRates(0.0, 0.0), "")
        return cls(kinds, found, source, cpus, None if memory is None else _memory(memory), price)


def _rates(text: str | None) -> tuple[ResourceRates, str]:
    match = None if text is None else _RATES.fullmatch(text)
    if match is not None:
        try:
            return ResourceRates(float(match[1]), float(match[2])), "given"
        except ValueError as error:
            raise ConfigurationError(f"--rates {text}: {error}") from None
    if text is not None and not re.fullmatch(r"[a-z0-9_]+", text):
        raise ConfigurationError(f"--rates {text}: write cpu=0.0219,gib=0.0029, or a family such as e2")
    from scavenger.control.provisioning.prices import open_catalog

    family = text or FAMILY
    return open_catalog().rates(REGION, family), f"{family} in gcp/{REGION}"


def _memory(text: str) -> tuple[float, float]:
    match = _MEMORY.fullmatch(text)
    try:
        if match is not None:
            return float(match[1]), float(match[2] or 0.0)
    except ValueError:
        pass
    raise ConfigurationError(
        f"--memory {text}: write the GiB of a worker, and of each sample of its batch, such as 1.5+0.01"
    )


def priced(report: RunReport, sizes: SizePricing) -> dict[str, RunReport]:
    """Reports by way of pricing, `vm` or `size`: each with the repriced curve and the choice by objective (or knee).

    Raises:
        ConfigurationError: If vCPUs or memory of a worker are not known.
        ValueError: If the report has no curve.
    """
    if report.curve is None:
        raise ValueError("the report has no curve")
    cpus, memory, words = _sizes_of(report, report.curve, sizes)
    both = _priced(report, report.curve, sizes, cpus, memory, words)
    return {kind: one for kind, one in both if kind in sizes.kinds}


def _priced(
    report: RunReport,
    curve: TradeoffCurve,
    sizes: SizePricing,
    cpus: Callable[[str], float],
    memory: Callable[[float], float],
    words: str,
) -> list[tuple[str, RunReport]]:
    from scavenger.control.provisioning.bill import priced_both
    from scavenger.search.choose import OBJECTIVES, choose

    asked = report.choice.objective if isinstance(report.choice, Choice) else "knee"
    objective = asked if asked in OBJECTIVES else "knee"
    both = priced_both(
        curve, usd_per_vm_hour=sizes.usd_per_vm_hour, rates=sizes.rates, cpus=cpus, memory_gib=memory
    )
    by_vm = "priced by the VM" + (
        ", as predicted"
        if sizes.usd_per_vm_hour is None
        else f": each worker's at ${sizes.usd_per_vm_hour:g} per hour"
    )
    made = []
    for kind, one, note in zip(("vm", "size"), both, (by_vm, words), strict=True):
        noted = replace(one, notes=(*one.notes, note))
        made.append((kind, replace(report, curve=noted, choice=choose(noted, objective))))
    return made


def _sizes_of(
    report: RunReport, curve: TradeoffCurve, sizes: SizePricing
) -> tuple[Callable[[str], float], Callable[[float], float], str]:
    """vCPUs of a worker by VM type, memory in GiB by local batch size, and a note that describes both."""
    if "size" not in sizes.kinds:
        return (lambda vm: 0.0), (lambda batch: 0.0), ""
    by_vm = {vm: _cpus(vm) if sizes.cpus is None else sizes.cpus for vm in curve.configurations.vms}
    base, slope = _measured_memory(report) if sizes.memory_gib is None else sizes.memory_gib
    known = "measured" if sizes.memory_gib is None else "given"
    counts = ", ".join(f"{quantity(count)}" for count in dict.fromkeys(by_vm.values()))
    rates = sizes.rates
    words = (
        f"priced by size: {counts} vCPU at ${rates.usd_per_cpu_hour:.6g} and {base:.4g} + {slope:.4g} GiB per sample "
        f"({known}) at ${rates.usd_per_gib_hour:.6g} per hour, of each worker ({sizes.rates_from})"
    )
    return by_vm.__getitem__, (lambda batch: base + slope * batch), words


def _cpus(vm: str) -> float:
    if match := _LOCAL.fullmatch(vm):
        return float(match[1])
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS
    from scavenger.control.provisioning.prices import open_catalog

    catalog = open_catalog()
    for provider, region in DEFAULT_REGIONS.items():
        try:
            return float(catalog.listing(provider, region, vm).machine.cpus)
        except ConfigurationError:
            continue
    raise ConfigurationError(f"the vCPUs of {vm} are not known: give --cpus")


def _measured_memory(report: RunReport) -> tuple[float, float]:
    """Memory of a worker and of each sample, GiB, by the law fitted to the job's own measurements."""
    from scavenger.models.memory import fit_memory

    law = fit_memory(report.search.profiled)
    if law is None:
        raise ConfigurationError("the memory of a worker was not measured: give --memory, such as 1.5+0.01")
    return law.base_bytes / 2**30, law.per_sample_bytes / 2**30
