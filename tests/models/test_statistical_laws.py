"""Epochs by batch size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import measured

from scavenger.domain.measurement import ConvergenceRecord
from scavenger.models.statistical import (
    NOISE_GROWTH,
    CriticalBatch,
    FixedEpochs,
    NoiseLinear,
    StatisticalModel,
    fit_statistical,
)

SIZES = (64, 128, 256, 512, 1024)
GRID = np.array(SIZES, dtype=np.float64)


def fit(runs=(), hint=None, phi=300.0, **options) -> StatisticalModel:  # type: ignore[no-untyped-def]
    measurements = [measured(1, 64, noise_scale=phi), measured(4, 1024, noise_scale=phi)]
    records = [ConvergenceRecord(batch, epochs) for batch, epochs in runs]
    return fit_statistical(
        measurements, records, global_batch_sizes=SIZES, epochs_hint=hint, max_epochs=100, **options
    )


def test_without_history_the_noise_scale_sets_the_ratios_and_the_hint_the_level() -> None:
    model = fit(hint=10.0)
    epochs, _ = model.predict(GRID)

    assert isinstance(model.law, CriticalBatch)
    assert model.law.critical_batch_size == pytest.approx(300.0 * NOISE_GROWTH)
    assert epochs[0] == pytest.approx(10.0)
    assert not model.relative_only


def test_with_a_mere_bound_only_ratios_are_claimed_and_the_bound_is_kept() -> None:
    model = fit()
    epochs, _ = model.predict(GRID)

    assert model.relative_only
    assert epochs.max() == pytest.approx(100.0)
    assert any("only ratios" in note for note in model.notes)


def test_one_finished_run_sets_the_level() -> None:
    model = fit(runs=[(256, 12.0)], hint=99.0)

    assert model.predict(np.array([256.0]))[0][0] == pytest.approx(12.0, rel=0.01)
    assert not model.relative_only


def test_finished_runs_of_a_critical_batch_job_recover_its_law() -> None:
    truth = CriticalBatch(5.0, 400.0)
    model = fit(
        runs=[(batch, float(truth.epochs(np.array([float(batch)]))[0])) for batch in SIZES * 4], phi=None
    )

    assert isinstance(model.law, CriticalBatch)
    assert model.predict(GRID)[0] == pytest.approx(truth.epochs(GRID), rel=0.03)


def test_finished_runs_of_a_noise_linear_job_choose_that_law() -> None:
    truth = NoiseLinear(4.0, 100.0, 0.0, 1.0)
    model = fit(runs=[(batch, float(truth.epochs(np.array([float(batch)]))[0])) for batch in SIZES])

    assert isinstance(model.law, NoiseLinear)
    assert model.predict(GRID)[0] == pytest.approx(truth.epochs(GRID), rel=0.01)


def test_noise_linear_without_history_is_proportional_to_the_noise() -> None:
    epochs, _ = fit(hint=10.0, law="noise-linear").predict(GRID)

    assert epochs == pytest.approx(10.0 * np.sqrt(64.0 / GRID))


def test_without_a_target_every_run_lasts_the_same_and_that_is_certain() -> None:
    model = fit(fixed_epochs=True)
    epochs, deviation = model.predict(GRID)

    assert isinstance(model.law, FixedEpochs)
    assert np.all(epochs == 100.0)
    assert np.all(deviation == 0.0)


def test_doubt_grows_outside_the_known_batch_sizes_and_shrinks_with_runs() -> None:
    batch = np.array([1024.0, 2048.0, 8192.0, 65536.0])
    _, few = fit(runs=[(64, 10.0)]).predict(batch)
    _, many = fit(runs=[(64, 10.0), (1024, 20.0)] * 5).predict(batch)

    assert np.all(np.diff(few) > 0.0)
    assert np.all(many < few)


def test_the_evidence_outweighs_a_wrong_noise_scale() -> None:
    model = fit(runs=[(64, 10.0), (1024, 10.5)] * 3, phi=5.0)

    assert model.predict(np.array([1024.0]))[0][0] == pytest.approx(10.5, rel=0.1)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SIZES), st.floats(0.1, 1e4)), max_size=6),
    st.none() | st.floats(0.5, 1e3),
    st.none() | st.floats(1e-6, 1e9),
)
def test_epochs_are_positive_and_finite_whatever_was_seen(runs, hint, phi) -> None:  # type: ignore[no-untyped-def]
    epochs, deviation = fit(runs=runs, hint=hint, phi=phi).predict(np.array([1.0, 64.0, 1e6]))

    assert np.all(np.isfinite(epochs) & (epochs > 0.0))
    assert np.all(np.isfinite(deviation) & (deviation > 0.0))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_an_absurd_hint_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="epochs_hint"):
        fit(hint=bad)
