"""Four examples train at once on one pool, which grows and shrinks, while a tenant is killed and a node is drained."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from driving import Run, assert_same_weights, plain_keras
from pools import end_pool
from waiting import eventually

from scavenger.errors import TransientError
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.pool.connection import drain, load_of, wait_for_load
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.pool.protocol import PROTOCOL, PoolJoin, PoolLoad
from scavenger.train.pool.tenants import Tenants

pytestmark = pytest.mark.slow

WITHIN_S = 300.0
_SERVE = """
import sys
from pathlib import Path
from scavenger.train.pool.serving import PoolSize, serve
serve(Path(sys.argv[1]), PoolSize(nodes=int(sys.argv[2]), cpus=1))
"""


@contextmanager
def served(folder: Path, nodes: int) -> Iterator[Path]:
    """A pool of nodes with one processor each."""
    manager = subprocess.Popen([sys.executable, "-c", _SERVE, str(folder), str(nodes)])
    try:
        assert eventually(lambda: load_of(folder) is not None, within_s=60.0)
        yield folder
    finally:
        end_pool(folder)  # with what jobs have started after its death
        manager.wait()


class Together:
    """Jobs that train at once, and report their steps to the pool as a running job does.

    Attributes:
        in_use: How many nodes were in use, each time that this changed.
    """

    def __init__(self, runs: Sequence[Run], folder: Path) -> None:
        self.runs, self._folder = list(runs), folder
        self._reported = dict.fromkeys(range(len(runs)), 0)
        self._looked_at = 0.0
        self.in_use: list[int] = []

    def load(self) -> PoolLoad:
        return wait_for_load(self._folder)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, [run.steps[-1:] for run in self.runs]
            for run in self.runs:
                run.poll(0.002)
            if time.monotonic() - self._looked_at > 0.2:
                self._looked_at = time.monotonic()
                self._look()

    def train(self, steps: int) -> None:
        """Until each has made so many more."""
        goals = [len(run.steps) + steps for run in self.runs]
        self.until(lambda: all(len(r.steps) >= n for r, n in zip(self.runs, goals, strict=True)))

    def _look(self) -> None:
        for index, run in enumerate(self.runs):
            engine, steps = run.supervisor.engine, run.steps[self._reported[index] :]
            assert isinstance(engine, ProcessEngine | HostEngine)
            pool = engine.source if isinstance(engine, HostEngine) else engine.tenants
            assert isinstance(pool, Tenants | Lodgings)
            for view in dict.fromkeys(step.view for step in steps):
                pool.report(view, [step.step_time_s for step in steps if step.view == view], 0)
            self._reported[index] = len(run.steps)
        with suppress(TransientError):  # it is being killed
            load = load_of(self._folder)
            in_use = 0 if load is None else sum(node.tenants > 0 for node in load.nodes)
            if self.in_use[-1:] != [in_use]:
                self.in_use.append(in_use)


def pooled(train: str, work_dir: Path, folder: Path) -> Run:
    tenants = Tenants(folder, PoolJoin(PROTOCOL, work_dir.name, work_dir.name))
    return Run(train, work_dir, engine=lambda log_dir, fd: ProcessEngine(log_dir, fd, tenants=tenants))


def name_of(train: str) -> str:
    return train.replace(":", "-")


def begun(runs: Sequence[Run], together: Together, batch: int) -> None:
    for run in runs:
        run.supervisor.start(1)
    together.until(lambda: all(run.supervisor.ready == 1 for run in runs))
    for run in runs:
        run.supervisor.resize(1, batch, "start")


def drained(together: Together, folder: Path, node: str) -> None:
    """Drain a node, and see that its tenants compute on another, as the same processes."""
    before = {tenant.pid: tenant.node for tenant in together.load().tenants}
    answer = drain(folder, node)
    assert answer is not None
    assert answer.error == ""
    after = together.load()
    assert answer.moved == sum(at == node for at in before.values()) > 0
    assert {tenant.pid for tenant in after.tenants} == before.keys()
    processors = {one.node.name: set(one.node.processors) for one in after.nodes}
    for tenant in after.tenants:
        assert tenant.node != node
        for thread in psutil.Process(tenant.pid).threads():
            assert os.sched_getaffinity(thread.id) == processors[tenant.node]
    assert [one.node.name for one in after.nodes if one.drained] == [node]


def test_two_jobs_are_packed_moved_and_killed_and_get_the_weights_that_each_gets_alone(
    tmp_path: Path,
) -> None:
    with (
        served(tmp_path / "pool", 2) as folder,
        pooled("small:slow", tmp_path / "a", folder) as one,
        pooled("small:slow", tmp_path / "b", folder) as other,
    ):
        together = Together([one, other], folder)
        begun([one, other], together, 32)
        together.until(lambda: 2 in together.in_use and together.in_use[-1] == 1)

        (node,) = (node.node.name for node in together.load().nodes if node.tenants)
        drained(together, folder, node)
        together.train(3)

        load = together.load()
        # restored from its block; the other job sees nothing of it
        os.kill(next(tenant.pid for tenant in load.tenants if tenant.job_id == "a"), signal.SIGKILL)
        together.until(lambda: len(one.recovered) == 1)
        together.train(3)
        assert len(other.recovered) == 0
        os.kill(load.pid, signal.SIGKILL)
        together.until(lambda: len(one.recovered) > 1 and len(other.recovered) > 0)
        together.train(3)

        assert_same_weights(one.finish(), plain_keras("slow", one.steps))
        one.supervisor.close()
        other.train(5)
        assert_same_weights(other.finish(), plain_keras("slow", other.steps))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_four_examples_share_a_pool_and_each_gets_the_weights_of_its_quiet_run(tmp_path: Path) -> None:
    jobs = ("quiet_digits:job", "quiet_examples:starter", "quiet_examples:charlm", "quiet_examples:small")
    weights, epochs = {}, {}
    with served(tmp_path / "pool", 3) as folder, ExitStack() as stack:
        runs = {
            train: stack.enter_context(pooled(train, tmp_path / name_of(train), folder)) for train in jobs
        }
        together = Together(list(runs.values()), folder)
        begun(together.runs, together, 32)
        together.train(3)
        assert max(together.in_use) > 1, "each job is measured on a node of its own if there is one"
        together.until(lambda: all(job.alone_s is not None for job in together.load().jobs))

        (tenant,) = (t for t in together.load().tenants if t.job_id == name_of(jobs[1]))
        os.kill(tenant.pid, signal.SIGKILL)
        together.until(lambda: len(runs[jobs[1]].recovered) == 1)
        together.train(3)

        fullest = max(together.load().nodes, key=lambda node: node.tenants).node.name
        drained(together, folder, fullest)
        together.train(3)
        back = drain(folder, fullest, undo=True)
        assert back is not None
        assert back.error == ""

        load_module("examples/charlm/train.py")  # its model has a layer of its own
        for train, run in runs.items():  # each ends with the epoch that it is in
            run.epochs_wanted = epochs[train] = len(run.epochs) + 1
        while runs:
            together.until(lambda: any(map(is_over, runs.values())))
            for train, run in [(train, run) for train, run in runs.items() if is_over(run)]:
                weights[train] = run.finish()
                run.supervisor.close()
                together = without(together, run, folder)
                del runs[train]
        assert eventually(lambda: wait_for_load(folder).tenants == (), within_s=60.0)
        peak = together.in_use.index(max(together.in_use))
        assert min(together.in_use[peak:]) < max(together.in_use)
        print(*together.load().changes, together.in_use, epochs, sep="\n")

    for train in jobs:
        with Run(train, tmp_path / f"quiet-{name_of(train)}", epochs=epochs[train]) as run:
            run.begin(1, 32)
            run.to_the_end(WITHIN_S)
            assert_same_weights(weights[train], run.finish(), 1e-9)


def load_module(path: str) -> None:
    spec = importlib.util.spec_from_file_location("example", Path(__file__).parents[2] / path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def is_over(run: Run) -> bool:
    return bool(run.epochs) and run.epochs[-1].epoch + 1 >= run.epochs_wanted > 0


def without(together: Together, run: Run, folder: Path) -> Together:
    """The jobs without one that has ended."""
    rest = Together([other for other in together.runs if other is not run], folder)
    rest.in_use = together.in_use
    for index, other in enumerate(rest.runs):
        rest._reported[index] = len(other.steps)
    return rest
