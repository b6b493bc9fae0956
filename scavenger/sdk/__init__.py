"""The Python API of training modules: what they return, and loops that users write.

Importing this package pulls in neither TensorFlow nor a database; each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scavenger.sdk.data import FromGenerator, ParquetFiles, TFRecords, sample_seed
from scavenger.sdk.job import KerasJob
from scavenger.sdk.loop_job import LoopJob

if TYPE_CHECKING:
    from scavenger.sdk import loop

__all__ = [
    "FromGenerator",
    "KerasJob",
    "LoopJob",
    "ParquetFiles",
    "TFRecords",
    "loop",
    "sample_seed",
]


if not TYPE_CHECKING:  # a checker of types would take every other name for one of unknown type

    def __getattr__(name: str) -> Any:
        """Import the module of loops when it is first used."""
        from importlib import import_module

        if name != "loop":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("scavenger.sdk.loop")


def __dir__() -> list[str]:
    return sorted(__all__)
