"""The Python API: what a training module returns, loops that users write, and control of a running job.

Importing this package pulls in neither TensorFlow nor a database; each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scavenger.sdk.data import FromGenerator, ParquetFiles, TFRecords, sample_seed
from scavenger.sdk.job import KerasJob
from scavenger.sdk.loop_job import LoopJob

if TYPE_CHECKING:
    from scavenger.pipelines.running import RunningJob
    from scavenger.sdk import loop
    from scavenger.train.custom_loop.start import run_loop

__all__ = [
    "FromGenerator",
    "KerasJob",
    "LoopJob",
    "ParquetFiles",
    "RunningJob",
    "TFRecords",
    "loop",
    "run_loop",
    "sample_seed",
]

_MODULES = {
    "RunningJob": "scavenger.pipelines.running",
    "loop": "scavenger.sdk.loop",
    "run_loop": "scavenger.train.custom_loop.start",
}


if not TYPE_CHECKING:  # a checker of types would take every other name for one of unknown type

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        from importlib import import_module

        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_MODULES[name])
        return module if name == "loop" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
