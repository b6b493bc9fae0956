"""scikit-learn's search interface [1]_ for a job: candidates are jobs of a study, and their costs are in `cv_results_`.

The candidates are scikit-learn's own, of `ParameterGrid` or `ParameterSampler`::

    search = JobSearch(job, param_distributions={"learning_rate": loguniform(1e-3, 0.3)}, n_iter=8, budget="$2")
    search.fit()
    print(search.best_params_, search.best_score_, search.cv_results_["cost_usd"])

References:
    .. [1] Pedregosa et al., "Scikit-learn: Machine Learning in Python", 2011.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ParameterGrid, ParameterSampler

from scavenger.errors import ConfigurationError, LimitReachedError, ScavengerError
from scavenger.integrations.trials import ending_of, pays_for_another, searched_job
from scavenger.pipelines.client import Client
from scavenger.pipelines.job import Job
from scavenger.pipelines.study import Study, Trial
from scavenger.presentation.formatting import plural

__all__ = ["JobSearch"]

log = logging.getLogger(__name__)


class JobSearch(BaseEstimator):  # type: ignore[misc]
    """A search over the parameters of a job, as `GridSearchCV` and `RandomizedSearchCV` of scikit-learn.

    There are no folds: each candidate is trained once, on the job's data, and its score is that of the job's validation
    data. A search whose program was killed goes on where it was, as candidates on record are not trained again.

    Args:
        job: The job that is searched; its goal has a metric.
        param_grid: Values by parameter of the job's function, or several such mappings, of which all are tried.
        param_distributions: In place of `param_grid`: values or distributions, of which `n_iter` are drawn.
        n_iter: How many are drawn.
        random_state: Seed of the draws.
        study: The study's name; None: the job's.
        store: As of `Client`.
        budget: US dollars for all candidates.
        deadline: Their longest time.
        error_score: Score of a candidate that fails; `raise` raises its error.

    Attributes:
        best_params_: Parameters of the best candidate.
        best_score_: Its score; higher is better, so a metric that is to fall is negative, as in scikit-learn.
        best_index_: Its index in `cv_results_`.
        best_model_path_: Where its trained model is, as `keras.models.load_model` takes it; None if none was saved.
        cv_results_: Columns by name: `params`, `param_*`, `mean_test_score`, `rank_test_score`, `mean_fit_time`,
            `cost_usd`, `predicted_usd`, `state` and `job_id`.
        cost_usd_: What the study has cost.
        n_splits_: 1.
        study_: The study, whose `print` shows the bill.
    """

    def __init__(
        self,
        job: Job | None = None,
        param_grid: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
        *,
        param_distributions: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
        n_iter: int = 10,
        random_state: Any = None,
        study: str | None = None,
        store: str | None = None,
        budget: str | float | None = None,
        deadline: str | float | None = None,
        error_score: float | Literal["raise"] = math.nan,
    ) -> None:
        self.job = job
        self.param_grid = param_grid
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.random_state = random_state
        self.study = study
        self.store = store
        self.budget = budget
        self.deadline = deadline
        self.error_score = error_score

    def fit(self, X: None = None, y: None = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Train the candidates, until the study's budget or time is used up.

        Args:
            X: None: the data are the job's.
            y: None, too.

        Raises:
            ConfigurationError: If the search is not valid.
            LimitReachedError: If budget or time was used up before a candidate was complete.
            ScavengerError: If a candidate fails and `error_score` is `raise`.
        """
        if X is not None or y is not None:
            raise ConfigurationError(
                "fit takes no data: they are the job's; name their function in Job(data=...)"
            )
        if not isinstance(self.job, Job):
            raise ConfigurationError("the search needs a job: JobSearch(scavenger.Job(...), ...)")
        job, candidates = searched_job(self.job, None), self._candidates()
        with Client(store=self.store) as client:
            self.study_ = client.study(self.study or job.name, budget=self.budget, deadline=self.deadline)
            tried = self._tried(self.study_, job, candidates)
            self.cost_usd_ = self.study_.spent_usd
        sign = -1.0 if job.spec.goal.direction == "min" else 1.0
        scores = [
            sign * trial.value if trial.complete and trial.value is not None else float(self.error_score)
            for _, trial in tried
        ]
        self.cv_results_ = _columns(tried, scores)
        complete = [index for index, (_, trial) in enumerate(tried) if trial.complete]
        if not complete:
            why = next((trial.error for _, trial in tried if trial.error), "nothing is left of the budget")
            raise LimitReachedError(f"no candidate is complete: {why}; raise the budget or the deadline")
        self.n_splits_ = 1
        self.best_index_ = max(complete, key=lambda index: scores[index])
        self.best_params_, best = tried[self.best_index_]
        self.best_score_, self.best_model_path_ = scores[self.best_index_], best.model_path
        return self

    def score(self, X: None = None, y: None = None) -> float:  # noqa: N803 - scikit-learn's names
        """The score of the best candidate.

        Raises:
            NotFittedError: Before `fit`.
        """
        if not hasattr(self, "best_score_"):
            raise NotFittedError("this JobSearch is not fitted yet; call fit")
        return float(self.best_score_)

    def _candidates(self) -> list[dict[str, Any]]:
        if (self.param_grid is None) == (self.param_distributions is None):
            raise ConfigurationError("give param_grid or param_distributions")
        try:
            if self.param_grid is not None:
                return list(ParameterGrid(self.param_grid))
            return list(
                ParameterSampler(self.param_distributions, self.n_iter, random_state=self.random_state)
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the candidates: {error}") from error

    def _tried(
        self, study: Study, job: Job, candidates: list[dict[str, Any]]
    ) -> list[tuple[dict[str, Any], Trial]]:
        """The candidates that were tried, in their order, with their trials."""
        tried: list[tuple[dict[str, Any], Trial]] = []
        for number, candidate in enumerate(candidates):
            trial = study.find(job, candidate)
            if trial is None:
                if not pays_for_another(study):
                    left = plural(len(candidates) - number, "candidate")
                    log.warning("%s left out: the budget is used up", left)
                    break
                try:
                    trial = study.run(job, candidate)
                except LimitReachedError as error:
                    log.warning("%s left out: %s", plural(len(candidates) - number, "candidate"), error)
                    break
            ending = ending_of(study, trial)
            if ending == "interrupted":
                raise KeyboardInterrupt
            if ending == "failed" and self.error_score == "raise":
                raise ScavengerError(f"job {trial.id[:8]}: {trial.error or trial.state}")
            tried.append((candidate, trial))
        return tried


def _columns(tried: list[tuple[dict[str, Any], Trial]], scores: list[float]) -> dict[str, Any]:
    """`cv_results_`: a column has one value for each candidate."""
    trials = [trial for _, trial in tried]
    columns: dict[str, Any] = {"params": [candidate for candidate, _ in tried]}
    for name in sorted({name for candidate, _ in tried for name in candidate}):
        values = [candidate.get(name) for candidate, _ in tried]
        absent = [name not in candidate for candidate, _ in tried]
        columns[f"param_{name}"] = np.ma.MaskedArray(np.array(values, dtype=object), mask=absent)
    ranked = np.array([-math.inf if math.isnan(score) else score for score in scores])
    return columns | {
        "split0_test_score": np.array(scores),
        "mean_test_score": np.array(scores),
        "std_test_score": np.zeros(len(scores)),
        "rank_test_score": rankdata(-ranked, method="min").astype(np.int32),
        "mean_fit_time": np.array([trial.time_s for trial in trials]),
        "std_fit_time": np.zeros(len(trials)),
        "cost_usd": np.array([trial.cost_usd for trial in trials]),
        "predicted_usd": np.array(
            [math.nan if trial.predicted_usd is None else trial.predicted_usd for trial in trials]
        ),
        "state": np.array([trial.state for trial in trials], dtype=object),
        "job_id": np.array([trial.id for trial in trials], dtype=object),
    }
