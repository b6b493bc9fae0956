"""Trainers of Transformers and Lightning in a job: the weights of the trainer alone, whoever joins and leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_jobs import EPOCHS, OWN, assert_equal, driven, plainly, sampled_once

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")

_SCRIPT = "torch_trainers.py"


@pytest.mark.parametrize(
    "arguments",
    [
        "transformers",
        pytest.param("transformers --device tiny", marks=pytest.mark.long),
        pytest.param("lightning --device tiny", marks=pytest.mark.long),
        pytest.param("lightning", marks=pytest.mark.long),
        pytest.param("transformers --at-once 5", marks=pytest.mark.long),
        pytest.param("lightning --interval epoch", marks=pytest.mark.long),
        pytest.param("lightning --at-once 5", marks=pytest.mark.long),
    ],
)
def test_a_trainer_trains_as_it_would_alone_whoever_joins_and_leaves(tmp_path: Path, arguments: str) -> None:
    pytest.importorskip(arguments.partition(" ")[0])
    with driven(tmp_path, f"{_SCRIPT} {arguments}", 3) as job:
        job.job.resize(1, OWN, "one begins")
        job.until(job.trained(9))
        job.job.resize(3, OWN, "two join")
        job.until(job.on(3))
        job.job.resize(2, OWN, "one leaves")
        state = job.to_the_end()

    sampled_once(job.steps, 500)
    assert {len(step.pieces) for step in job.steps} == {1, 2, 3}
    assert all(0.0 <= epoch.metrics["accuracy"] <= 1.0 for epoch in job.epochs)
    assert all(step.loss is not None for step in job.steps)
    plain = arguments.replace("--device tiny", "").split()
    assert_equal(state, plainly(plain, tmp_path, script=_SCRIPT))


@pytest.mark.parametrize("trainer", [pytest.param("transformers", marks=pytest.mark.long), "lightning"])
def test_an_epoch_ends_with_its_last_sample_whatever_the_batches_and_whoever_dies(
    tmp_path: Path, trainer: str
) -> None:
    pytest.importorskip(trainer)
    with driven(tmp_path, f"{_SCRIPT} {trainer}", 3) as job:
        job.job.resize(3, OWN, "begin")
        job.until(job.trained(5))
        job.kill(job.job.members[2])
        job.job.resize(2, 6, "the batch shrinks")
        job.until(job.trained(100))
        job.job.resize(1, 60, "it grows, and one leaves")
        job.to_the_end()

    sampled_once(job.steps, 500)
    assert {step.samples for step in job.steps} > {OWN, 6, 60}
    assert len(job.epochs) == EPOCHS
