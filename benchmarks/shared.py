"""Aggregators in the pool of this machine beside one of its own for each job, and beside a tenant that does harm."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.elastic_supervisor import Training
from benchmarks.figures import Benchmark, Result, Spread
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.names import aggregator_name
from scavenger.train.pool.connection import load_of
from scavenger.train.pool.protocol import PROTOCOL, PoolJoin
from scavenger.train.pool.tenants import Tenants
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.values import ProcessConfiguration

_TRAIN, _BATCH = "keras_jobs:cnn", 32
_JOBS = 4
_WINDOW_S, _HARM_WINDOW_S = 10.0, 4.0
_SETTLE_S, _MOVED_S = 1.5, 3.0
"""Before a window, and after a move: a job gives up if an aggregator dies more than five times in a minute."""
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
    last = [job.training.last for job in jobs]
    while time.monotonic() - begin < seconds:
        meanwhile()
        _serve(jobs, 10 * _POLL_S)
    took = time.monotonic() - begin
    rates = tuple((job.training.last - n) / took for job, n in zip(jobs, last, strict=True))
    return _Window(rates, (sum(job.cpu_s for job in jobs) - used) / took)


def _compared(count: int, repetitions: int, work_dir: Path) -> tuple[list[_Window], list[_Window]]:
    """Windows with own aggregators and in the pool, in turn, of the same workers."""
    own: list[_Window] = []
    shared: list[_Window] = []
    with _pool(work_dir / "pool", "cgroup") as folder, _jobs(count, folder, work_dir) as jobs:
        for turn in range(repetitions):
            for in_pool in (False, True) if turn % 2 == 0 else (True, False):
                _move(jobs, shared=in_pool)
                (shared if in_pool else own).append(_window(jobs))
    return own, shared


def _loss(before: Sequence[_Window], after: Sequence[_Window]) -> Spread:
    """The loss of speed of each job, a share; each pair of windows beside each other."""
    return Spread.of(
        1.0 - b / a
        for one, other in zip(before, after, strict=True)
        for a, b in zip(one.rates, other.rates, strict=True)
    )


def _harmed(way: str, repetitions: int, work_dir: Path) -> dict[str, Spread]:
    """The loss of speed of a job in the pool by what another tenant of its node does."""
    found: dict[str, list[tuple[_Window, _Window]]] = {what: [] for what in _HARM}
    with (
        _pool(work_dir / "pool", way) as folder,
        _jobs(1, folder, work_dir) as jobs,
        _same_processors_after(),
    ):
        _move(jobs, shared=True)
        _leave_the_node(jobs[0], folder)
        for turn in range(repetitions):
            for what, program in _HARM.items():
                before = None if turn % 2 else _window(jobs, _HARM_WINDOW_S)
                with _harm(program, folder, work_dir) as keep_on:
                    _serve(jobs, _SETTLE_S)
                    harmed = _window(jobs, _HARM_WINDOW_S, keep_on)
                _serve(jobs, _SETTLE_S)
                found[what].append((before or _window(jobs, _HARM_WINDOW_S), harmed))
    return {what: _loss(*zip(*pairs, strict=True)) for what, pairs in found.items()}


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


@contextlib.contextmanager
def _harm(program: str, folder: Path, work_dir: Path) -> Iterator[Callable[[], None]]:
    """A tenant of another job that runs a program; what is yielded starts it again where it has ended."""
    block = create_block()
    command = (sys.executable, "-c", f"import sys; sys.stdin.readline()\n{program}")
    tenants = Tenants(folder, PoolJoin(PROTOCOL, "harm", "harm"))
    engine = ProcessEngine(work_dir / "harm", block, command=command, tenants=tenants)

    def keep_on() -> None:
        engine.poll()
        if not engine.running:
            engine.launch(ProcessConfiguration("aggregator", _AGGREGATOR, "", "", "", "", memory_fd=block))

    try:
        keep_on()
        yield keep_on
    finally:
        engine.kill_all()
        engine.close()
        os.close(block)


def run(repetitions: int, work_dir: Path) -> Result:
    """Four jobs, then one, own aggregators and the pool in turn; then one job beside a tenant that does harm."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {"window_s": _WINDOW_S, "global_batch_size": _BATCH}
    for count in (_JOBS, 1):
        own, shared = _compared(count, repetitions, work_dir / f"{count}-jobs")
        loss = _loss(own, shared)
        used = [statistics.median(one.used_cpus for one in each) for each in (own, shared)]
        figures[f"jobs_{count}"] = {"loss": loss, "own_cpus": used[0], "shared_cpus": used[1]}
        jobs = "1 job" if count == 1 else f"{count} equal jobs"
        rows.append(
            (
                f"{jobs}: in the pool, beside own aggregators",
                f"{count} -> 1",
                f"{used[0]:.2f} -> {used[1]:.2f}",
                f"{loss.text(100)} %",
            )
        )
    for way in ("cgroup", "session"):
        for what, loss in _harmed(way, repetitions, work_dir / way).items():
            figures[f"{way}: {what}"] = loss
            rows.append(
                (f"1 job, shares by {way}: a tenant beside it {what}", "1", "-", f"{loss.text(100)} %")
            )
    saved = 1.0 - 1.0 / _JOBS
    return Result(
        headers=("what", "processors reserved", "processors used", "loss of speed"),
        rows=tuple(rows),
        verdict=f"{_JOBS} jobs on one node: {saved:.0%} of the processors reserved for aggregation saved (aim: 50 %); "
        "aims: loss under 5 % for each of four jobs, 2 % for one alone, 10 % beside a tenant that does harm",
        figures=figures,
        remarks=(
            f"jobs of one worker, a network of a third of a million parameters, batch {_BATCH}; windows of "
            f"{_WINDOW_S:.0f} s in turn, between which the aggregators of the running jobs are restarted elsewhere; "
            f"beside a tenant that does harm {_HARM_WINDOW_S:.0f} s",
            "reserved: one processor for each aggregator of its own, one for the node; used: by all aggregators",
            "beside a tenant that does harm, the job's other processes stay off the node, as if on another machine",
            "loss of speed: of each job, from one window to the next; below 0 where it was faster",
        ),
    )


BENCHMARK = Benchmark("shared", 3, run)
