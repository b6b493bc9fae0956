"""What `KerasJob` takes, and what it says of the arguments of Keras's `fit`."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import pytest

from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("epochs", 5, "goal.max_epochs"),
        ("batch_size", 32, "search.batch_size"),
        ("initial_epoch", 3, "count from 0"),
        ("steps_per_epoch", 10, "give batch_size=, too"),
        ("validation_batch_size", 32, "leave it out"),
        ("validation_freq", 2, "after every epoch"),
        ("validation_steps", 3, "give less of them"),
        ("verbose", 0, "-q"),
    ],
)
def test_an_argument_of_fit_is_refused_with_what_to_do_instead(name: str, value: Any, instead: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        KerasJob("model", ("x", "y"), **{name: value})

    assert str(caught.value).startswith(f"KerasJob({name}=...): ")
    assert instead in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_argument_of_fit_is_taken_or_refused() -> None:
    taken = set(inspect.signature(KerasJob.__init__).parameters)
    named = {"self", "x", "y"}  # the data, which are `train`

    for name, parameter in inspect.signature(keras.Model.fit).parameters.items():
        if name in named or name in taken:
            continue
        KerasJob("model", ("x", "y"), **{name: parameter.default})  # Keras's default changes nothing
        with pytest.raises(NotSupportedError):
            KerasJob("model", ("x", "y"), **{name: "anything else"})


def test_sample_weights_and_validation_data_have_keras_names_too() -> None:
    job = KerasJob("model", ("x", "y"), sample_weight="w", validation_data=("a", "b"), validation_split=0.5)

    assert job == KerasJob("model", ("x", "y", "w"), ("a", "b"))  # data that are given come before a share


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"sample_weight": "w", "train": ("x", "y", "v")}, r"goes with train=\(x, y\)"),
        ({"validation": "v", "validation_data": "v"}, "the same argument"),
        ({"validation_split": 1.0}, "from 0 to below 1"),
        ({"steps_per_epoch": 0, "batch_size": 5}, "at least 1"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        KerasJob(**{"model": "model", "train": ("x", "y"), **arguments})


def test_the_order_and_the_length_of_an_epoch_have_keras_names() -> None:
    job = KerasJob("model", ("x", "y"), shuffle=False, steps_per_epoch=10, batch_size=32)

    assert (job.shuffle, job.steps_per_epoch, job.batch_size) == (False, 10, 32)
    with pytest.raises(NotSupportedError, match=r"KerasJob\(shuffle='batch'\)"):
        KerasJob("model", ("x", "y"), shuffle="batch")


def test_any_other_argument_is_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        KerasJob("model", ("x", "y"), modle=1)


def test_a_job_is_a_value() -> None:
    job = KerasJob("model", ("x", "y"))

    assert job == KerasJob(model="model", train=("x", "y"), validation=None)
    assert repr(job) == (
        "KerasJob(model='model', train=('x', 'y'), validation=None, class_weight=None, validation_split=0.0, "
        "callbacks=None, shuffle=True, steps_per_epoch=None, batch_size=None)"
    )
    with pytest.raises(AttributeError):
        job.model = "other"  # type: ignore[misc]
