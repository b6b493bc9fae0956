"""Events of a running job as text, for every display of progress."""

from __future__ import annotations

from scavenger.domain import report as report
from scavenger.domain.curve import Choice
from scavenger.presentation.formatting import duration, plural, quantity


def event_words(event: report.Event) -> str | None:
    """An event in one line; None for steps and other events that are not shown."""
    match event:
        case report.PhaseChanged(phase, detail):
            about = detail.replace("_", " ") if phase == "done" else detail  # the name of a state
            return f"{phase}: {about}" if about else phase
        case report.WorkerChanged(process, state, detail):
            if state not in ("lost", "failed"):
                return None
            return f"worker: {process} {state}" + (f": {detail}" if detail else "")
        case report.ViewChanged(view, configuration, first_step, stall_s, reason):
            text = f"view {view}: {configuration} from step {first_step}"
            text += f", stall {duration(stall_s)}" if stall_s > 0 else ""
            return text + (f" ({reason})" if reason else "")
        case report.EpochEnded(record):
            metrics = ", ".join(f"{name} {quantity(value)}" for name, value in record.metrics.items())
            return f"epoch {record.epoch + 1}: {metrics}" if metrics else f"epoch {record.epoch + 1}"
        case report.Profiled(measurement, index, total):
            noise = measurement.noise_scale
            text = f"profiled {index}/{total}: {measurement.configuration}: "
            text += f"{duration(measurement.step_time_s)} a step ({plural(measurement.steps, 'step')})"
            return text + ("" if noise is None else f", noise scale {quantity(noise)}")
        case report.ChoiceMade(_, choice):
            if isinstance(choice, Choice):
                return f"chosen: {choice.configuration}: {choice.reason}"
            return f"no plan: {choice.reason}"
        case report.Forecasted(forecast, kept):
            return f"forecast: {forecast}" if kept else None
        case report.Noted(level, message):
            return f"{'warning' if level == 'warning' else 'note'}: {message}"
        case report.StepDone():
            return None
