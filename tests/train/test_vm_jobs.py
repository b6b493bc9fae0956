"""Jobs whose processes run on VMs: here, agents on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from driving import JOBS, Run, assert_same_weights, plain_keras
from vm_driving import Stage

from scavenger.train.vm_engine import VmEngine

pytestmark = pytest.mark.slow


def test_a_job_outlives_one_of_its_vms_and_the_weights_are_those_of_one_process(tmp_path: Path) -> None:
    with contextlib.closing(Stage(tmp_path / "stage", job_dir=JOBS, lost_s=2.0)) as stage:
        stage.add("vm-0", "aggregator")
        for intent in ("vm-1", "vm-2"):
            stage.add(intent, places=1)
        engine = lambda log_dir, _: VmEngine(log_dir, stage.hosts)  # noqa: E731
        with Run("small:slow", tmp_path / "job", replace=True, engine=engine) as run:
            run.begin(2, 40)
            run.train(10)
            (lost,) = next(vm.processes for vm in stage.hosts.vms() if vm.intent == "vm-1")

            stage.kill("vm-1")
            run.until(lambda: bool(run.lost))
            stage.hosts.gone("vm-1", "the cloud took it")
            run.train(10)
            stage.add("vm-3", places=1)
            run.until(lambda: run.crew.ready == 2)
            run.train(5)
            assert run.steps[-1].workers == 2
            got = run.finish()

    assert [told.worker for told in run.lost] == [lost]
    assert not run.rolled_back
    assert_same_weights(got, plain_keras("slow", run.steps))
