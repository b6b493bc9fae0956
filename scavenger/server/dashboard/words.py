"""States, times and shares as the dashboard's pages show them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from scavenger.presentation.formatting import clean, duration, duration_span, money
from scavenger.store.records import JobRecord

Tone = Literal["live", "good", "warn", "bad", "idle"]
"""How a state is coloured; its words say the same, for those who cannot see colours."""

_TONES: dict[str, Tone] = {
    "starting": "live",
    "profiling": "live",
    "running": "live",
    "paused": "warn",
    "planned": "idle",
    "succeeded": "good",
    "target_missed": "warn",
    "failed": "bad",
    "stopped": "idle",
    "interrupted": "warn",
    "queued": "idle",
    "cancelled": "idle",
}


@dataclass(frozen=True, slots=True)
class State:
    """A state in words, with the tone of its colour.

    Attributes:
        live: Whether something goes on in it: of a job, that its process does.
    """

    words: str
    tone: Tone
    live: bool = False


@dataclass(frozen=True, slots=True)
class JobLink:
    """A job, or the submission of one, as lists name it: `name` and `user` are shown, so they are clean."""

    id: str
    name: str
    user: str

    @property
    def short_id(self) -> str:
        """As commands take it."""
        return self.id[:8]

    @property
    def path(self) -> str:
        """Of its page."""
        return f"/jobs/{self.id}"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time for people (in UTC, and how long ago) and for programs (ISO 8601)."""

    words: str
    ago: str
    iso: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value, with an explanation such as its interval; empty if there is none."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Meter:
    """A share of a whole, drawn as a bar.

    Attributes:
        percent: From 0 to 100.
        words: The same for people, with units.
        tone: `warn` from 80 % of a limit on, `bad` from 100 %.
    """

    percent: float
    words: str
    tone: Tone = "live"


def state_of(job: JobRecord, *, alive: bool) -> State:
    """The state of a job; a live job without a process is dead."""
    words = job.state.replace("_", " ")
    if not job.ended and not alive:
        return State(f"dead ({words} when last seen)", "bad")
    return State(words, _TONES[job.state], live=not job.ended)


def link_of(job: JobRecord) -> JobLink:
    """A job as lists name it."""
    return JobLink(job.id, clean(job.name), clean(job.owner.account))


def moment(at: datetime, now: datetime) -> Moment:
    """A time with its age."""
    utc = at.astimezone(UTC)
    ago_s = (now - at).total_seconds()
    ago = f"{_coarse(ago_s)} ago" if ago_s >= 1.0 else "now"
    return Moment(utc.strftime("%Y-%m-%d %H:%M:%S UTC"), ago, utc.isoformat(timespec="seconds"))


def _coarse(seconds: float) -> str:
    """A duration in one unit, as the age of an event needs no more."""
    for unit_s, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s * (2.0 if unit_s > 3600.0 else 1.0):
            return f"{seconds // unit_s:,.0f} {name}"
    return f"{seconds:.0f} s"


def percent(share: float) -> str:
    """A share as a percentage; less than one is not rounded to none."""
    if not math.isfinite(share):
        return "unknown"
    return "<1 %" if 0.0 < share < 0.01 else f"{100.0 * share:.0f} %"


def left_fact(left_s: float | None, interval_s: tuple[float, float] | None) -> Fact | None:
    """The time left, with its interval as the detail; None if it is not known."""
    if left_s is None:
        return None
    interval = "" if interval_s is None else f"90 %: {duration_span(*interval_s)}"
    return Fact("Time left", duration(left_s), interval)


def spent_meter(cost_usd: float | None, budget_usd: float | None) -> Meter | None:
    """What was spent of a budget; None without a budget or a cost."""
    if cost_usd is None or budget_usd is None or budget_usd <= 0.0:
        return None
    share = cost_usd / budget_usd
    tone: Tone = "bad" if share >= 1.0 else "warn" if share >= 0.8 else "live"
    words = f"{money(cost_usd)} of {money(budget_usd)} ({percent(share)})"
    return Meter(min(100.0, 100.0 * share), clean(words), tone)
