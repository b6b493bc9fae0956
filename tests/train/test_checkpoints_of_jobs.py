"""A job that is taken up from a checkpoint continues as if it had never stopped."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from driving import Run, assert_fired, assert_same_weights, batches, plain_keras, replayed

from scavenger.errors import ScavengerError
from scavenger.train.checkpoints.checkpoint import Checkpoint, CheckpointStore
from scavenger.train.transport import messages as m

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

B, DATASET = 32, 170


def every(steps: int, folder: Path) -> m.CheckpointPlan:
    return m.CheckpointPlan(str(folder), every_s=0.0, every_steps=steps)


def newest(folder: Path) -> Checkpoint:
    checkpoint = CheckpointStore(str(folder)).latest()
    assert checkpoint is not None
    return checkpoint


@dataclass(frozen=True)
class Stopped:
    """A job of one worker and two aggregators that was ended after its first epoch, with two checkpoints since.

    Attributes:
        saved: Its checkpoints.
        steps: All that it has reported.
    """

    saved: Path
    steps: list[m.StepReport]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("ended")
    saved = folder / "saved"
    with Run("small:adam", folder, aggregators=2, checkpoint=every(2, saved), best=[0]) as run:
        run.begin(1, B)
        run.until(lambda: sum(checkpoint.step > 6 for checkpoint in run.checkpoints) >= 2)
    return Stopped(saved, run.steps)


@pytest.fixture
def stopped(ended: Stopped, tmp_path: Path) -> Stopped:
    """The same, with checkpoints that a test may change."""
    saved = tmp_path / "saved"
    shutil.copytree(ended.saved, saved)
    return Stopped(saved, ended.steps)


def test_a_checkpoint_counts_only_once_all_steps_up_to_it_are_on_record(tmp_path: Path) -> None:
    saved, recorded = tmp_path / "saved", False
    with Run("small:adam", tmp_path / "a", checkpoint=every(3, saved)) as run:
        run.supervisor.recorded = lambda: recorded
        run.begin(1, B)
        run.train(12)
        assert run.checkpoints == []
        assert CheckpointStore(str(saved)).latest() is None

        recorded = True
        run.until(lambda: bool(run.checkpoints))
        assert newest(saved).manifest.step == run.checkpoints[-1].step == 3


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        pytest.param("adam", (2, 2), (1, 3), marks=pytest.mark.long),
        ("decayed", (1, 3), (2, 1)),
        pytest.param("normalised", (1, 1), (2, 2), marks=pytest.mark.long),
    ],
)
def test_a_job_taken_up_with_others_ends_with_the_weights_of_one_that_never_stopped(
    name: str, before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    workers, aggregators = before
    with Run(f"small:{name}", tmp_path / "a", aggregators=aggregators, checkpoint=every(7, saved)) as run:
        run.begin(workers, B)
        # in the midst of the second epoch: nothing may depend on an epoch's beginning
        run.until(lambda: bool(run.checkpoints) and run.checkpoints[-1].step % 6 not in (0, 5))
        run.train(3)
    at = newest(saved).manifest
    assert at.step >= run.checkpoints[-1].step
    done = run.steps[: at.step]
    assert (at.epoch, at.consumed) == divmod(sum(step.samples for step in done), DATASET)

    workers, aggregators = after
    epochs = at.epoch + 2
    with Run(
        f"small:{name}", tmp_path / "b", aggregators=aggregators, epochs=epochs, restore=saved
    ) as resumed:
        resumed.begin(workers, B)
        resumed.to_the_end()
        got = resumed.finish()

    assert resumed.steps[0].step == at.step + 1
    whole = done + resumed.steps
    assert len(whole) == 6 * epochs
    # the epoch in which it was stopped has the metrics of all its steps, those before the checkpoint included
    report = resumed.epochs[0]
    assert report.epoch == at.epoch
    of_epoch = [step for step in whole if step.epoch == report.epoch]
    losses, samples = [step.loss for step in of_epoch], [step.samples for step in of_epoch]
    assert sum(samples) == DATASET
    assert report.metrics["loss"] == pytest.approx(np.average(losses, weights=samples), rel=1e-5)
    expected = replayed(name, whole, 0.05) if name == "normalised" else plain_keras(name, whole)
    assert_same_weights(got, expected)


def test_checkpoints_appear_while_training_goes_on_and_survive_those_who_write_them(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    plan = m.CheckpointPlan(str(saved), every_s=0.5, every_steps=0)
    fault = "aggregator.saving/aggregator-1:kill@2"
    with Run("small:slow", tmp_path, aggregators=2, checkpoint=plan, faults=[fault]) as run:
        run.begin(1, B)
        run.until(lambda: bool(run.recovered))
        assert_fired(run, fault)
        written = len(run.checkpoints)
        assert written >= 1
        # the one that was cut short is given up, and others follow
        run.until(lambda: len(run.checkpoints) >= written + 2, 30.0)
        run.kill("aggregator-0")
        run.until(lambda: len(run.recovered) == 2)
        written = len(run.checkpoints)
        run.until(lambda: len(run.checkpoints) >= written + 2, 30.0)
        steps = [checkpoint.step for checkpoint in run.checkpoints]
        run.train(2)
        got = run.finish()

    assert steps == sorted(set(steps))
    assert steps[-1] < run.steps[-1].step
    # nothing is left of what was cut short, or superseded
    assert len(list(saved.iterdir())) <= 3
    assert newest(saved).manifest.step >= steps[-1]
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, stopped: Stopped) -> None:
    saved = stopped.saved
    last = newest(saved).manifest
    part = saved / last.folder / f"part-{last.parts[0].name}.safetensors"
    content = bytearray(part.read_bytes())
    content[-5] ^= 1
    part.write_bytes(content)
    before = newest(saved).manifest
    assert before.step < last.step

    with Run("small:adam", tmp_path / "b", aggregators=2, epochs=before.epoch + 2, restore=saved) as resumed:
        resumed.begin(1, B)
        resumed.to_the_end()
        got = resumed.finish()

    assert resumed.steps[0].step == before.step + 1
    assert_same_weights(got, plain_keras("adam", stopped.steps[: before.step] + resumed.steps))


def test_the_best_weights_come_back_too(tmp_path: Path, stopped: Stopped) -> None:
    epochs = newest(stopped.saved).manifest.epoch + 1
    with Run("small:adam", tmp_path / "b", epochs=epochs, restore=stopped.saved) as resumed:
        resumed.begin(1, B)
        resumed.to_the_end()
        got = resumed.finish(best=True)

    assert_same_weights(got, plain_keras("adam", stopped.steps[:6]))


def test_a_checkpoint_taken_at_an_epoch_s_end_has_that_epoch_judged_again(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with Run("small:adam", tmp_path / "a", checkpoint=every(6, saved), epochs=1) as run:
        run.begin(1, B)
        run.to_the_end()
        run.until(lambda: bool(run.checkpoints))

    with Run("small:adam", tmp_path / "b", aggregators=2, epochs=2, restore=saved) as resumed:
        resumed.begin(1, B)
        resumed.to_the_end()

    assert [report.epoch for report in resumed.epochs] == [0, 1]
    assert resumed.epochs[0].metrics == pytest.approx(run.epochs[0].metrics, rel=1e-4)
    batches(run.steps + resumed.steps, DATASET)


@pytest.mark.parametrize(
    ("name", "complaint"), [("normalised", "another model or data set"), (None, "holds no checkpoint")]
)
def test_what_cannot_be_taken_up_is_told_in_one_line(
    name: str | None, complaint: str, tmp_path: Path, stopped: Stopped
) -> None:
    saved = stopped.saved
    if name is None:
        saved = tmp_path / "empty"
        saved.mkdir()

    with (
        Run(f"small:{name or 'adam'}", tmp_path / "b", restore=saved) as resumed,
        pytest.raises(ScavengerError, match=complaint) as caught,
    ):
        resumed.begin(1, B)

    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert resumed.steps == []


def test_a_place_that_cannot_be_written_to_is_told_and_training_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with Run("small:momentum", tmp_path, aggregators=2, checkpoint=every(3, blocked)) as run:
        run.begin(1, B)
        run.until(lambda: len(run.failures) >= 2)
        run.train(3)
        got = run.finish()

    assert all("\n" not in failure.message for failure in run.failures)
    assert str(blocked) in run.failures[0].message
    assert_same_weights(got, plain_keras("momentum", run.steps))
