"""What a job's owner needs of its supervisor: that of a Keras job, of a loop of the user's own, or of a command."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from scavenger.frames import Frame
from scavenger.train.engines.base import GRACE_S, Engine
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.supervisor.events import Event, ProcessState
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.transport import messages as m


class JobSupervisor(ABC):
    """Supervises the processes of one job.

    Args:
        registry: The processes of the job.

    Attributes:
        model_file: Name of the file that `finish` writes.
        frames: The user's frames of what ended a command, or the last lines that it wrote; empty before.
        migrations: The aggregators that hold the model; None for a job whose workers hold it.
        on_wait: Called while `finish` waits, which may take long; it fetches the events by `poll(0.0)`.
        recorded: Whether all events that `poll` has returned are stored, so that a checkpoint may be committed.

    Every method may raise a `ScavengerError` that ends the job; `close` must be called in any case.
    """

    model_file: str
    frames: tuple[Frame, ...] = ()
    migrations: Migrations | None = None

    def __init__(self, registry: ProcessRegistry) -> None:
        self._registry = registry
        self.on_wait: Callable[[], None] | None = None
        self.recorded: Callable[[], bool] = lambda: True

    # ---- the owner's requests ------------------------------------------------------------------------------

    @abstractmethod
    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        """Start the job with its first workers; see `launch`."""

    @abstractmethod
    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        """Start more workers, which get ready while the others train. Returns their names.

        Args:
            workers: How many to start.
            vm: The type of VM to run on, if the engine has several.
            threads: Threads that each computes with; None for the number in the job source.

        Raises:
            WorkersLostError: If there is no room for so many.
        """

    @abstractmethod
    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """Train on K of the ready workers with batch B from the next step boundary on.

        Args:
            workers: K.
            global_batch_size: B, samples.
            reason: Why, for logs and records.
            without: Workers to remove and release; with as many ready ones to replace them, this is a migration.
            lr_scale: Factor for the optimizer's learning rate.
        """

    @abstractmethod
    def release(self, keep: int) -> None:
        """Release workers that no view needs, newest first, until `keep` are alive; `Leaving` events name them."""

    @abstractmethod
    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        """Answer an `EpochReport`, or the `BatchReport` of a step; the job waits for the answer."""

    @abstractmethod
    def run_callbacks(self, request: m.RunCallbacks) -> None:
        """Have a worker run the callbacks of Keras, if the job has any; repeated until `CallbacksRun`, its answer."""

    @abstractmethod
    def finish(
        self,
        path: Path,
        *,
        best: bool,
        checkpoint: bool = False,
        within_s: float | None = None,
        callbacks: m.RunCallbacks | None = None,
    ) -> None:
        """End training with the last applied step, and write the model; waits until it is written.

        Args:
            path: Path of the file.
            best: Write the weights that a verdict last said to keep; the last weights if no verdict did.
            checkpoint: First write a checkpoint, if the job has a checkpoint plan, so that it can be resumed.
            within_s: How long it may take, seconds; None for as long as a worker may take to start.
            callbacks: The callbacks whose `on_train_end` follows, as of their last run; None for none.

        Raises:
            WorkersLostError: If no process is left that holds the weights, or can write them.
            ModelNotSavedError: If there is no room for the file, or its disk fails.
            TrainingError: If writing fails in another way, or takes longer than `within_s`.
        """

    @abstractmethod
    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        """End training with the last applied step, and write a checkpoint of it, if the job has a checkpoint plan.

        Raises what `finish` does. An event reports whether the checkpoint was written.
        """

    @abstractmethod
    def close(self, *, grace_s: float = GRACE_S) -> None:
        """End every process and free everything; safe to call twice.

        Args:
            grace_s: How long processes may take to end by themselves, seconds.
        """

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Event]:
        """Handle what has happened, waiting at most `timeout_s` for something; returns the events in order.

        Raises:
            TrainingError: If the training code failed, hangs, or yields NaN.
            NotSupportedError: If the model or data cannot be trained on exactly.
            WorkersLostError: If a process dies again and again, or too many do.
        """

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def manifest(self) -> m.Manifest | None:
        """Description of what is trained; None before it is known."""

    @property
    @abstractmethod
    def quarantined(self) -> tuple[int, ...]:
        """Samples that are left out, by their positions in the data."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Whether the last request has taken effect."""

    @property
    @abstractmethod
    def memory_bytes(self) -> Mapping[str, int]:
        """The peak memory of each process so far."""

    @property
    def engine(self) -> Engine:
        """The engine that runs the processes."""
        return self._registry.engine

    @property
    def alive(self) -> tuple[str, ...]:
        """Running workers, including starting ones, that nothing has requested to end."""
        return self._registry.alive

    def workers(self, *states: str) -> tuple[str, ...]:
        """Return the names of living workers in any of the states `starting`, `ready` and `training`."""
        return self._registry.in_states(*states)

    @property
    def starting(self) -> int:
        """Number of workers that are starting."""
        return len(self.workers("starting"))

    @property
    def ready(self) -> int:
        """Number of workers that train or are ready to."""
        return len(self.workers("ready", "training"))

    @property
    def ending(self) -> bool:
        """Whether a released worker has not ended yet."""
        return bool(self._registry.let_go)

    @property
    def existing(self) -> Mapping[str, int]:
        """Number of workers that are paid for, by type of VM; includes released ones that have not ended yet."""
        return self._registry.existing

    def vm_of(self, worker: str) -> str:
        """Return the type of VM that a worker was launched on."""
        return self._registry[worker].vm

    def processes(self) -> tuple[ProcessState, ...]:
        """Return the state of every process that the job has had."""
        return self._registry.processes()

    def worker_seconds(self) -> Mapping[str, float]:
        """Return the seconds that workers have existed, summed over the workers of each type of VM."""
        return self._registry.worker_seconds()
