"""Aggregators in the pool of this machine beside one of its own for each job, and beside a tenant that does harm."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.elastic_supervisor import Training
from benchmarks.figures import Benchmark, Result, Spread, median_interval
from scavenger.elastic import recovery
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.names import aggregator_name
from scavenger.train.pool.connection import load_of
from scavenger.train.pool.protocol import PROTOCOL, PoolJoin
from scavenger.train.pool.tenants import Tenants
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.values import ProcessConfiguration

_TRAIN, _BATCH = "keras_jobs:cnn", 32
_JOBS = 4
_WINDOW_S, _HARM_WINDOW_S = 3.0, 0.9
_MOVED_S, _SETTLE_S = 1.0, 0.2
"""What is left out of each window, after a move and after a tenant has been stopped or goes on."""
_PAIRS = {_JOBS: 2, 1: 3, 0: 3}
"""Pairs of windows in a repetition, with so many jobs; 0: beside a tenant that does harm."""
_WITHIN_S = 60.0
_POLL_S = 0.002
_AGGREGATOR = aggregator_name(0)

_MANAGER = """
import sys
from pathlib import Path
from scavenger.train.pool.manager import Manager
from scavenger.train.pool.serving import PoolSize, pool_nodes
from scavenger.train.pool.shares import Shares, find_shares
shares = find_shares() if sys.argv[2] == "cgroup" else Shares(sys.argv[2])
manager = Manager.open(Path(sys.argv[1]), pool_nodes(PoolSize(cpus=1)), shares, idle_s=60.0)
try:
    manager.run()
finally:
    manager.close()
"""

_HARM = {
    "computes with 8 threads": """
import threading
def spin():
    while True: sum(i * i for i in range(1000))
import multiprocessing
for _ in range(7): multiprocessing.Process(target=spin, daemon=True).start()
spin()
""",
    "fills its memory and crashes": """
kept = []
while True: kept.append(bytearray(64 << 20))
""",
    "floods its sockets": """
import zmq
context = zmq.Context()
sink, source = context.socket(zmq.PULL), context.socket(zmq.PUSH)
source.connect(f"tcp://127.0.0.1:{sink.bind_to_random_port('tcp://127.0.0.1')}")
while True: source.send(bytes(1 << 16))
""",
}


class _Engine(ProcessEngine):
    """Starts aggregators in the pool as long as `shared` is set, else as processes of their own."""

    shared = False

    def __init__(self, log_dir: Path, memory_fd: int, pool: Tenants) -> None:
        super().__init__(log_dir, memory_fd, tenants=pool)
        self._pool = pool

    def launch(
        self,
        config: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        self.tenants = self._pool if self.shared else None
        return super().launch(config, env=env, host=host, vm=vm)

    def close(self) -> None:
        self.tenants = self._pool
        super().close()


@dataclass(slots=True)
class _Job:
    training: Training
    engine: _Engine

    def move(self, *, shared: bool) -> None:
        """Have the aggregator restarted in the pool, or out of it."""
        self.engine.shared = shared
        self.engine.kill(_AGGREGATOR)

    @property
    def cpu_s(self) -> float:
        """Processor time of the aggregator so far."""
        times = psutil.Process(self.engine.pid(_AGGREGATOR)).cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class _Window:
    """Steps of each job in a second, and processors that their aggregators used."""

    rates: tuple[float, ...]
    used_cpus: float


@contextlib.contextmanager
def _pool(folder: Path, way: str) -> Iterator[Path]:
    folder.parent.mkdir(parents=True)
    manager = subprocess.Popen([sys.executable, "-c", _MANAGER, str(folder), way])
    try:
        deadline = time.monotonic() + _WITHIN_S
        while load_of(folder) is None:
            if time.monotonic() > deadline or manager.poll() is not None:
                raise TimeoutError("the pool did not begin to serve")
            time.sleep(0.05)
        yield folder
    finally:
        manager.send_signal(signal.SIGTERM)
        manager.wait()


@contextlib.contextmanager
def _jobs(count: int, folder: Path, work_dir: Path) -> Iterator[list[_Job]]:
    with contextlib.ExitStack() as stack:
        jobs = []
        for index in range(count):
            engines: list[_Engine] = []

            def make(log_dir: Path, fd: int, index: int = index, engines: list[_Engine] = engines) -> _Engine:
                pool = Tenants(folder, PoolJoin(PROTOCOL, f"job-{index}", "benchmark"))
                engines.append(_Engine(log_dir, fd, pool))
                return engines[0]

            training = stack.enter_context(Training(_TRAIN, work_dir / f"job-{index}", engine=make))
            jobs.append(_Job(training, engines[0]))
            training.begin(1, _BATCH)
        yield jobs


def _serve(jobs: Sequence[_Job], seconds: float, condition: Callable[[], bool] = lambda: False) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        for job in jobs:
            job.training.serve(_POLL_S)


def _move(jobs: Sequence[_Job], *, shared: bool) -> None:
    """Move all aggregators, and wait until every job trains on."""
    for job in jobs:
        job.move(shared=shared)
        wanted = len(job.training.recovered) + 1
        _serve(jobs, _WITHIN_S, partial(_has_recovered, job, wanted))
    last = [job.training.last for job in jobs]
    _serve(jobs, _WITHIN_S, lambda: all(j.training.last > n + 2 for j, n in zip(jobs, last, strict=True)))
    _serve(jobs, _MOVED_S)


def _has_recovered(job: _Job, times: int) -> bool:
    return len(job.training.recovered) >= times


def _window(
    jobs: Sequence[_Job], seconds: float = _WINDOW_S, meanwhile: Callable[[], None] = lambda: None
) -> _Window:
    begin, used = time.monotonic(), sum(job.cpu_s for job in jobs)
    while time.monotonic() - begin < seconds:
        meanwhile()
        _serve(jobs, 10 * _POLL_S)
    took = time.monotonic() - begin
    used_cpus = (sum(job.cpu_s for job in jobs) - used) / took
    return _Window(tuple(rate(job.training.heard_at.values(), begin) for job in jobs), used_cpus)


def rate(ends_s: Collection[float], begin_s: float) -> float:
    """Return the steps in a second, from the first that has ended since a time to the last.

    Raises:
        ValueError: If fewer than two have.
    """
    inside = [at for at in ends_s if at >= begin_s]
    if len(inside) < 2:
        raise ValueError("a window has no two steps: it is too short")
    return (len(inside) - 1) / (inside[-1] - inside[0])


def _compared(count: int, repetitions: int, work_dir: Path) -> tuple[list[_Window], list[_Window]]:
    """Windows with own aggregators and in the pool, in turn, of the same workers."""
    own: list[_Window] = []
    shared: list[_Window] = []
    recovery.DEATHS_MAX = sys.maxsize  # aggregators are ended on purpose, many times in a minute
    with _pool(work_dir / "pool", "cgroup") as folder, _jobs(count, folder, work_dir) as jobs:
        for turn in range(repetitions * _PAIRS[count]):
            for in_pool in (False, True) if turn % 2 == 0 else (True, False):
                _move(jobs, shared=in_pool)
                (shared if in_pool else own).append(_window(jobs))
    return own, shared


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of speed of each job, a share: of pairs of windows beside each other, and where their median lies."""

    spread: Spread
    interval: tuple[float, float]

    @classmethod
    def of(cls, before: Sequence[_Window], after: Sequence[_Window]) -> _Loss:
        lost = [
            1.0 - b / a
            for one, other in zip(before, after, strict=True)
            for a, b in zip(one.rates, other.rates, strict=True)
        ]
        return cls(Spread.of(lost), median_interval(lost))

    @property
    def cells(self) -> tuple[str, str]:
        low, high = self.interval
        median = f"{100 * self.spread.median:.1f} ({100 * low:.1f} to {100 * high:.1f}) %"
        return median, f"{100 * self.spread.low:.1f} to {100 * self.spread.high:.1f} %"


def _harmed(way: str, repetitions: int, work_dir: Path) -> dict[str, _Loss]:
    """The loss of speed of a job in the pool by what another tenant of its node does."""
    found = dict[str, _Loss]()
    with (
        _pool(work_dir / "pool", way) as folder,
        _jobs(1, folder, work_dir) as jobs,
        _same_processors_after(),
    ):
        _move(jobs, shared=True)
        _leave_the_node(jobs[0], folder)
        for what, program in _HARM.items():
            alone, harmed = list[_Window](), list[_Window]()
            with _harm(program, folder, work_dir) as harm:
                for turn in range(repetitions * _PAIRS[0]):
                    for goes_on in (False, True) if turn % 2 == 0 else (True, False):
                        harm.go_on() if goes_on else harm.pause()
                        _serve(jobs, _SETTLE_S)
                        keep_on = harm.keep_on if goes_on else lambda: None
                        (harmed if goes_on else alone).append(_window(jobs, _HARM_WINDOW_S, keep_on))
            found[what] = _Loss.of(alone, harmed)
    return found


@contextlib.contextmanager
def _same_processors_after() -> Iterator[None]:
    """Give this process back the processors that it had."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), before)


def _leave_the_node(job: _Job, folder: Path) -> None:
    """Keep all that is not a tenant off the node's processors, as if these were of another machine."""
    load = load_of(folder)
    assert load is not None
    others = os.sched_getaffinity(0) - set(load.nodes[0].node.processors)
    own = [job.engine.pid(name) for name in job.engine.running if name != _AGGREGATOR]
    for pid in (os.getpid(), *own):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), others or os.sched_getaffinity(0))


class _Tenant:
    """A tenant of another job, which has an engine and a block of its own."""

    def __init__(self, engine: ProcessEngine, block: int) -> None:
        self._engine, self._block = engine, block

    def keep_on(self) -> None:
        """Start it again where it has ended."""
        self._engine.poll()
        if not self._engine.running:
            self._engine.launch(
                ProcessConfiguration("aggregator", _AGGREGATOR, "", "", "", "", memory_fd=self._block)
            )

    def pause(self) -> None:
        """Stop all of its processes where they are."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have them go on."""
        self._signal(signal.SIGCONT)
        self.keep_on()

    def _signal(self, number: signal.Signals) -> None:
        for name in self._engine.running:
            with contextlib.suppress(psutil.NoSuchProcess):
                first = psutil.Process(self._engine.pid(name))
                for process in (first, *first.children(recursive=True)):
                    process.send_signal(number)


@contextlib.contextmanager
def _harm(program: str, folder: Path, work_dir: Path) -> Iterator[_Tenant]:
    """A tenant of another job that runs a program."""
    block = create_block()
    command = (sys.executable, "-c", f"import sys; sys.stdin.readline()\n{program}")
    tenants = Tenants(folder, PoolJoin(PROTOCOL, "harm", "harm"))
    engine = ProcessEngine(work_dir / "harm", block, command=command, tenants=tenants)
    tenant = _Tenant(engine, block)
    try:
        tenant.keep_on()
        time.sleep(_MOVED_S)  # until it does what it does
        yield tenant
    finally:
        tenant.go_on()
        engine.kill_all()
        engine.close()
        os.close(block)


def run(repetitions: int, work_dir: Path) -> Result:
    """Four jobs, then one, own aggregators and the pool in turn; then one job beside a tenant that does harm."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {"window_s": _WINDOW_S, "global_batch_size": _BATCH}
    for count in (_JOBS, 1):
        own, shared = _compared(count, repetitions, work_dir / f"{count}-jobs")
        loss = _Loss.of(own, shared)
        used = [statistics.median(one.used_cpus for one in each) for each in (own, shared)]
        figures[f"jobs_{count}"] = {"loss": loss, "own_cpus": used[0], "shared_cpus": used[1]}
        jobs = "1 job" if count == 1 else f"{count} equal jobs"
        rows.append(
            (
                f"{jobs}: in the pool, beside own aggregators",
                f"{count} -> 1",
                f"{used[0]:.2f} -> {used[1]:.2f}",
                *loss.cells,
            )
        )
    for way in ("cgroup", "session"):
        for what, loss in _harmed(way, repetitions, work_dir / way).items():
            figures[f"{way}: {what}"] = loss
            rows.append((f"1 job, shares by {way}: a tenant beside it {what}", "1", "-", *loss.cells))
    saved = 1.0 - 1.0 / _JOBS
    return Result(
        headers=("what", "processors reserved", "processors used", "loss of speed", "of single pairs"),
        rows=tuple(rows),
        verdict=f"{_JOBS} jobs on one node: {saved:.0%} of the processors reserved for aggregation saved (aim: 50 %); "
        "aims: loss under 5 % for each of four jobs, 2 % for one alone, 10 % beside a tenant that does harm",
        figures=figures,
        remarks=(
            f"jobs of one worker, a network of a third of a million parameters, batch {_BATCH}; windows of "
            f"{_WINDOW_S:g} s in turn, between which the aggregators of the running jobs are restarted elsewhere; "
            f"beside a tenant that does harm {_HARM_WINDOW_S:g} s, with its processes stopped in every other one",
            "reserved: one processor for each aggregator of its own, one for the node; used: by all aggregators",
            "beside a tenant that does harm, the job's other processes stay off the node, as if on another machine",
            "loss of speed: of each job, from one window to the next, below 0 where it was faster; the median of all "
            "pairs, where it lies with a probability of 95 %, and the least and the greatest",
        ),
    )


BENCHMARK = Benchmark("shared", 3, run)
