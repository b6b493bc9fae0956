"""What pools tell, in words for people."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.api.pools import Gain, Span
from scavenger.domain.pool import ANOTHERS
from scavenger.presentation.formatting import UNKNOWN, clean, duration

__all__ = ["ANOTHERS", "NOW", "changing", "gained", "ranged", "title", "within"]

NOW = Span(0.0, 0.0, 0.0)


def ranged(span: Span, exact: Callable[[float], str], ranged: Callable[[float, float], str]) -> str:
    """A cell: the interval, its lower bound where there is no upper one, or that nothing is known."""
    if span.low is None or (span.high is None and span.low <= 0.0):
        return UNKNOWN
    if span.high is None:
        return f"from {exact(span.low)}"
    return exact(span.low) if span.low == span.high else ranged(span.low, span.high)


def within(span: Span, exact: Callable[[float], str], within: Callable[[float, float, float], str]) -> str:
    """In a sentence: the median with its interval."""
    if span.middle is None or span.low is None or span.high is None or span.low == span.high:
        return ranged(span, exact, lambda low, high: within(low, low, high))
    return within(span.middle, span.low, span.high)


def title(job: str | None, name: str | None) -> str:
    """A job by its name and the beginning of its id."""
    return ANOTHERS if job is None or name is None else f"{clean(name)} ({job[:8]})"


def changing(now: int, then: int, arrow: str = "->") -> str:
    """A number, and what it shall be."""
    return str(now) if then == now else f"{now} {arrow} {then}"


def gained(gain: Gain) -> str:
    """Whose slots change, and what that is to him."""
    what = f"{gain.slots - gain.more} to {gain.slots}"
    if gain.sooner_s is None or gain.sooner_s == 0.0:
        then = ": it would wait" if gain.slots == 0 else ""
    else:
        then = f": {duration(abs(gain.sooner_s))} {'sooner' if gain.sooner_s > 0.0 else 'later'}"
    return f"{title(gain.job, gain.name)} {what}{then}"
