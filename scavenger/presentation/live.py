"""A running job at a glance: rows that fit a terminal, from what its events have told so far.

`JobWatch` takes events in; `rows` makes text of the `JobNow` that it holds. Times are seconds of one clock, which the
caller reads.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, replace
from typing import Literal

from scavenger.domain import report as report
from scavenger.domain.curve import Choice
from scavenger.domain.progress import Progress, ProgressTracker
from scavenger.presentation.event_words import event_words
from scavenger.presentation.formatting import (
    beside_target,
    clean,
    duration,
    duration_span,
    money,
    money_span,
    quantity,
)

ROWS_MAX, COLUMNS_MAX = 24, 100
"""Most rows and columns of the display."""
EVENTS_MAX = 8
"""Most of the last events that are shown."""
QUIET_S, QUIET_STEPS = 5.0, 10.0
"""Time without a step after which a job is said to wait: so many seconds, and so many times as long as a step took."""
TRAINING = ("profiling", "fitting", "running")
"""Phases with steps."""
_BAR_MAX, _NAME = 40, 10

Style = Literal["", "bold", "dim", "warning"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the display."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """An event, and when it was told: seconds since the display began."""

    at_s: float
    words: str
    warning: bool


@dataclass(frozen=True, slots=True)
class Dollars:
    """What a job costs, US dollars.

    Attributes:
        so_far: Until now.
        whole, interval: Of the whole run, with its 90 % interval; None while unknown.
        budget: The most that it may cost; None without a limit.
        approved: What its user has agreed to pay; None if nothing was asked.
    """

    so_far: float = 0.0
    whole: float | None = None
    interval: tuple[float, float] = (0.0, 0.0)
    budget: float | None = None
    approved: float | None = None


_STARTING = report.PhaseChanged("starting", "")


@dataclass(frozen=True, slots=True)
class JobNow:
    """What is known of a running job.

    Attributes:
        phase: The phase, and what it does.
        spent_s: Time so far.
        share: Share of the phase that is behind, in [0, 1]; None if unknown.
        progress: Its last step; None before the first one.
        step_time_s: Of that step.
        quiet_s: Time since that step, or since the phase began.
        starting: Workers that are being started.
        events: The last ones, the newest last.
    """

    phase: report.PhaseChanged = _STARTING
    spent_s: float = 0.0
    share: float | None = None
    progress: Progress | None = None
    step_time_s: float = 0.0
    quiet_s: float = 0.0
    starting: tuple[str, ...] = ()
    usd: Dollars = Dollars()
    events: tuple[ToldEvent, ...] = ()


class JobWatch:
    """Holds what is known of a job.

    Args:
        now_s: When the display begins.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = self._quiet_s = self._step_s = now_s
        self._tracker = ProgressTracker()
        self._step: report.StepDone | None = None
        self._now = JobNow()

    def on_event(self, event: report.Event, now_s: float) -> None:
        """Take in an event."""
        self._tracker.on_event(event)
        now = self._now
        match event:
            case report.StepDone():
                self._step, self._step_s, self._quiet_s = event, now_s, now_s
                return
            case report.PhaseChanged():
                self._quiet_s = now_s
                self._now = replace(now, phase=event)
                self._step = None if self._step is None else replace(self._step, progress=None)
            case report.ChoiceMade(curve, Choice(), report.Predicted() as predicted) if (
                not curve.relative_only
            ):
                self.predict(predicted)
            case report.Forecasted(forecast):
                self._forecast(
                    forecast.cost_usd, forecast.epochs, forecast.after_epochs, forecast.epochs_interval
                )
            case report.WorkerChanged(process, state):
                others = tuple(one for one in now.starting if one != process)
                self._now = replace(now, starting=(*others, process) if state == "starting" else others)
        no_row = (
            isinstance(event, report.EpochEnded) and self._tracker.last is None
        )  # as a server tells it, without steps
        words = event_words(event) if no_row else _words(event)
        if words is not None:
            loss = isinstance(event, report.WorkerChanged) and event.state in ("lost", "failed", "preempted")
            warning = loss or (isinstance(event, report.Noted) and event.level == "warning")
            told = ToldEvent(now_s - self._began_s, clean(words), warning)
            self._now = replace(self._now, events=(*self._now.events, told)[-EVENTS_MAX:])

    def predict(self, predicted: report.Predicted) -> None:
        """Take a prediction of the whole run as what to expect, until the metric's course tells better."""
        self._tracker.predict(predicted)
        self._now = replace(
            self._now,
            usd=replace(self._now.usd, whole=predicted.cost_usd, interval=predicted.cost_interval_usd),
        )

    def limit(self, *, budget_usd: float | None = None, approved_usd: float | None = None) -> None:
        """Take what the job may cost, where it is given."""
        known = self._now.usd
        budget = known.budget if budget_usd is None else budget_usd
        approved = known.approved if approved_usd is None else approved_usd
        self._now = replace(self._now, usd=replace(known, budget=budget, approved=approved))

    def _forecast(self, usd: float, epochs: float, after: int, interval: tuple[float, float]) -> None:
        so_far = 0.0 if self._step is None else self._step.cost_usd
        each = max(usd - so_far, 0.0) / (epochs - after) if epochs > after else 0.0
        low, high = (max(usd + (end - epochs) * each, so_far) for end in interval)
        self._now = replace(self._now, usd=replace(self._now.usd, whole=usd, interval=(low, high)))

    def now(self, now_s: float) -> JobNow:
        """What is known at a time."""
        step, since_s, quiet_s = self._step, now_s - self._step_s, now_s - self._quiet_s
        if step is None:
            return replace(self._now, spent_s=now_s - self._began_s, quiet_s=quiet_s)
        progress = self._tracker.last
        if progress is not None and self._now.phase.phase not in TRAINING:
            progress = replace(progress, left_s=None)
        elif progress is not None and progress.left_s is not None and progress.left_interval_s is not None:
            low, high = (max(0.0, end - since_s) for end in progress.left_interval_s)
            progress = replace(
                progress, left_s=max(0.0, progress.left_s - since_s), left_interval_s=(low, high)
            )
        return replace(
            self._now,
            spent_s=step.record.at_s + since_s,
            share=step.progress,
            progress=progress,
            step_time_s=step.record.step_time_s,
            quiet_s=quiet_s,
            usd=replace(self._now.usd, so_far=step.cost_usd),
        )


def _words(event: report.Event) -> str | None:
    """An event in a line of the display; None if another row shows it."""
    match event:
        case report.PhaseChanged() | report.EpochEnded() | report.Forecasted():
            return None
        case report.WorkerChanged(process, "preempted" | "recovered" as state, detail):
            return f"worker: {process} {state}" + (f": {detail}" if detail else "")
        case report.ViewChanged(_, configuration, step, _, reason):
            return f"trains on {configuration} from step {step:,}" + (f": {reason}" if reason else "")
    return event_words(event)


def rows(now: JobNow, *, columns: int, most: int, plain: bool = False) -> list[Row]:
    """What is shown of a job: words before the bar, the most important rows first, then the last events.

    Args:
        columns: Of the terminal, at least 1; a wide character takes two.
        most: Rows, at least 1.
        plain: Whether only ASCII can be shown.
    """
    columns, most = min(columns, COLUMNS_MAX), min(most, ROWS_MAX)
    head = f"{now.phase.phase}: {now.phase.detail}" if now.phase.detail else now.phase.phase
    facts = [Row(cut(clean(head), columns, plain=plain), "bold")]
    for name, words, style in (*_facts(now), *_waiting(now)):
        facts.append(Row(cut(f"{name:<{_NAME}}{clean(words)}", columns, plain=plain), style))
        if name == "done":
            facts[-1] = Row(_with_bar(facts[-1].text, now.share or 0.0, columns, plain=plain), style)
    if len(facts) > most:  # what it waits for is the last, and matters more than the row before it
        facts = [*facts[: most - 1], facts[-1]]
    told = now.events[len(now.events) - max(0, min(len(now.events), most - len(facts))) :]
    width = max((len(duration(_whole(one.at_s))) for one in told), default=0)
    for one in told:
        text = f"{duration(_whole(one.at_s)):>{width}}  {one.words}" if columns >= 60 else one.words
        facts.append(Row(cut(text, columns, plain=plain), "warning" if one.warning else "dim"))
    return facts


def _facts(now: JobNow) -> list[tuple[str, str, Style]]:
    """Rows as name, words and style, the most important first."""
    found: list[tuple[str, str, Style]] = []
    if now.share is not None and math.isfinite(now.share):
        found.append(("done", f"{100.0 * min(max(0.0, now.share), 1.0):.0f} %", ""))
    found += [("time", _time(now), ""), ("cost", _cost(now.usd), "")]
    found += [(name, words, "") for name, words in _limit(now.usd)]
    if (at := now.progress) is None:
        return found
    moved = "" if at.moved is None else f" ({at.moved.reason})"
    found.append(("runs on", f"{at.configuration}{moved}", ""))
    epochs = ""
    if at.epochs_interval is not None:
        epochs = f" of {at.epochs_interval[0]:.0f}-{at.epochs_interval[1]:.0f}"
    step = f"{at.step:,}, epoch {at.epoch + 1:,}{epochs}, {duration(_at_least(now.step_time_s, 0.0))} a step"
    found.append(("step", step, ""))
    value, target = beside_target(at.value, at.target)
    metric = f"{at.metric} {value}{f' (target {target})' if target else ''}, " if at.metric else ""
    found.append(("metric", f"{metric}loss {quantity(at.loss)}", ""))
    return found


def _time(now: JobNow) -> str:
    words = f"{duration(_whole(now.spent_s))} so far"
    at = now.progress
    if at is None or at.left_s is None or at.left_interval_s is None:
        return words
    left = f"about {duration(_whole(at.left_s))} left"
    return f"{words}, {left} (90 %: {duration_span(*map(_whole, at.left_interval_s))})"


def _cost(usd: Dollars) -> str:
    so_far = _at_least(usd.so_far, 0.0)
    words = f"{money(so_far)} so far"
    if usd.whole is None or not math.isfinite(usd.whole):
        return words
    words += f", about {money(_at_least(usd.whole, so_far))} in all"
    low, high = (_at_least(end, so_far) for end in usd.interval)
    return f"{words} (90 %: {money_span(low, high)})" if 0.0 < low <= high < math.inf else words


def _at_least(value: float, least: float) -> float:
    """The value, or the least that it can be; also where it is no number."""
    return value if value > least else least


def _limit(usd: Dollars) -> list[tuple[str, str]]:
    """The row of what a job may cost; none without a limit."""
    for name, most in (("budget", usd.budget), ("approved", usd.approved)):
        if most is not None and 0.0 <= most < math.inf:
            spent = (
                f", {quantity(100.0 * _at_least(usd.so_far, 0.0) / most, 2)} % of it spent"
                if most > 0.0
                else ""
            )
            return [(name, f"{money(most)}{spent}")]
    return []


def _waiting(now: JobNow) -> list[tuple[str, str, Style]]:
    """The row that says what a job waits for; none if it goes on."""
    who = (
        f"{', '.join(now.starting)} {'is' if len(now.starting) == 1 else 'are'} starting"
        if now.starting
        else ""
    )
    if now.phase.phase in TRAINING and now.quiet_s > max(QUIET_S, QUIET_STEPS * now.step_time_s):
        words = f"no step for {duration(_whole(now.quiet_s))}" + (f": {who}" if who else "")
        return [("waits", words, "warning")]
    return [("workers", who, "")] if who else []


def _whole(seconds: float) -> float:
    """Whole seconds, as what is counted up and down is read."""
    return float(int(max(seconds, 0.0))) if math.isfinite(seconds) else seconds


def _with_bar(text: str, share: float, columns: int, *, plain: bool) -> str:
    """The row with a bar after its words, as long as there is room for."""
    room = min(columns - _NAME - 7, _BAR_MAX)
    if room < 4:
        return text
    full, empty = ("#", ".") if plain else ("\u2501", "\u2500")
    done = int(min(max(share, 0.0), 1.0) * room)
    return f"{text:<{_NAME + 6}} {full * done}{empty * (room - done)}"


def cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, columns: int, *, plain: bool = False) -> str:
    """The text within so many columns; what does not fit is left out, with a mark at its end."""
    if cells(text) <= columns:
        return text
    mark = "." if plain else "\u2026"
    room, kept = columns - 1, []
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + mark
