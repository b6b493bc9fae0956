"""A further process of a worker (`ranks`), started as `python -m scavenger.train.custom_loop.rank_process`."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from scavenger import logs
from scavenger.errors import TrainingCodeError
from scavenger.masking import keep_secret, mask
from scavenger.sdk import loop as sdk
from scavenger.sdk import ranks as sdk_ranks
from scavenger.sdk.process_groups import Groups
from scavenger.train.configuration import read_configuration
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop import rank_messages as rm
from scavenger.train.custom_loop.gradient_memory import STATES, GradientMemory, lend
from scavenger.train.custom_loop.worker import code_of
from scavenger.train.failpoints import fail_here, load_failpoints
from scavenger.train.failure import describe_failure


class OtherRank:
    """The link of a further process of a worker: to rank 0."""

    def __init__(self, config: rm.RankConfiguration, connection: Connection) -> None:
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
        self._send(rm.Entered(tuple(sizes)))
        return self._wait_for(rm.Begin).progress  # type: ignore[no-any-return]

    def seek(self, epoch: int) -> sdk.Granted | sdk.Step | None:
        match answer := self._wait_for(rm.Grant, rm.Mean, rm.Over):
            case rm.Grant():
                return answer.granted
            case rm.Mean():
                return self._step(answer)
            case _:
                return None

    def leave(self) -> None:
        """Rank 0 tells the job."""

    def allocate(self, like: Mapping[str, lm.Array]) -> dict[str, lm.Array]:
        self._send(rm.Allocating(lm.headers_of(like)))
        own = self._part_of(self._wait_for(rm.Arrays))
        headers = lm.headers_of(sdk_ranks.statistics(like))
        return own | self._statistics.zeros(rm.STATISTICS + self._config.rank, headers)

    def holds(self, groups: Groups) -> bool:
        return False

    def push(self, part: sdk.Granted, tensors: dict[str, lm.Array]) -> sdk.Step:
        fail_here("worker.computed")
        self._send(rm.Pushed(lm.headers_of(sdk_ranks.statistics(tensors))))
        return self._step(self._wait_for(rm.Mean))

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        self._send(rm.Applied(loss))
        self._wait_for(rm.Go)

    def failed(self, kind: str, words: str) -> None:
        """Tell rank 0 that the script has failed here."""
        self._send(rm.Broken(kind, words))

    def _part_of(self, arrays: rm.Arrays) -> dict[str, lm.Array]:
        return sdk_ranks.part_of(
            self._shared[arrays.jobs].arrays(arrays.place, arrays.tensors), self._config.rank
        )

    def _step(self, mean: rm.Mean) -> sdk.Step:
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
            try:
                received = self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise sdk.Left("rank 0 has ended") from error
            match message := rm.to_rank.decode(received):
                case rm.End():
                    raise sdk.Left(message.reason)
                case rm.TakeState():
                    self._state()
                case rm.TakeLoad():
                    arrays = GradientMemory(self._config.memory).arrays(STATES, message.tensors)
                    lend(arrays, self._load)
                    self._send(rm.Loaded())
                case _ if isinstance(message, kinds):
                    return message
                case _:
                    raise TrainingCodeError(f"unexpected {type(message).__name__}")

    def _send(self, message: rm.FromRank) -> None:
        self._connection.send_bytes(rm.encode(message))


def main() -> int:
    """Run the script as one of several processes of a worker; returns the exit status."""
    config = read_configuration(rm.RankConfiguration)
    logs.write_utf8()
    keep_secret(config.of.secrets.values())
    faulthandler.enable()
    logs.set_up(
        f"{config.of.name}.{config.rank}",
        logs.LogChoice(config.of.logs.level, config.of.logs.format),
        job_id=config.of.logs.job_id,
    )
    load_failpoints(f"{config.of.name}.{config.rank}")
    link = OtherRank(config, Connection(config.connection))
    try:
        sdk.connect(link)
        code_of(config.of, rank=config.rank, port=config.port).function()
    except sdk.Left:
        return 0
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception of user code is reported
        sys.stderr.write(mask(traceback.format_exc()))
        kind, words = describe_failure(error, config.of.job_dir)
        link.failed(kind, mask(words))
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of a group whose other members have ended may still wait
