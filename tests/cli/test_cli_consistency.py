"""Figures that are shown together agree at the digits shown, whatever they are."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

from cli_samples import make_curve, make_report
from hypothesis import assume, given
from hypothesis import strategies as st
from nested import changed
from scavenger_cli.ui import console, render

from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import EpochEnded, MetricOutcome, Predicted
from scavenger.presentation.event_words import event_words
from scavenger.presentation.formatting import (
    beside_target,
    duration,
    duration_range,
    duration_ranges,
    duration_within,
    durations,
    money,
    money_parts,
    money_range,
    money_ranges,
    money_within,
    moneys,
)
from scavenger.presentation.total import total_words

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
AMOUNTS = st.floats(1e-6, 1e6)
ANY = st.floats(allow_nan=True, allow_infinity=True)


def read_usd(text: str) -> float:
    return float(text.removeprefix("$").replace(",", ""))


def read_s(text: str) -> float:
    words = text.replace(",", "").split()
    return sum(float(n) * UNITS[unit] for n, unit in zip(words[::2], words[1::2], strict=True))


def read_range(text: str) -> tuple[float, float]:
    """The ends of a range in one unit; equal ones are written once."""
    numbers, _, unit = text.removeprefix("$").partition(" ")
    ends = [float(one.replace(",", "")) * UNITS.get(unit, 1.0) for one in numbers.split("-")]
    return ends[0], ends[-1]


COLUMN = st.lists(
    st.none() | ANY | st.floats(0.0, 100.0) | st.floats(0.0, 1e7).map(lambda one: float(f"{one:.3g}")),
    min_size=1,
    max_size=12,
)
PAIRS_OF_ENDS = st.tuples(st.floats(1e-2, 1e3), st.floats(1.0, 30.0)).map(
    lambda one: (one[0], one[0] * one[1])
)


@given(COLUMN)
def test_times_of_a_column_have_the_same_units_and_are_near_their_values(column: list[float | None]) -> None:
    shown = durations(column)
    finite = [
        (one, text) for one, text in zip(column, shown, strict=True) if one is not None and math.isfinite(one)
    ]

    assert all(
        text in ("unknown", "unbounded") for one, text in zip(column, shown, strict=True) if one is None
    )
    assert len({re.sub(r"-?[\d.,]+(e[+-]\d+)?", "1", text) for _, text in finite}) <= 1
    for one, text in finite:
        if 0.0 <= one < 1e12 and "e" not in text:
            longest = max(abs(other) for other, _ in finite)
            small = 1.0 if longest < 3599.5 else 60.0 if longest < 48 * 3600 - 30 else 3600.0
            assert abs(read_s(text) - one) <= max(
                0.5 * small if longest >= 59.95 else 0.0, 0.006 * one, 1e-300
            ), text
            assert read_s(text) > 0.0 or one < 1e-9
            numbers = re.findall(r"[\d.,]+", text)
            assert all(len(re.sub(r"^0\.0*|[.,]", "", number)) <= 3 for number in numbers[1:] or numbers), (
                text
            )


@given(COLUMN)
def test_dollars_of_a_column_have_the_same_places_and_none_that_is_paid_is_nothing(
    column: list[float | None],
) -> None:
    shown = moneys(column)
    finite = [
        (one, text) for one, text in zip(column, shown, strict=True) if one is not None and math.isfinite(one)
    ]

    assert (
        len({len(text.partition(".")[2]) for one, text in finite if any(other for other, _ in finite)}) <= 1
    )
    for one, text in finite:
        if 1e-9 <= one <= 1e12:
            assert text.startswith("<$") or abs(read_usd(text) - one) <= max(
                0.006 * one, 0.5 * 10.0 ** -len(text.partition(".")[2])
            ) * (1.0 + 1e-9)
            assert text.startswith("<$") or read_usd(text) > 0.0


@given(st.lists(PAIRS_OF_ENDS, min_size=1, max_size=12))
def test_ranges_of_a_column_have_one_unit_and_the_same_places_and_hold_their_values(
    column: list[tuple[float, float]],
) -> None:
    times, bills = duration_ranges(column), money_ranges(column)

    assert len({text.partition(" ")[2] for text in times}) == 1
    assert len({len(text.rpartition(".")[2]) for text in bills if "." in text}) <= 1
    for (low, high), time, bill in zip(column, times, bills, strict=True):
        for first, last in (read_range(time), read_range(bill)):
            assert first <= low * (1 + 1e-9)
            assert last >= high * (1 - 1e-9)


@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=6))
def test_the_parts_of_a_sum_add_up_to_it_as_shown_and_each_is_near_its_own(parts: list[float]) -> None:
    total = math.fsum(parts)
    assume(total >= 1e-6)
    shown = [read_usd(text) for text in money_parts(total, parts)]

    assert math.isclose(math.fsum(shown), read_usd(money(total)), rel_tol=1e-9)
    assert all(abs(one - part) <= max(0.01 * total, 0.01) for one, part in zip(shown, parts, strict=True))


@given(st.lists(AMOUNTS, min_size=3, max_size=3))
def test_an_interval_holds_what_is_shown_beside_it(values: list[float]) -> None:
    low, middle, high = sorted(values)
    assume(high <= 1e4 * low)
    for within, one, read in ((duration_within, duration, read_s), (money_within, money, read_usd)):
        ends = within(middle, low, high).partition("(90 %: ")[2].rstrip(")").split(" to ")
        assert read(ends[0]) <= read(one(middle)) <= read(ends[1])
    for text in (duration_range(low, high), money_range(low, high)):
        first, last = read_range(text)
        assert first <= low * (1 + 1e-9)
        assert high <= last * (1 + 1e-9)


@given(AMOUNTS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_parts_of_what_will_be_paid_add_up_to_it(usd: float, spent: float, searched: float) -> None:
    spent_usd = usd * spent
    predicted = Predicted(
        60.0,
        (30.0, 90.0),
        usd,
        (usd / 2, usd * 2),
        0.1,
        10.0,
        20.0,
        spent_usd,
        search_usd=spent_usd * searched,
    )
    head, _, parts = total_words(predicted).rpartition("): ")
    paid = re.match(r"You will pay about (\$[\d.,]+) ", head)
    assert paid is not None
    shown = [read_usd(part.split(" ")[-1]) for part in parts.split(", ")]

    assert math.isclose(math.fsum(shown), read_usd(paid[1]), rel_tol=1e-9)


@given(st.lists(ANY, min_size=8, max_size=8))
def test_a_number_that_is_none_is_called_unknown(values: list[float]) -> None:
    one, two, three, four, five, six, seven, eight = values
    report = make_report(make_curve())
    assert report.predicted is not None
    assert report.result.actual is not None
    report = changed(
        report,
        predicted=replace(
            report.predicted, time_s=one, cost_usd=two, epochs=three, cost_interval_usd=(four, five)
        ),
        actual=replace(report.result.actual, time_s=six, cost_usd=seven, epochs=eight),
        metric=MetricOutcome("val_loss", one, 0.5, reached=False),
    )
    stream = io.StringIO()
    console.emit(*render.report_text(report, verbose=True), stream=stream)
    epoch = event_words(EpochEnded(EpochRecord(1, 2, {"loss": one}, 0.1, 2.0), "loss", None))

    assert not re.search(r"\b(nan|inf)\b", f"{stream.getvalue()} {epoch}")


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_target_that_is_met_only_by_rounding_is_not_shown_as_met(value: float, target: float) -> None:
    shown, wanted = beside_target(value, target)
    if not math.isclose(value, target, rel_tol=1e-7):
        assert shown != wanted
