"""What may be called data, and what is told of it that may not."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
import tensorflow as tf

from scavenger.elastic.order import Blocks
from scavenger.elastic.view import Share
from scavenger.sdk import sample_seed
from scavenger.train.failure import DataError
from scavenger.train.worker.data import open_source, within_reach
from scavenger.train.worker.samples import Samples

pytestmark = pytest.mark.slow


class Items:
    """A map-style data set of given samples."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Tensor:
    """As a torch tensor that needs a gradient, or lies on a device: NumPy cannot read it as it is."""

    def __init__(self, value: Any, *, detached: bool = False) -> None:
        self.value, self.detached = value, detached

    def detach(self) -> Tensor:
        return Tensor(self.value, detached=True)

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if not self.detached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return self.value


X, Y, W = np.arange(12.0).reshape(6, 2), np.arange(6), np.linspace(0, 1, 6)


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ((X, Y), (X[[4, 1]], Y[[4, 1]])),
        ([X, Y, W], (X[[4, 1]], Y[[4, 1]], W[[4, 1]])),
        (({"a": X, "b": Y}, (Y, W)), ({"a": X[[4, 1]], "b": Y[[4, 1]]}, (Y[[4, 1]], W[[4, 1]]))),
        (Items(*zip(X, Y, strict=True)), (X[[4, 1]], Y[[4, 1]])),
        ((X,), (X[[4, 1]],)),
        (X, (X[[4, 1]],)),
        ({"a": X, "b": Y}, ({"a": X[[4, 1]], "b": Y[[4, 1]]},)),
        ((X, None), (X[[4, 1]],)),
        (Items(*({"a": x, "b": y} for x, y in zip(X, Y, strict=True))), ({"a": X[[4, 1]], "b": Y[[4, 1]]},)),
        (Items(*X), (X[[4, 1]],)),
        (Items(*[[x, int(y)] for x, y in zip(X, Y, strict=True)]), (X[[4, 1]], Y[[4, 1]])),
        (Items(*((Tensor(x), y) for x, y in zip(X, Y, strict=True))), (X[[4, 1]], Y[[4, 1]])),
        ((tf.constant(X), tf.constant(Y)), (X[[4, 1]], Y[[4, 1]])),
        ((pandas.DataFrame(X), pandas.Series(Y)), (X[[4, 1]], Y[[4, 1]])),
        (pandas.DataFrame(X), (X[[4, 1]],)),
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


def test_text_stays_text() -> None:
    words = np.array(["a", "bcd", ""])
    for data in ((words, Y[:3]), (words.astype(object), Y[:3]), Items(*zip(words.tolist(), Y, strict=False))):
        x, _ = open_source(data, "train").batch(np.array([1, 2]))

        assert x.tolist() == ["bcd", ""]
        assert tf.convert_to_tensor(x).dtype == tf.string


def test_a_data_set_that_says_so_is_read_by_several_threads_at_once() -> None:
    meeting = threading.Barrier(4, timeout=20)

    class Slow(Items):
        workers = 4

        def __getitem__(self, index: int) -> Any:
            if self.ready:
                meeting.wait()  # 4 reads at once, or none ends
            return X[index], Y[index]

        ready = False

    slow = Slow(*X[:4])
    source = open_source(slow, "train")
    slow.ready = True

    np.testing.assert_array_equal(source.batch(np.array([3, 0, 2, 1]))[1], Y[[3, 0, 2, 1]])


def test_an_error_in_a_thread_is_raised_where_the_batch_is_read() -> None:
    class Broken(Items):
        workers = 3

        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise LookupError("torn page")
            return X[index], Y[index]

    with pytest.raises(LookupError, match="torn page") as caught:
        open_source(Broken(*X), "train").batch(np.array([1, 2, 3]))
    assert "__getitem__" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_a_sample_has_a_seed_of_its_own_in_each_epoch_and_job_and_for_every_worker() -> None:
    class Augmented(Items):
        def __getitem__(self, index: int) -> Any:
            return X[index], sample_seed()

    augmented = Augmented(*X)
    threaded = Augmented(*X)
    threaded.workers = 3  # type: ignore[attr-defined]

    def seeds(data: Any, job: int, epoch: int) -> dict[float, int]:
        samples = Samples(open_source(data, "train"), job)
        read = [samples.read(epoch, Share(start, start + 2)) for start in (0, 2, 4)]
        x, y = (np.concatenate(part) for part in zip(*read, strict=True))
        return dict(zip(x[:, 0].tolist(), y.tolist(), strict=True))

    found = seeds(augmented, 7, 0)
    assert found == seeds(threaded, 7, 0)
    others = [found, seeds(augmented, 7, 1), seeds(augmented, 8, 0)]
    assert len({seed for one in others for seed in one.values()}) == 3 * 6
    assert sample_seed() == 0


def test_large_data_is_ordered_by_blocks_and_small_data_is_not() -> None:
    small = open_source((X, Y), "train")
    large = open_source(np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (10**9,), (0,)), "train")

    assert (small.blocks, within_reach(small)) == (None, 6)
    assert large.blocks == Blocks.alike(10**9, 1024, mixed=1024)
    assert within_reach(large) == 10**9


class BatchesAlike:
    """Whole batches, as those of a `PyDataset`, without the class."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]

    def on_epoch_end(self) -> None:
        pass


class Named:
    """A data set whose keys are names, without saying so."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Any:
        return {"x": X, "y": Y}[key]


class Endless(Items):
    def __len__(self) -> int:
        return sys.maxsize


def like(module: str, name: str, **attributes: Any) -> Any:
    """An object as of a package that need not be installed."""
    return type(name, (), {"__module__": module, **attributes})()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((X, Y[:5]), "disagree on the number of samples: [5, 6]"),
        ((X, Y, W, W), "must be x, (x, y) or (x, y, sample_weight), not a tuple of 4"),
        ((X, None, W), "has a sample_weight, but y is None"),
        (Items(None, X[0]), "a sample is None: leave it out before"),
        (
            (tf.ragged.constant([[1, 2], [3]]), Y[:2]),
            "a RaggedTensor has samples of different shapes: pad them",
        ),
        (tf.ragged.constant([[1, 2], [3]]), "a RaggedTensor has samples of different shapes: pad them"),
        ((tf.sparse.from_dense(X), Y), "a SparseTensor is sparse: make it dense"),
        ((scipy.sparse.csr_array(X), Y), "a csr_array is sparse: make it dense"),
        (like("torch.utils.data", "DataLoader"), "give its data set, loader.dataset"),
        (
            like("torch.utils.data", "IterableDataset"),
            "give scavenger.sdk.FromGenerator(lambda: iter(dataset)",
        ),
        (like("grain._src.python.data_loader", "DataLoader"), "give the MapDataset or the data source"),
        (like("grain._src.python.dataset.dataset", "IterDataset"), "without .batch(), .repeat()"),
        (like("grain", "MapMapDataset", _parents=[like("grain", "BatchMapDataset")]), "remove .batch()"),
        (Endless(), "is endless: remove .repeat()"),
        ((X[:0], Y[:0]), "there is no sample"),
        (Items(), "there is no sample"),
        (({}, ()), "there is no array"),
        ((np.array([{}, {}], dtype=object), Y[:2]), "Python objects"),
        ((np.array(["2026-01-01"], "M8[D]"), Y[:1]), "instead of numbers"),
        ((np.array(["a", None]), Y[:2]), "Python objects"),
        ((np.array([[1, 2], [3]], dtype=object), Y[:2]), "Python objects"),
        ((np.float32(3.0), Y), "first axis"),
        (BatchesAlike(), "BatchesAlike has on_epoch_end"),
        ((pair for pair in zip(X, Y, strict=True)), "a generator can be read only once"),
        (iter([1, 2]), "a list_iterator can be read only once and in order: give scavenger.sdk.FromG"),
        (list(zip(X, Y, strict=True)), "must be x, (x, y) or (x, y, sample_weight), not a list of 6"),
        ((X.tolist(), Y.tolist()), "turn a list of samples into an array, np.array(x)"),
        (([X[0], X[1], X[2]], Y), "turn a list of samples into an array, np.array(x)"),
        (Items(([1.0, 2.0], 1)), "a sample has a list of numbers, which is taken for several inputs"),
        (Items(({"a": [[1.0], [2.0]]}, 1)), "a sample has a list of numbers"),
        (Named(), "a Named has no [0]: its [i] must be one sample (x, y)"),
        ([(X[0], 0), (X[1], 1), (X[2], 0), (X[3], 1)], "turn a list of samples into arrays"),
        ([(X[0], 0), (X[1], 1)], "turn a list of samples into arrays"),
        ([{"x": X[0], "y": 0}] * 3, "turn a list of samples into arrays"),
        ({1, 2}, "for what can be read only in order, scavenger.sdk.FromGenerator"),
        (42, "give arrays (x, y), or an object whose [i] is one sample"),
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

    with pytest.raises(DataError, match=r"differ in shape: \[\(1,\), \(2,\)\]: pad them"):
        source.batch(np.array([0, 1]))


def test_samples_of_different_structure_are_told_apart() -> None:
    for other in ((X[0],), (X[0], {"a": 1}), (X[0], 1, 1.0)):
        source = open_source(Items((X[0], 0), other), "train")

        with pytest.raises(DataError, match="differ in structure"):
            source.batch(np.array([0, 1]))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
