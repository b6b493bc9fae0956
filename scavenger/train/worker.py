"""The worker process: computes gradients of its share of every step at the published weights.

It holds nothing that cannot be fetched again, so it may join, leave or die at any time.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import zmq

from scavenger.elastic.order import epoch_order, sample_seed
from scavenger.elastic.view import Member, Position, View, plan_step, split
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.sdk.job import KerasJob
from scavenger.train import messages as m
from scavenger.train.data import DataError
from scavenger.train.memory import Block, Layout
from scavenger.train.program import Program
from scavenger.train.wire import Dealer, Keys

__all__ = ["Worker", "describe_failure", "load_program"]

_WARM_UP_SAMPLES = 4


def load_program(train: str, job_dir: str, seed: int) -> Program:
    """Build the job that `module:object` names, after setting every seed that Keras knows.

    Raises:
        TrainingCodeError: If the module has no such object, or it is not a job.
    """
    module_name, _, attribute = train.partition(":")
    sys.path.insert(0, job_dir)
    keras.utils.set_random_seed(seed % (1 << 32))
    module = importlib.import_module(module_name)
    try:
        job = getattr(module, attribute)
    except AttributeError:
        raise TrainingCodeError(f"{module.__file__} has no object {attribute!r}") from None
    if callable(job) and not isinstance(job, KerasJob):
        job = job()
    if not isinstance(job, KerasJob):
        raise TrainingCodeError(
            f"{train} must be, or return, a scavenger.sdk.KerasJob, not {type(job).__name__}"
        )
    return Program(job)


def describe_failure(error: BaseException, job_dir: str) -> tuple[str, str]:
    """Kind and one line for an exception: the user's own line where the traceback has one."""
    if isinstance(error, (NotSupportedError, DataError)):
        return "unsupported", str(error)
    if isinstance(error, TrainingCodeError):
        return "code", str(error)
    message = _ANSI.sub("", str(error))
    essence = _essence(message)
    text = f"{type(error).__name__}: {essence}" if essence else type(error).__name__
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # where TensorFlow traced the code, the user's frames stand in the message alone
    places += [(match[1], int(match[2])) for match in _FRAME.finditer(message)]
    for file, line in reversed(places):
        if Path(file).is_relative_to(job_dir) and "site-packages" not in file:
            return "code", f"{Path(file).relative_to(job_dir)}:{line}: {text}"
    return "code", text


_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NODES = re.compile(r"\{\{[^{}]*\}\} ?|\s*\[Op:\w+\](?: name:.*)?$")
"""What TensorFlow says of its own graph around the words of an error."""
_WRAPPINGS = ("Exception encountered when calling", "Error encountered:")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _essence(message: str) -> str:
    """The line of an error's text that says what is wrong: Keras and TensorFlow put others before it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:
        last = max((index for index, line in enumerate(lines) if _FRAME.match(line)), default=-1)
        lines = lines[last + 2 :] or lines[-1:]
    line = next((line for line in lines if not any(words in line for words in _WRAPPINGS)), "")
    return _NODES.sub("", line)


class Worker:
    """One worker of one job.

    Args:
        boot: Who it is, and where the training code lies.
        control: To the coordinator.
        keys: Its own, for the data channel.
    """

    def __init__(self, context: Any, boot: m.Bootstrap, control: Dealer, keys: Keys) -> None:
        self._context, self._boot, self._control, self._keys = context, boot, control, keys
        self._name = boot.name
        self._program = load_program(boot.train, boot.job_dir, boot.seed)
        self._poller = zmq.Poller()
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._data: Dealer | None = None
        self._order: tuple[int, Any] | None = None
        self._running = True
        control.send(m.Hello(self._program.manifest))

    def run(self) -> None:
        """Serve until told to quit."""
        while self._running:
            self._poller.poll()
            for message in self._control.receive():
                self._from_coordinator(message)
            if self._data is not None:
                for message in self._data.receive():
                    self._from_aggregator(message)

    # ---- messages ------------------------------------------------------------------------------------------

    def _from_coordinator(self, message: m.Message) -> None:
        match message:
            case m.Prepare():
                self._prepare(message)
            case m.Save():
                path = Path(message.path)
                self._program.save(self._weights(message.step), path)
                self._control.send(m.Saved())
            case m.Quit():
                self._running = False
            case _:
                pass

    def _from_aggregator(self, message: m.Message) -> None:
        match message:
            case m.Joined():
                self._control.send(m.Ready())
            case m.Order(action="train"):
                self._train(message.step + 1, _view(message.view))
            case m.Order(action="evaluate"):
                self._evaluate(message.step, _view(message.view))
            case m.Summarise():
                metrics = self._program.summarise(
                    self._block.metrics(self._layout.sums_at(validation=False)),
                    self._block.metrics(self._layout.sums_at(validation=True)),
                )
                self._say(m.Summary(message.view, message.step, metrics))
            case _:
                pass

    def _say(self, message: m.Message) -> None:
        assert self._data is not None
        self._data.send(message)

    # ---- work ----------------------------------------------------------------------------------------------

    def _prepare(self, message: m.Prepare) -> None:
        self._layout = Layout.of(message.manifest, message.slots)
        self._block = Block(self._boot.memory_fd, self._layout)
        slot = self._boot.slot
        self._slot_state = self._block.state(self._layout.slot_at(slot))
        self._slot_metrics = self._block.metrics(self._layout.slot_metrics_at(slot))
        initial = self._program.initial_state()
        if message.initial:
            for target, value in zip(self._weights(0), initial, strict=True):
                target[...] = value
            self._control.send(m.Seeded())
        # trace before the others wait for us; what comes out is thrown away
        some = np.arange(min(_WARM_UP_SAMPLES, len(self._program.train)))
        for halves in (False, True) if len(some) > 1 else (False,):
            self._program.gradient(initial, some, seed=0, halves=halves)
        self._program.evaluate(
            initial, 0, min(_WARM_UP_SAMPLES, message.manifest.validation_size), _WARM_UP_SAMPLES
        )
        self._data = Dealer(
            self._context, self._name, message.aggregator, message.aggregator_key.encode(), self._keys
        )
        self._poller.register(self._data.socket, zmq.POLLIN)
        self._say(m.Join())

    def _weights(self, step: int) -> list[Any]:
        return self._block.state(self._layout.weights_at(step))

    def _epoch_order(self, epoch: int) -> Any:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, epoch_order(self._boot.seed, epoch, len(self._program.train)))
        return self._order[1]

    def _train(self, step: int, view: View) -> None:
        rank = view.rank(self._name)
        if rank is None:
            return
        started = time.perf_counter()
        plan = plan_step(view, step, len(self._program.train))
        share = plan.shares[rank]
        loss = half_sqnorm = 0.0
        if share.samples:
            # alone, a worker tells the noise from the two halves of its batch
            halves = view.workers == 1 and share.samples > 1
            result = self._program.gradient(
                self._weights(step - 1),
                self._epoch_order(plan.epoch)[share.start : share.stop],
                seed=sample_seed(self._boot.seed, step, share.start),
                halves=halves,
            )
            loss, half_sqnorm = result.loss, result.half_sqnorm
            for target, value in zip(self._slot_state, [*result.gradients, *result.states], strict=True):
                np.copyto(target, value)
            for total, value in zip(self._slot_metrics, result.metrics, strict=True):
                total[...] = value
        self._say(
            m.Contributed(
                view=view.number,
                step=step,
                compute_s=time.perf_counter() - started,
                loss=loss,
                half_sqnorm=half_sqnorm,
            )
        )

    def _evaluate(self, step: int, view: View) -> None:
        rank = view.rank(self._name)
        if rank is None:
            return
        share = split(0, self._layout.manifest.validation_size, view.workers)[rank]
        sums = self._program.evaluate(self._weights(step), share.start, share.stop, view.local_batch_size)
        for target, value in zip(self._slot_metrics, sums, strict=True):
            target[...] = value
        self._say(m.Evaluation(view.number, step))


def _view(body: m.ViewBody) -> View:
    return View(
        number=body.number,
        first_step=body.first_step,
        global_batch_size=body.global_batch_size,
        members=tuple(Member(member.worker, member.slot) for member in body.members),
        position=Position(body.epoch, body.consumed),
    )
