"""Scripts that call `scavenger.jax`: the weights of plain JAX through joins, leaves and a kill, or a refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch_jobs import EPOCHS, JOBS, OWN, SEED, driven, sampled_once
from waiting import PATIENCE_S

from scavenger.domain.script import Script
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.sdk.rows import Rows
from scavenger.train.fit_process import find_fit

pytestmark = pytest.mark.slow

for library in ("jax", "optax"):
    pytest.importorskip(library, reason="JAX is not installed: pip install 'scavenger-ml[jax]' optax")

_SCRIPT = "jax_script.py"


@pytest.mark.parametrize("loader", ["", pytest.param("--loader", marks=pytest.mark.long)])
def test_a_script_trains_as_python_would_whoever_joins_and_leaves(tmp_path: Path, loader: str) -> None:
    with driven(tmp_path, f"{_SCRIPT} {loader}", 3) as job:
        job.job.resize(1, OWN, "one begins")
        job.until(job.trained(3))
        job.job.resize(3, OWN, "two join")
        job.until(job.on(3))
        job.job.resize(2, OWN, "one leaves")
        state = job.to_the_end()

    sampled_once(job.steps, 500)
    assert {len(step.pieces) for step in job.steps} == {1, 2, 3}
    assert all(step.loss is not None for step in job.steps)
    assert [epoch.metrics["steps"] for epoch in job.epochs] == [21.0 * (epoch + 1) for epoch in range(EPOCHS)]
    file = tmp_path / "alone.npz"
    command = [sys.executable, str(JOBS / _SCRIPT), *loader.split(), "--seed", str(SEED), "--save", str(file)]
    subprocess.run(command, check=True, timeout=PATIENCE_S, cwd=tmp_path, env=dict(os.environ))
    alone = np.load(file)
    for name in ("in", "out", "bias"):
        np.testing.assert_allclose(state[f"params/{name}"], alone[name], rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(state["kept"], [1.5, 1.5])
    np.testing.assert_array_equal(state["key"], alone["key"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("state", "elastic.step() gets another state than elastic.prepare or the last step returned"),
        ("step", "no elastic.step() in a batch"),
        ("twice", "a second elastic.step() in a batch"),
    ],
)
def test_what_would_train_other_weights_is_refused_at_its_line(
    tmp_path: Path, wrong: str, words: str
) -> None:
    with driven(tmp_path, f"{_SCRIPT} --wrong {wrong}", 1) as job:
        job.job.resize(1, OWN, "begin")
        with pytest.raises(TrainingCodeError) as caught:
            job.to_the_end()

    assert words in str(caught.value)
    assert "jax_script.py:" in str(caught.value)


def test_a_rate_that_the_job_scales_must_be_asked_for(tmp_path: Path) -> None:
    with driven(tmp_path, _SCRIPT, 1) as job:
        job.job.resize(1, OWN, "begin", lr_scale=2.0)
        with pytest.raises(NotSupportedError, match=r"elastic\.lr_scale\(\)"):
            job.to_the_end()


def test_a_script_is_looked_at_as_far_as_its_first_epoch(tmp_path: Path) -> None:
    found = find_fit(Script(_SCRIPT, ("--epochs", "3")), JOBS, log=tmp_path / "log", prepares=True)

    assert (found.epochs, found.samples, found.batch_size) == (3, 500, OWN)
    assert (found.model, found.weights, found.metrics) == ("a pytree", 6 * 8 + 8 * 2 + 2, ("steps",))


def test_rows_are_read_once_an_epoch_in_an_order_of_the_seed() -> None:
    rows = Rows({"x": np.arange(10), "y": np.arange(10) * 2}, 4, seed=3)

    first, second = ([batch["x"] for batch in rows] for _ in range(2))

    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second)) == list(range(10))
    assert np.concatenate(first).tolist() != np.concatenate(second).tolist()
    again = Rows(np.arange(10), 4, seed=3)
    assert np.concatenate(second).tolist() == again.order(1).tolist()


@pytest.mark.parametrize("arrays", [(np.zeros((3, 2)), np.zeros(4)), np.zeros((0, 2)), 5.0, ()])
def test_data_that_are_no_rows_are_refused(arrays: object) -> None:
    with pytest.raises(TrainingCodeError, match="as many rows each"):
        Rows(arrays, 4, seed=0)
