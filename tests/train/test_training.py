"""Real processes train exactly what one plain Keras process would, whatever happens to them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from driving import Run, assert_goes_on, assert_same_weights, job, plain_keras, plain_program, replayed

from scavenger.train.worker.noise_rhythm import AT_FIRST

pytestmark = pytest.mark.slow

B = 32


@pytest.mark.parametrize(
    ("name", "workers", "aggregators"),
    [
        ("momentum", 1, 2),
        ("adam", 2, 3),
        pytest.param("adam", 2, 1, marks=pytest.mark.long),
    ],
)
def test_any_number_of_workers_and_aggregators_gives_the_weights_and_metrics_of_one_plain_process(
    name: str, workers: int, aggregators: int, tmp_path: Path
) -> None:
    epochs = 6
    with Run(f"small:{name}", tmp_path, aggregators=aggregators, epochs=epochs) as run:
        run.begin(workers, B)
        run.to_the_end()
        got = run.finish()

    assert {step.workers for step in run.steps} == {workers}
    # the 170 samples of an epoch end with a partial batch of 10
    assert {step.samples for step in run.steps} == {B, 170 - 5 * B}
    assert len(run.steps) == 6 * epochs
    evaluations: list[dict[str, float]] = []
    program = job(name)
    x, y = program.validation.batch(np.arange(len(program.validation)))

    def evaluate(model: Any) -> None:
        evaluations.append(model.evaluate(x, y, verbose=0, return_dict=True))
        model.reset_metrics()

    assert_same_weights(got, plain_keras(name, run.steps, evaluate))
    assert_goes_on(tmp_path / "model.keras", name, run.steps)
    assert [report.epoch for report in run.epochs] == list(range(len(evaluations)))
    for report, expected in zip(run.epochs, evaluations, strict=True):
        assert report.metrics["val_loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert report.metrics["val_accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
        # the training loss of an epoch is the mean of its steps', weighted by samples
        steps = [step for step in run.steps if step.epoch == report.epoch]
        losses = [step.loss for step in steps]
        assert report.metrics["loss"] == pytest.approx(
            np.average(losses, weights=[step.samples for step in steps]), rel=1e-5
        )
        assert 0 <= report.metrics["accuracy"] <= 1
    assert run.epochs[-1].metrics["loss"] < 0.9 * run.epochs[0].metrics["loss"]
    noise = [step.mean_worker_sqnorm / step.mean_sqnorm for step in run.steps if step.noise_parts]
    # the noise of K gradients lies in [1, K], that of the two halves of a batch in [1, 2] but for rounding
    assert all(gamma >= 0.999 for gamma in noise)
    assert np.median(noise) <= max(workers, 2)


def test_a_loss_that_is_not_finite_skips_its_step_where_the_loss_is_scaled(tmp_path: Path) -> None:
    with Run("small:overflowing", tmp_path) as run:
        run.begin(2, 40)
        run.train(11)
        run.supervisor.resize(1, 40, "one alone")
        run.train(11)
        run.finish()

    for workers in (1, 2):
        losses = [step.loss for step in run.steps if step.workers == workers]
        assert 0 < sum(map(math.isnan, losses)) < len(losses) / 2
    expected = plain_program("overflowing", run.steps).model
    got = keras.models.load_model(tmp_path / "model.keras")
    assert_same_weights(got.get_weights(), expected.get_weights())
    # the scale, the steps since it changed, and those that were not skipped
    states = [{v.path: v.numpy() for v in model.optimizer.variables} for model in (got, expected)]
    assert_same_weights(list(states[0].values()), list(states[1].values()))
    assert int(got.optimizer.iterations) == sum(not math.isnan(step.loss) for step in run.steps)


def test_views_deaths_and_standstills_change_nothing_but_the_time(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2) as run:
        run.begin(3, 40)
        supervisor = run.supervisor
        run.train(5)
        supervisor.resize(1, 20, "smaller")
        run.train(5)
        supervisor.resize(2, 33, "larger")
        run.train(5)
        supervisor.resize(3, 48, "all")
        run.train(3)

        run.kill("w0")
        run.until(lambda: [lost.worker for lost in run.lost] == ["w0"])
        run.train(5)
        assert "SIGKILL" in run.lost[0].cause
        assert run.steps[-1].workers == 2

        supervisor.launch(1)
        run.freeze("w1")
        run.until(lambda: [lost.worker for lost in run.lost] == ["w0", "w1"])
        assert "was silent" in run.lost[1].cause
        run.until(lambda: "w3" in run.started)
        run.train(3)
        assert run.steps[-1].workers == 2

        (starting,) = supervisor.launch(1)  # dies while it starts: nobody has waited for it
        run.kill(starting)
        run.until(lambda: [lost.worker for lost in run.lost] == ["w0", "w1", "w4"])
        run.train(3)
        assert run.steps[-1].workers == 2
        got = run.finish()

    assert [step.step for step in run.steps] == list(range(1, len(run.steps) + 1))
    numbers = [view.number for view in run.views]
    assert numbers == sorted(set(numbers))
    assert {step.workers for step in run.steps} == {1, 2, 3}
    assert len({step.global_batch_size for step in run.steps}) == 4
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_workers_that_no_view_needs_are_let_go_and_others_take_a_leaver_s_place(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path) as run:
        run.begin(2, 32)
        supervisor = run.supervisor
        run.train(3)
        supervisor.resize(1, 16, "the newest rests")
        run.until(lambda: supervisor.settled)
        assert (supervisor.workers("training"), supervisor.workers("ready")) == (("w0",), ("w1",))
        supervisor.resize(1, 16, "and takes the other's place", without=("w0",))
        run.until(lambda: supervisor.settled)
        run.train(3)
        assert supervisor.workers("training") == ("w1",)  # w0, which is to leave, counts no more

        supervisor.release(1)
        run.until(lambda: run.left == ["w0"])
        assert supervisor.ending
        run.until(lambda: not supervisor.ending)
        assert (supervisor.alive, dict(supervisor.existing), run.lost) == (("w1",), {"": 1}, [])
        run.train(3)
        got = run.finish()

    assert {step.pieces[0][0] for step in run.steps[-3:]} == {"w1"}
    assert_same_weights(got, plain_keras("slow", run.steps))


@pytest.mark.parametrize("workers", [1, 2])
def test_normalisation_is_averaged_over_workers_by_samples_and_exact_on_one(
    workers: int, tmp_path: Path
) -> None:
    with Run("small:normalised", tmp_path, aggregators=2) as run:
        run.begin(workers, 31)
        run.train(20)
        got = run.finish()

    assert_same_weights(got, replayed("normalised", run.steps, rate=0.05))
    if workers == 1:
        assert_same_weights(got, plain_keras("normalised", run.steps))
        assert {step.noise_parts for step in run.steps[:AT_FIRST]} == {2}
        noisy = [step for step in run.steps if step.noise_parts]
        assert all(step.mean_worker_sqnorm / step.mean_sqnorm >= 1.0 - 1e-6 for step in noisy)
        assert all((step.noise_s > 0.0) == (step.noise_parts > 0) for step in run.steps)
