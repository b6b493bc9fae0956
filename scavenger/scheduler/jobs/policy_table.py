"""The policies by the names under which users know them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from scavenger.scheduler.jobs.policies import Even, Fair, Fifo, Policy, Srtf, Throughput
from scavenger.scheduler.jobs.tiresias import ElasticTiresias, Tiresias
from scavenger.scheduler.jobs.worth import Goodput, Worth

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fifo": Fifo(),
        "even": Even(),
        "srtf": Srtf(),
        "fair": Fair(),
        "throughput": Throughput(),
        "tiresias": Tiresias(),
        "elastic-tiresias": ElasticTiresias(),
        "goodput": Goodput(),
        "worth": Worth(),
    }
)
