"""A worker of a custom training loop: runs the user's function, and is its `Link` to the process that runs the loop."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from scavenger.errors import TrainingCodeError
from scavenger.sdk import loop as sdk
from scavenger.train.custom_loop import messages as lm
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.messages import Beat
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import Dealer

__all__ = ["LoopLink", "serve"]


log = logging.getLogger(__name__)


class LoopLink:
    """A `scavenger.sdk.loop.Link` over a socket.

    It handles one message at a time, and none until the previous step is applied. A `Donate`, which follows the
    mean of a step, is therefore answered with the replica in the state after that step.

    Args:
        name: The worker's name.
        socket: Its connection to the hub.
    """

    def __init__(self, name: str, socket: Dealer) -> None:
        self._name, self._socket = name, socket
        self._state: Callable[[], dict[str, lm.Array]] | None = None
        self.step = self.view = 0

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
    ) -> sdk.Progress:
        """See `scavenger.sdk.loop.Link.enter`."""
        if self.entered:
            raise TrainingCodeError("loop.init must be called only once")
        self._state = state
        fail_here("worker.joining")
        self._send(lm.Hello(tuple(sizes)))
        start, frames = self._wait_for(lm.Start)
        if start.load:
            load(lm.unpack(start.tensors, frames))
        self.step, self.view = start.step, start.view
        return sdk.Progress(start.step, start.epoch, start.members)

    def seek(self, epoch: int) -> sdk.Granted | sdk.Step | None:
        """See `scavenger.sdk.loop.Link.seek`."""
        self._send(lm.Ask(self.step, epoch))
        message, frames = self._wait_for(lm.Grant, lm.Mean, lm.Over)
        match message:
            case lm.Grant():
                fail_here("worker.leased")
                return sdk.Granted(message.shard, message.attempt, message.start, message.stop)
            case lm.Mean():
                return self._decode_step(message, frames)
            case _:
                return None

    def push(self, part: sdk.Granted, tensors: dict[str, lm.Array]) -> sdk.Step:
        """See `scavenger.sdk.loop.Link.push`."""
        fail_here("worker.computed")
        headers, frames = lm.pack(tensors)
        self._send(
            lm.Push(self.view, self.step + 1, part.shard, part.attempt, part.start, part.stop, headers),
            frames,
        )
        fail_here("worker.pushed")
        mean, received = self._wait_for(lm.Mean)
        return self._decode_step(mean, received)

    def boundary(self, epoch: int, samples: int, loss: float | None) -> None:
        """See `scavenger.sdk.loop.Link.boundary`."""
        self.step += 1
        self._send(lm.Stepped(self.step, epoch, samples, loss))
        while self._socket.socket.poll(0):
            event = self._receive()
            if event is not None:
                raise TrainingCodeError(f"unexpected {type(event[0]).__name__}")

    def finish(self) -> None:
        """Report that the training function has returned; raises `Left` when the worker is ordered to end."""
        assert self._state is not None
        headers, frames = lm.pack(self._state())
        self._send(lm.Finished(self.step, headers), frames, copy=True)
        self._wait_for()

    def status(self) -> Beat:
        """Return the worker's state for heartbeats."""
        return Beat(step=self.step, view=self.view)

    def _decode_step(self, mean: lm.Mean, frames: list[bytes]) -> sdk.Step:
        self.view = mean.view
        return sdk.Step(mean.step, mean.over, mean.members, lm.unpack(mean.tensors, frames))

    def _wait_for(self, *kinds: type[Any]) -> tuple[Any, list[bytes]]:
        """Wait for the next message of these kinds; messages that may come at any time are handled meanwhile."""
        while True:
            event = self._receive()
            if event is None:
                continue
            if not isinstance(event[0], kinds):
                raise TrainingCodeError(f"unexpected {type(event[0]).__name__}")
            return event

    def _receive(self) -> tuple[lm.LoopMessage, list[bytes]] | None:
        """Receive one message; returns None if it has been handled."""
        body, *frames = self._socket.socket.recv_multipart()
        message = lm.decode(body)
        match message:
            case lm.Leave():
                raise sdk.Left(message.reason)
            case lm.Donate():
                assert self._state is not None
                headers, state = lm.pack(self._state())
                self._send(lm.DonatedState(self.step, headers), state, copy=True)
                return None
            case lm.Grant() | lm.Mean() | lm.Over() | lm.Start():
                return message, frames
            case _:
                return None

    def _send(self, message: lm.LoopMessage, frames: Sequence[Any] = (), *, copy: bool = False) -> None:
        """Send a message; without `copy`, the frames must not be changed until the answer has arrived."""
        self._socket.socket.send_multipart([lm.encode(message), *frames], copy=copy or not frames)


def serve(context: zmq.Context[Any], config: ProcessConfiguration, socket: Dealer) -> None:
    """Run the user's `module:function` in this process until it returns or the worker is ordered to end.

    Raises:
        TrainingCodeError: If there is no such function, or it returns without having called `loop.init`.
    """
    link = LoopLink(config.name, socket)
    heartbeat = Heartbeat(context, config, link.status)
    heartbeat.start()
    try:
        sdk.connect(link)
        _function(config.train, config.job_dir)()
        if not link.entered:
            raise TrainingCodeError(f"{config.train} ended without calling loop.init")
        link.finish()
    except sdk.Left as left:
        log.info("the worker leaves: %s", left)
    finally:
        sdk.connect(None)
        heartbeat.close()


def _function(train: str, job_dir: str) -> Callable[[], object]:
    module_name, _, attribute = train.partition(":")
    sys.path.insert(0, job_dir)
    module = importlib.import_module(module_name)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise TrainingCodeError(f"{module.__file__} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]
