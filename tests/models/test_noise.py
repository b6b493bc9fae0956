"""Gradient noise and its scale."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_digits
from synthetic import step_record

from scavenger.models.noise import (
    AVERAGE_LOG_SD,
    GROWTH_FROM,
    READING_LOG_SD,
    Ewma,
    NoiseReading,
    NoiseTracker,
    SuccessiveGradients,
    critical_batch_from_noise,
    gradient_noise,
    noise_scale_parts,
)

GRADIENTS = hnp.arrays(np.float64, (4, 3), elements=st.floats(-100, 100).map(lambda x: round(x, 3)))


@given(GRADIENTS)
def test_gradient_noise_lies_between_one_and_the_number_of_parts(gradients: np.ndarray) -> None:
    worker, mean = float((gradients**2).sum(axis=1).mean()), float((gradients.mean(axis=0) ** 2).sum())

    assert 1.0 <= gradient_noise(worker, mean, 4) <= 4.0


def test_equal_gradients_carry_no_noise_and_opposite_ones_nothing_but_noise() -> None:
    assert gradient_noise(2.0, 2.0, 4) == 1.0
    assert gradient_noise(2.0, 0.0, 4) == 4.0
    assert gradient_noise(0.0, 0.0, 4) == 1.0


@pytest.mark.parametrize("sqnorm", [math.nan, math.inf, -1.0])
def test_a_squared_norm_that_cannot_be_is_refused(sqnorm: float) -> None:
    with pytest.raises(ValueError, match="squared norm"):
        gradient_noise(sqnorm, 1.0, 2)
    with pytest.raises(ValueError, match="squared norm"):
        noise_scale_parts(1.0, sqnorm, 1.0, 2.0)


@given(st.floats(0.001, 1e3), st.floats(0.001, 1e3), st.integers(2, 16), st.integers(16, 1000))
def test_noise_scale_parts_invert_the_expectations(trace: float, true: float, parts: int, batch: int) -> None:
    small = batch / parts

    found = noise_scale_parts(true + trace / small, true + trace / batch, small, batch)

    assert found == pytest.approx((trace, true), rel=1e-6, abs=1e-9)


def gradients_of_known_covariance(
    rng: np.random.Generator, workers: int, batch: int, trace: float, true: float
) -> tuple[float, float]:
    """Squared norms of one step whose per-sample gradients have mean (√G², 0, ...) and covariance S/d I."""
    dimensions = 50
    deviation = math.sqrt(trace / dimensions / (batch / workers))
    local = rng.normal(0.0, deviation, (workers, dimensions))
    local[:, 0] += math.sqrt(true)
    return float((local**2).sum(axis=1).mean()), float((local.mean(axis=0) ** 2).sum())


def test_the_noise_scale_of_a_known_covariance_is_recovered_across_configurations() -> None:
    rng = np.random.default_rng(7)
    tracker = NoiseTracker()
    for step in range(400):
        workers, batch = ((2, 64), (8, 512))[step // 20 % 2]
        norms = gradients_of_known_covariance(rng, workers, batch, trace=300.0, true=2.0)
        tracker = tracker.update(step_record(step, *norms, workers=workers, batch=batch))

    assert tracker.noise_scale == pytest.approx(150.0, rel=0.25)
    assert tracker.count == 400


def test_the_noise_scale_of_sgd_on_a_linear_regression_is_within_five_percent_of_the_known_one() -> None:
    """y = x·w* + ε with x ~ N(0, Σ): E g = Σ d and tr cov g = tr Σ (d·Σd + σ²) + |Σd|² at d = w - w*."""
    rng = np.random.default_rng(11)
    variances, noise_variance = np.geomspace(0.2, 2.0, 30), 4.0
    away = rng.normal(size=30)
    alpha = 0.005
    tracker = NoiseTracker(alpha)
    true_trace, true_sqnorm = Ewma(alpha), Ewma(alpha)
    for step in range(1200):
        workers, batch = ((4, 128), (1, 64), (8, 512))[step // 20 % 3]
        true = variances * away
        trace = variances.sum() * (float(away @ true) + noise_variance) + float(true @ true)
        true_trace, true_sqnorm = true_trace.update(trace), true_sqnorm.update(float(true @ true))
        parts = max(workers, 2)
        x = rng.normal(size=(parts, batch // parts, 30)) * np.sqrt(variances)
        error = x @ away - rng.normal(0.0, math.sqrt(noise_variance), x.shape[:2])
        local = np.einsum("pbd,pb->pd", x, error) / x.shape[1]
        mean = local.mean(axis=0)
        norms = float((local**2).sum(axis=1).mean()), float(mean @ mean)
        tracker = tracker.update(step_record(step, *norms, workers=workers, batch=batch, parts=parts))
        away = away - 2e-4 * mean

    assert true_trace.value is not None
    assert true_sqnorm.value is not None
    assert tracker.noise_scale == pytest.approx(true_trace.value / true_sqnorm.value, rel=0.05)


def test_gradient_noise_starts_anew_with_a_configuration_and_the_noise_scale_does_not() -> None:
    tracker = NoiseTracker().update(step_record(1, 3.0, 1.5, workers=4))
    moved = tracker.update(step_record(2, 2.0, 1.6, workers=2))

    assert tracker.gradient_noise == pytest.approx(2.0)
    assert moved.gradient_noise == pytest.approx(1.25)
    assert moved.count == 2


def test_the_noise_scale_is_unknown_while_the_true_gradient_drowns() -> None:
    tracker = NoiseTracker().update(step_record(1, 5.0, 0.5, workers=4))

    assert tracker.noise_scale is None
    assert tracker.gradient_noise == 4.0


@pytest.mark.parametrize("record", [step_record(1, 1.0, 1.0, parts=0), step_record(1, math.nan, 1.0)])
def test_a_step_that_tells_nothing_changes_nothing(record) -> None:  # type: ignore[no-untyped-def]
    tracker = NoiseTracker().update(step_record(1, 3.0, 1.5))

    assert tracker.update(record) == tracker
    assert NoiseTracker().gradient_noise is None


@given(st.floats(-1e6, 1e6), st.integers(1, 200), st.floats(0.001, 1.0))
def test_the_average_of_a_constant_is_that_constant_from_the_first_value_on(
    value: float, count: int, alpha: float
) -> None:
    average = Ewma(alpha)
    assert average.value is None
    for _ in range(count):
        average = average.update(value)

    assert average.value == pytest.approx(value, rel=1e-9, abs=1e-9)


# --- growth over a run ------------------------------------------------------------------------------------------


def growing(power: float, until: float, *, batch: float = 64.0, scale: float = 1000.0) -> list[NoiseReading]:
    """φ = scale u^power, read at every hundredth of the run so far."""
    shares = np.arange(1, round(100 * until) + 1) / 100
    return [NoiseReading(float(u), scale * float(u) ** power, 20.0, batch) for u in shares]


def estimate(readings: list[NoiseReading]) -> tuple[float, float]:
    found = critical_batch_from_noise(readings)
    assert found is not None
    return found.critical_batch_size, found.log_sd


def test_noise_that_does_not_grow_is_the_critical_batch_size() -> None:
    assert estimate(growing(0.0, 1.0))[0] == pytest.approx(1000.0, rel=0.02)


@pytest.mark.parametrize("power", [0.2, 0.4])
def test_noise_that_was_read_to_the_end_is_averaged_harmonically_over_the_work(power: float) -> None:
    # At a small batch all samples do the same work: 1 / B* is the mean of u^-g over [0, 1], level at the beginning.
    beginning = GROWTH_FROM ** (1.0 - power)
    mean = beginning + (1.0 - beginning) / (1.0 - power)

    assert estimate(growing(power, 1.0, batch=1e-3))[0] == pytest.approx(1000.0 / mean, rel=0.02)


def test_a_run_at_a_large_batch_spends_its_samples_where_the_noise_is_small_and_that_is_undone() -> None:
    # φ is 10 for the first half of the work and 1000 for the rest: 1/B* = (1/10 + 1/1000) / 2. At B = 90 the first
    # half takes (1 + 90/10) / (1 + 90/10 + 1 + 90/1000) of the samples.
    first = 10.0 / (10.0 + 1.09)
    shares = np.arange(1, 1001) / 1000.0
    readings = [NoiseReading(float(u), 10.0 if u < first else 1000.0, 1.0, 90.0) for u in shares]

    assert estimate(readings)[0] == pytest.approx(2.0 / (1 / 10 + 1 / 1000), rel=0.02)


def test_the_later_the_reading_the_smaller_the_doubt_and_the_nearer_the_estimate() -> None:
    truth = estimate(growing(0.7, 1.0))[0]
    found = [estimate(growing(0.7, until)) for until in (0.02, 0.1, 0.5, 1.0)]
    errors = [abs(math.log(scale / truth)) for scale, _ in found]

    assert all(later[1] < earlier[1] for earlier, later in pairwise(found))
    assert errors[0] > errors[1] > errors[2]
    assert all(error < 1.645 * deviation for error, (_, deviation) in zip(errors, found, strict=True))


def test_an_early_reading_is_taken_to_grow_and_one_of_unknown_progress_is_less_certain() -> None:
    early, early_doubt = estimate([NoiseReading(0.03, 100.0, 20.0, 64.0)])
    unknown, unknown_doubt = estimate([NoiseReading(None, 100.0, 20.0, 64.0)])

    assert early > 200.0
    assert unknown == pytest.approx(early, rel=0.3)
    assert unknown_doubt > early_doubt


@given(st.floats(1e-3, 1e3), st.floats(0.005, 1.0), st.floats(1.0, 1e6))
def test_samples_counted_in_another_unit_scale_the_critical_batch_size(
    unit: float, progress: float, scale: float
) -> None:
    one = [NoiseReading(progress, scale, 20.0, 64.0), NoiseReading(progress / 2, scale / 3, 5.0, 64.0)]
    other = [NoiseReading(r.progress, r.noise_scale * unit, r.steps, r.global_batch_size * unit) for r in one]

    assert estimate(other)[0] == pytest.approx(unit * estimate(one)[0], rel=1e-6)
    assert estimate(other)[1] == pytest.approx(estimate(one)[1], rel=1e-6)


def test_readings_that_cannot_be_are_left_out_and_their_order_does_not_matter() -> None:
    good = growing(0.7, 0.3)
    bad = [
        NoiseReading(0.1, math.nan, 1.0, 64.0),
        NoiseReading(0.1, -1.0, 1.0, 64.0),
        NoiseReading(0.1, math.inf, 1.0, 64.0),
        NoiseReading(1.5, 10.0, 1.0, 64.0),
        NoiseReading(0.0, 10.0, 1.0, 64.0),
        NoiseReading(0.1, 10.0, 0.0, 64.0),
        NoiseReading(None, 10.0, 1.0, 64.0),
    ]

    assert estimate([*bad, *reversed(good)]) == pytest.approx(estimate(good))
    assert critical_batch_from_noise(bad[:-1]) is None
    assert critical_batch_from_noise([]) is None


# ---- successive gradients ----------------------------------------------------------------------------------

_SAMPLES, _HIDDEN, _STEPS = 600, 16, 80


class _Network:
    """Two layers on handwritten digits, and the noise of its gradient over all of them."""

    def __init__(self, seed: int) -> None:
        x, y = load_digits(return_X_y=True)
        self.x, self.y = x[:_SAMPLES] / 16.0, np.eye(10)[y[:_SAMPLES]]
        self.random = np.random.default_rng(seed)
        self.shapes = [(64, _HIDDEN), (_HIDDEN,), (_HIDDEN, 10), (10,)]
        self.weights = np.concatenate(
            [
                self.random.normal(size=shape).ravel() / shape[0] ** 0.5 * (len(shape) > 1)
                for shape in self.shapes
            ]
        )

    def gradient(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """Mean gradient over samples, and the mean squared norm of a sample's own."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        first, bias, second, other = (
            part.reshape(shape) for part, shape in zip(np.split(self.weights, ends), self.shapes, strict=True)
        )
        x, hidden = self.x[rows], np.maximum(self.x[rows] @ first + bias, 0.0)
        odds = np.exp(hidden @ second + other)
        top = odds / odds.sum(axis=1, keepdims=True) - self.y[rows]
        below = (top @ second.T) * (hidden > 0.0)
        parts = [x.T @ below, below.sum(axis=0), hidden.T @ top, top.sum(axis=0)]
        squares = (1.0 + (x**2).sum(axis=1)) * (below**2).sum(axis=1)
        squares += (1.0 + (hidden**2).sum(axis=1)) * (top**2).sum(axis=1)
        return np.concatenate([part.ravel() for part in parts]) / len(rows), float(squares.mean())


def _train(kind: str, rate: float, batch: int, seed: int) -> tuple[float, float | None, float | None]:
    """The noise scale over the last steps: the true one, by successive gradients, and by the last two alone."""
    net, tracker, pair, gradients = _Network(seed), NoiseTracker(), NoiseTracker(), SuccessiveGradients()
    before: list[np.ndarray] = []
    true, whole, moved, squares = (
        Ewma(0.05),
        Ewma(0.05),
        np.zeros_like(net.weights),
        np.zeros_like(net.weights),
    )
    for step in range(1, _STEPS + 1):
        mean, sample = net.gradient(np.arange(len(net.x)))
        whole, true = whole.update(sample - mean @ mean), true.update(mean @ mean)
        gradient, _ = net.gradient(net.random.integers(0, len(net.x), batch))
        products = [float(gradient @ one) for one in (gradient, *before)]
        before = [gradient, *before][:6]
        for number, told in enumerate((gradients.norms(products), SuccessiveGradients().norms(products[:2]))):
            norms = step_record(step, told[0], told[1], batch=batch, parts=told[2])
            tracker, pair = (tracker, pair.update(norms)) if number else (tracker.update(norms), pair)
        if kind == "adam":
            moved, squares = 0.9 * moved + 0.1 * gradient, 0.999 * squares + 0.001 * gradient**2
            scale = (1 - 0.9**step) / (1 - 0.999**step) ** 0.5
            net.weights -= rate * moved / (scale * squares**0.5 + 1e-8)
        else:
            moved = (0.9 if kind == "momentum" else 0.0) * moved + gradient
            net.weights -= rate * moved
    return (whole.value or 0.0) / (true.value or 1.0), tracker.noise_scale, pair.noise_scale


@pytest.mark.slow
def test_successive_gradients_tell_the_noise_at_any_rate_where_two_of_them_do_not() -> None:
    """90 % within what a reading is taken to be off, and all within the interval of the critical batch size."""
    rates = {"descent": (0.01, 0.1, 0.3), "momentum": (0.01, 0.03, 0.1), "adam": (0.001, 0.003, 0.01)}
    off, of_pairs = [], []
    for number, (kind, batch) in enumerate((kind, batch) for kind in rates for batch in (32, 128)):
        for rate in rates[kind]:
            true, found, by_two = _train(kind, rate, batch, number)
            assert found is not None
            off.append(math.log(found / true))
            of_pairs.append(math.inf if by_two is None else math.log(by_two / true))

    assert np.mean(np.abs(off) < 1.645 * READING_LOG_SD) >= 0.9
    assert np.max(np.abs(off)) < 1.645 * AVERAGE_LOG_SD
    assert abs(np.mean(off)) < 0.1
    assert np.mean(np.abs(of_pairs) < 1.645 * READING_LOG_SD) < 0.75
