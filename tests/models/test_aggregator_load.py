"""Step time with another number of aggregator VMs than that of the measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import POINTS, SPACE, profile

from scavenger.models.job_model import JobModel
from scavenger.models.parallel import INTERVAL_Z, fit_parallel
from scavenger.models.step_laws import AS_MEASURED, Load, StepTimes
from scavenger.models.transfer import transfer

SHARES = st.integers(1, 16).map(lambda n: 1.0 / n)
COUNTS = np.array([1.0, 2.0, 3.0, 4.0, 8.0, 16.0])
GRID = tuple((k, b) for k in (1, 2, 4, 8) for b in (128, 512, 1024))


def linked(workers: int, batch: int, share: float, *, fixed_s: float = 0.0) -> StepTimes:
    """A step whose synchronisation waits for the longer of a worker's link and the fullest aggregator VM's."""
    compute_s = 0.02 + 0.001 * -(-batch // workers)
    sync_s = fixed_s + 0.04 * max(workers * share, 1.0)
    local = -(-batch // workers)
    return StepTimes(workers, batch, local, 1.0, compute_s + sync_s, compute_s, sync_s, 0.001, 20)


def predicted(model, points=GRID):  # type: ignore[no-untyped-def]
    workers, batch = np.array(points).T
    return model.predict(workers, batch, np.ones(len(workers)))


@given(before=SHARES, now=SHARES, later=SHARES)
def test_the_workers_that_are_waited_for_like_are_those_of_the_longer_link(
    before: float, now: float, later: float
) -> None:
    served = AS_MEASURED.changed(before, now).served(COUNTS)

    # under the first share, that many workers wait as long as all do under the other one
    assert np.maximum(served * before, 1.0) == pytest.approx(np.maximum(COUNTS * now, 1.0))
    assert AS_MEASURED.changed(before, now).changed(now, later).served(COUNTS) == pytest.approx(
        AS_MEASURED.changed(before, later).served(COUNTS)
    )
    assert AS_MEASURED.served(COUNTS) == pytest.approx(COUNTS)


@pytest.mark.parametrize(("before", "now"), [(1.0, 0.5), (1.0, 0.25), (0.5, 0.25)])
@pytest.mark.parametrize("law", ["linear", "overlap"])
def test_where_aggregators_links_are_the_limit_their_number_is_predicted(
    before: float, now: float, law: str
) -> None:
    points = [(k, b) for k, b in POINTS if k * before >= 1.0] + [(4, 512)]
    points += [(k, b) for k, b in GRID if k in (2, 8)]
    model = fit_parallel([linked(k, b, before) for k, b in points], law=law)  # type: ignore[arg-type]
    grid = tuple((k, b) for k, b in GRID if k > 1)

    step_time_s, log_sd = predicted(model.with_share(before, now), grid)
    truth = np.array([linked(k, b, now).step_time_s for k, b in grid])

    # the overlap law doubts that synchronisation grows in proportion to K, and so errs upwards
    assert np.all(step_time_s >= truth * (0.99 if law == "linear" else 0.95))
    assert np.all(step_time_s <= truth * (1.01 if law == "linear" else 1.4))
    assert np.all(np.abs(np.log(step_time_s / truth)) < INTERVAL_Z * log_sd)


@given(now=SHARES)
def test_more_vms_never_make_a_step_longer_and_are_never_taken_for_measured(now: float) -> None:
    model = fit_parallel([linked(k, b, 1.0) for k, b in (*POINTS, (4, 512))])
    other = model.with_share(1.0, now)
    (before_s, before_sd), (step_time_s, log_sd) = predicted(model), predicted(other)

    assert np.all(step_time_s <= before_s * (1 + 1e-9))
    least = np.array([k for k, _ in GRID]) * now
    assert np.all(step_time_s[least <= 1.0] >= 0.02)  # a worker's own link stays
    workers, batch = np.array(GRID).T
    if now < 1.0:
        assert not np.any(other.is_measured(workers, batch))
        law_s, law_sd = model.predict_law(workers, batch, np.ones(len(workers)))
        moved = np.abs(np.log(step_time_s / law_s))
        assert np.all(log_sd >= np.hypot(law_sd, 0.5 * moved) * (1 - 1e-9))
    else:
        assert step_time_s == pytest.approx(before_s)
        assert log_sd == pytest.approx(before_sd)


def test_where_workers_were_never_varied_nothing_is_claimed_for_sure() -> None:
    """The interval of the step with more VMs then reaches the step with one."""
    model = fit_parallel([linked(4, b, 1.0) for b in (128, 256, 512)])
    (one_s, _), (two_s, two_sd) = predicted(model), predicted(model.with_share(1.0, 0.5))

    assert np.all(two_s * np.exp(INTERVAL_Z * two_sd) >= one_s * 0.99)


def test_steps_that_are_measured_there_correct_the_prediction() -> None:
    """Half of what was measured does not fall with the VMs: the prediction is too low until a step tells."""
    fixed_s = 0.1
    model = fit_parallel([linked(k, b, 1.0, fixed_s=fixed_s) for k, b in (*POINTS, (4, 512))], law="overlap")
    truth = linked(4, 512, 0.25, fixed_s=fixed_s)
    guess, guess_sd = predicted(model.with_share(1.0, 0.25), ((4, 512),))
    corrected = transfer(model.with_share(1.0, 0.25), (truth,), speed_ratio=1.0)
    found, found_sd = predicted(corrected, ((4, 512),))

    assert abs(np.log(found[0] / truth.step_time_s)) < 0.03 < abs(np.log(guess[0] / truth.step_time_s))
    assert found_sd[0] < guess_sd[0]
    assert corrected.is_measured(np.array([4]), np.array([512]))[0]


def test_it_is_stored_and_read() -> None:
    model = JobModel.fit(profile(), space=SPACE, epochs_hint=None, max_epochs=5, fixed_epochs=True)
    other = model.with_share(1.0, 0.5, "predicted")

    assert JobModel.from_dict(other.to_dict()) == other
    assert other.all_notes()[0] == "predicted" or "predicted" in other.all_notes()
    document = model.to_dict()
    for vm in document["model"]["vms"]:  # type: ignore[index]
        del vm["parallel"]["law"]["load"], vm["parallel"]["measured_load"]
    assert JobModel.from_dict(document) == model, "as models were stored before"


def test_a_load_is_that_of_no_other() -> None:
    assert Load() == AS_MEASURED
    assert AS_MEASURED.changed(1.0, 0.5) != AS_MEASURED
