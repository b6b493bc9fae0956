"""Keeps the store up to date with a running job, and passes every event on to the user's observer."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scavenger.control.trainer import Trainer
from scavenger.domain.document import report_document
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import (
    Event,
    Noted,
    Observer,
    PhaseChanged,
    RunReport,
    ViewChanged,
    WorkerChanged,
)
from scavenger.store import Store
from scavenger.store.records import JobUpdate, ProcessState
from scavenger.train.coordinator import Coordinator

__all__ = ["Recorder"]

_STATES: dict[str, Any] = {"profiling": "profiling", "running": "running"}


class Recorder(Observer):
    """One job's entry in the store. Leaving its `with` block in any way ends the entry."""

    def __init__(self, store: Store, job_id: str, observer: Observer) -> None:
        self._store, self.job_id, self._observer = store, job_id, observer
        self._coordinator: Coordinator | None = None
        self._known: dict[str, tuple[str, int | None]] = {}
        self._ended = False

    @classmethod
    def begin(cls, store: Store, job: JobSpec, job_file: Path, observer: Observer) -> Recorder:
        """A new entry, in state `starting`."""
        record = store.create_job(job.name, spec=job.written(), job_file=job_file)
        return cls(store, record.id, observer)

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
            self._store.finish_job(
                self.job_id, state="failed", report=None, error=text.splitlines()[0], exit_code=1
            )

    def watch(self, coordinator: Coordinator) -> None:
        """Record the processes of this coordinator from now on."""
        self._coordinator = coordinator

    def update(self, **fields: Any) -> None:
        """Change the entry; see `scavenger.store.records.JobUpdate`."""
        changes: JobUpdate = fields  # type: ignore[assignment]
        self._store.update_job(self.job_id, **changes)

    def measured(self, measurement: Measurement) -> None:
        self._store.add_measurements(self.job_id, [measurement])

    def tick(self, trainer: Trainer) -> None:
        """About once a second: that the job lives, where it is, and what its processes do."""
        self._store.heartbeat(self.job_id)
        if trainer.steps:
            self.update(step=trainer.step, cost_usd=trainer.cost_usd)
        self._record_processes(trainer.step or None)

    def on_event(self, event: Event) -> None:
        """See `Observer.on_event`."""
        match event:
            case PhaseChanged():
                changes: dict[str, Any] = {"phase": event.phase, "detail": event.detail}
                if event.phase in _STATES:
                    changes["state"] = _STATES[event.phase]
                self.update(**changes)
                self._store.add_event(self.job_id, "phase", f"{event.phase}: {event.detail}")
            case WorkerChanged():
                level: Any = "warning" if event.state in ("lost", "failed") else "info"
                text = " ".join(part for part in (event.process, event.state, event.detail) if part)
                self._store.add_event(self.job_id, "worker", text, level=level)
            case ViewChanged():
                self._store.add_event(
                    self.job_id,
                    "view",
                    f"view {event.view} from step {event.first_step}: {event.configuration} ({event.reason}); workers "
                    f"stood still for {event.stall_s * 1e3:.0f} ms",
                )
            case Noted():
                kind: Any = event.level
                self._store.add_event(self.job_id, "note", event.message, level=kind)
            case _:
                pass
        self._observer.on_event(event)

    def finish(self, report: RunReport) -> None:
        """End the entry."""
        self._record_processes(report.steps or None)
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
        self._observer.on_event(PhaseChanged("done", report.state))

    def _record_processes(self, step: int | None) -> None:
        if self._coordinator is None:
            return
        for name, (role, pid, state) in self._coordinator.processes().items():
            if self._known.get(name) == (state, step):
                continue
            self._known[name] = (state, step)
            now: ProcessState = state  # type: ignore[assignment]
            self._store.set_process(
                self.job_id,
                name,
                role=role,  # type: ignore[arg-type]
                state=now,
                pid=pid,
                step=step if state == "training" else None,
            )
