"""Which trial of a search goes on, and which is begun next: laws, and a search on made curves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.models.surrogate import Surrogate
from scavenger.search.trials import GROWTH, SearchTrial, decide_trial, is_look, outlook, propose


def trial(
    final: float, *, epochs: int = 20, last: int = 20, usd: float = 0.01, at: float = 0.5
) -> SearchTrial:
    """A loss that falls to `final` as 1 / epochs does."""
    values = tuple(final + 1.0 / epoch - 1.0 / last for epoch in range(1, epochs + 1))
    done = epochs == last
    return SearchTrial(
        (at,), tuple(range(1, epochs + 1)), values, last, usd * epochs, usd * (last - epochs), complete=done
    )


def mirrored(one: SearchTrial) -> SearchTrial:
    return replace(one, values=tuple(-value for value in one.values))


DONE = [trial(final) for final in (0.5, 0.7, 0.9)]


def test_a_trial_that_is_far_behind_is_stopped_and_one_that_leads_goes_on() -> None:
    behind, ahead = trial(3.0, epochs=6), trial(0.2, epochs=6)
    assert not decide_trial(behind, DONE, "min").goes_on
    assert decide_trial(ahead, DONE, "min").goes_on
    assert "to be the best for" in decide_trial(behind, DONE, "min").reason


def test_until_a_trial_is_complete_none_is_stopped() -> None:
    assert decide_trial(trial(3.0, epochs=6), [trial(0.5, epochs=6)], "min").goes_on
    assert decide_trial(trial(3.0, epochs=6), [], "min").goes_on


def test_a_trial_whose_metric_is_no_number_is_stopped() -> None:
    lost = replace(trial(0.2, epochs=4), values=(math.nan,) * 4)
    assert not decide_trial(lost, DONE, "min").goes_on


@given(final=st.floats(-1.0, 3.0), epochs=st.integers(2, 19), factor=st.floats(1.0, 100.0))
def test_a_dearer_rest_is_never_more_worth_it(final: float, epochs: int, factor: float) -> None:
    one = trial(final, epochs=epochs)
    dearer = replace(one, rest_usd=one.rest_usd * factor)
    assert decide_trial(one, DONE, "min").goes_on or not decide_trial(dearer, DONE, "min").goes_on


@given(final=st.floats(-1.0, 3.0), epochs=st.integers(2, 19), unit=st.sampled_from([1e-6, 1e3]))
def test_neither_the_unit_of_money_nor_the_sign_of_the_metric_matters(
    final: float, epochs: int, unit: float
) -> None:
    one = trial(final, epochs=epochs)
    scaled = [replace(t, spent_usd=t.spent_usd * unit, rest_usd=t.rest_usd * unit) for t in (one, *DONE)]
    expected = decide_trial(one, DONE, "min").goes_on
    assert decide_trial(scaled[0], scaled[1:], "min").goes_on == expected
    assert decide_trial(mirrored(one), [mirrored(t) for t in DONE], "max").goes_on == expected


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=60))
def test_looks_are_as_many_as_the_logarithm_of_the_spending(steps: list[float]) -> None:
    spent = np.cumsum(steps).tolist()
    looks = sum(is_look(spent[: end + 1]) for end in range(len(spent)))
    assert is_look(spent[:1])
    assert looks <= 1 + math.log(spent[-1] / spent[0]) / math.log(GROWTH) + 1e-9


@given(final=st.floats(-1.0, 3.0), epochs=st.integers(2, 20))
def test_the_outlook_is_no_worse_than_what_was_reached_and_sharp_at_the_end(
    final: float, epochs: int
) -> None:
    one = trial(final, epochs=epochs)
    look = outlook(one, "min", 0.3)
    assert look.mean <= min(one.values) + 1e-12
    assert look.sd > 0.0 or one.complete
    if one.complete:
        assert look == (pytest.approx(min(one.values)), 0.0)


def test_equal_promise_goes_to_the_cheaper_and_equal_cost_to_the_better() -> None:
    sides = [trial(0.5, usd=usd, at=at) for at, usd in ((0.0, 0.1), (0.1, 0.1), (0.9, 0.001), (1.0, 0.001))]
    assert propose(np.array([[0.05], [0.95]]), sides, "min") == 1
    slope = [trial(at, at=at) for at in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert propose(np.array([[0.7], [0.1]]), slope, "min") == 1
    assert propose(np.array([[0.7], [0.1]]), [mirrored(one) for one in slope], "max") == 1


def test_the_surrogate_passes_through_what_was_measured_and_doubts_the_rest() -> None:
    x = np.linspace(0.0, 0.5, 9)[:, None]
    model = Surrogate.exact(x, np.sin(6.0 * x[:, 0]))
    near, near_sd = model.predict(x + 0.02)
    _, far_sd = model.predict(np.array([[1.0]]))
    assert near == pytest.approx(np.sin(6.0 * (x[:, 0] + 0.02)), abs=0.1)
    assert far_sd[0] > 3.0 * near_sd.max()


def test_the_surrogate_takes_one_trial_and_equal_ones() -> None:
    for y in (np.array([1.0]), np.array([1.0, 1.0])):
        mean, sd = Surrogate.exact(np.full((len(y), 2), 0.5), y).predict(np.array([[0.1, 0.9]]))
        assert np.isfinite(mean).all()
        assert (sd > 0.0).all()
