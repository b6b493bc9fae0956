"""Whether a goal's metric is to rise or to fall is known by its name, said by the user, or asked for."""

from __future__ import annotations

import inspect

import pytest

from scavenger.control.training.goal import Goal
from scavenger.domain.goal import GoalSpec, known_direction
from scavenger.errors import ConfigurationError

OF_THE_USER = {"mean", "sum", "metric", "mean_metric_wrapper"}
"""Names of Keras's metrics whose meaning is what they are given, or which are classes for the user to extend."""


@pytest.mark.slow
def test_the_direction_of_each_metric_of_keras_is_the_one_that_keras_gives_it() -> None:
    metrics = pytest.importorskip("keras.src.metrics")
    arguments = {
        "IoU": {"num_classes": 2, "target_class_ids": [0]},
        "OneHotIoU": {"num_classes": 2, "target_class_ids": [0]},
        "MeanIoU": {"num_classes": 2},
        "OneHotMeanIoU": {"num_classes": 2},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
        "SensitivityAtSpecificity": {"specificity": 0.5},
        "PrecisionAtRecall": {"recall": 0.5},
        "RecallAtPrecision": {"precision": 0.5},
    }
    counts = {
        "false_positives": "min",
        "false_negatives": "min",
        "true_positives": "max",
        "true_negatives": "max",
    }
    seen = set()
    for alias, kind in metrics.ALL_OBJECTS_DICT.items():
        if not alias.islower() and not alias.isupper():
            continue  # names of classes, which have an alias with underscores
        if alias in OF_THE_USER:
            assert known_direction(alias) is None
            continue
        assert inspect.isclass(kind)
        one = kind(**arguments.get(kind.__name__, {}))
        told = {"up": "max", "down": "min"}.get(getattr(one, "_direction", ""), counts.get(alias))
        for name in (alias, one.name, f"val_{one.name}", f"{alias}_3"):
            assert known_direction(name) == told, name
        seen.add(kind)
    assert len(seen) > 35


@pytest.mark.slow
def test_every_loss_of_keras_that_a_model_may_be_measured_by_falls() -> None:
    losses = pytest.importorskip("keras.src.losses")
    # these names have another meaning as metrics, or mean more than one thing
    other = {"cosine_similarity", "dice", "tversky", "circle"}
    for alias in losses.ALL_OBJECTS_DICT:
        if (alias.islower() or alias.isupper()) and alias not in other:
            assert known_direction(alias) == "min", alias


@pytest.mark.parametrize("name", ["val_custom", "mean", "val_neg_mean_squared_error", "inaccuracy", "score"])
def test_a_name_that_tells_no_direction_is_refused_with_what_to_write(name: str) -> None:
    goal = GoalSpec(metric=name, max_epochs=3)
    with pytest.raises(ConfigurationError, match=r"add mode: max or mode: min") as refused:
        Goal(goal).check_direction()
    assert refused.value.key == "goal.metric"
    Goal(goal.model_copy(update={"mode": "min"})).check_direction()


@pytest.mark.parametrize(
    ("name", "first", "target"), [("digit_accuracy", 0.9, 0.5), ("val_token_loss", 0.1, 0.5)]
)
def test_a_guessed_direction_is_asked_for_when_the_first_value_is_good_enough(
    name: str, first: float, target: float
) -> None:
    goal = GoalSpec(metric=name, target=target, max_epochs=3)
    assert f"mode: {goal.direction} if so" in Goal(goal).doubt(first)
    assert not Goal(goal).doubt(1.0 - first)  # not met: the guess does no harm
    assert not Goal(goal).doubt(None)
    assert not Goal(goal.model_copy(update={"mode": goal.direction})).doubt(first)
    assert not Goal(GoalSpec(metric="accuracy", target=0.5, max_epochs=3)).doubt(0.9)  # Keras's own
