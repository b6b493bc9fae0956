"""Aggregators beside the workers of each VM: they follow the workers, and the weights are those of plain Keras."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import JOBS, Run, assert_same_weights, plain_keras
from vm_driving import Stage

from scavenger.train.engines.vm.beside import AggregatorsBesideWorkers
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.transport.messages.values import CheckpointPlan

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def job(
    tmp_path: Path, *, workers: int, aggregators: int, checkpoint: CheckpointPlan | None = None
) -> Iterator[tuple[Run, Stage]]:
    """A job with the first aggregator on a VM of its own, and each worker on one."""
    with contextlib.closing(Stage(tmp_path / "stage", job_dir=JOBS, lost_s=3.0)) as stage:
        stage.add("home", "aggregator")
        for number in range(workers):
            stage.add(f"vm-{number}", places=1)
        with Run(
            "small:exact_slow",
            tmp_path / "job",
            replace=True,
            aggregators=aggregators,
            checkpoint=checkpoint,
            engine=lambda logs, _: HostEngine(logs, stage.hosts, source=AggregatorsBesideWorkers()),
        ) as run:
            run.begin(workers, 34)
            run.train(2)
            yield run, stage


def beside(stage: Stage, intent: str) -> set[int]:
    """The aggregators on a VM."""
    return {i for vm in stage.hosts.vms() if vm.spec.intent == intent for i in vm.aggregators}


def with_workers(stage: Stage) -> list[str]:
    """The VMs on which a worker runs."""
    vms = (vm for vm in stage.hosts.vms() if vm.spec.role == "worker")
    return [vm.spec.intent for vm in vms if len(vm.processes) > len(vm.aggregators)]


def holders(run: Run) -> set[int]:
    assert run.supervisor.migrations.map is not None
    return {*run.supervisor.migrations.map.holders}


def share(run: Run, stage: Stage, *intents: str) -> None:
    """Wait until those on these VMs hold the model, one alone with the first, each VM has one, and no other does."""

    def done() -> bool:
        here = [beside(stage, intent) for intent in intents]
        everywhere = {i for vm in stage.hosts.vms() if vm.spec.role == "worker" for i in vm.aggregators}
        together = set[int]().union(*here)
        sharing = together if len(together) > 1 else together | {0}
        return all(len(one) == 1 for one in here) and everywhere == together and holders(run) == sharing

    run.until(done)


@pytest.mark.long
def test_they_go_to_the_vm_of_a_worker_that_joins_and_leave_that_of_one_that_leaves(tmp_path: Path) -> None:
    with job(tmp_path, workers=2, aggregators=4) as (run, stage):
        share(run, stage, "vm-0", "vm-1")
        run.train(2)

        stage.add("vm-2", places=1)
        run.supervisor.launch(1)
        run.until(lambda: run.supervisor.ready == 3)
        run.supervisor.resize(3, 34, "one joins")
        share(run, stage, "vm-0", "vm-1", "vm-2")
        run.train(2)

        run.supervisor.resize(1, 34, "two leave")
        run.until(lambda: run.steps[-1].workers == 1)
        run.supervisor.release(1)
        run.until(lambda: len(run.left) == 2)
        run.until(lambda: len(with_workers(stage)) == 1)
        share(run, stage, *with_workers(stage))
        run.train(2)
        got = run.finish()

    assert not run.rolled_back
    assert not run.lost
    assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)


@pytest.mark.long
def test_one_that_is_lost_with_its_vm_takes_the_job_back_to_its_checkpoint(tmp_path: Path) -> None:
    plan = CheckpointPlan(str(tmp_path / "saved"), 0.0, 3)
    with job(tmp_path, workers=2, aggregators=3, checkpoint=plan) as (run, stage):
        share(run, stage, "vm-0", "vm-1")
        run.until(lambda: bool(run.checkpoints))

        stage.kill("vm-1")
        run.until(lambda: bool(run.rolled_back))
        stage.hosts.gone("vm-1", "the cloud took it")
        stage.add("vm-2", places=1)
        run.until(lambda: run.supervisor.ready == 2)
        share(run, stage, "vm-0", "vm-2")
        run.train(3)
        got = run.finish()

    assert run.rolled_back[0].step in {written.step for written in run.checkpoints}
    assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)


@pytest.mark.long
def test_a_vm_that_will_be_taken_is_left_before_and_nothing_is_lost(tmp_path: Path) -> None:
    with job(tmp_path, workers=2, aggregators=3) as (run, stage):
        share(run, stage, "vm-0", "vm-1")
        gives_up = beside(stage, "vm-1")

        stage.agents["vm-1"].send_signal(signal.SIGUSR2)
        run.until(lambda: not holders(run) & gives_up)
        run.train(2)
        stage.kill("vm-1")
        run.until(lambda: bool(run.lost))
        stage.hosts.gone("vm-1", "the cloud took it")
        stage.add("vm-2", places=1)
        run.until(lambda: run.supervisor.ready == 2)
        share(run, stage, "vm-0", "vm-2")
        run.train(2)
        got = run.finish()

    assert not run.rolled_back
    assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)
