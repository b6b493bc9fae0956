"""Drift of a machine during a search: one term of all intervals, told in one line of the table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic import CLOUD, POINTS, SPACE, measured, profile

from scavenger.domain.measurement import Measurement
from scavenger.models.job_model import JobModel
from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.run_scatter import DRIFT, drift_log_sd, drift_note, with_the_run
from scavenger.search.curve import build_curve

FIRST = measured(1, 64)


def again(factor: float) -> Measurement:
    return replace(FIRST, step_time_s=FIRST.step_time_s * factor)


def fitted(factor: float | None) -> JobModel:
    twice = () if factor is None else (FIRST, again(factor))
    return JobModel.fit(replace(profile(POINTS), twice=twice), space=SPACE, epochs_hint=10.0, max_epochs=50)


@pytest.mark.parametrize("factor", [1.3, 1 / 1.3])
def test_a_change_counts_less_what_both_medians_err_by(factor: float) -> None:
    found = drift_log_sd(FIRST, again(factor))

    assert 0.95 * math.log(1.3) < found < math.log(1.3)


def test_what_may_be_chance_is_none() -> None:
    noisy = replace(again(1.1), step_time_spread_s=0.5 * FIRST.step_time_s)

    assert drift_log_sd(FIRST, again(1.02)) == drift_log_sd(FIRST, noisy) == 0.0
    assert drift_note(FIRST, again(1.02)) == (
        f"{DRIFT}steps of the first point took +2% at the end of the search, within their error"
    )


def test_every_interval_of_time_and_cost_contains_it_and_no_figure_changes() -> None:
    calm, drifting = fitted(None), fitted(1.5)
    count, batch = np.array([1, 4, 8]), np.array([64, 512, 1024])
    before, after = (model.predict(CLOUD, count, batch) for model in (calm, drifting))

    assert after.time_s.tolist() == before.time_s.tolist()
    for low, high, mean in (
        ("time_low_s", "time_high_s", "time_s"),
        ("cost_low_usd", "cost_high_usd", "cost_usd"),
    ):
        widths = [np.log(getattr(one, high) / getattr(one, mean)) / INTERVAL_Z for one in (before, after)]
        assert np.sqrt(widths[1] ** 2 - widths[0] ** 2) == pytest.approx(
            np.full(3, drift_log_sd(FIRST, again(1.5)))
        )
        assert np.all(getattr(after, low) < getattr(before, low))


def test_the_table_tells_of_it_first_and_it_is_of_that_search_alone() -> None:
    model = fitted(1.5)
    curve = build_curve(model, SPACE)

    assert curve.notes[0] == (
        f"{DRIFT}steps of the first point took +50% at the end of the search; all intervals contain it"
    )
    assert len(f"note: {curve.notes[0]}") <= 110
    assert JobModel.from_dict(model.to_dict()) == model
    later = JobModel.fit(profile(()), space=SPACE, epochs_hint=10.0, max_epochs=50, prior=model)
    assert later.drift_log_sd == 0.0  # how runs differ from each other is known of them, see `run_scatter`


def test_a_stored_profile_has_the_pace_of_the_run_after_it() -> None:
    profiled = tuple(measured(*point) for point in POINTS)
    run = replace(profiled[1], step_time_s=0.8 * profiled[1].step_time_s, steps=900)
    kept = with_the_run(profiled, run)
    further = replace(run, configuration=replace(run.configuration, global_batch_size=777))

    for before, after in zip(profiled, kept, strict=True):
        assert after.step_time_s == pytest.approx(0.8 * before.step_time_s)
        assert after.compute_s + after.sync_s == pytest.approx(0.8 * (before.compute_s + before.sync_s))
        assert (after.configuration, after.steps) == (before.configuration, before.steps)
    assert with_the_run(profiled, further) == (*profiled, further)
