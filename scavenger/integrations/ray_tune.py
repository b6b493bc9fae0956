"""Ray Tune [1]_: trials are jobs of a study; those that promise most get the workers, under one budget.

The search space, the searcher, any scheduler and the table of results are Tune's own::

    search = StudyOfTune(job, "digits", store="jobs.db", budget="$2", at_once=2)
    tuner = tune.Tuner(
        search.trainable(),
        param_space={"learning_rate": tune.loguniform(1e-3, 0.3)},
        tune_config=tune.TuneConfig(
            metric="val_accuracy", mode="max", num_samples=8, max_concurrent_trials=2,
            scheduler=search.scheduler(workers=4),
        ),
        run_config=tune.RunConfig(stop=search.stopper()),
    )

References:
    .. [1] Liaw et al., "Tune: A Research Platform for Distributed Model Selection and Training", 2018.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from scavenger.domain.measurement import EpochRecord
from scavenger.errors import LimitReachedError, ScavengerError
from scavenger.integrations.trials import ending_of, pays_for_another, searched_job
from scavenger.pipelines.budget import dollars
from scavenger.pipelines.client import Client
from scavenger.pipelines.job import Job
from scavenger.pipelines.running import RunningJob
from scavenger.pipelines.study import PRUNED, Study
from scavenger.search.trial_pool import RunningTrial, plan_pool
from scavenger.store.records import LIVE_STATES

if TYPE_CHECKING:
    from ray.train import ScalingConfig

    from scavenger.pipelines.results import Plan

__all__ = ["PromisingFirst", "StopAtBudget", "StudyOfTune", "scaling_config"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Time between looks at what the study has left."""


@dataclass(frozen=True)
class StudyOfTune:
    """A study whose trials are run by Ray's processes. They share its budget through the store.

    Attributes:
        job: The job that is searched; its goal has a metric. A trial's values are its `params`.
        name: The study's name.
        store: As of `Client`. Ray's processes on other machines need one that they reach, as PostgreSQL.
        budget: US dollars for all trials.
        deadline: Their longest time.
        at_once: How many trials run at once, as `max_concurrent_trials` of Tune.
    """

    job: Job
    name: str
    store: str
    budget: str | float | None = None
    deadline: str | float | None = None
    at_once: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "job", searched_job(self.job, None))
        if "://" not in self.store:  # Ray's processes have other folders
            object.__setattr__(self, "store", str(Path(self.store).absolute()))

    def opened(self, client: Client) -> Study:
        """The study, as its record is now."""
        return client.study(self.name, budget=self.budget, deadline=self.deadline, at_once=self.at_once)

    def client(self) -> Client:
        """A client of the study's store."""
        return Client(store=self.store, progress=False)

    def trainable(self) -> type[tune.Trainable]:
        """What `tune.Tuner` runs: each evaluation is a result, with `epoch`, `cost_usd` and `job_id`.

        A trial that Tune stops, stops at its next step and saves nothing.
        """
        study = self

        class JobTrial(_JobTrial):
            study_of_tune = study

        return JobTrial

    def scheduler(self, *, workers: int, base: TrialScheduler | None = None) -> PromisingFirst:
        """A scheduler for these trials; see `PromisingFirst`."""
        return PromisingFirst(self, workers=workers, base=base)

    def stopper(self) -> StopAtBudget:
        """A stopper for these trials; see `StopAtBudget`."""
        return StopAtBudget(self)


class StopAtBudget(tune.Stopper):  # type: ignore[misc]
    """Ends a search when what the study has left does not pay for another trial; running trials end first.

    Args:
        study: The study.
    """

    def __init__(self, study: StudyOfTune) -> None:
        self._study = study
        self._looked_s = -math.inf

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """No trial is stopped by itself."""
        return False

    def stop_all(self) -> bool:
        """Whether the search ends; see `ray.tune.Stopper`."""
        now_s = time.monotonic()
        if (self._study.budget is None and self._study.deadline is None) or now_s < self._looked_s + _LOOK_S:
            return False
        self._looked_s = now_s
        with self._study.client() as client:
            if any(one.state in LIVE_STATES for one in client.records(self._study.name)):
                return False
            return not pays_for_another(self._study.opened(client))


class _JobTrial(tune.Trainable):  # type: ignore[misc]
    """A trial of Tune that is a job: the job runs on a thread, and a step of Tune is one evaluation.

    A function that calls `tune.report` would be ended with its process when Tune stops its trial; a job ends in order.
    """

    study_of_tune: StudyOfTune

    def setup(self, config: dict[str, Any]) -> None:
        """Begin the job; see `ray.tune.Trainable`."""
        self._results: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._client = self.study_of_tune.client()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(dict(config),), name="scavenger-trial")
        self._thread.start()

    def step(self) -> dict[str, Any]:
        """The next evaluation, or the end."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def cleanup(self) -> None:
        """Stop the job, if it has not ended, and wait for its end."""
        self._stopped.set()
        while self._thread.is_alive():
            if self._thread.ident is not None:
                self._client.stop_job(self._thread.ident, PRUNED, save=False)
            self._thread.join(0.2)
        self._client.close()

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Nothing: the job has its own checkpoints."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: the job goes on from its own checkpoint."""

    def _run(self, config: dict[str, Any]) -> None:
        last: dict[str, Any] = {}
        try:
            study = self.study_of_tune.opened(self._client)
            job = self.study_of_tune.job

            def on_epoch(record: EpochRecord) -> bool:
                nonlocal last
                last = self._result(record, config, last.get("job_id"))
                self._results.put(last)
                return self._stopped.is_set()

            done = study.run(job, config, on_epoch=on_epoch)
            ending = ending_of(study, done)
            end = {**last, "cost_usd": done.cost_usd, "time_s": done.time_s, "job_id": done.id, "done": True}
            if ending == "complete":
                end[str(job.spec.goal.metric)] = done.value
            elif ending == "failed" or not last:
                kind = ScavengerError if ending == "failed" else LimitReachedError
                raise kind(f"job {done.id[:8]}: {done.error or done.state}")
            self._results.put(end)
        except BaseException as error:  # noqa: BLE001 - it is raised in Tune's thread
            self._results.put(error)

    def _result(self, record: EpochRecord, config: dict[str, Any], job_id: str | None) -> dict[str, Any]:
        if job_id is None:
            params = self.study_of_tune.job.with_params(**config).params
            job_id = next(
                one.id
                for one in self._client.records(self.study_of_tune.name)
                if one.state in LIVE_STATES and one.spec.get("params", {}) == params
            )
        cost_usd = self._client.cost_of(job_id)
        return {**record.metrics, "epoch": record.epoch + 1, "job_id": job_id, "cost_usd": cost_usd}


class PromisingFirst(TrialScheduler):  # type: ignore[misc]
    """Gives the workers of a pool to the trials that promise most, under the study's budget.

    Beside another scheduler's decisions, which come first: each running trial has a worker, the best have what is
    spare of the pool, up to the job's largest number, and the worst are stopped when the budget does not pay for the
    rest of all. Workers that a stopped trial frees go to others while they train.

    Args:
        study: The study.
        workers: The size of the pool.
        base: The other scheduler, as `ASHAScheduler`; None: first in, first out.
    """

    def __init__(self, study: StudyOfTune, *, workers: int, base: TrialScheduler | None = None) -> None:
        super().__init__()
        self._study, self._workers = study, workers
        self._base = base or FIFOScheduler()
        self._sign, self._of_mode = 1.0, ""
        self._running: dict[str, RunningTrial] = {}
        self._job_ids: dict[str, str] = {}
        self._asked: dict[str, int] = {}
        self._doomed: dict[str, str] = {}
        self.changes: list[tuple[str, int]] = []  # (trial, workers), in their order

    @property
    def metric(self) -> str | None:
        """See `TrialScheduler`."""
        return self._of_mode or self._study.job.spec.goal.metric

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """See `TrialScheduler`."""
        goal = self._study.job.spec.goal
        self._of_mode = metric or str(goal.metric)
        self._sign = -1.0 if (mode or goal.direction) == "min" else 1.0
        return bool(self._base.set_search_properties(metric, mode, **spec))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """See `TrialScheduler`."""
        decision = str(self._base.on_trial_result(tune_controller, trial, result))
        if decision != TrialScheduler.CONTINUE:
            self._forget(trial)
            return decision
        if (value := result.get(str(self.metric))) is None or "job_id" not in result:
            return decision
        spec = self._study.job.spec
        self._job_ids[trial.trial_id] = result["job_id"]
        self._running[trial.trial_id] = RunningTrial(
            trial.trial_id,
            self._sign * value if math.isfinite(value) else -math.inf,
            max(1, result["epoch"]),
            spec.goal.max_epochs,
            result["cost_usd"],
            spec.elastic_range[1],
        )
        self._replan(tune_controller)
        if (reason := self._doomed.get(trial.trial_id)) is not None:
            log.info("trial %s is stopped: %s", trial.trial_id, reason)
            self._forget(trial)
            return str(TrialScheduler.STOP)
        return decision

    def _replan(self, tune_controller: Any) -> None:
        live = [one for one in tune_controller.get_trials() if one.status == "RUNNING"]
        unknown = sum(one.trial_id not in self._running for one in live)
        plan = plan_pool(
            tuple(self._running.values()), workers=self._workers, left_usd=self._left_usd(), unknown=unknown
        )
        self._doomed = dict(plan.stopped)
        for trial_id, workers in sorted(plan.workers.items(), key=lambda item: item[1]):  # free some first
            if self._asked.get(trial_id, 0) != workers:
                self._asked[trial_id] = workers
                self.changes.append((trial_id, workers))
                self._scale(trial_id, workers)

    def _left_usd(self) -> float:
        """What is left of the budget beyond what all trials have cost so far."""
        if (budget_usd := dollars(self._study.budget)) is None:
            return math.inf
        with self._study.client() as client:
            return budget_usd - math.fsum(client.cost_of(one.id) for one in client.records(self._study.name))

    def _scale(self, trial_id: str, workers: int) -> None:
        """Ask the trial's job for this number of workers, without waiting for it."""
        job_id, url = self._job_ids[trial_id], self._study.store
        url = url if "://" in url else f"sqlite:///{url}"

        def ask() -> None:
            try:
                RunningJob(job_id, url).scale_to(workers)
            except ScavengerError as error:  # it has ended, or is busy: it is asked again with a later result
                log.info("trial %s keeps its workers: %s", trial_id, error)
                self._asked.pop(trial_id, None)

        threading.Thread(target=ask, name=f"scale-{trial_id}", daemon=True).start()

    def _forget(self, trial: Any) -> None:
        for known in (self._running, self._job_ids, self._asked, self._doomed):
            known.pop(trial.trial_id, None)

    # ---- what the other scheduler decides ------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See `TrialScheduler`."""
        self._base.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """See `TrialScheduler`."""
        self._forget(trial)
        self._base.on_trial_error(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """See `TrialScheduler`."""
        self._forget(trial)
        self._base.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """See `TrialScheduler`."""
        self._forget(trial)
        self._base.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """See `TrialScheduler`."""
        return self._base.choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        """See `TrialScheduler`."""
        shares = ", ".join(f"{trial}: {workers}" for trial, workers in sorted(self._asked.items()))
        return f"Workers of {self._workers} by trial: {shares or 'none'}. {self._base.debug_string()}"


def scaling_config(plan: Plan, *, resources_per_worker: Mapping[str, float] | None = None) -> ScalingConfig:
    """The choice of a plan for a trainer of Ray Train: as many workers, each with the processors of its own.

    Args:
        plan: A plan of `Client.plan`; divide its `choice.configuration.global_batch_size` among the workers.
        resources_per_worker: What Ray sets aside for each, as `{"CPU": 4, "GPU": 1}`; None: Ray's default.

    Raises:
        NoFeasiblePlanError: If no configuration meets the constraints.
    """
    from ray.train import ScalingConfig

    resources = None if resources_per_worker is None else dict(resources_per_worker)
    return ScalingConfig(
        num_workers=plan.choice.configuration.workers,
        resources_per_worker=resources,
        use_gpu=bool(resources and resources.get("GPU")),
    )
