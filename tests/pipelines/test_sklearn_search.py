"""scikit-learn's search interface over jobs: parameters, candidates, scores and costs are as scikit-learn has them."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pipeline_code
import pytest
from scipy.stats import loguniform
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ParameterSampler
from studies import put_on_record

from scavenger import Client, Job
from scavenger.errors import ConfigurationError, LimitReachedError, ScavengerError
from scavenger.integrations.sklearn import JobSearch

JOB = Job(
    pipeline_code.model,
    data=pipeline_code.data,
    goal={"metric": "val_loss", "max_epochs": 3},
    workers=1,
    batch_size=[50],
    settings={"profile.steps": 3},
)
RATES = [0.5, 0.25, 0.1]
FAILED: dict[str, Any] = {"state": "failed", "error": "train.py:3: no", "code": 6}


def search(url: str, **options: Any) -> JobSearch:
    return JobSearch(
        JOB, **{"param_grid": {"learning_rate": RATES}, "store": url, "study": "rates", **options}
    )


def on_record(url: str, rate: float, **ended: Any) -> str:
    return put_on_record(url, JOB.with_params(learning_rate=rate), rate, **ended)


def test_scores_ranks_and_costs_of_candidates(url: str) -> None:
    ids = [
        on_record(url, 0.5, usd=0.2),
        on_record(url, 0.25, usd=0.3, **FAILED),
        on_record(url, 0.1, usd=0.4),
    ]

    made = search(url).fit()

    assert made.best_params_ == {"learning_rate": 0.1}
    assert made.best_score_ == made.score() == -0.1  # of a loss: higher is better
    results = made.cv_results_
    np.testing.assert_allclose(results["mean_test_score"], [-0.5, math.nan, -0.1])
    assert results["rank_test_score"].tolist() == [2, 3, 1]
    assert results["params"][made.best_index_] == made.best_params_
    np.testing.assert_allclose(results["cost_usd"], [0.2, 0.3, 0.4])
    assert results["job_id"].tolist() == ids
    assert results["param_learning_rate"].tolist() == RATES
    assert {len(column) for column in results.values()} == {3}
    assert made.cost_usd_ == pytest.approx(0.9)
    with Client(store=url) as client:
        assert len(client.records("rates")) == 3  # none was trained again


def test_parameters_are_got_set_and_cloned(url: str) -> None:
    made = search(url, budget="$3")
    again = clone(made).set_params(n_iter=4, param_grid=None)
    assert made.get_params()["budget"] == again.get_params()["budget"] == "$3"
    assert (made.n_iter, again.n_iter) == (10, 4)
    assert again.job == JOB
    with pytest.raises(NotFittedError):
        made.score()


def test_candidates_of_distributions_are_those_of_the_sampler(url: str) -> None:
    space = {"learning_rate": loguniform(1e-3, 0.3)}
    drawn = list(ParameterSampler(space, 4, random_state=7))
    for one in drawn:
        on_record(url, float(one["learning_rate"]))
    made = search(url, param_grid=None, param_distributions=space, n_iter=4, random_state=7).fit()
    assert made.cv_results_["params"] == drawn
    assert made.best_score_ == -min(one["learning_rate"] for one in drawn)


def test_several_grids_leave_out_what_a_candidate_has_not(url: str) -> None:
    for width, rate in ((None, 0.5), (4, 0.5)):
        params = {"learning_rate": rate, **({} if width is None else {"width": width})}
        put_on_record(url, JOB.with_params(**params), 1.0 if width is None else 2.0)
    made = search(url, param_grid=[{"learning_rate": [0.5]}, {"learning_rate": [0.5], "width": [4]}]).fit()
    assert made.cv_results_["param_width"].mask.tolist() == [True, False]
    assert made.best_params_ == {"learning_rate": 0.5}


def test_a_search_ends_at_its_budget_with_what_it_has(url: str, caplog: pytest.LogCaptureFixture) -> None:
    on_record(url, 0.5, usd=0.4)
    on_record(url, 0.25, usd=0.4)
    with caplog.at_level(logging.WARNING):
        made = search(url, budget=1).fit()
    assert len(made.cv_results_["params"]) == 2
    assert "1 candidate left out: the budget is used up" in caplog.text
    with pytest.raises(LimitReachedError, match="no candidate is complete"):
        search(url, budget=0.1, param_grid={"learning_rate": [0.01]}).fit()


def test_a_failure_is_raised_if_asked(url: str) -> None:
    on_record(url, 0.5, **FAILED)
    with pytest.raises(ScavengerError, match=r"train\.py:3: no"):
        search(url, error_score="raise").fit()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"param_grid": None}, "give param_grid or param_distributions"),
        ({"param_distributions": {"width": [1]}}, "give param_grid or param_distributions"),
        ({"param_grid": {"width": 3}}, "the candidates: "),
        ({"job": None}, "needs a job"),
        ({"job": Job(pipeline_code.model, goal=3)}, r"name goal\.metric"),
    ],
)
def test_what_is_no_search_is_refused(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        search(url).set_params(**options).fit()
    with pytest.raises(ConfigurationError, match="fit takes no data"):
        search(url).fit(np.zeros(3))


@pytest.mark.slow
@pytest.mark.long
def test_candidates_are_trained_and_the_best_model_is_saved(url: str, tmp_path: Path) -> None:
    made = search(url, param_grid={"learning_rate": [0.05, 1e-7]})
    made.set_params(job=JOB.with_settings({"output": str(tmp_path / "out")})).fit()
    assert made.best_params_ == {"learning_rate": 0.05}
    assert Path(made.best_model_path_).is_file()
    assert (made.cv_results_["cost_usd"] >= 0.0).all()
