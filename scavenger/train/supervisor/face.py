"""What the control plane needs of a supervisor, of Keras jobs or of loops that users write themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from scavenger.elastic.migration import BucketMap
from scavenger.train.engines.base import Engine
from scavenger.train.supervisor.events import Event, ProcessState
from scavenger.train.transport import messages as m


class JobSupervisor(Protocol):
    """Supervises the processes of one job; `scavenger.train.supervisor.supervisor.Supervisor` describes the members.

    Attributes:
        model_file: Name of the file that `finish` writes.
    """

    model_file: str
    on_wait: Callable[[], None] | None
    recorded: Callable[[], bool]

    @property
    def engine(self) -> Engine: ...

    @property
    def manifest(self) -> m.Manifest | None: ...

    @property
    def quarantined(self) -> tuple[int, ...]: ...

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None: ...

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]: ...

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None: ...

    def release(self, keep: int) -> None: ...

    def migrate(self, buckets: Mapping[int, int]) -> None: ...

    def use_aggregators(self, aggregators: Collection[int]) -> None: ...

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None: ...

    def run_callbacks(self, request: m.RunCallbacks) -> None: ...

    def finish(
        self,
        path: Path,
        *,
        best: bool,
        checkpoint: bool = False,
        within_s: float | None = None,
        callbacks: m.RunCallbacks | None = None,
    ) -> None: ...

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None: ...

    def close(self, *, grace_s: float = ...) -> None: ...

    def poll(self, timeout_s: float) -> list[Event]: ...

    @property
    def alive(self) -> tuple[str, ...]: ...

    def workers(self, *states: str) -> tuple[str, ...]: ...

    @property
    def starting(self) -> int: ...

    @property
    def ready(self) -> int: ...

    @property
    def aggregators(self) -> int: ...

    @property
    def map(self) -> BucketMap | None: ...

    @property
    def bucket_bytes(self) -> tuple[int, ...]: ...

    @property
    def migrating(self) -> bool: ...

    @property
    def migrated(self) -> m.Migrated | None: ...

    @property
    def settled(self) -> bool: ...

    @property
    def ending(self) -> bool: ...

    @property
    def existing(self) -> Mapping[str, int]: ...

    def vm_of(self, worker: str) -> str: ...

    def processes(self) -> tuple[ProcessState, ...]: ...

    def worker_seconds(self) -> Mapping[str, float]: ...

    @property
    def memory_bytes(self) -> Mapping[str, int]: ...
