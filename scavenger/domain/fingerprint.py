"""The fingerprint that identifies jobs of the same kind, so that a later one can reuse their models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SEVERAL = re.compile(r"(?P<place>.*) with (?P<vms>\d+) aggregator VMs")
_BESIDE = " with aggregators beside the workers"

AGGREGATORS_MAX = 16

BESIDE_WORKERS = AGGREGATORS_MAX + 1
"""What aggregators beside the workers of each VM count as: more VMs than a job rents for them."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The properties that determine how a job's time and epochs depend on (K, B).

    Attributes:
        architecture: SHA-256, hex, of what is trained: the model's layers and loss in canonical JSON, without
            names, and some of the data's targets, which tell one data set from another of its size.
        parameters: Trainable parameters.
        optimizer: Class name and a digest of its configuration, as `Adam:1f0c...`, and digests of what else decides
            how it learns; see `with_sources`.
        dataset_size: Training samples per epoch.
        sample_bytes: Bytes of one sample (inputs and targets).
        goal: Metric and target as `val_accuracy>=0.97`; empty without a target. Epochs compare only at the same.
        vm: VM type.
        hardware: Processor model and count, where the VM type's name does not determine them.
    """

    architecture: str
    parameters: int
    optimizer: str
    dataset_size: int
    sample_bytes: int
    goal: str
    vm: str
    hardware: str


def hardware_of_vms(place: str, aggregator_vms: int) -> str:
    """Text for `Fingerprint.hardware` of VMs: several aggregator VMs are hardware of their own, since steps differ."""
    if aggregator_vms == BESIDE_WORKERS:
        return place + _BESIDE
    return f"{place} with {aggregator_vms} aggregator VMs" if aggregator_vms > 1 else place


def place_of_hardware(hardware: str) -> tuple[str, int]:
    """Place and number of aggregator VMs, of what `hardware_of_vms` returned."""
    if hardware.endswith(_BESIDE):
        return hardware.removesuffix(_BESIDE), BESIDE_WORKERS
    found = _SEVERAL.fullmatch(hardware)
    return (hardware, 1) if found is None else (found["place"], int(found["vms"]))


def with_sources(optimizer: str, sources: Mapping[str, str]) -> str:
    """Text for `Fingerprint.optimizer`, as `Adam:1f0c; training code 9b2e; params 07aa`.

    Args:
        optimizer: Class name and digest of its configuration.
        sources: Digests by what they are of, in words.
    """
    return "; ".join((optimizer, *(f"{name} {digest}" for name, digest in sources.items())))


def settings_of(optimizer: str) -> dict[str, str]:
    """The digests in what `with_sources` returned, by name; the optimizer's own is named `optimizer`."""
    own, *sources = optimizer.split("; ")
    pairs = (one.rpartition(" ") for one in sources)
    return {"optimizer": own, **{name: digest for name, _, digest in pairs}}
