"""The processes of a worker that divide its model among them: what the first one does for the others, and their link.

Rank 0 is the worker that the job knows. It starts the other ranks, which run the same script with a part of each batch
and of the model, as torchrun would have them do. What the job answers to rank 0 it passes on, so that all make the same
calls in the same order. Arrays lie in memory that the ranks share; messages go through socket pairs that they inherit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import numpy as np

from scavenger.errors import ConfigurationError, NotSupportedError, ScavengerError, TrainingCodeError
from scavenger.sdk import loop as sdk
from scavenger.sdk import ranks as sdk_ranks
from scavenger.sdk.process_groups import Groups
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.gradient_memory import MEAN, STATES, GradientMemory
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.values import ProcessConfiguration

_LOOPBACK = "127.0.0.1"
_SEEN_S = 0.5
"""Within this time after an error of rank 0 another one may tell that it was its own."""
_HUNG_S = 10.0
"""So long after the end of another rank, rank 0 may still wait for it in a collective."""
_CLOSING_S = 5.0
_MEAN, _STATISTICS = 1, 2
"""Places of the memory of the ranks: of the mean, and of the statistics of rank 0; place 0 is of gradients."""

log = logging.getLogger(__name__)


class RankConfiguration(msgspec.Struct, frozen=True):
    """What a further process of a worker gets at its start, by its standard input.

    Attributes:
        of: The worker's.
        rank: Of this process.
        port: Of the store by which `torch.distributed` of the worker's processes meet.
        connection: Descriptor of this rank's end of its connection to rank 0.
        memory: Descriptor of the memory that the ranks share.
    """

    of: ProcessConfiguration
    rank: int
    port: int
    connection: int
    memory: int


# ---- messages ----------------------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Entered(_Message, frozen=True):
    """A rank has prepared its model; see `Link.enter`."""

    sizes: tuple[int, ...]


class Loaded(_Message, frozen=True):
    """A rank has loaded the state that it was given."""


class Allocating(_Message, frozen=True):
    """A rank asks for memory for the arrays that it will push."""

    tensors: tuple[lm.TensorHeader, ...]


class Pushed(_Message, frozen=True):
    """A rank's gradients are where its part of the worker's is, and its statistics in a place of its own."""

    statistics: tuple[lm.TensorHeader, ...]


class Applied(_Message, frozen=True):
    """A rank has applied a step; the loss is that of its samples."""

    loss: float | None


class Broken(_Message, frozen=True):
    """The script has failed at a rank."""

    kind: str
    words: str


class Begin(_Message, frozen=True):
    """The worker is a member of the job; see `sdk.Progress`."""

    progress: sdk.Progress


class Grant(_Message, frozen=True):
    """The worker's samples of the next step."""

    granted: sdk.Granted


class Arrays(_Message, frozen=True):
    """Where arrays of the whole worker are.

    Attributes:
        jobs: Whether in the memory that all workers of the job share, or in that of this worker's ranks.
        place: See `GradientMemory`.
    """

    jobs: bool
    place: int
    tensors: tuple[lm.TensorHeader, ...]


class Mean(_Message, frozen=True):
    """A step is made; see `sdk.Step`."""

    step: int
    epoch_over: bool
    workers: int
    share: int
    lr_scale: float
    samples: int
    mean: Arrays


class Over(_Message, frozen=True):
    """The epoch is over."""


class Go(_Message, frozen=True):
    """The step is reported."""


class TakeState(_Message, frozen=True):
    """The first rank needs the whole state, for which each has to give its part."""


class TakeLoad(_Message, frozen=True):
    """A state to load lies in the memory."""

    tensors: tuple[lm.TensorHeader, ...]


class End(_Message, frozen=True):
    """The worker is not needed any more."""

    reason: str


_From = Entered | Loaded | Allocating | Pushed | Applied | Broken
_To = Begin | Grant | Arrays | Mean | Over | Go | TakeState | TakeLoad | End
_from = msgspec.msgpack.Decoder(_From)
_to = msgspec.msgpack.Decoder(_To)
_encode = msgspec.msgpack.Encoder().encode


class LostRankError(Exception):
    """A process of this worker has ended without a word."""


# ---- rank 0 ------------------------------------------------------------------------------------------------


class Ranks:
    """The further processes of a worker, as its first one has them.

    Args:
        config: The worker's.

    Raises:
        ConfigurationError: If PyTorch is not installed.
    """

    def __init__(self, config: ProcessConfiguration) -> None:
        self.port, self._store = _store()
        self.memory = create_block()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._closing = False
        jobs = (config.memory_fd,) if config.memory_fd >= 0 else ()
        for rank in range(1, config.processes):
            ours, theirs = socket.socketpair()
            given = RankConfiguration(config, rank, self.port, theirs.fileno(), self.memory)
            process = subprocess.Popen(
                [sys.executable, "-m", "scavenger.train.custom_loop.rank_process"],
                stdin=subprocess.PIPE,
                pass_fds=(theirs.fileno(), self.memory, *jobs),
            )
            theirs.close()
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(given) + b"\n")
            process.stdin.flush()  # kept open: its end shows that this process is gone
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))
            threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    @property
    def size(self) -> int:
        """Processes of this worker, with the first one."""
        return 1 + len(self._processes)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End this process if another has ended and it waits for that in a collective."""
        process.wait()
        time.sleep(_HUNG_S)
        if not self._closing:
            self.end_as_lost()

    def end_as_lost(self) -> None:
        """End this process as the one that was lost: one that was killed is replaced, with its whole worker."""
        deadline = time.monotonic() + _CLOSING_S
        while not (ended := [one.returncode for one in self._processes if one.poll() is not None]):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        log.error("another process of this worker has ended with status %s", ended)
        for rank, connection in enumerate(self._connections, start=1):
            try:
                while connection.poll():
                    self._receive(rank, object)
            except LostRankError:
                continue
            except ScavengerError as error:
                log.error("rank %d: %s", rank, error)
        if ended and ended[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def tell(self, message: _To) -> None:
        """Tell the same to all."""
        for rank in range(1, self.size):
            self.tell_one(rank, message)

    def tell_one(self, rank: int, message: _To) -> None:
        """Tell one rank.

        Raises:
            LostRankError: If it has ended.
        """
        try:
            self._connections[rank - 1].send_bytes(_encode(message))
        except OSError as error:
            raise LostRankError(f"rank {rank} has ended") from error

    def gather(self, kind: type[Any]) -> list[Any]:
        """One message of each rank.

        Raises:
            LostRankError: If one has ended without a word.
            TrainingCodeError, NotSupportedError: If the script has failed at one, or makes another call there.
        """
        found: dict[int, Any] = {}
        while missing := [rank for rank in range(1, self.size) if rank not in found]:
            for connection in wait([self._connections[rank - 1] for rank in missing]):
                rank = 1 + self._connections.index(connection)  # type: ignore[arg-type]
                found[rank] = self._receive(rank, kind)
        return [found[rank] for rank in sorted(found)]

    def _receive(self, rank: int, kind: type[Any]) -> Any:
        try:
            message = _from.decode(self._connections[rank - 1].recv_bytes())
        except (OSError, EOFError) as error:
            raise LostRankError(f"rank {rank} has ended") from error
        if isinstance(message, Broken):
            raise (NotSupportedError if message.kind == "unsupported" else TrainingCodeError)(message.words)
        if not isinstance(message, kind):
            raise TrainingCodeError(
                f"the script makes other steps at rank {rank} than at rank 0 of a worker: nothing that differs between "
                "its processes may decide about epochs"
            )
        return message

    def cause(self, error: Exception) -> Exception:
        """What an error of rank 0 comes from: another rank's, if that tells so or has ended."""
        if isinstance(error, LostRankError | ScavengerError):
            return error
        try:
            for connection in wait(self._connections, _SEEN_S):
                self._receive(1 + self._connections.index(connection), object)  # type: ignore[arg-type]
        except (LostRankError, TrainingCodeError, NotSupportedError) as found:
            return found
        return error

    def close(self, reason: str) -> None:
        """Have all end, and wait for it."""
        self._closing = True
        for rank in range(1, self.size):
            with contextlib.suppress(LostRankError):
                self.tell_one(rank, End(reason))
        deadline = time.monotonic() + _CLOSING_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class FirstRank:
    """The link of a worker with several processes: that of rank 0 to the job, whose answers it passes on."""

    def __init__(self, link: Any, ranks: Ranks) -> None:
        self._link, self._ranks = link, ranks
        self._load: Callable[[dict[str, lm.Array]], None] | None = None
        self._memory, self._mean = GradientMemory(ranks.memory), GradientMemory(ranks.memory)
        self._statistics = [GradientMemory(ranks.memory) for _ in range(ranks.size)]
        self._arrays: dict[str, lm.Array] = {}
        """What the worker pushes, where each rank puts its part of the gradients."""
        self._samples: list[int] = []
        """Of the last step, by rank."""

    @property
    def worker(self) -> str:
        """See `Link.worker`."""
        return str(self._link.worker)

    def enter(
        self,
        sizes: Sequence[int],
        state: Callable[[], dict[str, lm.Array]],
        load: Callable[[dict[str, lm.Array]], None],
        evaluate: sdk.Evaluation | None = None,
        *,
        apart: bool = False,
    ) -> sdk.Progress:
        if any(other.sizes != tuple(sizes) for other in self._ranks.gather(Entered)):
            raise TrainingCodeError(
                "the processes of a worker have data sets of other lengths: read the same data"
            )
        self._load = load

        def whole() -> dict[str, lm.Array]:
            self._ranks.tell(TakeState())
            return state()

        progress: sdk.Progress = self._link.enter(sizes, whole, self._load_all, evaluate, apart=apart)
        self._ranks.tell(Begin(progress))
        return progress

    @sdk.borrows
    def _load_all(self, arrays: dict[str, lm.Array]) -> None:
        """Have every rank load its part of a state."""
        assert self._load is not None
        headers = lm.headers_of(arrays)
        memory = GradientMemory(self._ranks.memory)
        size = memory.put(STATES, headers, arrays)
        self._ranks.tell(TakeLoad(headers))
        lend(arrays, self._load)
        self._ranks.gather(Loaded)
        memory.give_back(STATES, size)

    def seek(self, epoch: int) -> sdk.Granted | sdk.Step | None:
        found: sdk.Granted | sdk.Step | None = self._link.seek(epoch)
        match found:
            case None:
                self._ranks.tell(Over())
            case sdk.Step():
                return self._divided(found)
            case _:
                self._ranks.tell(Grant(found))
        return found

    def leave(self) -> None:
        self._link.leave()

    def allocate(self, like: Mapping[str, lm.Array]) -> dict[str, lm.Array]:
        others = (message.tensors for message in self._ranks.gather(Allocating))
        own = lm.headers_of(sdk_ranks.statistics(like))
        of_all = [{one.name: one for one in of_rank} for of_rank in (lm.headers_of(like), *others)]
        described = sdk_ranks.named(of_all) | {one.name: one for one in own}
        wanted = {
            name: np.broadcast_to(np.zeros((), one.dtype), one.shape) for name, one in described.items()
        }
        place, headers = self._link.place, lm.headers_of(wanted)
        jobs = place != MEAN
        self._arrays = self._link.allocate(wanted) if jobs else _zeros(self._memory, place, headers)
        self._ranks.tell(Arrays(jobs, place, headers))
        return sdk_ranks.part_of(self._arrays, 0) | _zeros(self._statistics[0], _STATISTICS, own)

    def holds(self, groups: Groups) -> bool:
        return False

    def push(self, part: sdk.Granted, tensors: dict[str, lm.Array]) -> sdk.Step:
        statistics = [sdk_ranks.statistics(tensors)]
        for rank, message in enumerate(self._ranks.gather(Pushed), start=1):
            statistics.append(self._statistics[rank].arrays(_STATISTICS + rank, message.statistics))
        self._samples = [len(one) for one in sdk_ranks.cut(range(part.start, part.stop), self._ranks.size)]
        mean = sdk_ranks.mean_of(statistics, self._samples)
        return self._divided(self._link.push(part, {**self._arrays, **mean}))

    def _divided(self, step: sdk.Step) -> sdk.Step:
        """Tell all ranks of a step, and where their parts of the mean are."""
        headers = lm.headers_of(step.mean)
        if step.borrowed and self._link.place != MEAN:
            there = Arrays(True, self._link.mean_place, headers)
        else:
            there = Arrays(False, _MEAN, headers)
            for name, array in self._mean.arrays(_MEAN, headers).items():
                array[...] = step.mean[name]
        self._ranks.tell(
            Mean(step.step, step.epoch_over, step.workers, step.share, step.lr_scale, step.samples, there)
        )
        return step._replace(mean=sdk_ranks.part_of(step.mean, 0))

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        losses = [loss, *(message.loss for message in self._ranks.gather(Applied))]
        told = [(one, n) for one, n in zip(losses, self._samples, strict=False) if one is not None and n]
        number = sum(n for _, n in told)
        loss = sum(one * n for one, n in told) / number if samples and number else None
        self._link.boundary(epoch, samples, loss, over=over)
        self._ranks.tell(Go())


# ---- the others --------------------------------------------------------------------------------------------


class OtherRank:
    """The link of a further process of a worker: to rank 0."""

    def __init__(self, config: RankConfiguration, connection: Connection) -> None:
        self._config, self._connection = config, connection
        self._statistics = GradientMemory(config.memory)
        self._shared = {True: GradientMemory(config.of.memory_fd), False: GradientMemory(config.memory)}
        """By whether it is that of the job; see `Arrays`."""
        self._state: Callable[[], dict[str, lm.Array]] | None = None
        self._load: Callable[[dict[str, lm.Array]], None] | None = None

    @property
    def worker(self) -> str:
        """See `Link.worker`."""
        return self._config.of.name

    def enter(
        self,
        sizes: Sequence[int],
        state: Callable[[], dict[str, lm.Array]],
        load: Callable[[dict[str, lm.Array]], None],
        evaluate: sdk.Evaluation | None = None,
        *,
        apart: bool = False,
    ) -> sdk.Progress:
        self._state, self._load = state, load
        self._send(Entered(tuple(sizes)))
        return self._wait_for(Begin).progress  # type: ignore[no-any-return]

    def seek(self, epoch: int) -> sdk.Granted | sdk.Step | None:
        match answer := self._wait_for(Grant, Mean, Over):
            case Grant():
                return answer.granted
            case Mean():
                return self._step(answer)
            case _:
                return None

    def leave(self) -> None:
        """Rank 0 tells the job."""

    def allocate(self, like: Mapping[str, lm.Array]) -> dict[str, lm.Array]:
        self._send(Allocating(lm.headers_of(like)))
        own = self._part_of(self._wait_for(Arrays))
        headers = lm.headers_of(sdk_ranks.statistics(like))
        return own | _zeros(self._statistics, _STATISTICS + self._config.rank, headers)

    def holds(self, groups: Groups) -> bool:
        return False

    def push(self, part: sdk.Granted, tensors: dict[str, lm.Array]) -> sdk.Step:
        fail_here("worker.computed")
        self._send(Pushed(lm.headers_of(sdk_ranks.statistics(tensors))))
        return self._step(self._wait_for(Mean))

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        self._send(Applied(loss))
        self._wait_for(Go)

    def failed(self, kind: str, words: str) -> None:
        """Tell rank 0 that the script has failed here."""
        self._send(Broken(kind, words))

    def _part_of(self, arrays: Arrays) -> dict[str, lm.Array]:
        return sdk_ranks.part_of(
            self._shared[arrays.jobs].arrays(arrays.place, arrays.tensors), self._config.rank
        )

    def _step(self, mean: Mean) -> sdk.Step:
        return sdk.Step(
            mean.step,
            mean.epoch_over,
            mean.workers,
            self._part_of(mean.mean),
            mean.share,
            mean.lr_scale,
            borrowed=True,
            samples=mean.samples,
        )

    def _wait_for(self, *kinds: type[Any]) -> Any:
        """Wait for an answer; gives its part of a state, and loads one, if rank 0 asks for it meanwhile."""
        assert self._state is not None
        assert self._load is not None
        while True:
            match message := _to.decode(self._connection.recv_bytes()):
                case End():
                    raise sdk.Left(message.reason)
                case TakeState():
                    self._state()
                case TakeLoad():
                    arrays = GradientMemory(self._config.memory).arrays(STATES, message.tensors)
                    lend(arrays, self._load)
                    self._send(Loaded())
                case _ if isinstance(message, kinds):
                    return message
                case _:
                    raise TrainingCodeError(f"unexpected {type(message).__name__}")

    def _send(self, message: _From) -> None:
        self._connection.send_bytes(_encode(message))


def lend(arrays: dict[str, lm.Array], load: Callable[[dict[str, lm.Array]], None]) -> None:
    """Have a state loaded: a copy, if it may be kept."""
    load(
        arrays if getattr(load, "borrows", False) else {name: array.copy() for name, array in arrays.items()}
    )


def _zeros(memory: GradientMemory, place: int, headers: Sequence[lm.TensorHeader]) -> dict[str, lm.Array]:
    found = memory.arrays(place, headers)
    for array in found.values():
        array[...] = 0
    return found


def _store() -> tuple[int, Any]:
    """The store of `torch.distributed` for the processes of this worker, reached from this machine alone; its port."""
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise ConfigurationError(
            "elastic.processes: above 1 it is for scripts of PyTorch, which is not installed: pip install torch",
            key="elastic.processes",
        ) from error
    listener = socket.socket()
    listener.bind((_LOOPBACK, 0))
    listener.listen()
    port = listener.getsockname()[1]
    store = TCPStore(_LOOPBACK, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    return port, store
