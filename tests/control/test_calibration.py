"""Whether 90 % intervals of time and cost hold nine in ten: seeded runs of made-up jobs through the real search.

The aim is 85 to 95 %. First runs are above it, second ones within; the bounds here leave room for the chance of so few
(docs/models.md). Jobs, machines, starts, noise and drift are drawn in virtual time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibrate import error, runs_of, shares_inside
from synthetic_runs import Truth, run_job

from scavenger.store import Store


@pytest.mark.slow
def test_intervals_of_time_and_cost_hold_most_runs(tmp_path: Path) -> None:
    short, long = (runs_of(tmp_path, 3, long=long) for long in (False, True))
    outcomes = [one for runs in (*short, *long) for one in runs]
    times, costs = shares_inside(outcomes)

    assert len(outcomes) >= 10
    assert times >= 0.75
    assert costs >= 0.75
    assert error(outcomes) < 0.5
    for one in outcomes:
        assert one.predicted is not None
        low_s, high_s = one.predicted.time_interval_s
        assert low_s < one.predicted.time_s < high_s


@pytest.mark.slow
def test_a_stored_model_knows_the_steps_of_a_run_on_a_configuration_that_was_not_profiled(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(1)
    alike = {"beside": 1.5, "sync_s": 0.1, "kept": 1e6, "machine_log_sd": 0.0, "drift_log_sd": 0.0}
    truth = replace(Truth.drawn(random, long=True), **alike)
    few = {
        "profile": {"steps": 10, "points": 1},
        "elastic": {"policy": "fixed", "lr_scaling": "linear"},
    }
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        first, second = (run_job(truth, store, tmp_path, random, **few) for _ in range(2))

    assert first.predicted is not None
    assert second.predicted is not None
    assert first.chosen == second.chosen
    assert first.predicted.step_time_s < 0.9 * first.actual.step_time_s  # what is beside it was not known
    assert second.predicted.step_time_s == pytest.approx(first.actual.step_time_s, rel=0.05)


@pytest.mark.slow
def test_a_run_that_missed_its_target_corrects_the_hint_of_the_next_one(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    truth = replace(Truth.drawn(random, long=False), epochs=20.0, hint=5.0, run_log_sd=0.0)
    goal = {"metric": "val_accuracy", "target": truth.target, "max_epochs": 12, "epochs_hint": truth.hint}
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        first = run_job(truth, store, tmp_path, random, goal=goal)
        second = run_job(truth, store, tmp_path, random, goal={**goal, "max_epochs": 100})

    assert "the target is missed" in first.warnings[-1]
    assert second.predicted is not None
    assert abs(np.log(second.predicted.epochs / second.actual.epochs)) < 0.5  # the hint: 1.4 and more
    low_s, high_s = second.predicted.time_interval_s
    assert low_s < second.actual.time_s < high_s


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("long", [False, True])
def test_intervals_hold_most_of_many_runs(tmp_path: Path, long: bool) -> None:
    for outcomes in runs_of(tmp_path, 120, long=long, seed=1000):
        assert all(share >= 0.78 for share in shares_inside(outcomes))
