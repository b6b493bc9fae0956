"""Scripts that call `scavenger.torch`: the weights of plain PyTorch through joins, leaves and a kill, or a refusal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_jobs import EPOCHS, JOBS, OWN, SEED, assert_equal, driven, plainly, sampled_once

from scavenger.elastic.exchange_ways import ExchangeWays
from scavenger.train.transport.messages import StepReport
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")


def replayed(arguments: list[str], steps: list[StepReport]) -> dict[str, Any]:
    """The weights of one process that takes the samples of each step in one batch."""
    script, args = _script(), _script().parser.parse_args(arguments)
    model, optimizer, loader, scheduler = script.build(args)
    from scavenger.sdk.torch_loader import BatchLoader

    batches, done, counted = BatchLoader(loader, SEED, ""), 0, 0
    for step in steps:
        model.body.requires_grad_(step.epoch >= 1)
        rows = [row for _, start, stop in step.pieces for row in batches.order(step.epoch)[start:stop]]
        batch = script.collate([loader.dataset[row] for row in rows])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        done += len(rows)
        wanted = step.epoch * len(loader) + (done - step.epoch * args.samples) * len(loader) // args.samples
        while counted < wanted:
            counted += 1
            scheduler.step()
        if done % args.samples == 0:
            optimizer.param_groups[0]["weight_decay"] = 0.02 / (step.epoch + 2)
    found: dict[str, Any] = model.state_dict()
    return found


def _script() -> Any:
    sys.path.insert(0, str(JOBS))
    try:
        import torch_script
    finally:
        sys.path.remove(str(JOBS))
    return torch_script


# ---- equal to plain PyTorch --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [pytest.param("", marks=pytest.mark.long), "--device tiny --workers 2"],
    ids=["on processors", "on a device"],
)
def test_a_script_trains_as_python_would_whoever_joins_and_leaves(tmp_path: Path, options: str) -> None:
    with driven(tmp_path, f"torch_script.py {options}", 3) as job:
        job.job.resize(1, OWN, "one begins")
        job.until(job.trained(9))
        job.job.resize(3, OWN, "two join")
        job.until(job.on(3))
        job.job.resize(2, OWN, "one leaves")
        state = job.to_the_end()

    sampled_once(job.steps, 500)
    assert {len(step.pieces) for step in job.steps} == {1, 2, 3}
    assert [step.samples for step in job.steps] == ([OWN] * 20 + [20]) * EPOCHS
    assert [epoch.metrics["epoch"] for epoch in job.epochs] == list(range(EPOCHS))
    assert_equal(state, plainly([], tmp_path))


@pytest.mark.parametrize(
    ("exchange", "fault"),
    [
        pytest.param("leader", "", marks=pytest.mark.long),
        # within the exchange: the others wait for it there, or have the mean already
        ("process_group", "worker.reducing/w1:kill@30"),
        pytest.param("process_group", "worker.reduced/w1:kill@30", marks=pytest.mark.long),
        pytest.param("process_group", "worker.reducing/w1:stop@30", marks=pytest.mark.long),
        pytest.param("auto", "", marks=pytest.mark.long),  # both ways in turns
    ],
)
def test_a_script_is_exact_while_batches_change_and_workers_join_leave_and_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: str, fault: str
) -> None:
    arguments = ["--shuffle", "--samples", "2000"]
    monkeypatch.setenv("SCAV_FAIL", fault)
    if exchange == "auto":  # as if each worker had a GPU of its own
        pushed = ExchangeWays.pushed
        monkeypatch.setattr(
            ExchangeWays,
            "pushed",
            lambda ways, worker, device, *told: pushed(ways, worker, device and f"cuda {worker}", *told),
        )
    with driven(tmp_path, "torch_script.py --shuffle --samples 2000", 4, exchange=exchange) as job:
        job.job.resize(2, 16, "begin")
        job.until(job.on(2))
        job.job.resize(3, 40, "one joins, and the batch grows")
        job.until(job.on(3))
        if not fault:
            job.kill("w1")
        job.until(lambda: "w1" not in job.job.members)  # the fourth one takes its place
        before = len(job.by_group)
        job.until(lambda: len(job.by_group) > before + 4 or not fault)
        job.until(lambda: job.told or exchange == "leader")
        job.until(job.on(3))
        job.job.resize(2, 25, "one leaves")
        job.until(job.on(2))
        job.job.resize(1, 8, "another one leaves")
        state = job.to_the_end()

    sampled_once(job.steps, 2000)
    assert len(job.steps) > 200
    assert {step.samples for step in job.steps} > {16, 40, 25, 8}
    assert len(job.by_group) < len(job.steps) - 20, "the leader averages in some"
    assert len(job.by_group) > 30 if fault else bool(job.by_group) == (exchange == "auto")
    assert ("times as fast as by" in "".join(event.message for event in job.told)) == (exchange == "auto")
    assert_equal(state, replayed(arguments, job.steps))


@pytest.mark.long
def test_a_script_of_ddp_reaches_the_weights_of_torchrun(tmp_path: Path) -> None:
    with driven(tmp_path, "torch_script.py --ddp --epochs 3", 2) as job:
        job.job.resize(1, OWN, "one begins")
        job.until(job.on(1), epochs=3)
        job.job.resize(2, OWN, "another one joins")
        state = job.to_the_end(3)

    assert_equal(state, plainly(["--ddp", "--epochs", "3"], tmp_path, processes=2))


@pytest.mark.parametrize(
    "options", [["--scaler", "--samples", "482"], ["--at-once", "3"]], ids=["scaler", "parts of a share"]
)
@pytest.mark.long
def test_a_scaler_that_leaves_steps_out_and_shares_that_do_not_fit_change_nothing(
    tmp_path: Path, options: list[str]
) -> None:
    """Of 482 samples, the last step has 2, so that two workers have none of it."""
    arguments = ["--epochs", "3", *options]
    with driven(tmp_path, f"torch_script.py {' '.join(arguments)}", 3) as job:
        job.job.resize(2, OWN, "two begin")
        job.until(job.on(2), epochs=3)
        job.job.resize(3, OWN, "another one joins")
        state = job.to_the_end(3)

    sampled_once(job.steps, 482 if "482" in options else 500, 3)
    assert_equal(state, plainly(arguments, tmp_path))


@pytest.mark.long
def test_what_is_done_between_epochs_may_take_longer_than_a_step(tmp_path: Path) -> None:
    with driven(tmp_path, "torch_script.py --epochs 2 --pause 4", 1, step_s=1.0) as job:
        job.job.resize(1, 250, "begin")
        job.to_the_end(2)

    assert all(epoch.evaluation_s >= 4.0 for epoch in job.epochs)


def test_the_job_ends_where_a_worker_leaves_its_loop_over_epochs(tmp_path: Path) -> None:
    """One that joined later has waited for fewer epochs; it is compared with the others, and so is its average."""
    with driven(tmp_path, "torch_script.py --patience 3 --average", 2) as job:
        job.job.resize(1, OWN, "one begins")
        job.until(job.trained(25))
        job.job.resize(2, OWN, "another one joins")
        job.until(job.on(2))
        state = job.to_the_end(3)

    assert [epoch.stopped_by for epoch in job.epochs] == ["", "", "the script"]
    sampled_once(job.steps, 500, 3)
    weights = plainly(["--patience", "3", "--average"], tmp_path)
    averages = {name: weights.pop(name) for name in list(weights) if name.startswith("average/")}
    assert_equal(state, weights)
    assert averages
    for name, average in averages.items():
        there = state[name.replace("average", "follower/0", 1)]
        np.testing.assert_allclose(there, average, rtol=0, atol=1e-12, err_msg=name)


def test_a_job_that_is_resumed_begins_in_the_right_epoch(tmp_path: Path) -> None:
    url = str(tmp_path / "kept")
    plan = CheckpointPlan(url, 1000.0, 10)
    with driven(tmp_path / "a", "torch_script.py --shuffle", 2, checkpoint=plan) as job:
        job.job.resize(2, 24, "begin")
        job.until(job.trained(50))
        job.job.keep_state(best=False)
        at, before = job.job.step, job.steps
    again_from = RestorePoint(url)
    with driven(tmp_path / "b", "torch_script.py --shuffle", 1, checkpoint=plan, restore=again_from) as again:
        again.epochs = job.epochs
        again.job.resize(1, 24, "go on")
        state = again.to_the_end()

    steps = [step for step in before if step.step <= at] + again.steps
    sampled_once(steps, 500)
    assert_equal(state, replayed(["--shuffle"], steps))
