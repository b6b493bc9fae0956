"""KerasTuner 1.4 [1]_: its tuners and oracles, with trials that are jobs of a study.

The hypermodel, the oracle, the project's folder and what a search shows are KerasTuner's own; a trial is trained by
as many workers as its curve says, on a budget that all trials share, and a search that was killed goes on::

    job = scavenger.Job(train.build, data=train.data, goal=8, workers=[1, 2])
    study = client.study("digits", budget="$2")
    tuner = RandomSearch(train.build, objective="val_accuracy", max_trials=20, study=study, job=job)
    tuner.search()

References:
    .. [1] O'Malley et al., "KerasTuner", 2019.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import keras_tuner
from keras_tuner.errors import FailedTrialError, FatalError

from scavenger.domain.measurement import EpochRecord
from scavenger.errors import ConfigurationError, LimitReachedError, ScavengerError
from scavenger.integrations.hypermodel import ENTRY
from scavenger.integrations.trials import ending_of, pays_for_another, searched_job
from scavenger.pipelines.job import Job
from scavenger.pipelines.study import Study, Trial

__all__ = ["BayesianOptimization", "GridSearch", "Hyperband", "RandomSearch", "TrialsAsJobs"]

log = logging.getLogger(__name__)

_OF_ORACLE = "tuner/"
"""Begin of the names of values that are an oracle's own, and no hyperparameters of the model."""
_OTHERWISE = {
    "optimizer": "compile the model in the hypermodel",
    "loss": "compile the model in the hypermodel",
    "metrics": "compile the model in the hypermodel",
    "distribution_strategy": "workers are those of the job: Job(workers=...)",
}


class TrialsAsJobs:
    """Mixed into a tuner of KerasTuner, before it: each trial is a job of a study.

    A trial that fails is a failed trial of the oracle. What each cost is in its metrics, as `cost_usd`. The search ends
    when what the study has left does not pay for a trial of median cost; with a higher budget it goes on. A trial
    whose program was killed goes on from its job's checkpoint, if it has one.

    Args:
        args: Those of the tuner: the hypermodel is the object that `job` names.
        study: Runs the trials.
        job: The job that is searched; `train` names the hypermodel, a `build(hp)` function or a `HyperModel`.
        kwargs: Those of the tuner.

    Raises:
        ConfigurationError: If the job is of another function, or an argument is none that a trial as a job can have.
    """

    oracle: Any
    hypermodel: Any

    def __init__(self, *args: Any, study: Study, job: Job, **kwargs: Any) -> None:
        for name, instead in _OTHERWISE.items():
            if kwargs.get(name) is not None:
                raise ConfigurationError(f"{name}= is not for trials that are jobs: {instead}")
        self.study = study
        self._jobs: dict[str, str] = {}  # by id of a trial, that of its job
        super().__init__(*args, **kwargs)
        objective = self.oracle.objective
        if type(objective) is not keras_tuner.Objective:  # others have no name, or several
            raise ConfigurationError(
                'the search needs one metric as its objective, as objective="val_accuracy"'
            )
        _check_same(self.hypermodel, job)
        self.job = searched_job(job, objective.name, objective.direction)

    # ---- what KerasTuner calls -----------------------------------------------------------------------------

    def search(self, *args: Any, epochs: int | None = None, verbose: Any = "auto", **kwargs: Any) -> None:
        """Search, as `keras_tuner.Tuner.search`; ends early when the study's budget or time is used up.

        Args:
            args: None: the data are the job's.
            epochs: Most epochs of a trial; None: as the job's goal has it. Hyperband has its own.
            verbose: As of KerasTuner.
            kwargs: None.

        Raises:
            ConfigurationError: If arguments of `fit` are given that the job has, or a trial is no valid job.
        """
        if args or kwargs:
            names = ", ".join(kwargs) or "data"
            raise ConfigurationError(
                f"search({names}): the job has these: let the function of Job(data=...) return what KerasJob takes, "
                "callbacks included"
            )
        if epochs is not None:
            self.job = self.job.with_settings({"goal.max_epochs": epochs})
        try:
            super().search(verbose=verbose)  # type: ignore[misc]
        except _Ended as end:  # its trial is left running, so a search that goes on begins with it
            if not isinstance(end.reason, LimitReachedError):
                raise end.reason from None
            log.warning("the search ends: %s", end.reason)

    def pre_create_trial(self) -> None:
        """End the search if the rest of the budget pays for no other trial."""
        super().pre_create_trial()  # type: ignore[misc]
        if not pays_for_another(self.study):
            raise _Ended(LimitReachedError(f"study {self.study.name} has too little left for another trial"))

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Train a trial as a job of the study, or as several with other seeds, whose metrics are averaged."""
        seed, count = self.job.spec.seed, getattr(self, "executions_per_trial", 1)
        done = [self._run_one(trial, seed + number) for number in range(count)]
        means = defaultdict(list)
        for metrics, _ in done:
            for name, value in metrics.items():
                means[name].append(value)
        found = {name: math.fsum(values) / count for name, values in means.items() if len(values) == count}
        return found | {
            "cost_usd": math.fsum(one.cost_usd for _, one in done),
            "time_s": math.fsum(one.time_s for _, one in done),
        }

    def load_model(self, trial: Any) -> Any:
        """The trained model of a trial, with the weights that its job has saved.

        Raises:
            ConfigurationError: If its job has saved none.
        """
        path = self._model_path(trial)
        if path is None:
            raise ConfigurationError(f"trial {trial.trial_id} has no saved model")
        model = self.hypermodel.build(trial.hyperparameters)
        model.load_weights(path)
        return model

    def get_state(self) -> dict[str, Any]:
        """What is saved beside the oracle's state: the job of each trial."""
        return {**super().get_state(), "jobs": self._jobs}  # type: ignore[misc]

    def set_state(self, state: dict[str, Any]) -> None:
        """See `get_state`."""
        super().set_state(state)  # type: ignore[misc]
        self._jobs = dict(state.get("jobs", {}))

    # ---- a trial -------------------------------------------------------------------------------------------

    def _run_one(self, trial: Any, seed: int) -> tuple[dict[str, float], Trial]:
        job, metric = self._job_of(trial, seed), self.oracle.objective.name
        best: dict[str, float] = {}

        def on_epoch(record: EpochRecord) -> bool:
            value = record.metrics.get(metric)
            if value is not None and (
                not best or self.oracle.objective.better_than(value, best.get(metric, math.nan))
            ):
                best.clear()
                best.update(record.metrics)
            on_epoch_end = getattr(self, "on_epoch_end", None)
            if on_epoch_end is not None:
                on_epoch_end(trial, None, record.epoch, dict(record.metrics))
            return False

        try:
            done = self.study.run(job, on_epoch=on_epoch)
        except (LimitReachedError, ConfigurationError) as error:
            raise _Ended(error) from error
        ending = ending_of(self.study, done)
        if ending == "interrupted":
            raise KeyboardInterrupt
        if ending == "used_up":
            raise _Ended(LimitReachedError(done.error or "a limit of the study ended its last trial"))
        if ending != "complete" or done.value is None:
            words = f"job {done.id[:8]}: {done.error or done.state}"
            raise FailedTrialError(words) if done.over else ScavengerError(words)
        self._jobs[trial.trial_id] = done.id
        return best | {metric: done.value}, done

    def _job_of(self, trial: Any, seed: int) -> Job:
        values = trial.hyperparameters.values
        params: dict[str, Any] = {
            "hyperparameters": {
                name: value for name, value in values.items() if not name.startswith(_OF_ORACLE)
            },
            "hypermodel": str(self.job.spec.train),
        }
        changes: dict[str, Any] = {
            "train": ENTRY,
            "seed": None if seed == self.job.spec.seed else seed,
        }
        epochs = values.get("tuner/epochs")
        if epochs is not None:  # Hyperband: the best of a round go on in the next
            before = self._before(values)
            if before is not None:
                params["weights"] = before
                epochs -= values.get("tuner/initial_epoch", 0)
            changes["goal.max_epochs"] = max(1, epochs)
        return self.job.with_settings(changes).with_params(**params)

    def _before(self, values: Mapping[str, Any]) -> str | None:
        """The model of the trial that this one goes on from; None without, or where workers cannot read it."""
        trial_id = values.get("tuner/trial_id")
        if trial_id is None or self.job.spec.infra.capabilities.rents:
            return None
        return self._model_path(self.oracle.get_trial(trial_id))

    def _model_path(self, trial: Any) -> str | None:
        job_id = self._jobs.get(trial.trial_id)
        return next((one.model_path for one in self.study.trials if one.id == job_id), None)


class RandomSearch(TrialsAsJobs, keras_tuner.RandomSearch):  # type: ignore[misc]
    """`keras_tuner.RandomSearch` with trials as jobs; see `TrialsAsJobs`."""


class GridSearch(TrialsAsJobs, keras_tuner.GridSearch):  # type: ignore[misc]
    """`keras_tuner.GridSearch` with trials as jobs; see `TrialsAsJobs`."""


class BayesianOptimization(TrialsAsJobs, keras_tuner.BayesianOptimization):  # type: ignore[misc]
    """`keras_tuner.BayesianOptimization` with trials as jobs; see `TrialsAsJobs`."""


class Hyperband(TrialsAsJobs, keras_tuner.Hyperband):  # type: ignore[misc]
    """`keras_tuner.Hyperband` with trials as jobs; see `TrialsAsJobs`.

    On this machine, a trial of a later round begins with the weights of the one that it goes on from; elsewhere it
    trains all its epochs.
    """


class _Ended(FatalError):  # type: ignore[misc]  # noqa: N818 - it is no error
    """Ends a search; every other exception would only end its trial."""

    def __init__(self, reason: ScavengerError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _check_same(hypermodel: Any, job: Job) -> None:
    """Refuse a function that is not the one which the job names, since workers would build another model.

    Raises:
        ConfigurationError: If it is not.
    """
    build = getattr(hypermodel, "build", None)
    if isinstance(hypermodel, keras_tuner.HyperModel) and type(hypermodel).__name__ != "DefaultHyperModel":
        return  # an object has no name by which it could be found
    named = Job(build, goal=1).spec.train if callable(build) else None
    if named != job.spec.train:
        raise ConfigurationError(
            f"the tuner has {named or 'no hypermodel'}, and the job {job.spec.train}; name the same function"
        )
