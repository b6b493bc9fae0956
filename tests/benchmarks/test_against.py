"""Two versions of a benchmark are compared figure by figure."""

from __future__ import annotations

from benchmarks.against import medians, ratios


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.0, "high": 9.0, "count": 3}


def test_medians_are_found_at_any_depth() -> None:
    figures = {"a_s": spread(2.0), "of": [{"b_ms": spread(3.0)}, "text"], "count": 7}

    assert dict(medians(figures)) == {"a_s": 2.0, "of / 0 / b_ms": 3.0}


def test_only_what_all_rounds_of_both_have_is_compared() -> None:
    then = [{"a": 1.0, "b": 2.0, "zero": 0.0}, {"a": 2.0, "zero": 1.0}]
    now = [{"a": 2.0, "b": 2.0, "zero": 1.0}, {"a": 2.0, "b": 2.0, "zero": 1.0}]

    assert ratios(then, now) == [("a", "1.5", "2", "1.50 (1.00 – 2.00)")]
