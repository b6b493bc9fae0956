"""Time and cost of configurations, and stored models."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from speed import UNIT_S, units
from synthetic import CLOUD, POINTS, SHARED, SPACE, measured, profile, step_parts

from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.models.average import average
from scavenger.models.job_model import JobModel
from scavenger.models.memory import MemoryLaw
from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.run_scatter import RERUN_LOG_SD, RUN_LOG_SD, run_log_sd

WORKERS = np.array([c.workers for c in SPACE.configurations()])
BATCH = np.array([c.global_batch_size for c in SPACE.configurations()])


def fit(
    seen: Profile | None = None, *, space: SearchSpace = SPACE, hint: float | None = 10.0, **more: Any
) -> JobModel:
    return JobModel.fit(seen or profile(), space=space, epochs_hint=hint, max_epochs=60, **more)


def test_time_is_epochs_times_whole_steps_and_evaluation_and_cost_is_what_the_workers_cost() -> None:
    model = fit(profile(evaluation_s=((1, 4.0), (8, 0.5))))
    predicted = model.predict(CLOUD, np.array([2]), np.array([300]))

    steps = math.ceil(10_000 / 300)
    assert predicted.step_time_s[0] == pytest.approx(sum(step_parts(2, 300)), rel=1e-6)
    assert predicted.time_s[0] == pytest.approx(
        predicted.epochs[0] * (steps * predicted.step_time_s[0] + 2.0)
    )
    assert predicted.cost_usd[0] == pytest.approx(predicted.time_s[0] * 2 * 0.4 / 3600)


def test_slow_steps_lengthen_the_run_and_not_the_usual_step() -> None:
    usual, slow = (fit(dataclasses.replace(profile(), mean_over_median=ratio)) for ratio in (1.0, 1.2))
    before, after = (model.predict(CLOUD, np.array([2]), np.array([300])) for model in (usual, slow))

    assert after.time_s[0] == pytest.approx(1.2 * before.time_s[0])
    assert after.step_time_s[0] == before.step_time_s[0]
    assert JobModel.from_dict(slow.to_dict()) == slow
    unmeasured = dataclasses.replace(profile(), mean_over_median=None)
    assert fit(unmeasured, prior=slow).mean_over_median == 1.2
    assert fit(unmeasured).mean_over_median == 1.0


def test_intervals_include_how_step_times_of_earlier_runs_differed_from_their_profiles() -> None:
    steady, unsteady = (
        fit(dataclasses.replace(profile(), run_ratios=ratios)) for ratios in ((1.0,) * 30, (0.8, 1.25) * 15)
    )
    widths = []
    for model in (steady, fit(), unsteady):
        at = model.predict(CLOUD, np.array([2]), np.array([300]))
        widths.append(math.log(at.time_high_s[0] / at.time_low_s[0]))
        assert at.time_s[0] == fit().predict(CLOUD, np.array([2]), np.array([300])).time_s[0]
    assert widths == sorted(widths)
    assert widths[2] >= 2 * INTERVAL_Z * 0.2
    assert JobModel.from_dict(unsteady.to_dict()) == unsteady


def test_a_stored_model_is_of_another_run_on_a_machine_that_may_have_changed() -> None:
    stored = fit()
    nothing = dataclasses.replace(profile(), measurements=(), run_ratios=(1.0,) * 30)
    before, steady = (
        fit(dataclasses.replace(nothing, rerun_ratios=ratios), prior=stored) for ratios in ((), (1.0,) * 30)
    )

    assert before.run_log_sd == pytest.approx(RERUN_LOG_SD)
    assert steady.run_log_sd < stored.run_log_sd < before.run_log_sd


def test_the_scatter_of_runs_is_learned_and_one_odd_run_does_not_decide_it() -> None:
    assert run_log_sd(()) == pytest.approx(RUN_LOG_SD)
    assert run_log_sd([math.exp(0.2), math.exp(-0.2)] * 50) == pytest.approx(0.2, rel=0.02)
    assert run_log_sd([1.0] * 98) == pytest.approx(RUN_LOG_SD * math.sqrt(0.02))
    assert run_log_sd([0.0, math.inf, math.nan, -1.0]) == pytest.approx(RUN_LOG_SD)
    assert RUN_LOG_SD < run_log_sd([1.3]) < 0.3


def test_an_evaluation_that_was_not_measured_is_a_third_of_training_on_as_many_samples() -> None:
    unmeasured = dataclasses.replace(profile(), evaluation_s=())
    without, with_one = fit(unmeasured), fit(dataclasses.replace(unmeasured, validation_size=3000))
    one, two = (with_one.evaluation.evaluation_s(np.array([k]), np.ones(1))[0] for k in (1, 2))
    per_sample_s = np.median(
        [
            m.compute_s * m.configuration.workers / m.configuration.global_batch_size
            for m in profile().measurements
        ]
    )

    assert one == pytest.approx(3000 * per_sample_s / 3)
    assert two == pytest.approx(one / 2)
    assert without.evaluation.evaluation_s(np.array([1]), np.ones(1))[0] == 0.0
    assert "a third of the time of training" in " ".join(with_one.notes)
    assert (
        fit(dataclasses.replace(profile(evaluation_s=((1, 4.0),)), validation_size=3000)).evaluation.base_s
        == 4.0
    )


def test_intervals_hold_the_prediction_and_are_narrower_where_measured() -> None:
    predicted = fit(profile(convergence=(ConvergenceRecord(256, 10.0),))).predict(CLOUD, WORKERS, BATCH)
    width = predicted.time_high_s / predicted.time_low_s

    assert np.all((predicted.time_low_s < predicted.time_s) & (predicted.time_s < predicted.time_high_s))
    assert np.all(
        (predicted.cost_low_usd < predicted.cost_usd) & (predicted.cost_usd < predicted.cost_high_usd)
    )
    assert set(zip(WORKERS[predicted.measured], BATCH[predicted.measured], strict=True)) == set(POINTS)
    middle = width[(WORKERS == 2) & (BATCH == 1024)]
    assert np.all(width[predicted.measured & (BATCH == 1024)] < middle)


def test_what_lies_outside_the_profile_is_marked() -> None:
    predicted = fit().predict(CLOUD, np.array([1, 8, 16, 1, 1]), np.array([64, 1024, 1024, 2048, 32]))

    assert predicted.extrapolated.tolist() == [False, False, True, True, True]


def test_another_vm_type_is_carried_over_with_wide_doubt() -> None:
    bigger = dataclasses.replace(CLOUD, vm="bigger", cpus=8)
    model = fit(space=SearchSpace((CLOUD, bigger), SPACE.workers, SPACE.global_batch_sizes))
    here, there = (model.predict(offer, np.array([1]), np.array([512])) for offer in (CLOUD, bigger))

    assert there.step_time_s[0] < here.step_time_s[0]
    assert there.extrapolated[0]
    assert there.time_high_s[0] / there.time_s[0] > 1.3 * here.time_high_s[0] / here.time_s[0]


THREE = ((1, 64), (2, 1024), (8, 1024))


def faster(k: int, b: int, c: float) -> tuple[float, float]:
    """On a type of VM that computes three times as fast, and synchronises somewhat faster."""
    compute_s, sync_s = step_parts(k, b, c)
    return compute_s / 3.0, 0.7 * sync_s


def twin_types(here: tuple[tuple[int, int], ...], *, workers_per_vm: int = 1) -> tuple[JobModel, Offer]:
    """Fitted to the given points of `CLOUD` and to `THREE` of a faster type."""
    other = dataclasses.replace(CLOUD, vm="other", cpus=12, workers_per_vm=workers_per_vm)
    rows = [measured(k, b) for k, b in here] + [measured(k, b, parts=faster, offer=other) for k, b in THREE]
    space = SearchSpace((CLOUD, other), SPACE.workers, SPACE.global_batch_sizes)
    return fit(Profile(tuple(rows), 10_000), space=space), other


def off_at_other(model: JobModel, other: Offer) -> float:
    truth = [sum(faster(k, b, 1.0)) for k, b in zip(WORKERS.tolist(), BATCH.tolist(), strict=True)]
    return float(np.mean(np.abs(np.log(model.predict(other, WORKERS, BATCH).step_time_s / truth))))


@pytest.mark.parametrize("here", [THREE, (*POINTS, (4, 128))])
def test_three_points_of_a_type_correct_what_is_carried_over_from_another(
    here: tuple[tuple[int, int], ...],
) -> None:
    model, other = twin_types(here)

    assert any("corrected by 3 measured configurations" in note for note in model.notes)
    assert off_at_other(model, other) < 0.25
    assert sum(model.predict(other, WORKERS, BATCH).measured) == 3


def test_what_another_type_has_shown_makes_up_for_points_that_this_one_lacks() -> None:
    model, other = twin_types((*POINTS, (4, 128)))
    rows = tuple(measured(k, b, parts=faster, offer=other) for k, b in THREE)
    alone = fit(Profile(rows, 10_000), space=SearchSpace((other,), SPACE.workers, SPACE.global_batch_sizes))

    assert off_at_other(model, other) < 0.5 * off_at_other(alone, other)


def test_nothing_is_carried_over_between_types_that_hold_other_numbers_of_workers() -> None:
    """How four workers on one machine synchronise says little of four machines."""
    model, _ = twin_types(POINTS, workers_per_vm=4)

    assert not any("are those of" in note for note in model.all_notes())


def test_a_note_says_of_which_vm_type_or_stored_model_step_times_are() -> None:
    model, other = twin_types(POINTS)
    assert (
        f"step times on {other.vm} are those of {CLOUD.vm}, corrected by 3 measured configurations"
        in model.all_notes()
    )

    again = fit(Profile((measured(1, 64),), 10_000), prior=fit())
    assert (
        f"step times on {CLOUD.vm} are from stored models, corrected by 1 measured configuration"
        in again.all_notes()
    )
    assert not any("another VM type" in note for note in again.all_notes())


def test_memory_limits_the_local_batch() -> None:
    rows = [measured(1, b, memory_bytes=2**28 + b * 2**20) for b in (64, 512)]
    model = fit(Profile(tuple(rows), 10_000))

    assert model.local_batch_max(dataclasses.replace(CLOUD, memory_bytes=2**30)) == math.floor(
        0.9 * 1024 - 256
    )
    assert model.local_batch_max(dataclasses.replace(CLOUD, memory_bytes=2**20)) == 0
    assert fit().local_batch_max(CLOUD) is None
    shared = dataclasses.replace(CLOUD, memory_bytes=2 * 2**30, workers_per_vm=2)
    assert model.local_batch_max(shared) == model.local_batch_max(
        dataclasses.replace(CLOUD, memory_bytes=2**30)
    )


def test_what_the_profile_does_not_tell_comes_from_the_stored_model() -> None:
    stored = fit(profile(convergence=(ConvergenceRecord(64, 20.0),), evaluation_s=((1, 3.0),)))
    model = fit(Profile((), 10_000), hint=None, prior=stored)
    predicted = model.predict(CLOUD, np.array([1]), np.array([64]))

    assert not model.relative_only
    assert predicted.epochs[0] == pytest.approx(20.0, rel=0.01)
    assert model.evaluation == stored.evaluation
    assert any("stored models" in note for note in model.all_notes())


def test_nothing_measured_and_nothing_stored_is_no_model() -> None:
    with pytest.raises(ValueError, match="no usable step time"):
        fit(Profile((), 10_000))


@examples(10)
@given(st.integers(1, 8), st.integers(100, 500), st.floats(1e-4, 10), st.floats(1e-6, 1))
def test_with_free_synchronisation_more_workers_are_never_cheaper(
    workers: int, share: int, base_s: float, per_sample_s: float
) -> None:
    def parts(k: int, b: int, _: float) -> tuple[float, float]:
        return base_s + per_sample_s * -(-b // k), 0.0

    rows = tuple(measured(k, b, parts=parts) for k, b in POINTS)
    model = fit(Profile(rows, 10_000))
    # Divisible by both, since a batch that is not leaves some workers waiting for others.
    batch = share * workers * (workers + 1)
    predicted = model.predict(CLOUD, np.array([workers, workers + 1]), np.array([batch] * 2))

    assert predicted.cost_usd[1] >= predicted.cost_usd[0] * (1 - 1e-9)


FIGURE = st.sampled_from([math.nan, math.inf, -1.0, 0.0]) | st.floats(1e-6, 1e5)
MEASUREMENTS = st.builds(
    lambda k, b, compute, sync, noise, scale, memory: dataclasses.replace(
        measured(k, b),
        step_time_s=compute + sync,
        compute_s=compute,
        sync_s=sync,
        gradient_noise=noise,
        noise_scale=scale,
        memory_bytes=memory,
    ),
    st.sampled_from(SPACE.workers),
    st.sampled_from(SPACE.global_batch_sizes),
    FIGURE,
    FIGURE,
    st.none() | FIGURE,
    st.none() | FIGURE,
    st.integers(0, 2**34),
)


@examples(16)
@given(st.lists(MEASUREMENTS, max_size=6), st.none() | st.floats(0.5, 500))
def test_predictions_are_positive_and_finite_and_survive_the_store(
    rows: list[Measurement], hint: float | None
) -> None:
    model = fit(Profile((measured(1, 64), *rows), 10_000), hint=hint)
    predicted = model.predict(CLOUD, WORKERS, BATCH)

    for figure in (
        predicted.time_s,
        predicted.time_low_s,
        predicted.time_high_s,
        predicted.cost_usd,
        predicted.epochs,
    ):
        assert np.all(np.isfinite(figure) & (figure > 0.0))
    assert JobModel.from_dict(json.loads(json.dumps(model.to_dict(), allow_nan=False))) == model


STORED = json.dumps(fit(profile(((1, 64), (1, 1024), (4, 512), (8, 1024), (8, 64)))).to_dict())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 1),
        (("model", "dataset_size"), 0),
        (("model", "dataset_size"), "10000"),
        (("model", "max_epochs"), math.nan),
        (("model", "vms"), []),
        (("model", "statistical", "law", "epochs_min"), -1.0),
        (("model", "statistical", "law", "kind"), "magic"),
        (("model", "statistical", "law_log_sd"), math.inf),
        (("model", "vms", 0, "parallel", "covariance"), [[0.0]]),
        (("model", "vms", 0, "parallel", "measured", 0, "step_time_s"), 0.0),
        (("model", "vms", 0, "parallel", "law", "compute_per_sample_s"), None),
    ],
)
def test_a_damaged_stored_model_is_refused(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(STORED)
    at = data
    for key in path[:-1]:
        at = at[key]
    assert at[path[-1]] != value
    at[path[-1]] = value

    with pytest.raises(ValueError):  # noqa: PT011 - what it says is the validator's
        JobModel.from_dict(data)


def test_a_fit_takes_less_than_a_tenth_of_a_second() -> None:
    seen = profile(((1, 64), (1, 1024), (2, 1024), (2, 64), (8, 1024), (8, 64)))

    assert units(lambda: fit(seen)) < 0.1 / UNIT_S


def slowed(factor: float, epochs: float) -> JobModel:
    rows = tuple(
        measured(k, b, parts=lambda k, b, c: tuple(factor * s for s in step_parts(k, b, c)))  # type: ignore[arg-type,return-value]
        for k, b in POINTS
    )
    return fit(Profile(rows, 10_000), hint=epochs)


def test_the_universal_model_is_the_geometric_mean_and_doubts_itself() -> None:
    one, other = slowed(1.0, 5.0), slowed(4.0, 20.0)
    universal = average([one, other])
    point = (CLOUD, np.array([4]), np.array([256]))
    low, high, mean = (model.predict(*point) for model in (one, other, universal))

    assert mean.step_time_s[0] == pytest.approx(math.sqrt(low.step_time_s[0] * high.step_time_s[0]), rel=0.05)
    assert low.epochs[0] < mean.epochs[0] < high.epochs[0]
    assert mean.time_low_s[0] < low.time_s[0]
    assert mean.time_high_s[0] > high.time_s[0]
    assert not mean.measured[0]
    assert JobModel.from_dict(universal.to_dict()) == universal
    with pytest.raises(ValueError, match="no model"):
        average([])


def test_runs_without_a_target_teach_no_epochs_to_one() -> None:
    with_target, without = fit(hint=10.0), fit(hint=None, fixed_epochs=True)
    batch = np.array([256.0])

    both = average([with_target, without]).statistical
    assert both.predict(batch)[0] == pytest.approx(with_target.statistical.predict(batch)[0], rel=0.2)
    assert not both.relative_only
    assert average([without]).relative_only


def test_even_an_average_of_one_is_doubted() -> None:
    one = slowed(1.0, 5.0)
    own, universal = (model.predict(CLOUD, np.array([4]), np.array([256])) for model in (one, average([one])))

    assert universal.time_s[0] == pytest.approx(own.time_s[0], rel=0.05)
    assert universal.time_high_s[0] > 3.0 * universal.time_s[0]


def test_contention_is_that_of_the_offer() -> None:
    space = SearchSpace((SHARED,), (1, 2, 4), (64, 512))
    model = fit(profile(((1, 64), (1, 512), (2, 512), (4, 512), (4, 64)), offer=SHARED), space=space)
    apart = Offer("gcp", "", "vm", 0.1, "", cpus=1, memory_bytes=2**30)
    points = (np.array([4]), np.array([500]))

    assert model.predict(SHARED, *points).step_time_s[0] > 1.3 * model.predict(apart, *points).step_time_s[0]


def spoilt(*changes: tuple[tuple[str | int, ...], object]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(MEASURED_MEMORY)
    for path, value in changes:
        at: Any = data
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    return data


MEASURED_MEMORY = json.dumps(fit(Profile(tuple(measured(k, b) for k, b in POINTS), 10_000)).to_dict())
VM: tuple[str | int, ...] = ("model", "vms", 0)


def test_memory_that_hardly_grows_sets_no_limit() -> None:
    assert MemoryLaw(1.0, 5e-324).local_batch_max(2.0**40) is None
    assert MemoryLaw(1.0, 1.0).local_batch_max(2.0**30) == math.floor(0.9 * 2**30 - 1)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*VM, "memory"), {"base_bytes": 1.0, "per_sample_bytes": 1e300}),
        ((*VM, "parallel", "residual_log_sd"), 1e200),
        ((*VM, "parallel", "work_max"), 1e-310),
        ((*VM, "parallel", "measured", 0, "workers"), 10**400),
        ((*VM, "cpus"), 10**400),
        (("model", "dataset_size"), 2**70),
        (("model", "max_epochs"), 1e300),
        (("model", "evaluation"), {"base_s": 1e308, "shared_s": 1e308}),
        (("model", "statistical", "law", "epochs_min"), 1e-320),
        (("model", "statistical", "evidence", "log_epochs"), [1e6]),
        (("model", "statistical", "run_log_sd"), 1e160),
    ],
)
def test_a_stored_model_that_cannot_predict_is_refused_when_it_is_read(
    path: tuple[str | int, ...], value: object
) -> None:
    JobModel.from_dict(json.loads(MEASURED_MEMORY))

    with pytest.raises(ValueError):  # noqa: PT011 - what it says is the validator's
        JobModel.from_dict(spoilt((path, value)))
