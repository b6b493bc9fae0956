"""Scavenger decides what a training job should run on, and then runs it there.

The public Python API is what `__all__` of this package and of `scavenger.sdk` name, and the exceptions in
`scavenger.errors`; every other module may change in any version. The layers, from values to the world, are drawn
in docs/architecture.md. Importing this package costs nothing: TensorFlow, SQLAlchemy and the cloud clients are
imported where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scavenger.version import __version__

if TYPE_CHECKING:
    from scavenger.errors import ScavengerError
    from scavenger.pipelines.async_client import AsyncClient
    from scavenger.pipelines.client import Client
    from scavenger.pipelines.job import Job
    from scavenger.pipelines.results import Plan, Run
    from scavenger.pipelines.running import RunningJob
    from scavenger.pipelines.study import Study, Trial
    from scavenger.sdk import KerasJob
    from scavenger.train.custom_loop.run import run_loop

__all__ = [
    "AsyncClient",
    "Client",
    "Job",
    "KerasJob",
    "Plan",
    "Run",
    "RunningJob",
    "ScavengerError",
    "Study",
    "Trial",
    "__version__",
    "run_loop",
]

_MODULES = {
    "AsyncClient": "scavenger.pipelines.async_client",
    "Client": "scavenger.pipelines.client",
    "Job": "scavenger.pipelines.job",
    "KerasJob": "scavenger.sdk",
    "Plan": "scavenger.pipelines.results",
    "Run": "scavenger.pipelines.results",
    "RunningJob": "scavenger.pipelines.running",
    "ScavengerError": "scavenger.errors",
    "Study": "scavenger.pipelines.study",
    "Trial": "scavenger.pipelines.study",
    "run_loop": "scavenger.train.custom_loop.run",
}


if not TYPE_CHECKING:  # a checker of types would take every other name for one of unknown type

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        from importlib import import_module

        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
