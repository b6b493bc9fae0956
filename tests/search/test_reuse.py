"""Which stored model serves which job."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import CLOUD, job_model

from scavenger.domain.configuration import Configuration
from scavenger.domain.fingerprint import Fingerprint
from scavenger.search.reuse import DRIFT_MAX, as_prior, distance, find_nearest, step_time_drift

JOB = Fingerprint("a" * 64, 10_000, "Adam:1f", 50_000, 3072, "val_accuracy>=0.9", "vm", "cpu x 2")
JOBS = st.builds(
    Fingerprint,
    st.sampled_from("ab"),
    st.integers(0, 10),
    st.sampled_from(["Adam:1", "Adam:2", "SGD:1"]),
    st.integers(1, 10),
    st.integers(1, 10),
    st.sampled_from(["", "loss<=1"]),
    st.sampled_from("vw"),
    st.sampled_from("xy"),
)


@given(JOBS, JOBS)
def test_distance_is_symmetric_and_zero_only_between_the_same(one: Fingerprint, other: Fingerprint) -> None:
    assert distance(one, other) == pytest.approx(distance(other, one))
    assert (distance(one, other) == 0.0) == (one == other)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Fingerprint)])
def test_every_field_counts(field: str) -> None:
    value = getattr(JOB, field)
    other = dataclasses.replace(JOB, **{field: value * 2})

    assert distance(JOB, other) > 0.0


def test_settings_of_one_optimizer_are_nearer_than_another_optimizer() -> None:
    settings, other = (dataclasses.replace(JOB, optimizer=name) for name in ("Adam:2e", "SGD:2e"))

    assert distance(JOB, settings) < distance(JOB, other)


def test_the_nearest_is_found() -> None:
    near, far = dataclasses.replace(JOB, dataset_size=60_000), dataclasses.replace(JOB, architecture="b" * 64)

    assert find_nearest(JOB, [far, near]) == 1
    assert find_nearest(JOB, []) is None


def test_drift_is_the_factor_in_either_direction() -> None:
    model, configuration = job_model(), Configuration("vm", 1, 64)
    fit = 0.02 + 0.064 + 0.015

    assert step_time_drift(model, configuration, CLOUD, fit) == pytest.approx(0.0, abs=1e-6)
    assert step_time_drift(model, configuration, CLOUD, 2.0 * fit) == pytest.approx(1.0)
    assert step_time_drift(model, configuration, CLOUD, fit / 2.0) == pytest.approx(1.0)
    assert step_time_drift(model, configuration, CLOUD, 1.1 * fit) < DRIFT_MAX
    with pytest.raises(ValueError, match="positive and finite"):
        step_time_drift(model, configuration, CLOUD, 0.0)


@given(st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_the_further_a_job_is_away_the_less_its_epochs_say(near: float, far: float) -> None:
    near, far = sorted((near, far))
    batches = np.array([64.0, 256.0, 1024.0])
    mean, close = as_prior(MODEL, near).statistical.predict(batches)
    same, wide = as_prior(MODEL, far).statistical.predict(batches)

    assert mean == pytest.approx(same)
    assert np.all(close <= wide + 1e-12)


MODEL = job_model()
