"""Processes that share no memory, as on hosts of their own, train exactly what those of one host do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import (
    FaultyEngine,
    Run,
    assert_fired,
    assert_goes_on,
    assert_same_weights,
    batches,
    job,
    plain_keras,
    replayed,
)

from scavenger.train.transport.messages.values import CheckpointPlan

pytestmark = pytest.mark.slow

B = 32
WORKERS = tuple(f"w{index}" for index in range(8))
AGGREGATORS = ("aggregator-0", "aggregator-1", "aggregator-2")


def trained(run: Run, workers: int, steps: int) -> list[Any]:
    run.begin(workers, B)
    run.train(steps)
    return run.finish()


@pytest.mark.parametrize(
    ("name", "workers", "aggregators", "remote"),
    [
        pytest.param("normalised", 3, 3, ("w1", *AGGREGATORS[1:]), marks=pytest.mark.long),
        ("decayed", 1, 1, WORKERS + AGGREGATORS),
    ],
)
def test_whoever_shares_memory_with_whom_the_weights_are_those_of_one_process(
    name: str, workers: int, aggregators: int, remote: tuple[str, ...], tmp_path: Path
) -> None:
    with Run(f"small:{name}", tmp_path, aggregators=aggregators, remote=remote) as run:
        got = trained(run, workers, 20)

    assert {step.workers for step in run.steps} == {workers}
    assert run.epochs, "no evaluation was seen"
    expected = replayed(name, run.steps, 0.05) if name == "normalised" else plain_keras(name, run.steps)
    assert_same_weights(got, expected)
    for report in run.epochs:
        steps = [step for step in run.steps if step.epoch == report.epoch]
        mean = np.average([step.loss for step in steps], weights=[step.samples for step in steps])
        assert report.metrics["loss"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("name", [pytest.param("annealed", marks=pytest.mark.long), "fading"])
def test_a_schedule_is_followed_by_samples_at_a_larger_batch(name: str, tmp_path: Path) -> None:
    program = job(name)
    with Run(f"small:{name}", tmp_path, aggregators=2, schedule_batch=B // 4) as run:
        got = trained(run, 2, 20)

    model, size = program.model, len(program.train)
    at = 0
    for step, indices in zip(run.steps, batches(run.steps, size), strict=True):
        model.optimizer.iterations.assign(at)
        model.train_on_batch(*program.train.batch(indices))
        ended = step is run.steps[-1] or run.steps[step.step].epoch > step.epoch
        at = (step.epoch + 1) * -(-size // (B // 4)) if ended else at + 4
    assert at > 2 * len(run.steps)
    assert_same_weights(got, list(model.get_weights()))


@pytest.mark.long
def test_no_bit_tells_whether_memory_was_shared(tmp_path: Path) -> None:
    runs = []
    for remote in ((), WORKERS):
        folder = tmp_path / str(len(remote))
        with Run("small:momentum", folder, epochs=4, aggregators=2, remote=remote) as run:
            run.begin(2, B)
            run.to_the_end()
            runs.append((run.finish(), run))

    (shared, first), (apart, second) = runs
    assert all(np.array_equal(a, b) for a, b in zip(shared, apart, strict=True))
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]
    assert [report.metrics for report in first.epochs] == [report.metrics for report in second.epochs]


def test_workers_of_other_hosts_join_leave_and_die_while_they_push_and_pull(tmp_path: Path) -> None:
    faults = ("worker.pushed_some/w1:kill@9", "worker.pulling/w2:kill@14")
    with Run("small:slow", tmp_path, aggregators=3, remote=WORKERS, faults=faults, replace=True) as run:
        run.begin(3, 40)
        run.until(lambda: {lost.worker for lost in run.lost} == {"w1", "w2"})
        run.until(lambda: {"w3", "w4"} <= set(run.started))
        run.supervisor.resize(1, 20, "smaller")
        run.train(4)
        run.supervisor.resize(3, 48, "larger")
        run.train(4)
        run.until(lambda: run.steps[-1].workers == 3)
        run.train(2)
        got = run.finish()

    for fault in faults:
        assert_fired(run, fault)
    assert {step.workers for step in run.steps} == {1, 2, 3}
    assert_same_weights(got, plain_keras("slow", run.steps))


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long)])
def test_an_aggregator_that_is_lost_with_its_memory_takes_all_back_to_the_last_checkpoint(
    lost: int, tmp_path: Path
) -> None:
    # one of the two shares memory with everybody: what it has applied since must not survive
    remote = (AGGREGATORS[lost],)
    plan = CheckpointPlan(str(tmp_path / "checkpoints"), 0.0, 7)
    with Run("small:slow", tmp_path, aggregators=2, remote=remote, checkpoint=plan) as run:
        run.begin(2, 40)
        run.until(lambda: len(run.checkpoints) >= 2)
        run.train(3)
        told = list(run.steps)
        run.kill(AGGREGATORS[lost])
        run.until(lambda: bool(run.rolled_back))
        (back,) = run.rolled_back
        run.train(12)
        run.kill(AGGREGATORS[1 - lost])  # whose memory lives on: nothing is lost
        run.until(lambda: run.recovered[-1].cause == "was killed by SIGKILL")
        run.train(3)
        assert run.rolled_back == [back]
        got = run.finish()

    assert back.step in {written.step for written in run.checkpoints}
    assert 0 < back.step <= told[-1].step
    assert f"{AGGREGATORS[lost]} was lost together with its memory" in back.cause
    assert [step.step for step in run.steps] == list(range(1, len(run.steps) + 1))
    again = {step.step: step.loss for step in run.steps}
    assert all(again[step.step] == pytest.approx(step.loss, rel=1e-4) for step in told)
    assert {process.state for process in run.supervisor.processes() if process.role == "worker"} == {"gone"}
    assert not run.lost, "workers keep their processes"
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_a_step_in_place_is_applied_to_its_end_or_all_go_back_to_a_checkpoint(tmp_path: Path) -> None:
    faults = ("aggregator.applying/aggregator-1:stop@7", "aggregator.applying/aggregator-0:kill@21")
    plan, remote = CheckpointPlan(str(tmp_path / "checkpoints"), 0.0, 5), (*WORKERS, *AGGREGATORS)
    with Run("small:exact", tmp_path, aggregators=2, remote=remote, checkpoint=plan, faults=faults) as run:
        run.begin(2, 40)
        run.until(lambda: run.engine.suspended("aggregator-1"))
        run.kill("w1")  # its gradient is in sums, and one aggregator has applied them
        run.until(lambda: bool(run.lost))
        run.wake("aggregator-1")
        run.train(3)
        assert not run.rolled_back
        run.until(lambda: bool(run.rolled_back))
        run.train(6)
        got = run.finish()

    for index, action in ((1, "stop"), (0, "kill")):
        assert f"failpoint aggregator.applying: {action}\n" in run.log(AGGREGATORS[index])
    (back,) = run.rolled_back
    assert 0 < back.step < 21
    assert_same_weights(got, plain_keras("exact", run.steps), 1e-9)


def test_without_a_checkpoint_the_job_begins_anew_even_if_its_coordinator_dies_too(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2, remote=(*WORKERS, "aggregator-1")) as run:
        run.begin(2, 40)
        run.train(9)
        run.kill("aggregator-1")
        run.kill("coordinator-1")
        run.until(lambda: bool(run.rolled_back))
        run.train(8)
        got = run.finish()

    assert [back.step for back in run.rolled_back] == [0]
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_workers_that_share_no_memory_train_as_one_and_the_model_comes_from_a_disk_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    with Run("small:adam", folder, aggregators=2, remote=WORKERS) as run:
        run.begin(2, B)
        run.train(12)
        monkeypatch.setattr(FaultyEngine, "host", lambda _, name: "192.0.2.9")
        got = run.finish()

    assert {step.workers for step in run.steps} == {2}
    assert_same_weights(got, plain_keras("adam", run.steps))
    assert_goes_on(folder / "model.keras", "adam", run.steps)
    assert not list(folder.glob("*.part"))
