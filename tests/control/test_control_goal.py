"""When training is done, and what the run is told to have come to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.control.training.goal import Goal
from scavenger.domain.job import GoalSpec
from scavenger.domain.measurement import EpochRecord
from scavenger.errors import ConfigurationError

values = st.lists(st.floats(0.0, 1.0, width=32) | st.just(math.nan), max_size=12)


def epochs(metric: str, series: list[float]) -> list[EpochRecord]:
    return [EpochRecord(i, i + 1, {metric: value}, 0.1, float(i)) for i, value in enumerate(series)]


@given(series=values, target=st.floats(0.0, 1.0, width=32))
def test_the_outcome_is_the_best_finite_value_in_the_metrics_own_direction(
    series: list[float], target: float
) -> None:
    finite = [value for value in series if math.isfinite(value)]
    for metric, best in (("val_accuracy", max), ("val_loss", min)):
        outcome = Goal(GoalSpec(metric=metric, target=target, max_epochs=9)).outcome(epochs(metric, series))
        assert outcome is not None
        assert outcome.value == (best(finite) if finite else None)
        met = any(value >= target if metric == "val_accuracy" else value <= target for value in finite)
        assert outcome.reached == met


@given(target=st.floats(-1e6, 1e6) | st.sampled_from([0.9, 0.1, 1e39, -1e39]))
def test_a_value_that_equals_the_target_in_single_precision_meets_it(target: float) -> None:
    single = target if abs(target) > 1e38 else float(np.float32(target))
    apart = max(abs(single) * 1e-6, 1e-30)
    for mode, worse in (("max", single - apart), ("min", single + apart)):
        goal = Goal(
            GoalSpec.model_validate({"metric": "val_gain", "mode": mode, "target": target, "max_epochs": 9})
        )
        assert goal.reached(single)
        assert goal.reached(target)
        assert not goal.reached(worse)


def test_a_goal_without_target_is_never_reached_and_one_without_metric_has_no_outcome() -> None:
    assert not Goal(GoalSpec(metric="val_loss", max_epochs=9)).reached(0.0)
    assert Goal(GoalSpec(max_epochs=9)).outcome([]) is None


@pytest.mark.parametrize(
    ("metric", "names", "words"),
    [
        ("val_los", ["loss", "val_loss"], "did you mean val_loss"),
        ("val_loss", ["loss"], r"val_loss needs validation data: .*validation=\(x, y\)"),
        ("f1", ["loss"], "it has loss"),
    ],
)
def test_a_metric_that_the_model_has_not_is_refused_with_what_it_has(
    metric: str, names: list[str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Goal(GoalSpec(metric=metric, max_epochs=9)).check(names)


def test_a_metric_that_the_model_has_is_accepted_and_so_is_none() -> None:
    Goal(GoalSpec(metric="val_loss", max_epochs=9)).check(["val_loss"])
    Goal(GoalSpec(max_epochs=9)).check([])


def test_the_text_names_metric_direction_and_target_and_is_empty_without_target() -> None:
    assert Goal(GoalSpec(metric="val_loss", target=0.25, max_epochs=9)).text == "val_loss<=0.25"
    assert Goal(GoalSpec(metric="val_accuracy", target=0.9, max_epochs=9)).text == "val_accuracy>=0.9"
    assert Goal(GoalSpec(metric="val_loss", max_epochs=9)).text == ""
