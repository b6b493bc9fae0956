"""The end of a job: its weights are finalised, a worker writes the model, and its processes end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import zmq

from scavenger.elastic.recovery import Status
from scavenger.errors import ModelNotSavedError, TrainingHungError, WorkersLostError
from scavenger.train.names import partial_model
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.saving import Saving
from scavenger.train.transport import messages as m

_ASK_AGAIN_S = 1.0
_WRITERS_MAX = 3
"""So many workers are launched at most to write the model, where all others were lost."""


class EndOfTraining:
    """Ends the training of one job.

    Args:
        processes: The engine and the hub.
        aggregators: Names of the aggregators that share the model, the sequencer first.
        launch: Launches a worker like the last one.
        turn: Handles what happens meanwhile, waiting a moment for something.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        processes: Processes,
        registry: ProcessRegistry,
        *,
        aggregators: tuple[str, ...],
        launch: Callable[[], object],
        turn: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._registry, self._aggregators = processes, registry, aggregators
        self._launch, self._turn, self._clock = launch, turn, clock
        self._saving = Saving()

    def take(self, peer: str, message: m.Done | m.Saved | m.SavedPart | m.Unsaved) -> None:
        """Handle a message about the end from an aggregator or a worker."""
        self._saving.take(peer, message)

    def finalise(self, *, best: bool, checkpoint: bool, deadline: float) -> None:
        """Have all aggregators finalise the weights.

        Args:
            best: Whether to use the best weights instead of the last ones.
            checkpoint: Whether to write a checkpoint first.
            deadline: When it must have happened, by the clock.

        Raises:
            WorkersLostError: If an aggregator is gone.
            TrainingHungError: If it takes too long.
        """
        saving = self._saving = Saving()
        gone = [name for name in self._aggregators if name not in self._processes.engine.running]
        if gone:
            raise WorkersLostError(f"{gone[0]}, which held the weights, is gone")
        self._wait(
            lambda: saving.step is not None,
            "the aggregator did not finish in time",
            deadline,
            # asked repeatedly, since the sequencer may be restarted meanwhile
            asking=lambda: self._processes.send(self._aggregators[0], m.Finish(best, checkpoint)),
        )

    def write(self, path: Path, *, deadline: float, callbacks: m.RunCallbacks | None = None) -> None:
        """Have a worker write the model with the finalised weights, and end the callbacks.

        If none is left, another is launched: aggregators hold the weights.

        Raises:
            WorkersLostError: If no worker is left to write it, and those that were launched were lost, too.
            ModelNotSavedError: If there is no room for the file, or its disk fails.
            TrainingHungError: If it takes too long.
        """
        saving, launched = self._saving, 0
        while not saving.saved:
            able = [name for name in self._registry.alive if self._registry[name].status is Status.READY]
            if not able:
                if not self._registry.alive:
                    if launched == _WRITERS_MAX:
                        raise WorkersLostError("no worker is left to write the model")
                    launched += 1
                    self._launch()
                if self._clock() > deadline:
                    raise TrainingHungError("no worker was ready in time to write the model")
                self._turn()
                continue
            assert saving.step is not None
            self._save(able[0], path, saving.step, deadline, callbacks)
            if saving.refusal:
                raise ModelNotSavedError(saving.refusal)

    def quit(self, send: Callable[[m.Message], None], *, grace_s: float) -> None:
        """End every process, and free what they used; safe to call twice.

        Args:
            send: Sends a message to the coordinator.
            grace_s: How long processes may take to end by themselves, seconds.
        """
        processes, registry = self._processes, self._registry
        with contextlib.suppress(zmq.ZMQError):
            for name in processes.engine.running:
                worker = registry.worker(name)
                if name == registry.coordinator:
                    send(m.Quit())
                elif worker is not None and worker.status is Status.STARTING:
                    # it would not receive a message for seconds, and holds no state
                    processes.engine.kill(name)
                else:
                    processes.send(name, m.Quit())
        try:
            processes.engine.stop(grace_s=grace_s)
        finally:
            for worker in registry.workers:
                if worker.ended_s is None:
                    registry.ended(worker.name, "", expected=True)
            processes.close()

    def _save(
        self, writer: str, path: Path, step: int, deadline: float, callbacks: m.RunCallbacks | None = None
    ) -> None:
        """Have a worker write the model to `path`, or, if it runs on another host, send the model here."""
        engine, saving = self._processes.engine, self._saving
        here = engine.host(writer) == engine.leader_host
        with contextlib.ExitStack() as after:
            after.callback(partial_model(path).unlink, missing_ok=True)
            if not here:
                after.enter_context(saving.received(writer, path))
            self._processes.send(writer, m.Save(str(path) if here else "", step, saving.lr_scale, callbacks))
            self._wait(
                lambda: saving.saved or bool(saving.refusal) or writer not in engine.running,
                "the model was not written in time",
                deadline,
            )

    def _wait(
        self,
        condition: Callable[[], bool],
        complaint: str,
        deadline: float,
        *,
        asking: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until a condition holds, and call `asking` at regular intervals meanwhile.

        Raises:
            TrainingHungError: With the complaint, if the condition does not hold at the deadline.
        """
        asked_at = -math.inf
        while not condition():
            if self._clock() - asked_at >= _ASK_AGAIN_S:
                asked_at = self._clock()
                asking()
            if self._clock() > deadline:
                raise TrainingHungError(complaint)
            self._turn()
