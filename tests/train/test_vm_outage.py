"""The leader's network breaks for a while: its VMs hear each other, and nothing that they have done is thrown away."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from driving import JOBS, Run, assert_same_weights, plain_keras
from networks import LEADER, bridge
from vm_driving import Stage

from scavenger.train.engines.vm.agent_server import LOST_S
from scavenger.train.engines.vm.engine import HostEngine

CUT_S = float(os.environ.get("SCAVENGER_CUT_S", LOST_S + 10.0))
"""Longer than a VM may be silent by itself."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make networks"),
]


def test_a_job_whose_leader_hears_none_of_its_vms_for_a_while_loses_nothing(tmp_path: Path) -> None:
    with (
        bridge() as link,
        contextlib.closing(
            Stage(
                tmp_path / "stage",
                job_dir=JOBS,
                address=LEADER,
                within=link.within,
                silent_s=240.0,
                poweroff_s=300.0,
            )
        ) as stage,
    ):
        stage.add("vm-0", "aggregator")
        stage.add("vm-1")
        stage.add("vm-2")
        engine = lambda log_dir, _: HostEngine(log_dir, stage.hosts)  # noqa: E731
        with Run("small:slow", tmp_path / "job", replace=True, engine=engine) as run:
            run.begin(2, 40)
            run.train(10)
            before = len(run.steps)

            link.cut()
            until = time.monotonic() + CUT_S
            run.until(lambda: time.monotonic() > until, within_s=CUT_S + 60.0)
            assert run.supervisor.engine.in_doubt
            link.mend()
            run.until(lambda: not run.supervisor.engine.in_doubt)
            run.until(lambda: len(run.steps) > before + 20, within_s=CUT_S + 60.0)
            told = stage.hosts.alarms()
            got = run.finish()

    assert run.lost == []
    assert run.recovered == []
    assert run.rolled_back == []
    assert [step.step for step in run.steps] == list(range(1, len(run.steps) + 1))
    assert all(step.workers == 2 for step in run.steps)
    assert [text.partition(" (")[0].partition(",")[0] for text in told] == [
        "not hearing the VMs",
        "hearing the VMs again",
    ]
    assert_same_weights(got, plain_keras("slow", run.steps))
