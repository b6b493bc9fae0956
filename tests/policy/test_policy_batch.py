"""Batch rules and the learning rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_jobs import at

from scavenger.domain.elastic import LrScaling
from scavenger.models.noise import Ewma, NoiseTracker
from scavenger.policy.batch import (
    StrongScaling,
    WeakScaling,
    adascale_gain,
    batch_rule,
    learning_rate_scale,
)

counts = st.integers(1, 4096)
batches = st.integers(1, 2**20)


def noisy(trace: float, true: float) -> NoiseTracker:
    """A tracker that has seen this trace of the per-sample covariance and squared norm of the gradient."""
    return NoiseTracker(covariance_trace=Ewma(0.5).update(trace), true_sqnorm=Ewma(0.5).update(true))


# ---- batch -----------------------------------------------------------------------------------------------


@given(counts, counts, st.integers(1, 1000))
def test_strong_keeps_the_batch(workers: int, reference: int, local: int) -> None:
    start = at(reference, reference * local)
    assert StrongScaling().global_batch_size(workers, start) == start.global_batch_size


@given(counts, counts, counts, st.integers(1, 1000), batches)
def test_weak_grows_with_the_workers_up_to_its_maximum_and_is_exact_at_the_start(
    one: int, other: int, reference: int, local: int, batch_max: int
) -> None:
    few, many = sorted((one, other))
    start, rule = at(reference, reference * local), WeakScaling(batch_max)

    assert rule.global_batch_size(reference, start) == start.global_batch_size
    assert rule.global_batch_size(few, start) <= rule.global_batch_size(many, start)
    assert rule.global_batch_size(many, start) <= max(batch_max, start.global_batch_size)
    if many * local <= batch_max:
        assert rule.global_batch_size(many, start) == many * local


def test_rules_are_found_by_name_and_nobody_is_given_no_workers() -> None:
    assert batch_rule("strong", batch_max=9) == StrongScaling()
    assert batch_rule("weak", batch_max=9) == WeakScaling(9)
    for rule in (StrongScaling(), WeakScaling(9)):
        with pytest.raises(ValueError, match="at least one worker"):
            rule.global_batch_size(0, at(1))


# ---- learning rate ---------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), batches, st.integers(1, 64))
def test_the_gain_is_that_of_the_paper(trace: float, true: float, reference: int, scale: int) -> None:
    variance = trace / reference
    expected = (variance + true) / (variance / scale + true)

    gain = adascale_gain(reference * scale, reference, noisy(trace, true))

    assert gain == pytest.approx(expected)
    assert 1.0 <= gain <= scale


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), batches, batches, batches)
def test_the_gain_lies_between_one_and_the_scale_and_rises_with_the_batch(
    trace: float, true: float, reference: int, one: int, other: int
) -> None:
    small, large = sorted((one, other))
    noise = noisy(trace, true)
    for batch in (small, large):
        scale = batch / reference
        assert min(1.0, scale) <= adascale_gain(batch, reference, noise) <= max(1.0, scale)
    assert adascale_gain(small, reference, noise) <= adascale_gain(large, reference, noise) * (1 + 1e-9)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), batches, batches)
def test_going_back_undoes_the_gain(trace: float, true: float, one: int, other: int) -> None:
    noise = noisy(trace, true)
    assert adascale_gain(one, other, noise) * adascale_gain(other, one, noise) == pytest.approx(1.0)


def test_all_noise_gains_in_proportion_no_noise_gains_nothing_and_no_evidence_neither() -> None:
    assert adascale_gain(256, 64, noisy(5.0, 0.0)) == 4.0
    assert adascale_gain(256, 64, noisy(5.0, -1.0)) == 4.0  # an unbiased estimate may be negative
    assert adascale_gain(256, 64, noisy(0.0, 5.0)) == 1.0
    assert adascale_gain(256, 64, noisy(-1.0, 5.0)) == 1.0
    assert adascale_gain(256, 64, noisy(0.0, 0.0)) == 1.0
    assert adascale_gain(256, 64, NoiseTracker()) == 1.0


@pytest.mark.parametrize(("name", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_follows_the_batch(name: LrScaling, factor: float) -> None:
    assert learning_rate_scale(name, 256, 64, NoiseTracker()) == factor


@given(st.sampled_from(["none", "linear", "sqrt", "adascale"]), batches)
def test_at_the_reference_batch_nothing_changes(name: LrScaling, batch: int) -> None:
    assert learning_rate_scale(name, batch, batch, noisy(3.0, 2.0)) == 1.0


def test_adascale_multiplies_the_learning_rate_by_its_gain() -> None:
    assert learning_rate_scale("adascale", 256, 64, noisy(64.0, 1.0)) == pytest.approx(2.0 / 1.25)


def test_what_is_no_batch_is_refused() -> None:
    for batch, reference in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="a batch has samples"):
            learning_rate_scale("none", batch, reference, NoiseTracker())
        with pytest.raises(ValueError, match="a batch has samples"):
            adascale_gain(batch, reference, NoiseTracker())
