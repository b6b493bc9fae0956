"""Sizes of pods, by names that stand for VM types: `4cpu-16gib`, `8cpu-64gib-2gpu`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scavenger.errors import ConfigurationError

GPU_RESOURCE = "nvidia.com/gpu"
"""The extended resource that NVIDIA's device plugin offers."""

_NAME = re.compile(r"(\d{1,4})cpu-(\d{1,5}(?:\.\d{1,3})?)gib(?:-(\d{1,2})gpu)?")
_UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}


@dataclass(frozen=True, slots=True)
class PodShape:
    """What a pod asks for; it gets no more.

    Attributes:
        cpus: Processors.
    """

    cpus: int
    memory_gib: float
    gpus: int = 0

    @classmethod
    def parse(cls, name: str) -> PodShape:
        """The shape of this name.

        Raises:
            ConfigurationError: If it is none.
        """
        found = _NAME.fullmatch(name)
        if found is None or not (float(found[1]) and float(found[2])):
            raise ConfigurationError(
                f"{name!r} is no size of a pod; write one as 4cpu-16gib or 8cpu-64gib-2gpu"
            )
        return cls(int(found[1]), float(found[2]), int(found[3] or 0))

    @property
    def workers(self) -> int:
        """Workers on such a pod: one on each GPU, and one without any."""
        return max(1, self.gpus)

    def __str__(self) -> str:
        gpus = f"-{self.gpus}gpu" if self.gpus else ""
        return f"{self.cpus}cpu-{self.memory_gib:g}gib{gpus}"

    @property
    def amounts(self) -> dict[str, str]:
        """As requests and limits of a container."""
        gpus = {GPU_RESOURCE: str(self.gpus)} if self.gpus else {}
        return {"cpu": str(self.cpus), "memory": f"{self.memory_gib * 1024:.0f}Mi", **gpus}

    def fits(self, allocatable: Mapping[str, str]) -> bool:
        """Whether a node that has this for pods could hold one, if it held nothing else."""
        return (
            cpus_of(allocatable.get("cpu", "0")) >= self.cpus
            and gib_of(allocatable.get("memory", "0")) >= self.memory_gib
            and cpus_of(allocatable.get(GPU_RESOURCE, "0")) >= self.gpus
        )


def cpus_of(quantity: str) -> float:
    """The number that a quantity of the API stands for, as `3920m` for 3.92; 0 if it cannot be read.

    References:
        "Resource Management for Pods and Containers", Kubernetes documentation, Resource units.
    """
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([A-Za-z]*)", quantity.strip())
    if found is None or found[2] not in _UNITS:
        return 0.0
    value = float(found[1]) * _UNITS[found[2]]
    return value if math.isfinite(value) else 0.0


def gib_of(quantity: str) -> float:
    """A quantity of memory, in GiB."""
    return cpus_of(quantity) / 2**30
