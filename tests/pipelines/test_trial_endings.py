"""What the end of a trial means for a search, and when a budget pays for another trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipeline_code
import pytest
from studies import put_on_record

from scavenger import Client, Job, Study
from scavenger.errors import ConfigurationError
from scavenger.integrations.trials import ending_of, pays_for_another, searched_job, usual_cost_usd
from scavenger.pipelines.study import PRUNED, Trial

JOB = Job(pipeline_code.model, goal={"metric": "val_loss", "max_epochs": 3})


def study_of(tmp_path: Path, costs: list[float], budget: float | None) -> Study:
    """A study with complete trials of these costs."""
    url = f"sqlite:///{tmp_path}/store.db"
    for number, usd in enumerate(costs):
        put_on_record(url, JOB.with_params(width=number + 1), 0.5, usd=usd)
    return Client(store=url).study("rates", budget=budget)


def trial(state: Any, value: float | None = None, error: str = "", code: int = 0) -> Trial:
    return Trial("id", {}, state, value, 0.1, 1.0, 0, None, error, code)


@pytest.mark.parametrize(
    ("costs", "budget", "pays"),
    [
        ([], None, True),
        ([], 0.01, True),
        ([0.1, 0.3, 0.2], None, True),
        ([0.1, 0.3, 0.2], 0.81, True),
        ([0.1, 0.3, 0.2], 0.79, False),
        ([0.1, 0.3, 0.2], 0.6, False),
        ([0.0, 0.0], 1e-9, True),
    ],
)
def test_a_budget_pays_for_another_trial_if_it_has_more_than_the_median_left(
    tmp_path: Path, costs: list[float], budget: float | None, pays: bool
) -> None:
    study = study_of(tmp_path, costs, budget)
    assert pays_for_another(study) is pays
    assert usual_cost_usd(study) == (sorted(costs)[len(costs) // 2] if costs else 0.0)


def test_nothing_is_paid_for_when_the_time_is_used_up(tmp_path: Path) -> None:
    study_of(tmp_path, [0.1], None)
    client = Client(store=f"sqlite:///{tmp_path}/store.db")
    assert pays_for_another(client.study("rates", deadline="8h"))
    assert not pays_for_another(client.study("rates", deadline=1e-6))


@pytest.mark.parametrize(
    ("ended", "left", "used_up"),
    [
        (trial("succeeded", 0.5), "complete", "complete"),
        (trial("target_missed", 0.5), "complete", "complete"),
        (trial("succeeded"), "failed", "failed"),
        (trial("interrupted", 0.5, PRUNED), "pruned", "pruned"),
        (trial("interrupted", 0.5), "interrupted", "interrupted"),
        (trial("stopped", 0.5, "over the budget", 5), "failed", "used_up"),  # by its own limit, or the study's
        (trial("failed", None, "train.py:3: no", 6), "failed", "failed"),
    ],
)  # fmt: skip
def test_what_an_ending_means(tmp_path: Path, ended: Trial, left: str, used_up: str) -> None:
    assert ending_of(study_of(tmp_path, [0.2], 1.0), ended) == left
    (tmp_path / "other").mkdir()
    assert ending_of(study_of(tmp_path / "other", [0.2], 0.3), ended) == used_up


def test_the_job_that_is_searched_has_the_metric_and_the_direction_of_the_search() -> None:
    bare = Job(pipeline_code.model, goal=3)
    assert searched_job(bare, "val_f1", "max").spec.goal.direction == "max"
    flipped = searched_job(bare, "val_f1", "min").spec.goal
    assert (flipped.metric, flipped.direction) == ("val_f1", "min")
    assert searched_job(JOB, None) == searched_job(JOB, "val_loss", "min") == JOB
    with pytest.raises(ConfigurationError, match=r"name goal\.metric"):
        searched_job(bare, None)
    with pytest.raises(ConfigurationError, match="the search compares loss, and the job's goal has val_loss"):
        searched_job(JOB, "loss")
