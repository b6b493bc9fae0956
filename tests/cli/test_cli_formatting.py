"""Numbers and names as a person reads them."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain.figures import rounded
from scavenger.presentation.formatting import (
    clean,
    difference,
    digits_apart,
    duration,
    duration_range,
    money,
    money_range,
    quantity,
    size,
)


@pytest.mark.parametrize(
    ("one", "other", "shown"), [(0.7, 0.9, "0.7"), (0.899996, 0.9, "0.899996"), (1e-9, 1.0000001e-9, "1e-9")]
)
def test_a_near_miss_is_not_shown_as_a_hit(one: float, other: float, shown: str) -> None:
    digits = digits_apart(one, other, 4)
    assert quantity(one, digits) != quantity(other, digits)
    assert float(quantity(one, digits)) == pytest.approx(float(shown), rel=1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3e-4, "300 us"),
        (0.0853, "85.3 ms"),
        (0.9999, "1 s"),
        (12.345, "12.3 s"),
        (59.97, "1 min"),
        (250, "4 min 10 s"),
        (3599.7, "1 h"),
        (4320, "1 h 12 min"),
        (280_000, "3 d 6 h"),
        (math.inf, "unbounded"),
        (math.nan, "unknown"),
        (None, "unknown"),
    ],
)
def test_durations_are_said_in_the_units_a_person_would_choose(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0"),
        (0.0042, "$0.0042"),
        (0.5, "$0.50"),
        (12.345, "$12.35"),
        (12345, "$12,345"),
        (1e-12, "<$0.000001"),
    ],
)
def test_money_keeps_the_digits_that_matter(usd: float, text: str) -> None:
    assert money(usd) == text


@given(st.floats(1e-6, 1e9))
def test_money_is_never_off_by_more_than_half_a_percent_or_half_a_cent(usd: float) -> None:
    read = float(money(usd).removeprefix("<").removeprefix("$").replace(",", ""))

    assert read == pytest.approx(usd, rel=0.0051, abs=0.0 if usd < 0.99 else 0.005)


@given(st.floats(1e-5, 1e8))
def test_durations_are_never_off_by_more_than_one_percent(seconds: float) -> None:
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    words = duration(seconds).replace(",", "").split()
    read = sum(float(n) * units[unit] for n, unit in zip(words[::2], words[1::2], strict=True))

    assert read == pytest.approx(seconds, rel=0.012)


def test_the_ends_of_an_interval_share_a_unit_that_suits_both() -> None:
    assert duration_range(3500, 5400) == "58-90 min"
    assert duration_range(47, 132) == "47-140 s"
    assert duration_range(60, 192) == "60-200 s"
    assert duration_range(0.2, 0.9) == "200-900 ms"
    assert duration_range(0.0, 5.0) == "0-5 s"
    assert money_range(0.004, 0.0052) == "$0.004-0.0052"
    assert duration_range(1.0, math.inf) == "unknown"


def test_sizes_and_differences() -> None:
    assert size(600 * 2**20) == "600 MiB"
    assert difference(1.1, 1.0) == "+10.0 %"
    assert difference(1.0, 0.0) == "was 0"
    assert difference(0.9999, 1.0) == "0 %"
    assert difference(1.0001, 1.0) == "0 %"
    assert difference(244.9, 1.0) == "245 times"
    assert quantity(123_456) == "123,000"


@given(st.text())
def test_cleaned_text_is_one_line_that_cannot_steer_a_terminal(text: str) -> None:
    cleaned = clean(text)

    assert not [c for c in cleaned if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert clean(cleaned) == cleaned


def test_escapes_go_whole_and_the_words_between_them_stay() -> None:
    assert clean("a\x1b[31mred\x1b[0m\x1b]52;c;ZXZpbA==\x07b\n\u202ec\x9b2Jd") == "aredb c2Jd"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1260.0, "1,260"), (12346.0, "12,300"), (0.001234567, "0.00123"), (-3.0, "-3"), (1e9, "1,000,000,000")],
)
def test_figures_of_messages_have_no_exponent(value: float, text: str) -> None:
    assert rounded(value) == text
