"""A supervisor that a benchmark controls: starts training, changes views, and records the times of events."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec

from scavenger.elastic.migration import BucketMap
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Lost, Recovered
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block

ROOT = Path(__file__).resolve().parent.parent
_PEERS = ROOT / "benchmarks" / "peers"
_SEED = 1
_START_S = 120.0
_STEP_S = 60.0
_POLL_S = 0.02
_WITHIN_S = 180.0


class _Engine(ProcessEngine):
    """Starts processes that measure, some of them as if they were on another host."""

    def __init__(
        self, log_dir: Path, memory_fd: int, *, options: tuple[object, ...], elsewhere: Collection[str]
    ) -> None:
        said = (str(log_dir), *map(str, options))
        command = (sys.executable, "-m", "benchmarks.elastic_process", *said)
        super().__init__(log_dir, memory_fd, command=command)
        self._elsewhere = elsewhere
        self._other_fd = create_block()

    def launch(
        self,
        boot: m.ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        here = self._fd
        if boot.name in self._elsewhere:
            self._fd = self._other_fd
            boot = msgspec.structs.replace(boot, memory_fd=self._fd)
        try:
            return super().launch(boot, env=env, host=host)
        finally:
            self._fd = here

    @property
    def socket_dir(self) -> Path | None:
        """None if some processes are as if on another host, which Unix sockets do not reach."""
        return None if self._elsewhere else super().socket_dir

    def close(self) -> None:
        super().close()
        if self._other_fd >= 0:
            os.close(self._other_fd)
            self._other_fd = -1


class Training:
    """A job under way until the `with` block is left.

    Args:
        train: What to train, of `job_dir`.
        work_dir: For logs and measurements; a new one for each.
        elsewhere: Processes that share another memory than the rest, as if they were on another host.
        window, payloads: See `benchmarks.elastic_process`.
        gradients, params: See `JobSource`.
        engine: Another engine than one whose processes measure.

    Attributes:
        steps: What was said of each step.
        heard_at: When it was first said, monotonic seconds.
        maps: The maps of buckets that were heard of, by number.
    """

    def __init__(
        self,
        train: str,
        work_dir: Path,
        *,
        job_dir: Path = _PEERS,
        aggregators: int = 1,
        elsewhere: Collection[str] = (),
        window: int = 0,
        payloads: str = "sealed",
        engine: Callable[[Path, int], Engine] | None = None,
        gradients: str = "float32",
        params: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._logs = work_dir / "logs"
        self.supervisor = Supervisor.open(
            JobSource(train, job_dir, _SEED, threads=1, params=params, gradients=gradients),
            work_dir=work_dir,
            timeouts=Timeouts(_START_S, _STEP_S),
            aggregators=aggregators,
            engine=engine
            or (lambda log_dir, fd: _Engine(log_dir, fd, options=(window, payloads), elsewhere=elsewhere)),
        )
        self.steps: dict[int, m.StepReport] = {}
        self.heard_at: dict[int, float] = {}
        self.lost: list[Lost] = []
        self.recovered: list[Recovered] = []
        self.migrated: list[m.Migrated] = []
        self.maps: dict[int, BucketMap] = {}
        self.epochs: list[m.EpochReport] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.close()

    def begin(self, workers: int, global_batch_size: int, *, spare: int = 0) -> None:
        """Start workers and training, once those and so many spare ones are ready."""
        self.supervisor.start(workers + spare)
        self.until(lambda: self.supervisor.ready == workers + spare)
        self.resize(workers, global_batch_size)

    def resize(self, workers: int, global_batch_size: int) -> None:
        """Change the view, and wait until its first step has been applied."""
        before = self.view
        self.supervisor.resize(workers, global_batch_size, "benchmark")
        self.until(lambda: self.view > before)

    def migrate(self, buckets: Mapping[int, int]) -> float:
        """Have aggregators hold other buckets; returns how long it took, seconds.

        Raises:
            RuntimeError: If they do not.
        """
        begin, before = time.monotonic(), len(self.migrated)
        self.supervisor.migrations.move(buckets)
        self.until(lambda: len(self.migrated) > before)
        if reason := self.migrated[-1].reason:
            raise RuntimeError(f"nothing moved: {reason}")
        return time.monotonic() - begin

    @property
    def view(self) -> int:
        """The number of the last reported step; 0 before the first."""
        return self.steps[self.last].view if self.steps else 0

    @property
    def last(self) -> int:
        """The last step that was heard of; 0 before the first."""
        return max(self.steps, default=0)

    def go_on(self, steps: int) -> list[m.StepReport]:
        """Train so many steps more; returns them."""
        begin = self.last
        self.until(lambda: self.last >= begin + steps)
        return [step for number, step in sorted(self.steps.items()) if number > begin][:steps]

    def go_to(self, step: int) -> None:
        """Train until a step, or a later one, has been heard of."""
        self.until(lambda: self.last >= step)

    def until(self, condition: Callable[[], bool], within_s: float = _WITHIN_S) -> None:
        """Serve the supervisor until something holds.

        Raises:
            TimeoutError: If it does not come about.
        """
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"in vain for {within_s:.0f} s; processes: {self.supervisor.processes()}")
            self.serve(_POLL_S)

    def serve(self, timeout_s: float) -> None:
        """Serve the supervisor, waiting so long for a first event."""
        for event in self.supervisor.poll(timeout_s):
            match event:
                case m.StepReport():
                    self.steps.setdefault(event.step, event)
                    self.heard_at.setdefault(event.step, time.monotonic())
                case m.EpochReport():
                    if event.epoch >= len(self.epochs):
                        self.epochs.append(event)
                    self.supervisor.verdict(event.epoch, stop=False, keep_best=False)
                case m.Migrated():
                    self.migrated.append(event)
                case Lost():
                    self.lost.append(event)
                case Recovered():
                    self.recovered.append(event)
        if (buckets := self.supervisor.migrations.map) is not None:
            self.maps[buckets.number] = buckets

    def measured(self) -> dict[str, dict[str, dict[int, float]]]:
        """By process, what and step: seconds. To be asked for when the block has been left."""
        return {
            file.stem: {
                what: {int(step): taken for step, taken in times.items()}
                for what, times in json.loads(file.read_text()).items()
            }
            for file in sorted(self._logs.glob("*.json"))
        }


def gradient_s(measured: dict[str, dict[str, dict[int, float]]], step: int) -> float:
    """The gradient time of the slowest worker in a step."""
    return max(found["gradient"][step] for found in measured.values() if step in found.get("gradient", {}))


def median_s(steps: list[m.StepReport]) -> float:
    """Median time of some steps."""
    return statistics.median(step.step_time_s for step in steps)
