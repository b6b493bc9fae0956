"""Real processes train exactly what one plain Keras process would, whatever happens to them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import SEED, Run, assert_same_weights, batches, job, plain_keras

from scavenger.elastic.order import sample_seed
from scavenger.elastic.view import split

pytestmark = pytest.mark.slow

B = 32


@pytest.mark.parametrize(("name", "workers"), [("momentum", 1), ("adam", 2), ("decayed", 3)])
def test_any_number_of_workers_gives_the_weights_and_metrics_of_one_plain_process(
    name: str, workers: int, tmp_path: Path
) -> None:
    with Run(f"small:{name}", tmp_path) as run:
        run.begin(workers, B)
        run.train(100)
        run.stop = True
        seen = len(run.epochs)
        run.until(lambda: len(run.epochs) > seen)
        got = run.finish()

    assert {step.workers for step in run.steps} == {workers}
    # the 170 samples of an epoch end with a partial batch of 10
    assert {step.samples for step in run.steps} == {B, 170 - 5 * B}
    assert len(run.steps) % 6 == 0
    evaluations: list[dict[str, float]] = []
    program = job(name)
    x, y = program.validation.batch(np.arange(len(program.validation)))

    def evaluate(model: Any) -> None:
        evaluations.append(model.evaluate(x, y, verbose=0, return_dict=True))
        model.reset_metrics()

    assert_same_weights(got, plain_keras(name, run.steps, evaluate))
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
    assert run.epochs[-1].metrics["loss"] < 0.7 * run.epochs[0].metrics["loss"]
    noise = [step.mean_worker_sqnorm / step.mean_sqnorm for step in run.steps if step.noise_parts]
    # the noise of K gradients lies in [1, K], that of the two halves of a batch in [1, 2] but for rounding
    assert all(gamma >= 0.999 for gamma in noise)
    assert np.median(noise) <= max(workers, 2)


def test_views_deaths_and_hangs_change_nothing_but_the_time(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, step_s=5.0, slots=8) as run:
        run.begin(3, 40)
        coordinator = run.coordinator
        run.train(5)
        coordinator.resize(1, 20, "smaller")
        run.train(5)
        coordinator.resize(2, 33, "larger")
        run.train(5)
        coordinator.resize(3, 48, "all")
        run.train(3)

        os.kill(run.pid("w0"), signal.SIGKILL)  # the oldest, which evaluates
        run.until(lambda: [lost.worker for lost in run.lost] == ["w0"])
        run.train(5)
        assert "SIGKILL" in run.lost[0].cause
        assert run.steps[-1].workers == 2

        os.kill(run.pid("w1"), signal.SIGSTOP)
        coordinator.launch(1)
        run.until(lambda: [lost.worker for lost in run.lost] == ["w0", "w1"])
        assert "limits.step" in run.lost[1].cause
        run.until(lambda: "w3" in run.started)
        run.train(3)
        assert run.steps[-1].workers == 3 - 1

        coordinator.launch(1)  # dies while it starts: nobody has waited for it
        os.kill(run.pid("w4"), signal.SIGKILL)
        run.until(lambda: len(run.lost) == 3)

        for worker in ("w2", "w3"):
            os.kill(run.pid(worker), signal.SIGKILL)
        run.until(lambda: len(run.lost) == 5)
        assert coordinator.ready == 0
        applied = len(run.steps)
        coordinator.launch(1)
        run.train(5)
        assert run.steps[applied].step == applied + 1

        coordinator.resize(1, 16, "one")
        run.until(lambda: coordinator.membership.settled)
        coordinator.launch(1)
        run.until(lambda: coordinator.ready == 2)
        assert coordinator.release(1) == ("w6",)
        assert coordinator.ending
        run.until(lambda: not coordinator.ending)
        got = run.finish()

    assert [step.step for step in run.steps] == list(range(1, len(run.steps) + 1))
    assert [view.view for view in run.views] == sorted({view.view for view in run.views})
    assert {step.workers for step in run.steps} >= {1, 2, 3}
    assert len({step.global_batch_size for step in run.steps}) == 5
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_normalisation_is_averaged_over_workers_by_samples(tmp_path: Path) -> None:
    with Run("small:normalised", tmp_path) as run:
        run.begin(2, 31)
        run.train(20)
        got = run.finish()

    program = job("normalised")
    weights = program.initial_state()
    trainable = len(weights) - 2
    momentum_free_rate = 0.05
    for step, indices in zip(run.steps, batches(run.steps, 170), strict=True):
        start = sum(s.samples for s in run.steps[: step.step - 1] if s.epoch == step.epoch)
        parts = [
            (
                share.samples,
                program.gradient(
                    weights,
                    indices[share.start : share.stop],
                    seed=sample_seed(SEED, step.step, start + share.start),
                    halves=False,
                ),
            )
            for share in split(0, step.samples, 2)
        ]
        mean = [
            sum(n / step.samples * np.asarray([*r.gradients, *r.states][index]) for n, r in parts)
            for index in range(len(weights))
        ]
        weights = [
            w - momentum_free_rate * g if index < trainable else g
            for index, (w, g) in enumerate(zip(weights, mean, strict=True))
        ]
    by_path = {
        tensor.path.split("/", 1)[1]: w for tensor, w in zip(program.manifest.tensors, weights, strict=True)
    }
    order = [weight.path.split("/", 1)[1] for weight in program.model.weights]
    assert_same_weights(got, [by_path[path] for path in order])
