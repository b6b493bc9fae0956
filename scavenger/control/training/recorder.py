"""Keeps the store up to date with a running job, and passes every event on to the user's observer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from scavenger.control.training.trainer import Trainer
from scavenger.domain.document import report_document
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import (
    EpochEnded,
    Event,
    Noted,
    Observer,
    PhaseChanged,
    RunReport,
    StepDone,
    ViewChanged,
    WorkerChanged,
)
from scavenger.errors import ScavengerError, StoreBusyError, TransientError
from scavenger.store import Store
from scavenger.store.records import JobRecord, JobUpdate, ProcessRole, ProcessState, ProcessUpdate
from scavenger.train.supervisor.events import ProcessState as SupervisorProcess
from scavenger.train.supervisor.supervisor import Supervisor

__all__ = ["Recorder", "refuse_second_run"]

_STATES: dict[str, Any] = {"profiling": "profiling", "running": "running"}
_RETRY_S = 30.0
"""Until a store that another process held is tried again: a try holds the job up for a moment."""


class Recorder(Observer):
    """One job's entry in the store. Leaving its `with` block in any way ends the entry.

    Another process that holds the store does not end the job: what is to be recorded waits until the store is
    free again, or, at the latest, until the job's end.

    Attributes:
        record: The entry as it began.
        warnings: What went wrong with the recording.
        muted: Steps and epochs are kept from the user while a question stands.
    """

    def __init__(
        self,
        store: Store,
        record: JobRecord,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self.record, self._observer, self._clock = store, record, observer, clock
        self._supervisor: Supervisor | None = None
        self._known: dict[str, SupervisorProcess] = {}
        self._waiting: list[Callable[[], object]] = []
        self._retry_at = 0.0
        self._ended = self._patient = False
        self.warnings: list[str] = []
        self.muted = False

    @classmethod
    def begin(cls, store: Store, job: JobSpec, job_file: Path, observer: Observer) -> Recorder:
        """A new entry, in state `starting`."""
        return cls(store, store.create_job(job.name, spec=job.written(), job_file=job_file), observer)

    @property
    def job_id(self) -> str:
        return self.record.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended:
            text = f"{type(error).__name__}: {error}" if error is not None else "ended without a report"
            with suppress(
                ScavengerError
            ):  # what ended the job matters more; the next command marks its entry
                self._store.finish_job(
                    self.job_id,
                    state="failed",
                    report=None,
                    error=text.splitlines()[0],
                    exit_code=getattr(error, "exit_code", 1),
                )

    def watch(self, supervisor: Supervisor) -> None:
        """Record the processes of this supervisor from now on."""
        self._supervisor = supervisor

    def update(self, **fields: Any) -> None:
        """Change the entry; see `scavenger.store.records.JobUpdate`."""
        changes: JobUpdate = fields  # type: ignore[assignment]
        self.keep(lambda: self._store.update_job(self.job_id, **changes))

    def measured(self, measurement: Measurement) -> None:
        self.keep(lambda: self._store.add_measurements(self.job_id, [measurement]))

    def tick(self, trainer: Trainer) -> None:
        """About once a second: that the job lives, where it is, and what its processes do."""
        if self._waiting and self._clock() < self._retry_at:
            return
        self.keep(lambda: self._store.heartbeat(self.job_id))
        if not self._waiting:
            reached: dict[str, Any] = {"step": trainer.step} if trainer.step else {}
            self.update(cost_usd=trainer.cost_usd, **reached)
        if not self._waiting:
            self._record_processes()

    def on_event(self, event: Event) -> None:
        """See `Observer.on_event`."""
        match event:
            case PhaseChanged():
                changes: dict[str, Any] = {"phase": event.phase, "detail": event.detail}
                if event.phase in _STATES:
                    changes["state"] = _STATES[event.phase]
                self.update(**changes)
                self._record_event("phase", f"{event.phase}: {event.detail}")
            case WorkerChanged():
                level = "warning" if event.state in ("lost", "failed") else "info"
                text = " ".join(part for part in (event.process, event.state, event.detail) if part)
                data = {"process": event.process, "state": event.state, "detail": event.detail}
                self._record_event("worker", text, level, data)
            case ViewChanged():
                self._record_event(
                    "view",
                    f"view {event.view} from step {event.first_step}: {event.configuration} ({event.reason})"
                    f"; workers stood still for {event.stall_s * 1e3:.0f} ms",
                    data={
                        "view": event.view,
                        "first_step": event.first_step,
                        "workers": event.configuration.workers,
                        "global_batch_size": event.configuration.global_batch_size,
                        "stall_s": event.stall_s,
                        "reason": event.reason,
                    },
                )
            case Noted():
                self._record_event("note", event.message, event.level)
            case _:
                pass
        if not (self.muted and isinstance(event, StepDone | EpochEnded)):
            self._tell(event)

    def finish(self, report: RunReport) -> None:
        """End the entry.

        Raises:
            StoreError, StoreBusyError: It could not be written.
        """
        self._retry_at, self._patient = 0.0, True
        self.keep(lambda: None)
        if not self._waiting:
            self._record_processes()
        changes: dict[str, Any] = {}
        if report.actual is not None:
            changes |= {"actual": report.actual, "cost_usd": report.actual.cost_usd}
        if report.steps:
            changes["step"] = report.steps
        for name in ("model_path", "measurements_path"):
            if (value := getattr(report, name)) is not None:
                changes[name] = value
        self._ended = True
        self._store.finish_job(
            self.job_id,
            state=report.state,
            report=report_document(report),
            error=report.error,
            exit_code=report.exit_code,
            **changes,
        )
        self._tell(PhaseChanged("done", report.state))

    def _tell(self, event: Event) -> None:
        """Pass an event on, as long as there is somebody to hear it."""
        try:
            self._observer.on_event(event)
        except OSError:  # its terminal or pipe is gone, which must not end a training
            self._observer = Observer()

    def _record_event(
        self, kind: str, text: str, level: Any = "info", data: dict[str, Any] | None = None
    ) -> None:
        self.keep(lambda: self._store.add_event(self.job_id, kind, text, level=level, data=data))

    def keep(self, write: Callable[[], object]) -> None:
        """Write to the store, after what still waits; where it is held by another process, wait with it.

        Until the job's end a try waits for a moment only, since nobody holds the limits meanwhile.
        """
        self._waiting.append(write)
        if self._clock() < self._retry_at:
            return
        try:
            with nullcontext() if self._patient else self._store.hurried():
                while self._waiting:
                    self._waiting[0]()
                    del self._waiting[0]
        except StoreBusyError as busy:
            self._retry_at = self._clock() + _RETRY_S
            if not self.warnings:
                self.warnings.append(f"{busy}; meanwhile the job went on")
                self._tell(Noted("warning", self.warnings[0]))
        except BaseException:
            del self._waiting[0]
            raise

    def checkpointed(self, url: str) -> None:
        """The job can be resumed from now on."""
        self.record = replace(self.record, checkpoint=url)
        self.update(checkpoint=url)

    def _record_processes(self) -> None:
        """What has changed of the processes, in one transaction."""
        if self._supervisor is None:
            return
        changed: dict[str, ProcessUpdate] = {}
        for process in self._supervisor.processes():
            if process.pid and self._known.get(process.name) != process:  # without, it waits for a host
                self._known[process.name] = process
                changed[process.name] = {
                    "role": cast(ProcessRole, process.role),
                    "state": cast(ProcessState, process.state),
                    "pid": process.pid,
                    "host": process.host,
                    "detail": process.detail,
                    "step": process.step or None,
                    "view": process.view or None,
                }
        if changed:
            self.keep(lambda: self._store.set_processes(self.job_id, changed))


def refuse_second_run(store: Store, job_file: Path, mine: JobRecord | None, *, resumed: bool) -> None:
    """Of two runs of a job file that were begun at the same moment, unseen by each other, the later gives way.

    Args:
        mine: This run's entry; None where it has none yet.
        resumed: The entry is of an earlier beginning, which gives this run no right.

    Raises:
        TransientError: If this run is to give way.
    """
    for other in store.running_jobs(job_file):
        if mine is None or (
            other.id != mine.id and (resumed or (other.created_at, other.id) < (mine.created_at, mine.id))
        ):
            pid = other.owner.pid
            raise TransientError(
                f"{other.name} runs already as job {other.id[:8]} (process {pid}); wait for it, or end "
                f"it with `kill -INT {pid}`"
            )
