"""The prices that a release carries, for where no cloud can be asked."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from scavenger.cloud.catalog.cache import read_cache
from scavenger.cloud.stock import Stock

SNAPSHOT = Path(__file__).with_name("snapshot.json.gz")
"""Made by `python -m benchmarks.price_snapshot`, from lists that say where each price comes from."""


@cache
def read_snapshot() -> Stock:
    """The snapshot; read once in a process.

    Raises:
        ConfigurationError: If it is not there or holds something else.
    """
    return read_cache(SNAPSHOT)
