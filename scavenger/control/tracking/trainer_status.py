"""Tells Kubeflow Trainer how far a job is that runs within one of its TrainJobs.

Trainer sets three variables in the containers of a TrainJob: the URL of its status server, a file with the
certificates to trust, and a file with a token, which is replaced while the job runs. A request replaces what was told
before, so only the latest is kept for the next one. Nothing that fails here reaches the training.

References:
    Proposal 2779, "Track TrainJob progress and expose training metrics", Kubeflow Trainer.
"""

from __future__ import annotations

import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from scavenger.domain.progress import Progress, ProgressTracker
from scavenger.domain.report import ChoiceMade, EpochEnded, Event, Observer, Predicted, RunReport, StepDone
from scavenger.masking import mask

log = logging.getLogger(__name__)

SERVER_URL, CA_CERT, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
EVERY_S, END_S = 5.0, 15.0
"""Least time between two requests, which Trainer limits; longest wait at the job's end."""
_TIMEOUT = urllib3.Timeout(connect=3.0, read=5.0)
_LAST_PAUSE_S, _LAST_ATTEMPTS = 1.0, 3
_ALMOST = 99
"""Most that is told of a job that has not ended, per cent."""


@dataclass(frozen=True, slots=True)
class StatusServer:
    """Where the status of a TrainJob is told.

    Attributes:
        url: Of the TrainJob.
        certificates: File with the certificates to trust; None for those of the system.
        token: File with the bearer token, which is read for each request.
    """

    url: str
    certificates: Path | None
    token: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> StatusServer | None:
        """The one that the environment names; None outside a TrainJob."""
        url = environment.get(SERVER_URL, "").strip()
        if not url:
            return None
        files = (environment.get(name, "").strip() for name in (CA_CERT, TOKEN))
        certificates, token = (Path(file) if file else None for file in files)
        return cls(url, certificates, token)

    def post(self, body: bytes) -> None:
        """Replace the status.

        Raises:
            OSError: A file cannot be read.
            HTTPError: The server does not answer, or refuses.
        """
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token.read_text().strip()}"
        context = ssl.create_default_context(cafile=self.certificates)  # read anew: it may have been replaced
        with urllib3.PoolManager(ssl_context=context) as pool:
            answer = pool.request(
                "POST", self.url, body=body, headers=headers, timeout=_TIMEOUT, retries=False, redirect=False
            )
        if answer.status != 200:
            said = " ".join(answer.data[:300].decode(errors="replace").split())
            raise HTTPError(f"it answered {answer.status}: {said}")


class TrainerStatus(Observer):
    """Passes events on, and tells a status server of progress, time left and metrics, on a thread of its own.

    Args:
        observer: Receives every event first.
        server: Where to tell.
        every_s: See `EVERY_S`.
    """

    def __init__(self, observer: Observer, server: StatusServer, *, every_s: float = EVERY_S) -> None:
        self._observer, self._server, self._every_s = observer, server, every_s
        self._progress = ProgressTracker(0.0)
        self._metrics: dict[str, float] = {}
        self._at_s = 0.0
        self._percent: int | None = None
        self._latest: dict[str, Any] | None = None
        self._wake, self._over = threading.Event(), threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._tell_all, name="trainer-status", daemon=True)
        self._thread.start()

    def on_event(self, event: Event) -> None:
        self._observer.on_event(event)
        self._progress.on_event(event)
        match event:
            case ChoiceMade(predicted=Predicted() as predicted):
                self._progress.predict(predicted)
            case EpochEnded(record=ended):
                self._metrics |= ended.metrics
            case StepDone(record=record):
                self._at_s = record.at_s
                self._metrics["cost_usd"] = event.cost_usd
                if (now := self._progress.due(0.0)) is not None:
                    self._tell(now)

    def end(self, report: RunReport) -> None:
        """Tell of the end, with 100 per cent for a job that has succeeded; waits at most `END_S` seconds."""
        done = report.job.state in ("succeeded", "target_missed")
        if (now := self._progress.final()) is not None:
            self._tell(now, left_s=0.0 if done else None, percent=100 if done else self._percent)
        self.stop()

    def stop(self) -> None:
        """Tell what was not told yet, and end the thread."""
        self._over.set()
        self._wake.set()
        self._thread.join(END_S)

    def _tell(self, now: Progress, *, left_s: float | None = None, percent: int | None = None) -> None:
        if percent is None and now.left_s is not None:
            left_s, whole_s = now.left_s, self._at_s + now.left_s
            percent = min(_ALMOST, int(100 * self._at_s / whole_s)) if whole_s > 0.0 else 0
        self._percent = percent
        at = now.configuration
        figures = {
            "loss": now.loss,
            **self._metrics,
            "currentEpoch": now.epoch + 1,
            "step": now.step,
            "workers": at.workers,
            "global_batch_size": at.global_batch_size,
        }
        self._latest = {
            **({} if percent is None else {"progressPercentage": percent}),
            **({} if left_s is None else {"estimatedRemainingSeconds": round(left_s)}),
            "metrics": [
                {"name": name, "value": f"{value:.6g}"}
                for name, value in figures.items()
                if math.isfinite(value)
            ],
            "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self._wake.set()

    # ---- the thread ----------------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        told: dict[str, Any] | None = None
        while not self._over.is_set():
            self._wake.wait()
            self._wake.clear()
            told = self._post_latest(told)
            self._over.wait(self._every_s)
        for _ in range(_LAST_ATTEMPTS):
            told = self._post_latest(told)
            if told is self._latest:
                return
            time.sleep(_LAST_PAUSE_S)

    def _post_latest(self, told: dict[str, Any] | None) -> dict[str, Any] | None:
        """Tell the latest if it was not told yet; returns what the server knows."""
        latest = self._latest
        if latest is told:
            return told
        try:
            self._server.post(msgspec.json.encode({"trainerStatus": latest}))
        except (OSError, HTTPError, ValueError) as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "the status server of Kubeflow Trainer is not told, and the job goes on: %s",
                    mask(str(error)).splitlines()[0] if str(error) else type(error).__name__,
                )
            return told
        return latest


@contextmanager
def told_to_trainer(
    observer: Observer, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[Observer, Callable[[RunReport], None]]]:
    """The observer of a job, and what to call at its end: within a TrainJob, its status server is told of both."""
    server = StatusServer.of(environment)
    if server is None:
        yield observer, lambda report: None
        return
    status = TrainerStatus(observer, server)
    try:
        yield status, status.end
    finally:
        status.stop()
