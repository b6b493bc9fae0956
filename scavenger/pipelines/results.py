"""What a client answers: values that show themselves as text and, in notebooks, as tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING

from scavenger import errors
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, CurvePoint, Infeasible, TradeoffCurve, thinned
from scavenger.domain.report import Actual, JobState, MetricOutcome, Predicted, RunReport
from scavenger.presentation.formatting import (
    beside_target,
    clean,
    difference,
    duration,
    duration_range,
    duration_ranges,
    durations,
    money,
    money_range,
    money_ranges,
    moneys,
    plural,
    traceback_lines,
    when,
)
from scavenger.presentation.picture import picture_of
from scavenger.presentation.total import total_words

if TYPE_CHECKING:
    from scavenger.api.models import ListedModel
    from scavenger.api.submissions import SubmittedJob

__all__ = ["Models", "Plan", "Run", "Submission", "Table"]

_ERRORS: dict[int, type[errors.ScavengerError]] = {
    kind.exit_code: kind
    for kind in (
        errors.ConfigurationError,
        errors.TransientError,
        errors.NoFeasiblePlanError,
        errors.LimitReachedError,
        errors.TrainingError,
        errors.CloudError,
        errors.CleanupError,
        errors.StoreError,
    )
}
_ROWS = 24
_DRAWN_MAX = 1_500
"""Most configurations in a notebook's picture: more would make its file large."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under titles; the first column is aligned to the left, the others to the right."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = (self.titles, *self.rows)
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.titles))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(title)}</th>" for title in self.titles)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class _Shown:
    """Text and HTML of the same parts: lines of text, and tables."""

    def _parts(self) -> Iterator[str | Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(str(part) for part in self._parts())

    def _repr_html_(self) -> str:
        return "".join(
            part._repr_html_()
            if isinstance(part, Table)
            else f"<pre>{escape(part)}</pre>"
            if "\n" in part
            else f"<div>{escape(part)}</div>"
            for part in self._parts()
        )


@dataclass(frozen=True)
class Plan(_Shown):
    """The predicted time and cost of every configuration, and the choice among them.

    Attributes:
        report: All that is known, as `scavenger plan -o json` writes it.
    """

    report: RunReport

    @property
    def id(self) -> str:
        """The job's id."""
        return self.report.job.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self.report.job.name

    @property
    def curve(self) -> TradeoffCurve:
        """The predictions.

        Raises:
            ConfigurationError: If the job ended before they were made.
        """
        if self.report.curve is None:
            raise errors.ConfigurationError(
                f"job {self.name} ({self.id[:8]}) has no curve: it is {self.report.job.state}"
            )
        return self.report.curve

    @property
    def choice(self) -> Choice:
        """The chosen configuration with its predictions.

        Raises:
            NoFeasiblePlanError: If no configuration meets the constraints.
            ConfigurationError: If the job ended before the choice.
        """
        choice = self.report.choice
        if isinstance(choice, Infeasible):
            raise errors.NoFeasiblePlanError(choice.reason)
        if choice is None:
            raise errors.ConfigurationError(
                f"job {self.name} ({self.id[:8]}) has no choice: it is {self.report.job.state}"
            )
        return choice

    @property
    def front(self) -> tuple[CurvePoint, ...]:
        """The configurations that no other beats in both time and cost, fastest first."""
        return tuple(
            sorted((point for point in self.curve if point.on_front), key=lambda point: point.time_s)
        )

    @property
    def predicted(self) -> Predicted | None:
        """The prediction for this run; None if nothing was chosen."""
        return self.report.predicted

    @property
    def profiled(self) -> int:
        """The number of configurations that were measured for it; 0 if a stored model was used."""
        return len(self.report.search.profiled)

    def _parts(self) -> Iterator[str | Table]:
        search = self.report.search
        done = plural(self.profiled, "configuration") + " profiled" if self.profiled else "nothing profiled"
        spent = f"{duration(search.time_s)} for {money(search.cost_usd)}"
        yield f"Job {clean(self.name)} ({self.id[:8]}): {done} in {spent}"
        if self.predicted is not None:
            yield total_words(self.predicted)
        yield from self._choice_parts()

    def _repr_html_(self) -> str:
        return self._picture() + super()._repr_html_()

    def _picture(self) -> str:
        """The curve as SVG in the page's text colour; empty without a curve, or without what draws it."""
        if self.report.curve is None or find_spec("matplotlib") is None:
            return ""
        from scavenger.pictures.still import svg_of

        curve, _ = thinned(self.report.curve, self.report.choice, _DRAWN_MAX)
        title = f"{clean(self.name)}: predicted time and cost"
        return svg_of([picture_of(replace(self.report, curve=curve), title)], title=title, inline=True)

    def _choice_parts(self) -> Iterator[str | Table]:
        choice = self.report.choice
        if self.report.curve is not None:
            yield _curve_table(
                self.report.curve, choice.configuration if isinstance(choice, Choice) else None
            )
        if isinstance(choice, Choice):
            yield f"Chosen: {clean(choice.configuration)}: {clean(choice.reason)}"
        elif choice is not None:
            yield f"No configuration meets the constraints: {clean(choice.reason)}"


@dataclass(frozen=True)
class Run(Plan):
    """A job that has ended: what it came to, beside what was predicted."""

    @property
    def state(self) -> JobState:
        """How it ended, as `succeeded`, `target_missed`, `stopped` (by a limit or on request) or `failed`."""
        return self.report.job.state

    @property
    def actual(self) -> Actual | None:
        """Actual time, cost and epochs; None if it was not trained."""
        return self.report.result.actual

    @property
    def cost_usd(self) -> float:
        """What it cost, US dollars."""
        return 0.0 if self.actual is None else self.actual.cost_usd

    @property
    def time_s(self) -> float:
        """How long it took, seconds."""
        return 0.0 if self.actual is None else self.actual.time_s

    @property
    def metric(self) -> MetricOutcome | None:
        """The goal's metric with its best value; None without a goal metric."""
        return self.report.result.metric

    @property
    def value(self) -> float | None:
        """The best value of the goal's metric; None if there is none."""
        return None if self.metric is None else self.metric.value

    @property
    def model_path(self) -> str | None:
        """The saved `.keras` model; None if there is none."""
        return self.report.result.model_path

    @property
    def error(self) -> errors.ScavengerError | None:
        """Why it ended before its goal; None if it did not."""
        report = self.report
        if report.job.state == "interrupted" or report.exit_code in (0, errors.Interrupted.exit_code):
            return None
        words = report.error or f"job {self.name} ({self.id[:8]}) ended: {self.state}"
        found = _ERRORS.get(report.exit_code, errors.ScavengerError)(words)
        if lines := traceback_lines(report.result.traceback):
            found.add_note("\n".join(lines))
        return found

    def against(self, predicted: Predicted | None) -> Run:
        """This run beside what was predicted of it before it began; as it is if nothing was."""
        return self if predicted is None else Run(replace(self.report, predicted=predicted))

    def check(self) -> Run:
        """This run, if it has reached its goal or last epoch.

        Raises:
            ScavengerError: Of the class that says why not; see `error`.
        """
        if (error := self.error) is not None:
            error.add_note(f"job {self.name} ({self.id}), of which `Client.result` has the whole report")
            raise error
        return self

    def _parts(self) -> Iterator[str | Table]:
        words = self.state.replace("_", " ")
        metric = self.metric
        if metric is not None and metric.value is not None:
            value, target = beside_target(metric.value, metric.target)
            words += f"; {clean(metric.name)} {value}{f' (target {target})' if target else ''}"
        yield f"Job {clean(self.name)} ({self.id[:8]}): {words}"
        if self.report.error:
            if lines := traceback_lines(self.report.result.traceback):
                yield "\n".join(lines)
            yield f"error: {clean(self.report.error)}"
        yield from self._choice_parts()
        if (bill := _bill(self.predicted, self.actual)) is not None:
            yield bill
        if self.model_path is not None:
            yield f"model: {clean(self.model_path)}"


def _bill(predicted: Predicted | None, actual: Actual | None) -> Table | None:
    """Predicted and actual figures of a run; None if both are unknown."""
    if predicted is None and actual is None:
        return None
    rows = []
    for name, show, show_range in (("time", durations, duration_range), ("cost", moneys, money_range)):
        of, interval = ("time_s", "time_interval_s") if name == "time" else ("cost_usd", "cost_interval_usd")
        guessed = None if predicted is None else getattr(predicted, of)
        came = None if actual is None else getattr(actual, of)
        first, second = show([guessed, came])
        rows.append(
            (
                name,
                "-" if guessed is None else first,
                "-" if predicted is None else show_range(*getattr(predicted, interval)),
                "-" if came is None else second,
                "-" if guessed is None or came is None else difference(guessed, came),
            )
        )
    return Table(("", "predicted", "(90 %)", "actual", "off by"), tuple(rows))


def _curve_table(curve: TradeoffCurve, chosen: Configuration | None) -> Table:
    """The front first, then the rest by time; at most a screenful, always with the choice."""
    points = sorted(curve, key=lambda point: (not point.on_front, point.time_s))
    kept = [point for point in points if point.configuration == chosen]
    kept += [point for point in points if not point.excluded and point.configuration != chosen][
        : _ROWS - len(kept)
    ]
    kept.sort(key=points.index)
    columns = zip(
        durations([point.time_s for point in kept]),
        duration_ranges([point.time_interval_s for point in kept]),
        moneys([point.cost_usd for point in kept]),
        money_ranges([point.cost_interval_usd for point in kept]),
        strict=True,
    )
    rows = tuple(
        (
            (">" if point.configuration == chosen else " ")
            + ("*" if point.on_front else " ")
            + f" {clean(point.configuration)}",
            *figures,
        )
        for point, figures in zip(kept, columns, strict=True)
    )
    return Table(("   configuration (> chosen, * front)", "time", "(90 %)", "cost", "(90 %)"), rows)


@dataclass(frozen=True)
class Submission(_Shown):
    """A job that is run without this program; `Client.wait` waits for its end.

    Attributes:
        id: The job's id.
        state: As of `scavenger jobs queue`: `queued`, `running` or how it ended.
        reason: Why it waits or has ended; may be empty.
    """

    id: str
    name: str
    state: str
    reason: str
    submitted_at: datetime

    @classmethod
    def of(cls, one: SubmittedJob) -> Submission:
        """What is known of a submitted job."""
        return cls(one.id, one.name, one.state, one.reason, one.submitted_at)

    def _parts(self) -> Iterator[str | Table]:
        reason = f": {clean(self.reason)}" if self.reason else ""
        yield f"Job {clean(self.name)} ({self.id[:8]}): {self.state}{reason}"


@dataclass(frozen=True)
class Models(_Shown):
    """The stored models, newest first, which later jobs of the same kind use instead of profiling.

    Attributes:
        records: The models, each with the `job_name` of the job that fitted it; None if that is not known.
    """

    records: tuple[ListedModel, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ListedModel]:
        return iter(self.records)

    def _parts(self) -> Iterator[str | Table]:
        rows = tuple(
            (
                record.id[:8],
                clean(record.job_name or "-"),
                record.fingerprint.vm,
                str(record.measurements),
                str(record.runs),
                when(record.created_at),
            )
            for record in self.records
        )
        yield Table(("model", "job", "VM", "configurations", "runs", "made"), rows)
