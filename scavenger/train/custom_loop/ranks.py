"""The processes of a worker that divide its model among them, as the first one starts and leads them.

Rank 0 is the worker that the job knows. The other ranks (`rank_process`) run the same script with a part of each batch
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
from scavenger.train.custom_loop import rank_messages as rm
from scavenger.train.custom_loop.gradient_memory import MEAN, STATES, GradientMemory, lend
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.values import ProcessConfiguration

_LOOPBACK = "127.0.0.1"
_SEEN_S = 0.5
"""Within this time after an error of rank 0 it is known whether another one was killed, or has told its own."""
_HUNG_S = 10.0
"""So long after the end of another rank, rank 0 may still wait for it in a collective."""
_CLOSING_S = 5.0

log = logging.getLogger(__name__)


class LostRankError(Exception):
    """A process of this worker has ended without a word."""


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
        self._closing, self._killed = threading.Event(), threading.Event()
        jobs = (config.memory_fd,) if config.memory_fd >= 0 else ()
        for rank in range(1, config.processes):
            ours, theirs = socket.socketpair()
            given = rm.RankConfiguration(config, rank, self.port, theirs.fileno(), self.memory)
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
        """Note that another process was killed; end this one if it then waits for it in a collective."""
        if process.wait() < 0:
            self._killed.set()
        if not self._closing.wait(_HUNG_S):
            self.end_as_lost()

    def end_as_lost(self) -> None:
        """End this process as the one that was lost: one that was killed is replaced, with its whole worker."""
        killed = self._killed.wait(_SEEN_S)
        log.error("another process of this worker %s", "was killed" if killed else "has ended")
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def tell(self, message: rm.ToRank) -> None:
        """Tell the same to all."""
        for rank in range(1, self.size):
            self.tell_one(rank, message)

    def tell_one(self, rank: int, message: rm.ToRank) -> None:
        """Tell one rank.

        Raises:
            LostRankError: If it has ended.
        """
        try:
            self._connections[rank - 1].send_bytes(rm.encode(message))
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
            message = rm.from_rank.decode(self._connections[rank - 1].recv_bytes())
        except (OSError, EOFError) as error:
            raise LostRankError(f"rank {rank} has ended") from error
        if isinstance(message, rm.Broken):
            raise (NotSupportedError if message.kind == "unsupported" else TrainingCodeError)(message.words)
        if not isinstance(message, kind):
            raise TrainingCodeError(
                f"the script makes other steps at rank {rank} than at rank 0 of a worker: nothing that differs between "
                "its processes may decide about epochs"
            )
        return message

    def cause(self, error: Exception) -> Exception:
        """What an error of rank 0 comes from: another rank that was killed, or has told its own error, or neither.

        Where one is killed, all others fail in the collective that they are in.
        """
        if self._killed.wait(_SEEN_S):
            return LostRankError("another rank was killed")
        if isinstance(error, LostRankError | ScavengerError):
            return error
        try:
            for connection in wait(self._connections, 0.0):
                self._receive(1 + self._connections.index(connection), object)  # type: ignore[arg-type]
        except (LostRankError, ScavengerError) as found:
            return found
        return error

    def close(self, reason: str) -> None:
        """Have all end, and wait for it."""
        self._closing.set()
        for rank in range(1, self.size):
            with contextlib.suppress(LostRankError):
                self.tell_one(rank, rm.End(reason))
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
        if any(other.sizes != tuple(sizes) for other in self._ranks.gather(rm.Entered)):
            raise TrainingCodeError(
                "the processes of a worker have data sets of other lengths: read the same data"
            )
        self._load = load

        def whole() -> dict[str, lm.Array]:
            self._ranks.tell(rm.TakeState())
            return state()

        progress: sdk.Progress = self._link.enter(sizes, whole, self._load_all, evaluate, apart=apart)
        self._ranks.tell(rm.Begin(progress))
        return progress

    @sdk.borrows
    def _load_all(self, arrays: dict[str, lm.Array]) -> None:
        """Have every rank load its part of a state."""
        assert self._load is not None
        headers = lm.headers_of(arrays)
        memory = GradientMemory(self._ranks.memory)
        size = memory.put(STATES, headers, arrays)
        self._ranks.tell(rm.TakeLoad(headers))
        lend(arrays, self._load)
        self._ranks.gather(rm.Loaded)
        memory.give_back(STATES, size)

    def seek(self, epoch: int) -> sdk.Granted | sdk.Step | None:
        found: sdk.Granted | sdk.Step | None = self._link.seek(epoch)
        match found:
            case None:
                self._ranks.tell(rm.Over())
            case sdk.Step():
                return self._divided(found)
            case _:
                self._ranks.tell(rm.Grant(found))
        return found

    def leave(self) -> None:
        self._link.leave()

    def allocate(self, like: Mapping[str, lm.Array]) -> dict[str, lm.Array]:
        others = (message.tensors for message in self._ranks.gather(rm.Allocating))
        own = lm.headers_of(sdk_ranks.statistics(like))
        of_all = [{one.name: one for one in of_rank} for of_rank in (lm.headers_of(like), *others)]
        described = sdk_ranks.named(of_all) | {one.name: one for one in own}
        wanted = {
            name: np.broadcast_to(np.zeros((), one.dtype), one.shape) for name, one in described.items()
        }
        place, headers = self._link.place, lm.headers_of(wanted)
        jobs = place != MEAN
        self._arrays = self._link.allocate(wanted) if jobs else self._memory.zeros(place, headers)
        self._ranks.tell(rm.Arrays(jobs, place, headers))
        return sdk_ranks.part_of(self._arrays, 0) | self._statistics[0].zeros(rm.STATISTICS, own)

    def holds(self, groups: Groups) -> bool:
        return False

    def push(self, part: sdk.Granted, tensors: dict[str, lm.Array]) -> sdk.Step:
        statistics = [sdk_ranks.statistics(tensors)]
        for rank, message in enumerate(self._ranks.gather(rm.Pushed), start=1):
            statistics.append(self._statistics[rank].arrays(rm.STATISTICS + rank, message.statistics))
        self._samples = [len(one) for one in sdk_ranks.cut(range(part.start, part.stop), self._ranks.size)]
        mean = sdk_ranks.mean_of(statistics, self._samples)
        return self._divided(self._link.push(part, {**self._arrays, **mean}))

    def _divided(self, step: sdk.Step) -> sdk.Step:
        """Tell all ranks of a step, and where their parts of the mean are."""
        headers = lm.headers_of(step.mean)
        if step.borrowed and self._link.place != MEAN:
            there = rm.Arrays(True, self._link.mean_place, headers)
        else:
            there = rm.Arrays(False, rm.MEAN, headers)
            for name, array in self._mean.arrays(rm.MEAN, headers).items():
                array[...] = step.mean[name]
        self._ranks.tell(
            rm.Mean(step.step, step.epoch_over, step.workers, step.share, step.lr_scale, step.samples, there)
        )
        return step._replace(mean=sdk_ranks.part_of(step.mean, 0))

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        losses = [loss, *(message.loss for message in self._ranks.gather(rm.Applied))]
        told = [(one, n) for one, n in zip(losses, self._samples, strict=False) if one is not None and n]
        number = sum(n for _, n in told)
        loss = sum(one * n for one, n in told) / number if samples and number else None
        self._link.boundary(epoch, samples, loss, over=over)
        self._ranks.tell(rm.Go())


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
