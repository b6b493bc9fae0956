"""Workers of several processes, among which a script divides its model by `fully_shard`."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
from test_torch_scripts import replayed
from torch_jobs import OWN, assert_equal, driven, plainly, sampled_once

from scavenger.errors import TrainingCodeError
from scavenger.train.custom_loop import rank_messages as rm
from scavenger.train.custom_loop.ranks import LostRankError, Ranks
from scavenger.train.custom_loop.workers import LoopWorkers
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint

pytestmark = pytest.mark.slow
pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")


def test_a_divided_model_becomes_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and shares are odd, two workers join, one leaves, and a process of one is killed."""
    monkeypatch.setenv("SCAV_FAIL", "worker.computed/w1.1:kill@30")
    with driven(tmp_path, "torch_script.py --divided --sampler --samples 1001", 3, processes=2) as job:
        job.job.resize(1, 7, "begin")
        job.until(job.trained(9))
        job.job.resize(2, 25, "one joins, and the batch grows")
        job.until(lambda: "w1" in job.job.members)
        job.until(lambda: "w1" not in job.job.members)  # the third one takes its place
        job.until(job.on(2))
        job.job.resize(1, 13, "one leaves")
        state = job.to_the_end()

    sampled_once(job.steps, 1001)
    assert {step.samples for step in job.steps} > {7, 25, 13}
    assert_equal(state, replayed(["--sampler", "--samples", "1001"], job.steps))


@pytest.mark.long
def test_a_share_that_does_not_fit_and_a_job_that_is_resumed_by_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step has 20 samples, so that one process has fewer than another; no memory is shared with the job."""
    monkeypatch.setattr(LoopWorkers, "has_block", False)
    plan = CheckpointPlan(str(tmp_path / "kept"), 1000.0, 10)
    train = "torch_script.py --divided --at-once 3"
    with driven(tmp_path / "a", train, 1, processes=3, checkpoint=plan) as job:
        job.job.resize(1, OWN, "begin")
        job.until(job.trained(50))
        job.job.keep_state(best=False)
        at = job.job.step
        job.until(job.trained(at))
        before = [step for step in job.steps if step.step <= at]
    with driven(tmp_path / "b", train, 1, checkpoint=plan, restore=RestorePoint(plan.url, at)) as again:
        again.epochs = job.epochs
        again.job.resize(1, OWN, "go on")
        state = again.to_the_end()

    sampled_once(before + again.steps, 500)
    assert_equal(state, plainly([], tmp_path))


@pytest.mark.long
def test_a_worker_is_replaced_whichever_of_its_processes_fail_after_one_that_was_killed(
    tmp_path: Path,
) -> None:
    """The others are in a collective with it: their errors are not the script's."""
    died = tmp_path / "died"
    with driven(tmp_path / "a", f"torch_script.py --divided --die {died}", 3, processes=3) as job:
        job.job.resize(2, OWN, "begin")
        state = job.to_the_end()

    assert died.exists()
    assert len({name for step in job.steps for name, *_ in step.pieces}) == 3
    sampled_once(job.steps, 500)
    assert_equal(state, replayed([], job.steps))


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("error", [RuntimeError("closed"), TrainingCodeError("the other's")])
def test_an_error_that_another_process_tells_counts_unless_one_was_killed(
    killed: bool, error: Exception
) -> None:
    ours, theirs = Pipe()
    ranks = object.__new__(Ranks)
    ranks._connections, ranks._killed = [ours], threading.Event()
    theirs.send_bytes(rm.encode(rm.Broken("code", "train.py:3: RuntimeError: closed")))
    if killed:
        ranks._killed.set()

    found = ranks.cause(error)

    assert isinstance(found, LostRankError if killed else TrainingCodeError)


def test_what_fails_at_one_process_ends_the_job_with_its_line_and_leaves_none(tmp_path: Path) -> None:
    processes = []
    with driven(tmp_path, "torch_script.py --divided --fail 1", 1, processes=2) as job:
        processes += psutil.Process(job.job.engine.pid("w0")).children(recursive=True)
        job.job.resize(1, OWN, "begin")
        with pytest.raises(TrainingCodeError, match=r"torch_script.py:\d+: ValueError: batch 0 is not good"):
            job.to_the_end()

    assert len(processes) == 1
    assert not psutil.wait_procs(processes, 10)[1]
