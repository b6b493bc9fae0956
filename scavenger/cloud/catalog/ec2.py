"""EC2's machine types, as `DescribeInstanceTypes` tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scavenger.cloud.stock import MachineType, gpu_label

_MIB_PER_GIB = 1024.0
_NOT_USED = "accelerators that are not used"
_OTHER_ACCELERATORS = ("NeuronInfo", "InferenceAcceleratorInfo", "FpgaInfo", "MediaAcceleratorInfo")


def ec2_machine(kind: Mapping[str, Any]) -> MachineType:
    """A type from one item of `DescribeInstanceTypes`.

    Raises:
        KeyError: If it has no name, vCPUs or memory.
    """
    name = str(kind["InstanceType"])
    gpus = (kind.get("GpuInfo") or {}).get("Gpus") or []
    usable = [gpu for gpu in gpus if gpu.get("Manufacturer", "").upper() == "NVIDIA" and gpu.get("Count")]
    caveat = ""
    if kind.get("BurstablePerformanceSupported") or name.partition(".")[0].endswith("-flex"):
        caveat = "burstable: its speed falls when its credits are used up"
    elif "x86_64" not in (kind.get("ProcessorInfo") or {}).get("SupportedArchitectures", ["x86_64"]):
        caveat = "arm64"
    elif any(kind.get(info) for info in _OTHER_ACCELERATORS) or len(usable) < len(gpus):
        caveat = _NOT_USED
    elif (
        not kind.get("CurrentGeneration", True) and kind.get("Hypervisor") == "xen"
    ):  # C5 and M5 are not current
        caveat = "previous generation: may not be had, or lack the instructions that TensorFlow needs"
    memory_gib = (
        max((gpu.get("MemoryInfo", {}).get("SizeInMiB", 0) for gpu in usable), default=0) / _MIB_PER_GIB
    )
    return MachineType(
        "aws",
        name,
        int(kind["VCpuInfo"]["DefaultVCpus"]),
        float(kind["MemoryInfo"]["SizeInMiB"]) / _MIB_PER_GIB,
        gpu_label(str(usable[0].get("Name", "GPU")), memory_gib) if usable else "",
        sum(int(gpu["Count"]) for gpu in usable),
        caveat,
        _network_gbits(kind),
    )


def _network_gbits(kind: Mapping[str, Any]) -> float | None:
    """The most that its network cards do together; None where that is not told."""
    cards = (kind.get("NetworkInfo") or {}).get("NetworkCards") or []
    return sum(float(card.get("PeakBandwidthInGbps", 0.0)) for card in cards) or None
