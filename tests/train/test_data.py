"""What may be called data, and what is told of it that may not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scavenger.train.failure import DataError
from scavenger.train.worker.data import open_source


class Items:
    """A map-style data set of given samples."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


X, Y, W = np.arange(12.0).reshape(6, 2), np.arange(6), np.linspace(0, 1, 6)


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ((X, Y), (X[[4, 1]], Y[[4, 1]])),
        ([X, Y, W], (X[[4, 1]], Y[[4, 1]], W[[4, 1]])),
        (({"a": X, "b": Y}, (Y, W)), ({"a": X[[4, 1]], "b": Y[[4, 1]]}, (Y[[4, 1]], W[[4, 1]]))),
        (Items(*zip(X, Y, strict=True)), (X[[4, 1]], Y[[4, 1]])),
    ],
)
def test_a_batch_holds_the_samples_asked_for_in_their_order(data: Any, batch: Any) -> None:
    source = open_source(data, "train")

    got = source.batch(np.array([4, 1]))

    assert len(source) == 6
    for a, b in zip(_leaves(got), _leaves(batch), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_arrays_and_items_give_the_same_batches() -> None:
    arrays = open_source(({"a": X, "b": Y}, Y, W), "train")
    items = open_source(Items(*[({"a": X[i], "b": Y[i]}, Y[i], W[i]) for i in range(6)]), "train")

    for a, b in zip(
        _leaves(arrays.batch(np.array([5, 0, 2]))), _leaves(items.batch(np.array([5, 0, 2]))), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_floats_come_in_the_type_that_keras_computes_with() -> None:
    x, y = open_source((X.astype("float64"), Y), "train").batch(np.array([0]))

    assert x.dtype == np.float32
    assert y.dtype == Y.dtype


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Whole batches, as Keras's own data sets give them."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]


class BatchesAlike:
    """The same without the class."""

    __len__, __getitem__ = Batches.__len__, Batches.__getitem__

    def on_epoch_end(self) -> None:
        pass


class Named:
    """A data set whose keys are names, without saying so."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Any:
        return {"x": X, "y": Y}[key]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((X, Y[:5]), "disagree on the number of samples: [5, 6]"),
        ((X,), "must be (x, y) or (x, y, sample_weight)"),
        ((X, Y, W, W), "must be (x, y) or (x, y, sample_weight)"),
        ((X[:0], Y[:0]), "there is no sample"),
        (Items(), "there is no sample"),
        (({}, ()), "there is no array"),
        (Items(5, 6), "must be (x, y) or (x, y, sample_weight)"),
        ((np.array([{}, {}], dtype=object), Y[:2]), "Python objects"),
        ((np.array(["a", "b"]), Y[:2]), "instead of numbers"),
        ((np.array([[1, 2], [3]], dtype=object), Y[:2]), "Python objects"),
        ((np.float32(3.0), Y), "first axis"),
        (Batches(), "Batches is a PyDataset (keras.utils.Sequence), which gives whole batches"),
        (BatchesAlike(), "BatchesAlike has on_epoch_end"),
        (
            tf.data.Dataset.from_tensor_slices((X, Y)).batch(2),
            "_BatchDataset gives batches in an order of its own",
        ),
        ((pair for pair in zip(X, Y, strict=True)), "a generator can be read only once"),
        (iter([1, 2]), "a list_iterator can be read only once and in order: give arrays (x, y)"),
        ({"x": X, "y": Y}, "a dict has keys instead of samples: give a tuple (x, y)"),
        (Items({"a": X[0], "b": 1}), "a sample is a dict with 'a', 'b': make it a tuple (x, y)"),
        (list(zip(X, Y, strict=True)), "must be (x, y) or (x, y, sample_weight), not a list of 6"),
        ((X.tolist(), Y.tolist()), "turn a list of samples into an array, np.array(x)"),
        (([X[0], X[1], X[2]], Y), "turn a list of samples into an array, np.array(x)"),
        (Items(([1.0, 2.0], 1)), "a sample has a list of numbers, which is taken for several inputs"),
        (Items(({"a": [[1.0], [2.0]]}, 1)), "a sample has a list of numbers"),
        (Named(), "a Named has no [0]: its [i] must be one sample (x, y)"),
        ([(X[0], 0), (X[1], 1), (X[2], 0), (X[3], 1)], "turn a list of samples into arrays"),
        ([(X[0], 0), (X[1], 1)], "turn a list of samples into arrays"),
        ([{"x": X[0], "y": 0}] * 3, "turn a list of samples into arrays"),
        (42, "give arrays (x, y), or an object with __len__"),
    ],
)
def test_what_is_no_data_is_told_in_one_line_that_names_it(data: Any, complaint: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(data, "validation")

    assert str(caught.value).startswith("KerasJob.validation: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_samples_of_different_shapes_are_told_apart() -> None:
    source = open_source(Items((X[0], 0), (X[0, :1], 1)), "train")

    with pytest.raises(DataError, match="differ in shape"):
        source.batch(np.array([0, 1]))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
