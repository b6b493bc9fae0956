"""The trace of a job: a span for the job, and in it one for each phase, with what happens as events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scavenger.domain import report as report
from scavenger.masking import mask
from scavenger.tracing import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

_TEXT_MAX = 500
_Told = dict[str, str | int | float]


class JobTrace(report.Observer):
    """Passes events on, and makes spans of them."""

    def __init__(self, observer: report.Observer, provider: TracerProvider, name: str) -> None:
        from opentelemetry.trace import set_span_in_context

        self._observer = observer
        self._tracer: Tracer = provider.get_tracer("scavenger")
        self._job: Span = self._tracer.start_span("job", attributes={"scavenger.job.name": name})
        self._context = set_span_in_context(self._job)
        self._phase: Span | None = None

    def on_event(self, event: report.Event) -> None:
        match event:
            case report.PhaseChanged():
                self._begin(event)
            case report.Profiled(measurement=measured):
                self._add("profiled", {"configuration": str(measured.configuration)})
            case report.ChoiceMade():
                self._add("chosen", {})
            case report.ViewChanged():
                told: _Told = {"configuration": str(event.configuration), "step": event.first_step}
                self._add(
                    "view", {**told, "view": event.view, "stall_s": event.stall_s, "reason": event.reason}
                )
            case report.WorkerChanged(process=process, state=state):
                self._add("worker", {"process": process, "state": state, "detail": event.detail})
            case report.Noted(level="warning", message=message):
                self._add("warning", {"message": message})
        self._observer.on_event(event)

    def end(self, job_id: str, state: str, error: str) -> None:
        """End the spans with the outcome of the job."""
        from opentelemetry.trace import Status, StatusCode

        self._end_phase()
        self._job.set_attributes({"scavenger.job.id": job_id, "scavenger.job.state": state})
        if error or state == "failed":
            self._job.set_status(Status(StatusCode.ERROR, mask(error)[:_TEXT_MAX]))
        self._job.end()

    def _begin(self, event: report.PhaseChanged) -> None:
        self._end_phase()
        if event.phase != "done":
            told = {"scavenger.phase.detail": mask(event.detail)[:_TEXT_MAX]}
            self._phase = self._tracer.start_span(event.phase, context=self._context, attributes=told)

    def _end_phase(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None

    def _add(self, name: str, told: _Told) -> None:
        masked = {key: mask(one)[:_TEXT_MAX] if isinstance(one, str) else one for key, one in told.items()}
        (self._phase or self._job).add_event(name, masked)


@contextmanager
def traced(observer: report.Observer, name: str) -> Iterator[tuple[report.Observer, JobTrace | None]]:
    """Trace a job within the block, if that is asked for.

    Args:
        observer: Receives the events of the job.

    Yields:
        The observer that the job uses, and its trace; the observer that was given, and None, if nothing is traced.
    """
    with tracing("scavenger-job") as provider:
        if provider is None:
            yield observer, None
            return
        trace = JobTrace(observer, provider, name)
        try:
            yield trace, trace
        except BaseException as error:
            trace.end("", "failed", str(error) or type(error).__name__)
            raise
