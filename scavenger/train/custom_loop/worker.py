"""A worker of a custom training loop: runs the user's function, and is its `Link` to the process that runs the loop."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from scavenger.domain.script import Script
from scavenger.errors import TrainingCodeError
from scavenger.sdk import loop as sdk
from scavenger.sdk.loop_job import LoopJob
from scavenger.sdk.process_groups import Groups
from scavenger.sdk.script import ScriptRun
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.comparing import sums_of
from scavenger.train.custom_loop.gradient_memory import MEAN, GradientMemory, lend
from scavenger.train.custom_loop.ranks import FirstRank, LostRankError, Ranks
from scavenger.train.custom_loop.script import metrics_of, run_script
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.messages import Beat
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import Dealer
from scavenger.train.user_module import enter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Code:
    """The training code, as the worker has imported it.

    Attributes:
        metrics: Returns those that it names, when it has imported its modules.
        evaluates: Whether each evaluation has all of them; a script may evaluate after some epochs alone.
    """

    function: Callable[..., object]
    metrics: Callable[[], tuple[str, ...]] = tuple
    evaluates: bool = True


class LoopLink:
    """A `scavenger.sdk.loop.Link` over a socket.

    It handles one message at a time, and none until the previous step is applied. A `Donate`, which follows the
    mean of a step, is therefore answered with the replica in the state after that step.

    Args:
        name: The worker's name.
        socket: Its connection to the hub.
        code: The training code, which it describes to the job.
        memory: The memory that it shares with the process that runs the loop; None if there is none.

    Attributes:
        place: Its place in that memory; `MEAN` if it has none.
        mean_place: That of the mean of the last step, if it was borrowed.
    """

    def __init__(self, name: str, socket: Dealer, code: Code, memory: GradientMemory | None = None) -> None:
        self._name, self._socket, self._code, self._memory = name, socket, code, memory
        self._state: Callable[[], dict[str, lm.Array]] | None = None
        self._left = False
        self._evaluate: sdk.Evaluation | None = None
        self.place = MEAN
        self._since = self._between_s = 0.0
        self._compare = False
        self._groups: Groups | None = None
        self._group = 0
        """Number of the group for which gradients of this step are to be held."""
        self._holds = False
        self._request = 0
        """Number of the `Reduce` that is being done; 0 for none."""
        self._ended: zmq.Poller | None = None
        """Waits for its end, or a message."""
        self._pushed: lm.Push | None = None
        self._tensors: dict[str, lm.Array] = {}
        self._next: tuple[Any, list[bytes]] | None = None
        """A message that has come before it is waited for."""
        self.step = self.view = 0
        self.mean_place = MEAN

    @property
    def worker(self) -> str:
        """The worker's name."""
        return self._name

    @property
    def entered(self) -> bool:
        """Whether the training function has called `init`."""
        return self._state is not None

    def enter(
        self,
        sizes: Sequence[int],
        state: Callable[[], dict[str, lm.Array]],
        load: Callable[[dict[str, lm.Array]], None],
        evaluate: sdk.Evaluation | None = None,
        *,
        apart: bool = False,
    ) -> sdk.Progress:
        if self.entered:
            raise TrainingCodeError("loop.init must be called only once")
        metrics = self._code.metrics()
        if metrics and evaluate is None:
            raise TrainingCodeError(f"LoopJob names {', '.join(metrics)}: give loop.init an evaluate=")
        self._state, self._evaluate = state, evaluate
        fail_here("worker.joining")
        self._send(lm.ReplicaBuilt(tuple(sizes), lm.headers_of(state()), metrics, apart))
        start, frames = self._wait_for(lm.StartMessage)
        if start.load and start.state >= 0 and self._memory is not None:
            shared = self._memory.of_states().arrays(start.state, start.tensors)
            lend(shared, load)
        elif start.load:
            load(lm.unpack(start.tensors, frames))
        self.step, self.view = start.step, start.view
        self.place = MEAN if self._memory is None else max(MEAN, start.place)
        return sdk.Progress(start.step, start.epoch, start.members, start.share, start.lr_scale, start.stride)

    def seek(self, epoch: int) -> sdk.Granted | sdk.Step | None:
        self._between_s = time.monotonic() - self._since
        self._send(lm.AskMessage(self.step, epoch, left=self._left))
        message, frames = self._wait_for(lm.GrantMessage, lm.MeanMessage, lm.OverMessage)
        self._since = time.monotonic()
        match message:
            case lm.GrantMessage():
                fail_here("worker.leased")
                return sdk.Granted(*msgspec.structs.astuple(message))
            case lm.MeanMessage() if message.epoch > epoch:  # no step has ended the epoch
                self._next = message, frames
                return None
            case lm.MeanMessage():
                return self._decode_step(message, frames)
            case _:
                return None

    def leave(self) -> None:
        self._left = True

    def push(self, part: sdk.Granted, tensors: dict[str, lm.Array]) -> sdk.Step:
        fail_here("worker.computed")
        took_s = time.monotonic() - self._since
        headers, frames = (self._share(tensors), list[Any]()) if self._shares else lm.pack(tensors)
        groups = self._groups
        self._tensors = tensors
        push = lm.Push(
            self.view,
            self.step + 1,
            part.shard,
            part.attempt,
            part.start,
            part.stop,
            headers,
            self._shares,
            took_s,
            held=self._holds,
            device="" if groups is None else groups.device,
            group=0 if groups is None else groups.made,
            failure="" if groups is None else groups.failure,
        )
        self._pushed = push
        self._send(push, frames)
        fail_here("worker.pushed")
        mean, received = self._wait_for(lm.MeanMessage)
        self._since = time.monotonic()
        return self._decode_step(mean, received)

    @property
    def _shares(self) -> bool:
        """Whether this worker has a place in the shared memory."""
        return self.place != MEAN

    def holds(self, groups: Groups) -> bool:
        self._groups = groups
        self._holds = self._shares and self._group > 0 and groups.made == self._group and not groups.failure
        return self._holds

    def _share(self, tensors: dict[str, lm.Array]) -> tuple[lm.TensorHeader, ...]:
        """Write arrays to the shared memory; returns their headers."""
        assert self._memory is not None
        headers = lm.headers_of(tensors)
        for name, array in self._memory.arrays(self.place, headers).items():
            if not _same(tensors[name], array):
                np.copyto(array, tensors[name])
        return headers

    def allocate(self, like: Mapping[str, lm.Array]) -> dict[str, lm.Array]:
        arrays = {name: np.zeros(array.shape, array.dtype) for name, array in like.items()}
        if not self._shares:
            return arrays
        assert self._memory is not None
        return self._memory.zeros(self.place, lm.headers_of(arrays))

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        self.step += 1
        now = time.monotonic()
        update_s = now - self._since
        sums = None
        if self._compare and self._state is not None:
            sums, now = sums_of(self._state()), time.monotonic()
        exchange_s = 0.0 if self._groups is None or not samples else self._groups.exchange_s
        self._send(lm.Stepped(self.step, epoch, samples, loss, update_s, sums, exchange_s))
        self._since = now
        # what is done between two epochs, as a schedule's step, belongs to the state that is asked for there
        while not over and not self._next and self._socket.socket.poll(0):
            event = self._receive()
            if event is not None and not isinstance(event[0], lm.MeanMessage):
                raise TrainingCodeError(f"unexpected {type(event[0]).__name__}")
            self._next = event  # of a step that was made while this worker was behind

    def finish(self) -> None:
        """Report that the training function has returned; raises `Left` when the worker is ordered to end."""
        assert self._state is not None
        headers, frames = lm.pack(self._state())
        self._send(lm.FinishedMessage(self.step, headers), frames, copy=True)
        self._wait_for()

    def status(self) -> Beat:
        """Return the worker's state for heartbeats."""
        return Beat(step=self.step, view=self.view)

    def _decode_step(self, mean: lm.MeanMessage, frames: list[bytes]) -> sdk.Step:
        self.view, self._compare, self._group = mean.view, mean.compare, mean.group
        self.mean_place = self.place if mean.own else mean.place
        if mean.own and not self._shares:
            tensors = self._tensors
        elif mean.shared and self._memory is not None:
            tensors = self._memory.arrays(self.mean_place, mean.tensors)
        else:
            tensors = lm.unpack(mean.tensors, frames)
        if mean.reduced:
            tensors = {name: array for name, array in tensors.items() if name.startswith(sdk.STATISTICS)}
        return sdk.Step(
            mean.step,
            mean.over,
            mean.members,
            tensors,
            mean.share,
            mean.lr_scale,
            borrowed=mean.shared or mean.own,
            samples=mean.samples,
        )

    def _wait_for(self, *kinds: type[Any]) -> tuple[Any, list[bytes]]:
        """Wait for the next message of these kinds; messages that may come at any time are handled meanwhile."""
        while True:
            event, self._next = self._next or self._receive(), None
            if event is None:
                continue
            if not isinstance(event[0], kinds):
                raise TrainingCodeError(f"unexpected {type(event[0]).__name__}")
            return event

    def _receive(self) -> tuple[lm.LoopMessage, list[bytes]] | None:
        """Receive one message; returns None if it has been handled, or none has come."""
        if self._request and not self._reduced():
            return None
        body, *frames = self._socket.socket.recv_multipart()
        message = lm.decode(body)
        match message:
            case lm.LeaveMessage():
                raise sdk.Left(message.reason)
            case lm.DonateMessage():
                self._donate(message.place)
                return None
            case lm.Evaluate():
                self._send(self._evaluated(message.epoch))
                return None
            case lm.MakeGroup() if self._groups is not None:
                self._groups.make(message.number, message.rank, message.size, message.file, message.limit_s)
                return None
            case lm.Reduce() if self._groups is not None:
                self._reduce(self._groups, message)
                return None
            case lm.GiveGradients() if self._groups is not None:
                self._give(self._groups)
                return None
            case lm.GrantMessage() | lm.MeanMessage() | lm.OverMessage() | lm.StartMessage():
                return message, frames
            case _:
                return None

    def _reduce(self, groups: Groups, message: lm.Reduce) -> None:
        """Begin to form the mean with the others."""
        fail_here("worker.reducing")
        self._ended = zmq.Poller()
        self._ended.register(self._socket.socket, zmq.POLLIN)
        self._ended.register(groups.reduce(message.share), zmq.POLLIN)
        self._request = message.request

    def _reduced(self) -> bool:
        """Wait until the mean is formed, and tell the result, or until a message has come; returns whether one has."""
        assert self._ended is not None
        assert self._groups is not None
        there = dict(self._ended.poll())
        if self._socket.socket in there:
            return True
        fail_here("worker.reduced")
        found, request, self._request = self._groups.reduced(), self._request, 0
        self._send(
            lm.Reduced(request, found.own_sqnorm, found.sqnorm, found.own_bad, found.bad, found.failure)
        )
        return False

    def _give(self, groups: Groups) -> None:
        """Push the gradients, as one of the others is lost, or something else than the group needs them."""
        assert self._pushed is not None
        if self._request:
            self._request = 0
            groups.drop()
        groups.give()
        self._send(msgspec.structs.replace(self._pushed, held=False))

    def _donate(self, place: int) -> None:
        """Send the replica, or put it where the worker that joins reads it, so that nothing waits behind it."""
        assert self._state is not None
        state = self._state()
        if place >= 0 and self._memory is not None:
            headers = lm.headers_of(state)
            with contextlib.suppress(OSError):  # there is no room
                self._memory.put(place, headers, state)
                self._send(lm.DonatedState(self.step, headers, place))
                return
        headers, frames = lm.pack(state)
        self._send(lm.DonatedState(self.step, headers), frames, copy=True)

    def _evaluated(self, epoch: int) -> lm.EvaluatedMessage:
        began = time.monotonic()
        found = {} if self._evaluate is None else self._evaluate()
        metrics = {str(name): float(value) for name, value in found.items()}
        missing = [name for name in self._code.metrics() if name not in metrics]
        if missing and self._code.evaluates:
            raise TrainingCodeError(f"evaluate returned no {missing[0]!r}, which LoopJob names")
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        # what was done since the last step belongs to it: a script evaluates there
        return lm.EvaluatedMessage(epoch, finite, self._between_s + time.monotonic() - began)

    def _send(self, message: lm.LoopMessage, frames: Sequence[Any] = (), *, copy: bool = False) -> None:
        """Send a message; without `copy`, the frames must not be changed until the answer has arrived."""
        self._socket.socket.send_multipart([lm.encode(message), *frames], copy=copy or not frames)


def serve(context: zmq.Context[Any], config: ProcessConfiguration, socket: Dealer) -> None:
    """Run the user's `module:function` in this process until it returns or the worker is ordered to end.

    Raises:
        TrainingCodeError: If there is no such function, or it returns without having called `loop.init`.
    """
    ranks = None if config.processes == 1 else Ranks(config)
    code = code_of(config, port=0 if ranks is None else ranks.port)
    memory = None if config.memory_fd < 0 else GradientMemory(config.memory_fd)
    link = LoopLink(config.name, socket, code, memory)
    heartbeat = Heartbeat(context, config, link.status)
    heartbeat.start()
    reason = "rank 0 has failed"
    try:
        sdk.connect(link if ranks is None else FirstRank(link, ranks))
        code.function(**config.params)
        if not link.entered:
            raise TrainingCodeError(f"{config.train} ended without calling loop.init")
        link.finish()
    except sdk.Left as left:
        log.info("the worker leaves: %s", left)
        reason = str(left)
    except Exception as error:  # noqa: BLE001 - raised again, or that which it comes from
        cause = error if ranks is None else ranks.cause(error)
        if ranks is not None and isinstance(cause, LostRankError):
            ranks.end_as_lost()
        raise cause from (None if cause is error else error)
    finally:
        sdk.connect(None)
        if ranks is not None:
            ranks.close(reason)
        heartbeat.close()


def _same(a: lm.Array, b: lm.Array) -> bool:
    """Whether two arrays of one shape and type are the same memory."""
    return a.ctypes.data == b.ctypes.data and a.strides == b.strides


def code_of(config: ProcessConfiguration, *, rank: int = 0, port: int = 0) -> Code:
    """The training code: a function that it imports, a `LoopJob` of one, or a script.

    Args:
        config: The worker's.
        rank: Of this process, if a worker has several.
        port: Of the store by which these meet.
    """
    train, job_dir = config.train, config.job_dir
    if (script := Script.find(train)) is not None:
        run = ScriptRun(
            job_dir,
            str(Path(job_dir, script.path)),
            seed=config.seed,
            by_samples=bool(config.schedule_batch),
            rank=rank,
            processes=config.processes,
        )
        metrics = functools.partial(metrics_of, run)
        return Code(functools.partial(run_script, script, run, port), metrics, evaluates=False)
    module_name, _, attribute = train.partition(":")
    enter(job_dir, module_name)
    module = importlib.import_module(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, LoopJob):
        return Code(found.function, lambda: found.metrics)
    if not callable(found):
        raise TrainingCodeError(f"{module.__file__} has no function {attribute!r}")
    return Code(found)
