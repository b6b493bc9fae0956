"""Records a running job in the store and passes every event on to the user's observer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from scavenger.control.training.trainer import Trainer
from scavenger.control.training.writes import Outage, Writes
from scavenger.domain.document import report_document, without_nonfinite
from scavenger.domain.epochs import EPOCHS, EpochsToTell, epochs_data
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.progress import PROGRESS, Progress, ProgressTracker
from scavenger.domain.report import (
    EpochEnded,
    Event,
    Forecasted,
    Noted,
    Observer,
    PhaseChanged,
    RunReport,
    StepDone,
    ViewChanged,
    WorkerChanged,
)
from scavenger.errors import Interrupted, ScavengerError, StoreError, StoreUnavailableError, TransientError
from scavenger.masking import mask
from scavenger.presentation.event_words import event_words
from scavenger.presentation.formatting import plural
from scavenger.store import Store
from scavenger.store.record_file import RecordFile
from scavenger.store.records import JobRecord, JobUpdate, ProcessRole, ProcessState, ProcessUpdate
from scavenger.train.supervisor.events import ProcessState as SupervisorProcess
from scavenger.train.supervisor.face import JobSupervisor

_STATES: dict[str, Any] = {"profiling": "profiling", "running": "running"}
_END_S = 30.0
"""Minimum time that the end of a job waits for its record to be written; the store may be briefly locked."""
_HASTE_S = 10.0
"""The same limit after Ctrl-C, or if the store has been unavailable for too long already."""
_KILL_S = 3.0
"""The same limit after a second Ctrl-C."""
_LOOK_S = 0.5
CONTENDED_S = 60.0
"""Minimum time that another process holds the store before the user is warned: jobs of a busy machine share one, and
SQLite serves waiting writers in no order, so one of them may wait for many others."""

T = TypeVar("T")


class Recorder(Observer):
    """Maintains a job's entry in the store. Leaving its `with` block in any way ends the entry.

    A thread executes the writes in order; only the end of the job waits for them. While the store is unavailable,
    writes are queued and the user is warned. After an outage of `patience_s`, the next `tick` ends the job, so that it
    can still write a checkpoint.

    Args:
        patience_s: Longest outage of the store before the job ends, seconds.

    Attributes:
        record: The entry as of the start of the attempt.
        warnings: Warnings about the recording.
        muted: Whether to hide steps and epochs from the user, while a question is open.
    """

    def __init__(
        self,
        store: Store,
        record: JobRecord,
        observer: Observer,
        *,
        patience_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self.record, self._observer, self._clock = store, record, observer, clock
        self._patience_s = patience_s
        self._copy: RecordFile | None = None
        self._supervisor: JobSupervisor | None = None
        self._known: dict[str, SupervisorProcess] = {}
        self._tracker, self._epochs = ProgressTracker(), EpochsToTell()
        if record.predicted is not None:
            self._tracker.predict(record.predicted)
        if record.chosen is not None:
            self._tracker.choose(record.chosen)
        self._writes = Writes(store.together, clock)
        self._ticking = False
        self._reported: Outage | None = None
        self._ended = self._gave_up = False
        self.warnings: list[str] = []
        self.muted = False

    @classmethod
    def begin(
        cls, store: Store, job: JobSpec, job_file: Path, observer: Observer, *, job_id: str | None = None
    ) -> Recorder:
        """Create a new entry, in state `starting`; with the id of its submission, if it was submitted."""
        entry = store.create_job(job.name, spec=job.written(), job_file=job_file, job_id=job_id)
        return cls(store, entry, observer, patience_s=job.limits.store)

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.record.id

    def __enter__(self) -> Self:
        self._writes.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended:
            text = f"{type(error).__name__}: {error}" if error is not None else "ended without a report"
            line, exit_code = mask(text.splitlines()[0]), getattr(error, "exit_code", 1)
            if self._copy is not None:
                self._copy.end(state="failed", error=line, exit_code=exit_code)
            self._writes.add(
                lambda: self._store.finish_job(
                    self.job_id, state="failed", report=None, error=line, exit_code=exit_code
                )
            )
            # do not delay the error that ended the job; otherwise the next command ends the entry
            self._writes.settle(_HASTE_S)
        self._writes.stop()

    def watch(self, supervisor: JobSupervisor) -> None:
        """Start recording the processes of this supervisor."""
        self._supervisor = supervisor

    def copy_to(self, path: Path) -> None:
        """Also keep the entry in a file, from which it can be restored if the store is lost."""
        self._copy = RecordFile(path, self.record, self._clock)

    def update(self, **fields: Any) -> None:
        """Change fields of the entry; see `scavenger.store.records.JobUpdate`."""
        changes: JobUpdate = fields  # type: ignore[assignment]
        if (predicted := changes.get("predicted")) is not None:
            self._tracker.predict(predicted)
        if self._copy is not None:
            self._copy.update(changes)
        self.keep(lambda: self._store.update_job(self.job_id, **changes))

    def measured(self, measurement: Measurement) -> None:
        """Record a measurement."""
        self.keep(lambda: self._store.add_measurements(self.job_id, [measurement]))

    def tick(self, trainer: Trainer) -> None:
        """Record a heartbeat, the progress and the processes; called about once a second.

        Raises:
            StoreUnavailableError: If the store has been unavailable for too long; raised once.
            StoreError: If a write failed permanently, as when another process has ended the entry.
        """
        self._report_outage()
        self._writes.check()
        self._hold_patience()
        reached: dict[str, Any] = {"step": trainer.step} if trainer.step else {}
        self._record_epochs(self._epochs.due(self._clock(), trainer.cost_usd))
        if self._ticking:  # what the last one queued still waits
            if self._copy is not None:
                self._copy.update({"cost_usd": trainer.cost_usd, **reached})
            return
        self._ticking = True
        self.keep(lambda: self._store.heartbeat(self.job_id))
        self.update(cost_usd=trainer.cost_usd, **reached)
        self._record_progress(self._tracker.due(self._clock()))
        self._record_processes()
        self.keep(self._ticked)

    def _ticked(self) -> None:
        self._ticking = False

    def on_event(self, event: Event) -> None:
        self._tracker.on_event(event)
        if not self.muted:
            self._epochs.on_event(event)
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
            case Forecasted(forecast, kept):
                if kept:
                    text = f"after {plural(forecast.after_epochs, 'epoch')}: {forecast}"
                    self._record_event("forecast", text, data=asdict(forecast))
            case Noted():
                event = replace(event, message=mask(event.message))
                self._record_event("note", event.message, event.level)
            case _:
                pass
        if not (self.muted and isinstance(event, StepDone | EpochEnded)):
            self._notify(event)

    def finish(self, report: RunReport) -> None:
        """End the entry with the report.

        Raises:
            StoreError: If the report could not be written in time.
        """
        self._record_processes()
        self._record_progress(self._tracker.final())
        result = report.result
        cost_usd = None if result.actual is None else result.actual.cost_usd
        self._record_epochs(self._epochs.due(self._clock(), cost_usd, last=True))
        changes: dict[str, Any] = {}
        if result.actual is not None:
            changes |= {"actual": result.actual, "cost_usd": result.actual.cost_usd}
        if result.steps:
            changes["step"] = result.steps
        if result.model_path is not None:
            changes["model_path"] = result.model_path
        if report.measurements_path is not None:
            changes["measurements_path"] = report.measurements_path
        self._ended = True
        if self._copy is not None:
            end = {"state": report.job.state, "error": report.error, "exit_code": report.exit_code}
            self._copy.end(report=without_nonfinite(report_document(report)), **end, **changes)
        self._writes.add(lambda: self._end_entry(report, changes))
        self._wait_for_writes(_HASTE_S if self._gave_up or report.job.state == "interrupted" else None)
        self._notify(PhaseChanged("done", report.job.state))

    def record_kill(self, reason: str) -> None:
        """End the entry of a job whose processes were killed, within seconds; for a process that exits next.

        Safe in a signal handler: the write is tried in a thread of its own, since the interrupted code may hold a lock.
        """
        writing = threading.Thread(target=self._end_killed, args=(reason,), name="store-kill", daemon=True)
        writing.start()
        writing.join(_KILL_S)

    def _end_killed(self, reason: str) -> None:
        # without the write, the next command finds that the job is dead
        with contextlib.suppress(ScavengerError):
            self._store.finish_job(
                self.job_id, state="interrupted", report=None, error=reason, exit_code=Interrupted.exit_code
            )

    def _end_entry(self, report: RunReport, changes: dict[str, Any]) -> None:
        try:
            self._store.finish_job(
                self.job_id,
                state=report.job.state,
                report=report_document(report),
                error=report.error,
                exit_code=report.exit_code,
                **changes,
            )
        except StoreError:
            # an earlier try may have succeeded although its answer was lost
            if self._store.job(self.job_id).state != report.job.state:
                raise

    def _wait_for_writes(self, within_s: float | None) -> None:
        """Wait until all writes are done, at most `within_s` or as long as the store may be unavailable.

        Raises:
            StoreError: If writes are still waiting then, or one has failed.
        """
        began = self._clock()
        while not self._writes.settle(_LOOK_S):
            self._report_outage()
            now, outage = self._clock(), self._writes.outage
            since = began if outage is None else outage.since
            until = (
                began + within_s if within_s is not None else max(began + _END_S, since + self._patience_s)
            )
            if now >= until:
                cause = "the store does not answer" if outage is None else outage.cause
                raise StoreUnavailableError(f"the end of the job could not be recorded: {cause}")
        self._report_outage()
        self._writes.check()

    def _report_outage(self) -> None:
        """Report the beginning and the end of an outage of the store, once each."""
        outage = self._writes.outage
        if outage is not None and outage.contended and self._clock() - outage.since < CONTENDED_S:
            return
        if outage is not None and self._reported is None:
            self._reported = outage
            warning = (
                f"{outage.cause}; the job continues for at most {_duration(self._patience_s)}; "
                "its records wait until the store is available"
            )
            self.warnings.append(warning)
            self._notify(Noted("warning", warning))
        elif outage is None and self._reported is not None:
            took_s = self._clock() - self._reported.since
            self._reported = None
            self._notify(
                Noted(
                    "info", f"the store is available again after {took_s:.1f} s; waiting records are written"
                )
            )

    def _hold_patience(self) -> None:
        outage = self._writes.outage
        if outage is None or self._gave_up or self._clock() - outage.since < self._patience_s:
            return
        self._gave_up = True
        raise StoreUnavailableError(
            f"stopped because the store has been unavailable for {_duration(self._patience_s)}: "
            f"{outage.cause}"
        )

    def _notify(self, event: Event) -> None:
        """Pass an event on to the observer, unless the observer has failed before."""
        try:
            self._observer.on_event(event)
        except OSError:  # a closed terminal or pipe must not end the training
            self._observer = Observer()

    def _record_event(
        self, kind: str, text: str, level: Any = "info", data: dict[str, Any] | None = None
    ) -> None:
        self._writes.add(
            lambda: self._store.add_event(self.job_id, kind, text, level=level, data=data), event=True
        )

    def _record_progress(self, progress: Progress | None) -> None:
        """Record how far the job is, in place of what was recorded before."""
        if progress is not None:
            self._writes.add(
                lambda: self._store.add_event(
                    self.job_id, PROGRESS, str(progress), data=progress.data(), replacing=True
                ),
                event=True,
            )

    def _record_epochs(self, epochs: tuple[EpochEnded, ...]) -> None:
        """Record evaluations, for those who follow the job from elsewhere, such as a study by a server."""
        if epochs:
            text = event_words(epochs[-1]) or ""
            self._record_event(EPOCHS, text, data=epochs_data(epochs))

    def keep(self, write: Callable[[], object]) -> None:
        """Queue a write; returns at once."""
        self._writes.add(write)

    def ask(self, question: Callable[[], T], meanwhile: Callable[[], object]) -> T:
        """Run a query of the store after the queued writes, waiting for its answer through an outage.

        Args:
            meanwhile: Called repeatedly until the answer is there; an exception that it raises ends the wait.
        """
        answers: list[T] = []
        self._writes.add(lambda: answers.append(question()))
        while not answers:
            self._writes.check()
            meanwhile()
        return answers[0]

    def checkpointed(self, url: str) -> None:
        """Record the URL of the checkpoints, from which the job can be resumed."""
        self.record = replace(self.record, checkpoint=url)
        self.update(checkpoint=url)

    def _record_processes(self) -> None:
        """Record the changes of the processes in one transaction."""
        if self._supervisor is None:
            return
        changed: dict[str, ProcessUpdate] = {}
        for process in self._supervisor.processes():
            if (
                process.pid and self._known.get(process.name) != process
            ):  # a process without a pid waits for a host
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


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120.0 else f"{seconds / 60.0:g} minutes"


def refuse_second_run(store: Store, job_file: Path, mine: JobRecord | None, *, resumed: bool) -> None:
    """Refuse to run a job file that is already running; of two simultaneous starts, the later one is refused.

    Args:
        mine: This run's entry; None if it has none yet.
        resumed: Whether this run resumes an entry, whose earlier creation time then gives it no precedence.

    Raises:
        TransientError: If this run is refused.
    """
    for other in store.running_jobs(job_file):
        if mine is None or (
            other.id != mine.id and (resumed or (other.created_at, other.id) < (mine.created_at, mine.id))
        ):
            pid = other.owner.pid
            raise TransientError(
                f"{other.name} is already running as job {other.id[:8]} (process {pid}); wait for it, or end "
                f"it with `kill -INT {pid}`"
            )
