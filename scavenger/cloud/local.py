"""This machine as a cloud: workers are processes that share its processors and memory.

A worker of type `local-2` computes with two threads. Workers are not held to that by the kernel, so where more
threads run than there are processors, they slow each other down; offers say so by `shared_cpus`. Where workers have a
GPU each, there is one type, whose workers share the processors evenly.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import psutil

from scavenger.domain.configuration import Offer
from scavenger.errors import ConfigurationError

PRICE_VARIABLE = "SCAVENGER_LOCAL_PRICE"
_PRICE_DEFAULT = 0.13402
"""US dollars per hour and worker: an e2-standard-4 of Google Cloud as in Scavenger (Tyagi and Sharma), section V."""


class LocalCloud:
    """This machine as a cloud of local workers.

    Args:
        environment: Environment variables; `SCAVENGER_LOCAL_PRICE` sets the dollars per hour of a one-processor worker.
        gpus: How many GPUs the workers are placed on, a process on each; 0 if they compute on processors.
        gpu_model: What these are called.
        processes: Of each worker.

    Attributes:
        gpus: As given.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        *,
        gpus: int = 0,
        gpu_model: str = "",
        processes: int = 1,
    ) -> None:
        self._environment, self.gpus, self._gpu_model = environment, gpus, gpu_model
        self._processes = processes

    def offers(self, *, workers_max: int) -> tuple[Offer, ...]:
        """VM types by price: one per number of threads, of which each process of a worker has one if there are as many.

        Memory is shared evenly among the workers.
        """
        cpus, on_gpus = _usable_cpus(), self.gpus // self._processes
        price, source = self.cpu_price()
        memory = psutil.virtual_memory().total // max(1, on_gpus or workers_max)
        counts = (max(1, cpus // on_gpus),) if on_gpus else range(min(self._processes, cpus), cpus + 1)
        return tuple(
            Offer(
                provider="local",
                region="",
                vm=f"local-{count}",
                price_usd_per_hour=price * count,
                price_source=source,
                cpus=count,
                memory_bytes=memory,
                shared_cpus=cpus,
            )
            for count in counts
        )

    def capacity(self) -> tuple[int, int]:
        """The processors and the memory, in bytes, that all workers share."""
        return _usable_cpus(), psutil.virtual_memory().total

    def hardware(self) -> str:
        processors = f"{_processor()}, {_usable_cpus()} processors"
        return f"{processors}, {self.gpus} {self._gpu_model}" if self.gpus else processors

    def cpu_price(self) -> tuple[float, str]:
        """US dollars per hour of a processor, and where that is from.

        Raises:
            ConfigurationError: If `SCAVENGER_LOCAL_PRICE` is no price.
        """
        text = self._environment.get(PRICE_VARIABLE)
        if text is None:
            return _PRICE_DEFAULT, "default, the price of an e2-standard-4"
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not (math.isfinite(price) and price >= 0):
            raise ConfigurationError(
                f"{PRICE_VARIABLE} must be dollars per worker and hour, such as 0.134, not {text!r}"
            )
        return price, PRICE_VARIABLE


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
