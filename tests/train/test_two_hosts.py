"""A job whose workers are behind a link of 1 Gbit/s and 20 ms, which breaks for seconds, and on which processes die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import JOBS, Run, assert_same_weights, plain_keras
from vm_driving import Stage

from benchmarks.emulated_link import EmulatedLink, emulated_link
from scavenger.train.engines.vm.engine import HostEngine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make networks"),
]


@contextlib.contextmanager
def link_from_here() -> Iterator[EmulatedLink]:
    """Skips the test where no link can be made."""
    with contextlib.ExitStack() as stack:
        try:
            link = stack.enter_context(emulated_link(from_here=True))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"may not make networks here: {error}")
        yield link


@contextlib.contextmanager
def job(link: EmulatedLink, tmp_path: Path, *, aggregators: int = 1) -> Iterator[tuple[Run, Stage]]:
    """A job with leader and aggregators here, and two workers at the far end, each on a VM."""
    with contextlib.closing(
        Stage(tmp_path / "stage", job_dir=JOBS, address=link.addresses[0], within=link.within(1))
    ) as stage:
        stage.add("near", "aggregator", within=())
        stage.add("far", places=1)
        stage.add("farther", places=1)
        with Run(
            "small:slow",
            tmp_path / "job",
            replace=True,
            aggregators=aggregators,
            engine=lambda log_dir, _: HostEngine(log_dir, stage.hosts),
        ) as run:
            run.begin(2, 40)
            run.train(10)
            yield run, stage


@pytest.mark.parametrize("down_s", [1.0, 3.0, 8.0])
def test_a_link_that_is_down_for_seconds_costs_no_process_and_no_step(down_s: float, tmp_path: Path) -> None:
    with link_from_here() as link, job(link, tmp_path) as (run, _):
        link.down()
        until = time.monotonic() + down_s
        run.until(lambda: time.monotonic() > until)
        link.up()
        before = len(run.steps)
        run.train(20)
        assert before <= len(run.steps) - 20
        got = run.finish()

    assert run.lost == []
    assert run.recovered == []
    assert run.rolled_back == []
    assert all(step.workers == 2 for step in run.steps)
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_a_worker_and_an_aggregator_that_die_behind_the_link_cost_no_step(tmp_path: Path) -> None:
    with link_from_here() as link, job(link, tmp_path, aggregators=2) as (run, _):
        engine = run.supervisor.engine
        os.kill(engine.pid("w0"), signal.SIGKILL)
        run.until(lambda: [lost.worker for lost in run.lost] == ["w0"])
        run.until(lambda: run.supervisor.ready == 2)
        run.train(10)
        os.kill(engine.pid("aggregator-1"), signal.SIGKILL)
        run.until(lambda: bool(run.rolled_back))  # to the beginning, as there is no checkpoint
        run.train(20)
        got = run.finish()

    assert [back.step for back in run.rolled_back] == [0]
    assert [step.step for step in run.steps] == list(range(1, len(run.steps) + 1))
    assert_same_weights(got, plain_keras("slow", run.steps))
