"""What `KerasJob` takes, and what it says of the arguments of Keras's `fit`."""

from __future__ import annotations

from typing import Any

import pytest

from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob

MAKE: Any = KerasJob  # a type checker refuses these arguments already


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        (
            "class_weight",
            "train=(x, y, sample_weight) with sample_weight = np.array([class_weight[c] for c in y])",
        ),
        ("sample_weight", "train=(x, y, sample_weight)"),
        ("validation_data", "validation="),
        ("validation_split", "validation="),
        ("epochs", "goal.max_epochs"),
        ("batch_size", "search.batch_size"),
    ],
)
def test_an_argument_of_fit_is_refused_with_what_to_do_instead(name: str, instead: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        MAKE("model", ("x", "y"), **{name: None})

    assert str(caught.value).startswith(f"KerasJob({name}=...): ")
    assert instead in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_other_argument_is_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        MAKE("model", ("x", "y"), modle=1)


def test_a_job_is_a_value() -> None:
    job = KerasJob("model", ("x", "y"))

    assert job == KerasJob(model="model", train=("x", "y"), validation=None)
    assert repr(job) == "KerasJob(model='model', train=('x', 'y'), validation=None, callbacks=None)"
    with pytest.raises(AttributeError):
        job.model = "other"  # type: ignore[misc]
