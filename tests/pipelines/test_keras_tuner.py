"""KerasTuner's own tuners and oracles drive a study: values, costs, ends and failures of trials are those of jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import hypermodel_code
import keras_tuner
import numpy as np
import pipeline_code
import pytest
from killed_examples import run_again_after_a_kill
from studies import put_on_record

from scavenger import Client, Job
from scavenger.errors import ConfigurationError, TrainingCodeError
from scavenger.integrations import hypermodel
from scavenger.integrations.keras_tuner import (
    BayesianOptimization,
    GridSearch,
    Hyperband,
    RandomSearch,
)

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_tuner"
RATES = (0.5, 0.25, 0.1, 0.01)
JOB = Job(
    hypermodel_code.build,
    data=pipeline_code.data,
    goal=3,
    workers=1,
    batch_size=[50],
    settings={"profile.steps": 3},
)


def on_record(url: str, width: int, rate: float, value: float, **ended: Any) -> str:
    """Put the job of a trial on record, as the tuner would run it."""
    job = JOB.with_settings({"train": hypermodel.ENTRY, "goal.metric": "val_loss"})
    return put_on_record(
        url,
        job.with_params(
            hyperparameters={"layer/width": width, "learning_rate": rate}, hypermodel="hypermodel_code:build"
        ),
        value,
        **ended,
    )


def tuner(
    client: Client, folder: Path, kind: Any = GridSearch, *, budget: float | None = None, **options: Any
) -> Any:
    given = {"objective": keras_tuner.Objective("val_loss", "min"), "directory": folder, "project_name": "kt"}
    return kind(
        **{"hypermodel": hypermodel_code.build, "job": JOB, **given, **options},
        study=client.study("rates", budget=budget),
    )


def test_the_oracle_learns_values_costs_and_failures_of_jobs(
    url: str, client: Client, tmp_path: Path
) -> None:
    for width in (4, 8):
        for rate in RATES:
            failed = {"state": "failed", "error": "train.py:3: no", "code": 6} if rate == 0.5 else {}
            on_record(url, width, rate, rate / width, usd=rate, **failed)

    search = tuner(client, tmp_path, max_consecutive_failed_trials=9)
    search.search(verbose=0)

    trials = search.oracle.get_best_trials(8)
    assert [trial.status for trial in trials] == ["COMPLETED"] * 6 + ["FAILED"] * 2
    assert trials[0].hyperparameters.values == {"layer/width": 8, "learning_rate": 0.01}
    for trial in trials[:6]:
        rate = trial.hyperparameters.get("learning_rate")
        assert trial.score == pytest.approx(rate / trial.hyperparameters.get("layer/width"))
        assert trial.metrics.get_best_value("cost_usd") == pytest.approx(rate)
    assert "train.py:3: no" in trials[-1].message
    assert len(client.records("rates")) == 8  # nothing was run


def test_a_search_ends_at_the_budget_and_goes_on_with_a_higher_one(
    url: str, client: Client, tmp_path: Path
) -> None:
    for width in (4, 8):
        for rate in RATES:
            on_record(url, width, rate, rate / width, usd=0.1)

    first = tuner(client, tmp_path, budget=0.8)  # all of it was spent before this search
    first.search(verbose=0)
    assert not first.oracle.trials

    again = tuner(client, tmp_path, budget=2)
    again.search(verbose=0)
    assert len(again.oracle.end_order) == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"job": Job("hypermodel_code:other", goal=3)}, "the tuner has hypermodel_code:build, and the job"),
        ({"hypermodel": lambda hp: hypermodel_code.build(hp)}, "must be a function of a module, not <lambda>"),
        ({"objective": ["val_loss", "loss"]}, "one metric as its objective"),
        ({"objective": None}, "one metric as its objective"),
        ({"optimizer": "adam"}, "compile the model in the hypermodel"),
        ({"job": JOB.with_settings({"goal.metric": "loss"})}, "compares val_loss, and the job's goal has loss"),
        (
            {"job": JOB.with_settings({"goal.metric": "val_loss", "goal.mode": "max"})},
            "wants the minimum of val_loss, and the job's goal the maximum",
        ),
    ],
)  # fmt: skip
def test_what_a_trial_as_a_job_cannot_have_is_refused(
    client: Client, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tuner(client, tmp_path, RandomSearch, max_trials=1, **options)


def test_arguments_of_fit_are_the_jobs(client: Client, tmp_path: Path) -> None:
    search = tuner(client, tmp_path, RandomSearch, max_trials=1)
    with pytest.raises(ConfigurationError, match=r"search\(callbacks\): the job has these"):
        search.search(callbacks=[])
    with pytest.raises(ConfigurationError, match=r"search\(data\)"):
        search.search(np.zeros(3))
    assert client.records("rates") == ()


class TestBuildInAWorker:
    def test_values_are_those_of_the_trial_and_others_have_their_defaults(self) -> None:
        made = hypermodel.build("hypermodel_code:build", {"layer/width": 8})
        assert made.layers[0].units == 8
        assert float(made.optimizer.learning_rate) == pytest.approx(0.01)

    @pytest.mark.parametrize("name", ["conditional", "Conditional"])
    def test_objects_and_classes_of_hypermodels_with_conditions(self, name: str) -> None:
        wide = hypermodel.build(f"hypermodel_code:{name}", {"wide": True, "width": 7})
        narrow = hypermodel.build(f"hypermodel_code:{name}", {"wide": False})
        assert [model.layers[0].units for model in (wide, narrow)] == [7, 2]

    def test_weights_of_another_model(self, tmp_path: Path) -> None:
        before = hypermodel.build("hypermodel_code:build", {})
        before.save(tmp_path / "model.keras")
        after = hypermodel.build("hypermodel_code:build", {}, str(tmp_path / "model.keras"))
        for one, other in zip(before.get_weights(), after.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        with pytest.raises(TrainingCodeError, match="is gone"):
            hypermodel.build("hypermodel_code:build", {}, str(tmp_path / "other.keras"))

    def test_an_object_that_is_not_there(self) -> None:
        with pytest.raises(TrainingCodeError, match="hypermodel_code has no object 'none'"):
            hypermodel.build("hypermodel_code:none", {})


@pytest.mark.long
def test_rounds_of_hyperband_go_on_from_the_models_of_the_round_before(
    client: Client, tmp_path: Path
) -> None:
    job = JOB.with_settings({"output": str(tmp_path / "out")})
    search = tuner(client, tmp_path, Hyperband, job=job, max_epochs=2, factor=2, seed=1)

    search.search(verbose=0)

    later = [trial for trial in search.study.trials if trial.params.get("weights")]
    epochs = {one.id: one.spec["goal"]["max_epochs"] for one in client.records("rates")}
    assert later, "no trial went on from another"
    for trial in later:
        (before,) = [one for one in search.study.trials if one.model_path == trial.params["weights"]]
        assert trial.params["hyperparameters"] == before.params["hyperparameters"]
        assert (epochs[before.id], epochs[trial.id]) == (1, 1)
    assert max(epochs.values()) == 2  # of trials that begin with no other's weights
    again = tuner(client, tmp_path, Hyperband, job=job, max_epochs=2, factor=2, seed=1)  # by another program
    assert len(again.oracle.trials) == len(search.oracle.trials)
    x, y = pipeline_code.data()["validation"]
    (best,) = again.get_best_models()
    assert best.evaluate(x, y, verbose=0) == pytest.approx(search.oracle.get_best_trials()[0].score, rel=0.2)


@pytest.mark.long
def test_executions_of_a_trial_differ_by_their_seeds(client: Client, tmp_path: Path) -> None:
    job = JOB.with_settings({"output": str(tmp_path / "out")})
    search = tuner(client, tmp_path, BayesianOptimization, job=job, max_trials=1, executions_per_trial=2)
    search.search(epochs=1, verbose=0)
    (trial,) = search.oracle.get_best_trials()
    jobs = search.study.trials
    assert [client.records("rates")[number].spec.get("seed", 0) for number in (1, 0)] == [0, 1]
    assert trial.score == pytest.approx(np.mean([one.value for one in jobs]))
    assert trial.metrics.get_best_value("cost_usd") == pytest.approx(search.study.spent_usd)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_goes_on_after_it_was_killed_within_its_budget(tmp_path: Path) -> None:
    env = {**os.environ, "SCAVENGER_LOCAL_PRICE": "0.1"}
    second = run_again_after_a_kill(tmp_path, EXAMPLE, 3, env, told="Running Trial #2", midst_s=0.5)

    assert "Study digits: 3 trials for $" in second.stdout
    assert "units" in second.stdout.splitlines()[-1]
    with Client(store=f"sqlite:///{tmp_path}/jobs.db") as client:
        study = client.study("digits", budget=1)
        assert sum(trial.complete for trial in study.trials) == 3
        assert 0.0 < study.spent_usd <= 1.0
        jobs = client.records("digits")
        assert study.spent_usd == pytest.approx(sum(client.cost_of(job.id) for job in jobs))
        assert len(jobs) in (3, 4)  # the one that was killed, unless that was between two trials
    for trial in sorted((tmp_path / "tuning" / "digits").glob("trial_*/trial.json")):
        assert json.loads(trial.read_text())["status"] == "COMPLETED"
