"""MLflow: a run per job, nested under one per study; only its client is used, so nothing is global."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from scavenger.control.tracking.base import TrackedRun
from scavenger.logs import OfThread
from scavenger.private_files import make_private_folder

JOB, STUDY, PARENT, NAME = "scavenger.job_id", "scavenger.study", "mlflow.parentRunId", "mlflow.runName"
ALLOW_FOLDERS = "MLFLOW_ALLOW_FILE_STORE"
_NO_FOLDERS_SINCE = (3, 13)
_creating = threading.Lock()
"""Trials of one program begin at once, and share the run of their study."""


class MlflowTracker:
    """A run of MLflow [1]_.

    References:
        .. [1] Zaharia et al., "Accelerating the Machine Learning Lifecycle with MLflow", 2018.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client: Any = None
        self._run_id, self._name = "", ""
        self._parent: str | None = None
        self._told: dict[str, int] = {}
        self._apart: OfThread | None = None

    def begin(self, run: TrackedRun) -> None:
        """See `Tracker`; steps that are trained again are not told again, as MLflow keeps all that it was told."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        if run.log is not None:
            make_private_folder(run.log.parent)
            self._apart = OfThread(run.log)
            for handler in logging.getLogger("mlflow").handlers:
                handler.addFilter(self._apart)
        self._client = MlflowClient(tracking_uri=uri_of(self._uri, run))
        with _creating:
            found = self._client.get_experiment_by_name(run.experiment)
            experiment = (
                self._client.create_experiment(run.experiment) if found is None else found.experiment_id
            )
            parent = None if run.group is None else self._one(experiment, STUDY, run.group)
            if run.group is not None and parent is None:
                tags = {STUDY: run.group, NAME: run.group}
                parent = self._client.create_run(experiment, tags=tags).info.run_id
            elif parent is not None:  # it had ended with the last of its trials
                self._client.update_run(parent, status="RUNNING")
        self._parent = parent
        self._name = run.name if parent is None else f"{run.name}-{run.job_id[:8]}"
        known = self._one(experiment, JOB, run.job_id)
        if known is not None:
            self._run_id = known
            self._client.update_run(known, status="RUNNING")
            for name in self._client.get_run(known).data.metrics:
                history = self._client.get_metric_history(known, name)
                self._told[name] = max(one.step for one in history)
            return
        tags = {JOB: run.job_id, NAME: self._name} | ({} if parent is None else {PARENT: parent})
        self._run_id = self._client.create_run(experiment, tags=tags).info.run_id
        params = [Param(key, value[:500]) for key, value in run.params.items()]
        self._client.log_batch(self._run_id, params=params)

    def _one(self, experiment: str, tag: str, value: str) -> str | None:
        """The run with this tag; None if there is none."""
        quoted = value.replace("'", "")
        runs = self._client.search_runs([experiment], f"tags.`{tag}` = '{quoted}'", max_results=1)
        return None if not runs else str(runs[0].info.run_id)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(datetime.now(UTC).timestamp() * 1e3)
        found = [
            Metric(name, value, now_ms, step)
            for name, value in values.items()
            if step > self._told.get(name, -1) or name.startswith(_FIGURES)
        ]
        self._client.log_batch(self._run_id, metrics=found)

    def event(self, step: int, name: str, text: str) -> None:
        """See `Tracker`; an event is a tag, since MLflow has nothing nearer. The run is named after the choice, too."""
        if name == "choice":
            self._client.update_run(self._run_id, name=f"{self._name}, {text.partition(': ')[0]}"[:250])
        self._client.set_tag(self._run_id, f"scavenger.{name}.{step}", text[:5000])

    def end(self, *, succeeded: bool, state: str) -> None:
        self._client.set_tag(self._run_id, "scavenger.state", state)
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else _ENDS.get(state, "KILLED"))
        if self._parent is not None:
            with _creating:
                self._tell_study(self._parent)
        if self._apart is not None:
            for handler in logging.getLogger("mlflow").handlers:
                handler.removeFilter(self._apart)

    def _tell_study(self, parent: str) -> None:
        """What the trials of a study came to so far; its run ends with the last one that is running.

        It has failed where none of them reached its end.
        """
        experiment = self._client.get_run(parent).info.experiment_id
        trials = self._client.search_runs(
            [experiment], f"tags.`{PARENT}` = '{parent}'", max_results=_TRIALS_MAX
        )
        costs = [trial.data.metrics.get("actual_cost_usd", 0.0) for trial in trials]
        for name, value in (("trials", len(trials)), ("actual_cost_usd", sum(costs))):
            self._client.log_metric(parent, name, float(value), step=len(trials))
        statuses = {trial.info.status for trial in trials}
        if "RUNNING" not in statuses:
            self._client.set_terminated(parent, "FINISHED" if "FINISHED" in statuses else "FAILED")


_ENDS = {"failed": "FAILED"}
_TRIALS_MAX = 10_000
"""Most trials of a study that its figures count."""
_FIGURES = ("predicted_", "actual_")
"""Of the report: the last ones count, whatever their step."""


def why_no_folder(uri: str, version: str, environ: Mapping[str, str]) -> str:
    """Why MLflow does not write to a folder, and what helps; empty if the URI names none, or MLflow does.

    Args:
        version: MLflow's.
        environ: The environment of this process.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    allowed = environ.get(ALLOW_FOLDERS, "").lower() in ("true", "1")
    if urlsplit(uri).scheme not in ("", "file") or numbers < _NO_FOLDERS_SINCE or allowed:
        return ""
    return f"MLflow {version} writes to no folder; write sqlite:///mlflow.db, or set {ALLOW_FOLDERS}=true"


def uri_of(uri: str, run: TrackedRun) -> str:
    """The tracking URI, with a relative file in the job file's folder."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        path = uri.removeprefix("sqlite:///")
        return f"sqlite:///{run.folder.resolve() / path}"
    if parts.scheme in ("", "file"):
        return (run.folder.resolve() / uri.removeprefix("file://").removeprefix("file:")).as_uri()
    return uri
