"""Which buckets of a job leave an aggregator that is slower than the others: a congested link, or a slow VM.

A step waits for the slowest aggregator. If that is the same one for a while, and steps wait for it clearly longer than
for the others, buckets move so that all should take about as long, as estimated from what each has taken for the bytes
that it holds::

    r_i = h_i / t_i        h_i bytes held, t_i seconds that a step waits for aggregator i
    minimise max_i h'_i / r_i

The estimate is linear: a wait that does not depend on the bytes makes an aggregator look slower than its link is. So
the law is asked again after each move, and an aggregator to which little would be left gives up everything.

Every move is on trial: if steps take longer after it than before, it is undone. A link that recovers is found by the
same law, since the aggregators that hold more are then the slow ones. One that gave up everything is not measured any
more, and gets nothing again.

It does not flap: after a move, waits are about equal, and have to differ by `slower_min` again before the next one;
between two moves is a pause, which is twice as long after each move that did not help; and within `window_s` there are
at most `moves_max` of them, and as many that undo one.

AutoPS moves tensors away from a congested link, too [1]_; it does not say how many, when, or what follows.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, appendix D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

_SHORTEST = 0.05
"""Shortest wait that is counted, as a share of the longest: a link that nothing waits for is not infinitely fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRules:
    """When buckets move.

    Attributes:
        slower_min: How many times the median wait for the others a step has to wait for the slowest.
        gain_min: What a move has to save by the estimate, as a share of the step.
        worse_max: How much longer steps may take after a move, as a share, before it is undone.
        measurements: How many measurements are looked at.
        agreeing_min: Share of them in which the same aggregator has to be slow.
        least_share: What is left to an aggregator has to be at least this share of an even part; else all goes.
        pause_s: Least time between two moves.
        moves_max: Most moves within `window_s`, besides those that undo one.
        window_s: See `moves_max`.
    """

    slower_min: float = 1.5
    gain_min: float = 0.1
    worse_max: float = 0.05
    measurements: int = 8
    agreeing_min: float = 0.8
    least_share: float = 0.1
    pause_s: float = 30.0
    moves_max: int = 4
    window_s: float = 3600.0


DEFAULT_RULES = BalanceRules()


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of some steps in a row.

    Attributes:
        at_s: When, seconds of any clock.
        view: Number of the view.
        step_time_s: Median time of a step.
        waits_s: What a step waited for each aggregator that holds something, by its index; medians.
    """

    at_s: float
    view: int
    step_time_s: float
    waits_s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class BalanceMove:
    """Buckets are to move.

    Attributes:
        holders: The aggregator that is to hold each bucket.
        reason: Why, for users.
        undoes: Whether it undoes the last move.
    """

    holders: tuple[int, ...]
    reason: str
    undoes: bool = False


@dataclass(frozen=True, slots=True)
class _Trial:
    """A move whose effect has yet to be measured."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    view: int
    step_time_s: float


@dataclass(frozen=True, slots=True)
class Balance:
    """What is remembered between two measurements.

    Attributes:
        holders: The aggregator that holds each bucket, at the last measurement.
        measured: The last measurements under that map in one view.
        trial: The move on trial; None for none.
        moved_at_s: When buckets were moved within the window, without moves that undo one.
        not_before_s: When the next move is possible.
        failed: Moves in a row that were undone.
    """

    holders: tuple[int, ...] = ()
    measured: tuple[Measured, ...] = ()
    trial: _Trial | None = None
    moved_at_s: tuple[float, ...] = field(default=())
    not_before_s: float = 0.0
    failed: int = 0


def observe(
    balance: Balance,
    seen: Measured,
    holders: Sequence[int],
    sizes: Sequence[int],
    rules: BalanceRules = DEFAULT_RULES,
) -> tuple[Balance, BalanceMove | None]:
    """Take a measurement; returns what to remember, and the move that it leads to.

    Args:
        balance: What was remembered.
        seen: The measurement; none may be taken while buckets move, nor of the first steps after.
        holders: The aggregator that holds each bucket, during the whole measurement.
        sizes: Bytes of each bucket.
        rules: When buckets move.
    """
    now = tuple(holders)
    trial = balance.trial
    if trial is not None and (trial.after != now or trial.view != seen.view):
        trial = None  # others have moved something, or the view says nothing of the one before
    if now != balance.holders or (balance.measured and balance.measured[-1].view != seen.view):
        balance = replace(balance, holders=now, measured=())
    measured = (*balance.measured, seen)[-rules.measurements :]
    moved = tuple(at for at in balance.moved_at_s if seen.at_s - at < rules.window_s)
    balance = replace(balance, measured=measured, trial=trial, moved_at_s=moved)
    if len(measured) < rules.measurements:
        return balance, None
    if trial is not None:
        return _judged(balance, trial, seen, rules)
    if seen.at_s < balance.not_before_s or len(moved) >= rules.moves_max:
        return balance, None
    found = _move(measured, now, sizes, rules)
    if found is None:
        return balance, None
    trial = _Trial(now, found.holders, seen.view, _step_time_s(measured))
    return (
        replace(
            balance,
            measured=(),
            trial=trial,
            moved_at_s=(*moved, seen.at_s),
            not_before_s=seen.at_s + rules.pause_s * 2**balance.failed,
        ),
        found,
    )


def _judged(
    balance: Balance, trial: _Trial, seen: Measured, rules: BalanceRules
) -> tuple[Balance, BalanceMove | None]:
    """Confirm the move on trial, or undo it."""
    took_s = _step_time_s(balance.measured)
    if took_s <= (1.0 + rules.worse_max) * trial.step_time_s:
        return replace(balance, trial=None, failed=0), None
    failed = balance.failed + 1
    reason = (
        f"steps took {_ms(trial.step_time_s)} before buckets moved, and {_ms(took_s)} after: they move back"
    )
    pause_s = rules.pause_s * 2**failed
    return (
        replace(balance, measured=(), trial=None, failed=failed, not_before_s=seen.at_s + pause_s),
        BalanceMove(trial.before, reason, undoes=True),
    )


def _step_time_s(measured: Sequence[Measured]) -> float:
    return median(one.step_time_s for one in measured)


def _move(
    measured: Sequence[Measured], holders: tuple[int, ...], sizes: Sequence[int], rules: BalanceRules
) -> BalanceMove | None:
    """Return the move that measurements ask for; None for none."""
    held = _held(holders, sizes)
    if len(held) < 2 or any({*one.waits_s} != {*held} for one in measured):
        return None
    slow = [_slowest(one.waits_s, rules.slower_min) for one in measured]
    worst = max(held, key=lambda index: (slow.count(index), -index))
    if slow.count(worst) < rules.agreeing_min * len(slow):
        return None
    waits = {index: median(one.waits_s[index] for one in measured) for index in held}
    longest = max(waits.values())
    rates = {index: held[index] / max(waits[index], _SHORTEST * longest) for index in held}
    wanted = balanced(holders, sizes, rates)
    if _held(wanted, sizes).get(worst, 0) < rules.least_share * sum(sizes) / len(held):
        wanted = balanced(holders, sizes, {**rates, worst: 0.0})
    after = _held(wanted, sizes)
    saved_s = longest - max(load / rates[index] for index, load in after.items())
    if saved_s < rules.gain_min * _step_time_s(measured):
        return None
    others = median(waits[index] for index in held if index != worst)
    left = after.get(worst, 0)
    moved = f"{(held[worst] - left) / 1e6:.3g} of {held[worst] / 1e6:.3g} MB move" if left else "all moves"
    return BalanceMove(
        wanted,
        f"a step waits {_ms(waits[worst])} for aggregator-{worst} and {_ms(others)} for the others: of what it "
        f"holds, {moved} to them",
    )


def _held(holders: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    """Return the bytes that each aggregator holds which holds something."""
    held: dict[int, int] = {}
    for holder, size in sorted(zip(holders, sizes, strict=True)):
        held[holder] = held.get(holder, 0) + size
    return held


def _slowest(waits_s: Mapping[int, float], slower_min: float) -> int | None:
    """Return the aggregator for which a step has waited so much longer than for the others; None for none."""
    worst = max(waits_s, key=lambda index: (waits_s[index], -index))
    others = median(wait for index, wait in waits_s.items() if index != worst)
    return worst if waits_s[worst] > slower_min * others else None


def balanced(holders: Sequence[int], sizes: Sequence[int], rates: Mapping[int, float]) -> tuple[int, ...]:
    """Return the holders of a map by which each aggregator should take about as long; few buckets move.

    The one that would take longest gives a bucket to the one that would be done with it first, as long as that shortens
    the time of the slower of both.

    Args:
        holders: The aggregator that holds each bucket.
        sizes: Bytes of each bucket.
        rates: Bytes per second of each aggregator that may hold something; 0 for one that is to hold nothing. At least
            one is above 0.
    """
    found = list(holders)
    own: dict[int, list[int]] = {index: [] for index in sorted(rates)}
    for bucket, holder in enumerate(found):
        own[holder].append(bucket)
    loads = {index: float(sum(sizes[bucket] for bucket in some)) for index, some in own.items()}

    def time_s(index: int, load: float) -> float:
        if rates[index] > 0.0:
            return load / rates[index]
        return float("inf") if load else 0.0

    takers = [index for index in own if rates[index] > 0.0]
    while True:
        longest = max(own, key=lambda index: (time_s(index, loads[index]), -index))
        step = None
        for place in reversed(range(len(own[longest]))):
            size = sizes[own[longest][place]]
            taker = min(takers, key=lambda index: (time_s(index, loads[index] + size), index))
            if taker != longest and time_s(taker, loads[taker] + size) < time_s(longest, loads[longest]):
                step = place, taker, size
                break
        if step is None:
            return tuple(found)
        place, taker, size = step
        bucket = own[longest].pop(place)
        own[taker].append(bucket)
        found[bucket] = taker
        loads[longest] -= size
        loads[taker] += size


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
