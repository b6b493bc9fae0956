"""Jobs whose processes run on VMs: here, agents on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from driving import JOBS, Run, assert_same_weights, plain_keras
from vm_driving import Stage

from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.transport.messages.values import CheckpointPlan

pytestmark = pytest.mark.slow


@pytest.mark.long  # the runs of tests/clouds_e2e lose a VM as well
def test_a_job_outlives_one_of_its_vms_and_the_weights_are_those_of_one_process(tmp_path: Path) -> None:
    with contextlib.closing(Stage(tmp_path / "stage", job_dir=JOBS, lost_s=2.0)) as stage:
        stage.add("vm-0", "aggregator")
        for intent in ("vm-1", "vm-2"):
            stage.add(intent, places=1)
        engine = lambda log_dir, _: HostEngine(log_dir, stage.hosts)  # noqa: E731
        with Run("small:slow", tmp_path / "job", replace=True, engine=engine) as run:
            run.begin(2, 40)
            run.train(10)
            (lost,) = next(vm.processes for vm in stage.hosts.vms() if vm.spec.intent == "vm-1")

            stage.kill("vm-1")
            run.until(lambda: bool(run.lost))
            stage.hosts.gone("vm-1", "the cloud took it")
            run.train(10)
            stage.add("vm-3", places=1)
            run.until(lambda: run.supervisor.ready == 2)
            run.train(5)
            assert run.steps[-1].workers == 2
            got = run.finish()

    assert [told.worker for told in run.lost] == [lost]
    assert not run.rolled_back
    assert_same_weights(got, plain_keras("slow", run.steps))


@pytest.mark.long
def test_a_lost_aggregator_goes_on_from_a_checkpoint_that_lies_with_the_leader_and_so_does_another_attempt(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "saved"
    plan = CheckpointPlan(str(saved), 0.0, 7)
    with contextlib.closing(Stage(tmp_path / "stage", job_dir=JOBS, lost_s=2.0, beyond=saved)) as stage:
        stage.add("vm-0", "aggregator")
        stage.add("vm-1")
        engine = lambda log_dir, _: HostEngine(log_dir, stage.hosts)  # noqa: E731
        with Run("small:slow", tmp_path / "a", aggregators=2, checkpoint=plan, engine=engine) as run:
            run.begin(1, 40)
            run.until(lambda: len(run.checkpoints) >= 2)

            stage.kill("vm-0")
            stage.add("vm-2", "aggregator")
            run.until(lambda: bool(run.rolled_back))
            stage.hosts.gone("vm-0", "the cloud took it")
            (back,) = run.rolled_back
            run.train(10)
            got = run.finish()
        newest = CheckpointStore(str(saved)).latest()
        assert newest is not None
        with Run("small:slow", tmp_path / "b", restore=saved, checkpoint=plan, engine=engine) as again:
            again.begin(1, 40)
            again.until(lambda: bool(again.steps))

    assert back.step in {written.step for written in run.checkpoints}
    assert back.step >= 14
    assert not run.failures
    assert_same_weights(got, plain_keras("slow", run.steps))
    assert again.steps[0].step == newest.manifest.step + 1
