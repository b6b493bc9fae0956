"""Epochs by batch size."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from properties import examples
from pydantic import TypeAdapter
from synthetic import measured

from scavenger.domain.measurement import ConvergenceRecord
from scavenger.models.critical_batch import ScalePrior
from scavenger.models.epoch_laws import EpochEvidence, posterior
from scavenger.models.noise import NoiseReading, critical_batch_from_noise
from scavenger.models.statistical import (
    CriticalBatch,
    FixedEpochs,
    NoiseLinear,
    StatisticalModel,
    UShaped,
    fit_statistical,
)
from scavenger.models.without_target import without_target

SIZES = (64, 128, 256, 512, 1024)
GRID = np.array(SIZES, dtype=np.float64)
RUNS = st.lists(st.tuples(st.sampled_from(SIZES), st.floats(0.1, 1e4)), min_size=1, max_size=8)


def fit(runs=(), hint=None, phi=300.0, **options) -> StatisticalModel:  # type: ignore[no-untyped-def]
    measurements = [measured(1, 64, noise_scale=phi), measured(4, 1024, noise_scale=phi)]
    records = [ConvergenceRecord(*run) for run in runs]
    return fit_statistical(
        measurements, records, global_batch_sizes=SIZES, epochs_hint=hint, max_epochs=100, **options
    )


def runs_of(law, sizes=SIZES):  # type: ignore[no-untyped-def]
    return list(zip(sizes, law.epochs(np.array(sizes, dtype=np.float64)).tolist(), strict=True))


# --- what sets level and shape ---------------------------------------------------------------------------------


def test_without_history_the_noise_scale_sets_the_ratios_and_the_hint_the_level() -> None:
    model = fit(hint=10.0, noise=[NoiseReading(0.05, 300.0, 20.0, 64.0)])
    told = critical_batch_from_noise([NoiseReading(0.05, 300.0, 20.0, 64.0)])
    epochs, _ = model.predict(GRID)

    assert isinstance(model.law, CriticalBatch)
    assert told is not None
    assert model.law.critical_batch_size == pytest.approx(told.critical_batch_size)
    assert told.critical_batch_size > 300.0
    assert epochs[0] == pytest.approx(10.0)
    assert not model.relative_only


def test_the_noise_scales_of_the_profile_count_as_early_ones() -> None:
    early = [NoiseReading(None, 300.0, 20.0, 64.0), NoiseReading(None, 300.0, 60.0, 1024.0)]

    assert fit(hint=10.0).evidence == fit(hint=10.0, noise=early).evidence


def test_a_profile_that_says_how_far_the_run_was_is_believed() -> None:
    late = replace(measured(4, 1024, noise_scale=300.0), progress=0.5)
    model = fit_statistical([late], [], global_batch_sizes=SIZES, epochs_hint=10.0, max_epochs=100)
    told = critical_batch_from_noise([NoiseReading(0.5, 300.0, 60.0, 1024.0)])

    assert isinstance(model.law, CriticalBatch)
    assert told is not None
    assert model.law.critical_batch_size == pytest.approx(told.critical_batch_size)


def test_the_later_in_the_run_the_noise_was_read_the_surer_are_the_ratios() -> None:
    readings = [NoiseReading(share, 300.0 * share, 20.0, 64.0) for share in (0.02, 0.1, 0.3, 0.6, 0.9)]
    doubts = [fit(hint=10.0, noise=readings[:known]).predict(GRID)[1][-1] for known in (1, 3, 5)]

    assert doubts[0] > doubts[1] > doubts[2]


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


def test_a_run_that_missed_its_target_outweighs_the_hint_by_its_forecast() -> None:
    missed = (64, 30.0, 1.0, 0.5)
    alone, beside = (
        fit(runs, hint=8.0).predict(np.array([64.0])) for runs in ([missed], [missed, (64, 20.0)])
    )

    assert alone[0][0] == pytest.approx(30.0)
    assert alone[1][0] > 0.5
    assert beside[0][0] == pytest.approx(20.0, rel=0.05)
    assert beside[1][0] < 0.5 * alone[1][0]
    assert "1 of which missed the target" in fit([missed]).notes[0]


def test_a_stored_model_sets_level_and_shape_where_nothing_else_tells() -> None:
    stored = fit(runs=runs_of(CriticalBatch(5.0, 400.0)) * 4, phi=None)
    model = fit(phi=None, prior=stored)

    assert model.predict(GRID)[0] == pytest.approx(stored.predict(GRID)[0], rel=0.2)
    assert np.all(model.predict(GRID)[1] > stored.predict(GRID)[1])


def test_without_a_target_every_run_lasts_the_same_and_that_is_certain() -> None:
    model = fit(fixed_epochs=True)
    epochs, deviation = model.predict(GRID)

    assert isinstance(model.law, FixedEpochs)
    assert np.all(epochs == 100.0)
    assert np.all(deviation == 0.0)


def test_a_fixed_number_of_epochs_comes_less_far_at_larger_batches_by_the_noise_scale() -> None:
    model, aimed = fit(fixed_epochs=True), fit(hint=10.0)

    assert isinstance(aimed.law, CriticalBatch)
    lost = aimed.law.epochs_min / aimed.law.epochs(GRID)  # a run with a target makes up for it
    assert model.progress_share(GRID) == pytest.approx(lost)
    assert model.progress_share(np.array([aimed.law.critical_batch_size])) == pytest.approx(0.5)
    assert aimed.progress_share(GRID) is None
    assert "do the work of 100 / (1 + B /" in model.notes[1]


def test_at_equal_progress_a_larger_batch_takes_more_epochs_and_at_most_as_many_steps() -> None:
    model, aimed = fit(fixed_epochs=True, reference_batch_size=128), fit(hint=10.0)
    epochs, deviation = model.predict(GRID)

    wanted = aimed.law.epochs(GRID) / aimed.law.epochs(np.array([128.0]))
    assert epochs == pytest.approx(100.0 * wanted, abs=1.0)
    assert np.all(epochs >= 100.0 * wanted - 0.05)
    assert np.all(epochs == np.round(epochs))
    assert np.all(deviation == 0.0)
    assert model.progress_share(GRID) is None
    assert model.notes[0].startswith("compared at equal progress: that of 100 epochs at batch 128 takes ")
    blind = fit(fixed_epochs=True, phi=None, reference_batch_size=128)
    assert blind.predict(GRID)[0] == pytest.approx([100.0, 100.0, 200.0, 400.0, 800.0])
    assert "as many steps" in blind.notes[0]


@given(
    critical=st.none() | st.floats(1e-2, 1e6),
    own=st.integers(1, 512),
    size=st.integers(1, 512),
    epochs=st.integers(1, 1000),
)
def test_the_epochs_of_equal_progress_lie_between_as_many_epochs_and_as_many_steps(
    critical: float | None, own: int, size: int, epochs: int
) -> None:
    law = FixedEpochs(epochs, critical, own)
    at_own, at = law.epochs(np.array([own, size], dtype=np.float64))
    low, high = sorted((1.0, size / own))

    told = law.beside_own(size)
    assert bool(told) == (at != epochs)
    words = f"{at:,.0f} epochs at batch {size} make the progress of {epochs:,} at batch {own}, as a "
    assert not told or told.startswith(words)
    assert at_own == epochs
    assert max(1.0, math.floor(epochs * low)) <= at <= math.ceil(epochs * high)
    # so many epochs of one size are all that is needed, and half of each are, too
    assert law.left(int(at), {size: 1}, size) == pytest.approx(0.0, abs=1e-9)
    assert law.left(0, {}, size) == at
    mixed = {own: float(epochs), size: float(at)}
    assert law.left(epochs + int(at), mixed, own) == pytest.approx(-epochs)
    again = FixedEpochs.through(epochs, own, size, at / epochs)
    assert again.epochs(np.array([float(size)]))[0] == at


@pytest.mark.parametrize("own", [None, 64])
def test_at_one_batch_size_there_is_no_progress_to_compare(own: int | None) -> None:
    law, notes = without_target(9.0, ScalePrior(5.0, 0.5, True, "measured"), (64,), reference=own, known=True)

    size = np.array([64.0])
    assert (law.progress_share(size), law.epochs(size).tolist()) == (None, [9.0])
    assert notes == ("no target: every run lasts 9 epochs",)


def test_without_a_noise_scale_nothing_is_said_of_the_progress_but_a_stored_model_is_asked() -> None:
    stored, blind = fit(fixed_epochs=True), fit(fixed_epochs=True, phi=None)

    assert blind.progress_share(GRID) is None
    assert "unknown" in blind.notes[1]
    assert fit(fixed_epochs=True, phi=None, prior=stored).progress_share(GRID) == pytest.approx(
        stored.progress_share(GRID)
    )


# --- the laws, and the choice between them -----------------------------------------------------------------------


def test_a_critical_batch_doubles_the_epochs_and_a_sharper_bend_leaves_small_batches_alone() -> None:
    batch = np.array([10.0, 100.0, 1000.0])
    paper, sharp = CriticalBatch(5.0, 100.0).epochs(batch), CriticalBatch(5.0, 100.0, 2.0).epochs(batch)

    assert paper == pytest.approx([5.5, 10.0, 55.0])
    assert sharp == pytest.approx(5.0 * np.sqrt(1.0 + (batch / 100.0) ** 2))


def test_a_u_shaped_law_rises_on_both_sides() -> None:
    law = UShaped(5.0, 1000.0, 1.0, 10.0, 2.0)
    epochs = law.epochs(np.array([10.0, 100.0, 1000.0]))

    assert epochs == pytest.approx([5.0 * 1.01 * 2.0, 5.0 * 1.1 * 1.01, 5.0 * 2.0 * 1.0001])
    assert epochs[1] < min(epochs[0], epochs[2])


@pytest.mark.parametrize(
    "law",
    [
        CriticalBatch(5.0, 400.0, 1.6),
        UShaped(5.0, 400.0, 1.3, 30.0, 2.0),
        NoiseLinear(4.0, 100.0, 0.0, 1.0),
    ],
)
def test_the_shape_gradient_is_the_slope_of_the_logarithm_of_the_epochs(law) -> None:  # type: ignore[no-untyped-def]
    # The shape of the first two is 1/B*, and E depends on it through B / B* alone, but for the falling limb.
    moved = {
        "critical-batch": lambda: CriticalBatch(5.0, 400.0 * math.exp(-1e-4), 1.6),
        "u-shaped": lambda: UShaped(5.0, 400.0 * math.exp(-1e-4), 1.3, 30.0, 2.0),
        "noise-linear": lambda: NoiseLinear(4.0, 100.0, 0.0, math.exp(1e-4)),
    }[law.kind]()
    slope = np.log(moved.epochs(GRID) / law.epochs(GRID)) / 1e-4

    assert law.shape_gradient(GRID) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize(
    "truth",
    [
        CriticalBatch(5.0, 400.0),
        CriticalBatch(5.0, 500.0, 2.5),
        UShaped(5.0, 900.0, 1.5, 60.0, 2.0),
        NoiseLinear(4.0, 100.0, 0.0, 1.0),
    ],
    ids=["critical-batch", "sharp", "u-shaped", "noise-linear"],
)
def test_finished_runs_recover_the_law_that_they_follow(truth) -> None:  # type: ignore[no-untyped-def]
    model = fit(runs=runs_of(truth) * 4, phi=None)
    between = np.array([90.0, 180.0, 360.0, 720.0])

    assert model.predict(GRID)[0] == pytest.approx(truth.epochs(GRID), rel=0.03)
    assert model.predict(between)[0] == pytest.approx(truth.epochs(between), rel=0.03)


def test_the_law_that_is_named_is_the_one_that_the_runs_follow() -> None:
    rising = fit(runs=runs_of(CriticalBatch(5.0, 400.0)), phi=None)
    bent = fit(runs=runs_of(UShaped(5.0, 900.0, 1.5, 90.0, 2.0)), phi=None)
    falling = fit(runs=runs_of(NoiseLinear(1.0, 100.0, 0.0, 1.0)), phi=None)

    assert [model.law.kind for model in (rising, bent)] == ["critical-batch", "u-shaped"]
    assert dict(falling.law_weights)["noise-linear"] > 0.1 > dict(rising.law_weights)["noise-linear"]
    for model in (rising, bent, falling):
        assert sum(weight for _, weight in model.law_weights) == pytest.approx(1.0)
        assert any("laws of epochs" in note for note in model.notes)


def test_a_single_law_may_be_asked_for_and_noise_linear_without_history_is_proportional_to_the_noise() -> (
    None
):
    epochs, _ = fit(hint=10.0, law="noise-linear").predict(GRID)

    assert epochs == pytest.approx(10.0 * np.sqrt(64.0 / GRID))
    for name in ("critical-batch", "u-shaped", "noise-linear"):
        runs = runs_of(CriticalBatch(5.0, 400.0))
        assert fit(runs=runs, law=name).law.kind == name


def test_the_evidence_outweighs_a_wrong_noise_scale() -> None:
    model = fit(runs=[(64, 10.0), (1024, 10.5)] * 3, phi=5.0)

    assert model.predict(np.array([1024.0]))[0][0] == pytest.approx(10.5, rel=0.1)


def test_gradient_noise_sets_the_curve_of_the_noise_linear_law() -> None:
    measurements = [
        replace(measured(2, batch), gradient_noise=2.0 * (0.2 + 4.0 / math.sqrt(batch)))
        for batch in (64, 1024)
    ]
    records = [ConvergenceRecord(64, 7.0)]
    model = fit_statistical(
        measurements, records, global_batch_sizes=SIZES, epochs_hint=None, max_epochs=100, law="noise-linear"
    )

    assert model.predict(GRID)[0] == pytest.approx(7.0 * (0.2 + 4.0 / np.sqrt(GRID)) / 0.7)


# --- uncertainty ------------------------------------------------------------------------------------------------


def test_doubt_shrinks_with_runs() -> None:
    batch = np.array([1024.0, 2048.0, 8192.0, 65536.0])
    _, few = fit(runs=[(64, 10.0)]).predict(batch)
    _, many = fit(runs=[(64, 10.0), (1024, 20.0)] * 5).predict(batch)

    assert np.all(many < few)


@examples(12)
@given(RUNS)
@example([(64, 4317.0), (512, 1.0)])
def test_doubt_never_falls_with_the_distance_from_the_known_batch_sizes(runs) -> None:  # type: ignore[no-untyped-def]
    model = fit(runs=runs)
    above = np.array([1024.0, 2048.0, 8192.0, 65536.0])
    below = np.array([64.0, 32.0, 8.0, 1.0])

    assert np.all(np.diff(model.predict(above)[1]) > 0.0)
    assert np.all(np.diff(model.predict(below)[1]) > 0.0)


def test_runs_that_contradict_each_other_widen_the_interval() -> None:
    agreed = fit(runs=[(64, 10.0), (64, 10.2), (1024, 20.0), (1024, 20.4)])
    torn = fit(runs=[(64, 1.0), (64, 100.0), (1024, 20.0), (1024, 20.4)])

    assert np.all(torn.predict(GRID)[1] > 2.0 * agreed.predict(GRID)[1])


def test_a_batch_size_whose_runs_scatter_is_known_less_well_than_its_neighbour_with_as_many() -> None:
    evidence = fit(
        runs=[(64, 5.0), (64, 20.0), (64, 12.0), (1024, 20.0), (1024, 20.2), (1024, 20.1)]
    ).evidence

    assert evidence is not None
    assert evidence.log_sd[0] > 1.5 * evidence.log_sd[1]


def test_the_fewer_runs_have_told_of_their_spread_the_wider_it_is_taken() -> None:
    """Of equal scatter: Student's t at 5 against 13 degrees of freedom, the prior's four included."""
    few = fit(runs=[(64, 10.0 * math.exp(0.08 * sign / math.sqrt(2.0))) for sign in (-1, 1)])
    many = fit(
        runs=[(64, 10.0 * math.exp(0.08 * math.sqrt(0.9) * sign)) for sign in (-1, 1) for _ in range(5)]
    )

    assert few.run_log_sd == pytest.approx(0.08 * 2.015 / 1.645, rel=1e-3)
    assert many.run_log_sd == pytest.approx(0.08 * 1.771 / 1.645, rel=1e-3)


def test_one_run_is_less_certain_than_the_mean_of_many() -> None:
    model = fit(runs=[(64, 10.0), (64, 13.0), (1024, 20.0), (1024, 25.0)])
    _, single = model.predict(GRID)
    _, mean = model.predict(GRID, runs=100.0)

    assert np.all(single**2 - mean**2 == pytest.approx(0.99 * model.run_log_sd**2))


def test_the_most_informative_batch_size_lies_where_least_is_known() -> None:
    ends = fit(runs=[(64, 10.0), (1024, 20.0)], phi=None)
    bunched = fit(runs=[(64, 10.0), (128, 11.0), (256, 12.0), (1024, 20.0)], phi=None)

    assert ends.most_informative([65, 256, 1023]) == 256
    assert bunched.most_informative([90, 512, 1000]) == 512
    with pytest.raises(ValueError, match="candidates"):
        ends.most_informative([])


def test_of_very_many_batch_sizes_as_informative_a_one_is_found_as_of_a_few() -> None:
    ends = fit(runs=[(64, 10.0), (65_536, 20.0)], phi=None)
    few = ends.most_informative([2**power for power in range(7, 16)])

    assert few / 2 < ends.most_informative(range(65, 65_536)) < few * 2


# --- whatever is given ------------------------------------------------------------------------------------------


@examples(12)
@given(RUNS, st.floats(1e-6, 1e6))
def test_epochs_in_another_unit_give_the_same_predictions_in_that_unit(runs, unit: float) -> None:  # type: ignore[no-untyped-def]
    epochs, deviation = fit(runs=runs).predict(GRID)
    scaled, scaled_deviation = fit(runs=[(batch, unit * value) for batch, value in runs]).predict(GRID)

    assert scaled == pytest.approx(unit * epochs, rel=1e-6)
    assert scaled_deviation == pytest.approx(deviation, rel=1e-6)


@examples(12)
@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(runs, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(runs, len(runs))

    assert fit(runs=shuffled).predict(GRID)[0] == pytest.approx(fit(runs=runs).predict(GRID)[0], rel=1e-9)


@examples(20)
@given(
    st.lists(st.tuples(st.sampled_from((1, 64, 65, 1024, 10**12)), st.floats(1e-300, 1e300)), max_size=6),
    st.none() | st.floats(0.5, 1e3),
    st.none() | st.floats(1e-6, 1e9),
)
def test_epochs_are_positive_and_no_interval_is_empty_whatever_was_seen(runs, hint, phi) -> None:  # type: ignore[no-untyped-def]
    model = fit(runs=runs, hint=hint, phi=phi)
    seen = np.array(sorted({float(batch) for batch, _ in runs}) or [64.0])
    epochs, deviation = model.predict(seen)

    assert np.all(np.isfinite(epochs) & (epochs > 0.0))
    assert np.all(np.isfinite(deviation) & (deviation > 0.0))


def test_runs_that_cannot_be_are_left_out() -> None:
    bad = [(64, math.nan), (64, 0.0), (64, -3.0), (128, math.inf), (0, 5.0)]

    assert fit(runs=[*bad, (64, 10.0)]) == fit(runs=[(64, 10.0)])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_an_absurd_hint_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="epochs_hint"):
        fit(hint=bad)


def test_evidence_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="as many"):
        EpochEvidence((64.0,), (1.0, 2.0), (0.1,), 5.0, 1.0, True, 1024.0, 0.0, 1.0, ("critical-batch",))


@examples(8)
@given(RUNS)
def test_a_model_that_was_stored_predicts_as_the_one_that_was_fitted(runs) -> None:  # type: ignore[no-untyped-def]
    model = fit(runs=runs)
    adapter = TypeAdapter(StatisticalModel)
    again = adapter.validate_json(adapter.dump_json(model), strict=True)

    assert again == model
    assert np.array_equal(again.predict(GRID), model.predict(GRID))


@examples(8)
@given(RUNS)
def test_predictions_agree_with_the_joint_posterior(runs) -> None:  # type: ignore[no-untyped-def]
    evidence = fit(runs=runs).evidence
    assert evidence is not None
    assume(len(evidence.batch) > 1)
    found = posterior(evidence)
    mean, covariance = found.joint(GRID)

    assert found.predict(GRID)[0] == pytest.approx(mean)
    assert found.predict(GRID)[1] == pytest.approx(np.diag(covariance), abs=1e-9)
    assert np.all(np.linalg.eigvalsh(covariance) > -1e-9)


def test_a_large_critical_batch_is_told_in_digits() -> None:
    model = fit(hint=10.0, noise=[NoiseReading(0.5, 40_000.0, 20.0, 64.0)])
    note = next(note for note in model.notes if "(the critical batch size" in note)

    assert "e+" not in note
    assert re.search(r"about \d,\d\d0 samples", note)


# --- a learning rate that is kept ------------------------------------------------------------------------------

MEASURED_AT_KEPT_RATES = {
    "tabular": (190.0, {32: 4.15, 64: 5.23, 128: 7.71, 256: 12.47}),
    "conv": (1570.0, {32: 6.25, 64: 8.62, 128: 13.0, 256: 19.4}),
    "embedding": (None, {32: 4.75, 128: 12.4, 256: 21.0}),
    "regression": (None, {32: 9.11, 64: 14.52, 128: 19.49, 256: 37.56}),
}
"""φ of the first steps, and epochs to the target by batch size at the rate of the smallest one, in plain Keras."""


@pytest.mark.parametrize("job", MEASURED_AT_KEPT_RATES)
def test_epochs_at_a_kept_rate_are_those_of_real_jobs(job: str) -> None:
    phi, epochs = MEASURED_AT_KEPT_RATES[job]
    sizes = tuple(epochs)
    model = fit_statistical(
        [],
        [],
        global_batch_sizes=sizes,
        epochs_hint=epochs[32],
        max_epochs=100,
        noise=[] if phi is None else [NoiseReading(0.06, phi, 60.0, 32.0)],
        rate_kept=True,
    )
    predicted, deviation = model.predict(np.array(sizes, dtype=np.float64))

    assert predicted == pytest.approx(list(epochs.values()), rel=0.5)
    assert np.all(np.abs(np.log(predicted / list(epochs.values()))) <= 1.645 * deviation)


@given(st.floats(20.0, 1e6), st.sampled_from([8, 32, 512]))
def test_at_a_kept_rate_early_noise_alone_excludes_neither_hardly_more_epochs_nor_as_many_steps(
    noise_batches: float, smallest: int
) -> None:
    """The rate that is kept may be far too small for the smallest batch already, or suit batches of any size."""
    sizes = tuple(smallest * factor for factor in (1, 2, 4))
    noise = [NoiseReading(0.03, noise_batches * smallest, 20.0, smallest)]
    model = fit_statistical(
        [], [], global_batch_sizes=sizes, epochs_hint=10.0, max_epochs=100, noise=noise, rate_kept=True
    )
    predicted, deviation = model.predict(np.array(sizes, dtype=np.float64))
    low, high = (predicted * np.exp(side * 1.645 * deviation) for side in (-1, 1))

    assert np.all(low <= [10.0, 10.0, 13.0])
    assert np.all(high >= 10.0 * np.array([1.0, 2.0, 4.0]))


@given(st.floats(1.0, 1e6), st.floats(1e-3, 1.0))
def test_a_kept_rate_only_ever_takes_more_epochs_at_larger_batches(phi: float, progress: float) -> None:
    noise = [NoiseReading(progress, phi, 20.0, 64.0)]
    kept, scaled = (fit(hint=10.0, noise=noise, rate_kept=rate_kept) for rate_kept in (True, False))

    assert np.all(kept.predict(GRID)[0] >= scaled.predict(GRID)[0] * (1.0 - 1e-3))
    assert any("elastic.lr_scaling" in note for note in kept.notes)


def test_finished_runs_at_several_batch_sizes_outweigh_what_a_kept_rate_is_supposed_to_cost() -> None:
    runs = [(size, 10.0) for size in SIZES for _ in range(3)]

    assert fit(runs=runs, rate_kept=True).predict(GRID)[0] == pytest.approx(
        np.full(len(GRID), 10.0), rel=0.08
    )


def test_without_a_target_a_kept_rate_lowers_what_larger_batches_come_to() -> None:
    noise = [NoiseReading(0.05, 300.0, 20.0, 64.0)]
    kept, scaled = (
        fit(fixed_epochs=True, noise=noise, rate_kept=rate_kept).progress_share(GRID)
        for rate_kept in (True, False)
    )

    assert kept is not None
    assert scaled is not None
    assert np.all(kept < scaled)
