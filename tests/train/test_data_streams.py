"""Batches, streams and `tf.data` as sources: every sample once, the same at each reading, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scavenger.elastic.order import Blocks, EpochOrder
from scavenger.elastic.view import Share
from scavenger.sdk import FromGenerator
from scavenger.train.failure import DataError
from scavenger.train.worker.data import SampleSource, open_source
from scavenger.train.worker.samples import Samples

pytestmark = pytest.mark.slow

N = 50
X, Y = np.arange(2.0 * N).reshape(N, 2).astype("float32"), np.arange(N)
TF = tf.data.Dataset
SLICES = TF.from_tensor_slices((X, Y))
STREAM = TF.from_generator(
    lambda: zip(X, Y, strict=True), output_signature=(tf.TensorSpec((2,)), tf.TensorSpec((), tf.int64))
).apply(tf.data.experimental.assert_cardinality(N))


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of 8 samples; the last has 2."""

    def __init__(self, sizes: Callable[[int], int] = lambda _: 8, **options: Any) -> None:
        super().__init__(**options)
        self.sizes, self.read = sizes, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        at = slice(8 * index, 8 * index + self.sizes(index))
        return X[at], Y[at]


def samples() -> Iterator[Any]:
    yield from zip(X, Y, strict=True)


def double(x: Any, y: Any) -> Any:
    return x * 2, y


def as_it_is(x: Any, y: Any) -> Any:
    return x + 0.0, y + 0


DATA = {
    "PyDataset": (lambda: Batches(), Blocks.alike(N, 8)),
    "PyDataset, threads": (lambda: Batches(workers=3), Blocks.alike(N, 8)),
    "generator": (
        lambda: FromGenerator(samples, N, shuffle_buffer=16),
        Blocks.alike(N, 16, in_sequence=True),
    ),
    "generator that fits": (lambda: FromGenerator(samples, N), Blocks.alike(N, N, in_sequence=True)),
    "tf.data": (lambda: SLICES, None),
    "tf.data, batched": (lambda: SLICES.batch(8), None),
    "tf.data, as in tutorials": (lambda: SLICES.cache().shuffle(10).batch(8).prefetch(2), None),
    "tf.data, batched in parallel": (lambda: SLICES.batch(8, num_parallel_calls=2), None),
    "tf.data, shuffled in a way that repeats": (
        lambda: SLICES.shuffle(9, seed=1, reshuffle_each_iteration=False).map(lambda x, y: (x, y)),
        None,
    ),
    "tf.data, batches mapped": (lambda: SLICES.batch(8).map(lambda x, y: (x, y)), Blocks.alike(N, 8)),
    "tf.data, mapped": (lambda: SLICES.map(as_it_is), None),
    "tf.data, mapped as in tutorials": (
        lambda: SLICES.map(as_it_is, num_parallel_calls=tf.data.AUTOTUNE).shuffle(9).batch(8).prefetch(2),
        None,
    ),
    "tf.data, mapped before and after batches": (
        lambda: SLICES.map(as_it_is).batch(8).map(as_it_is),
        Blocks.alike(N, 8),
    ),
    "tf.data, mapped, kept and mapped": (lambda: SLICES.map(as_it_is).cache().map(as_it_is), None),
    "tf.data, mapped and put together": (
        lambda: SLICES.map(as_it_is).skip(20).take(30).concatenate(SLICES.map(as_it_is).take(20)),
        None,
    ),
    "tf.data, mapped and shuffled": (
        lambda: SLICES.map(as_it_is).shuffle(9, seed=1, reshuffle_each_iteration=False).map(as_it_is),
        Blocks.alike(N, N, in_sequence=True),
    ),
    "tf.data, shuffled before batches that are mapped": (
        lambda: SLICES.shuffle(9).batch(8).map(as_it_is),
        Blocks.alike(N, 8),
    ),
    "tf.data, pictures of a folder, kept and shuffled": (
        lambda: SLICES.shuffle(9, seed=1).map(as_it_is).batch(8).prefetch(1).cache().shuffle(9).prefetch(1),
        Blocks.alike(N, 8),
    ),
    "tf.data, parts mapped": (
        lambda: TF.zip((TF.from_tensor_slices(X).map(lambda x: x + 0.0), TF.range(N).map(lambda y: y + 0))),
        None,
    ),
    "tf.data, no random access": (lambda: STREAM, Blocks.alike(N, N, in_sequence=True)),
    "tf.data, no random access, batched": (
        lambda: STREAM.batch(8).map(lambda x, y: (x, y)),
        Blocks.alike(N, N, in_sequence=True),
    ),
    "tf.data, padded batches": (lambda: SLICES.padded_batch(8), Blocks.alike(N, N, in_sequence=True)),
}


def of_epoch(source: SampleSource, seed: int, epoch: int, batch: int, workers: int = 1) -> list[Any]:
    """The samples that each of some workers reads in an epoch, in steps of a batch."""
    order = EpochOrder(seed, epoch, len(source), source.blocks)
    steps = [
        np.array_split(order.indices(low, min(low + batch, len(source))), workers)
        for low in range(0, len(source), batch)
    ]
    return [[source.batch(shares[worker]) for shares in steps] for worker in range(workers)]


@pytest.mark.parametrize("name", DATA)
def test_every_sample_of_an_epoch_is_read_once_with_its_own_target(name: str) -> None:
    make, blocks = DATA[name]
    source = open_source(make(), "train")

    assert (len(source), source.blocks) == (N, blocks)
    for epoch in range(2):
        read = [batch for worker in of_epoch(source, 3, epoch, 12, workers=2) for batch in worker]
        xs, ys = (np.concatenate(part) for part in zip(*read, strict=True))

        assert sorted(ys.tolist()) == Y.tolist()
        np.testing.assert_array_equal(xs, X[ys])
        assert xs.dtype == np.float32


@pytest.mark.parametrize("name", DATA)
def test_another_worker_that_begins_anywhere_reads_the_same_samples(name: str) -> None:
    make, _ = DATA[name]
    first, second = open_source(make(), "train"), open_source(make(), "train")
    whole = [first.batch(np.array([index]))[1].item() for index in range(N)]

    for indices in ([40, 3, 41], [2], [49, 0], [49, 48, 47], list(range(20, 35))):
        assert second.batch(np.array(indices))[1].tolist() == [whole[index] for index in indices]


SEEDED = {"tf.data, mapped", "tf.data, no random access, batched"}
"""Functions of samples, and of a stream; the others take long."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SEEDED else pytest.mark.long)
        for name in DATA
        if name.startswith("tf.data")
    ],
)
def test_a_data_set_is_read_on_after_seeds_are_set(name: str) -> None:
    """TensorFlow drops its kernels then, with what they know of a data set's functions."""
    source = open_source(DATA[name][0](), "train")
    before = source.batch(np.arange(N))
    for clear in (lambda: tf.random.set_seed(1), keras.utils.clear_session):
        clear()
        after = source.batch(np.arange(N))

        assert after[1].tolist() == before[1].tolist()
        np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("kind", ["samples", "batches"])
def test_eight_threads_read_slow_maps_while_seeds_are_set(kind: str) -> None:
    def slow(x: Any, y: Any) -> Any:
        table = tf.random.stateless_normal((64, 64), seed=(1, 2))
        for _ in range(6):
            table = tf.tanh(table @ table)
        return x + 0.0 * tf.reduce_sum(table), y

    source = open_source(SLICES.map(slow) if kind == "samples" else SLICES.batch(4).map(slow), "train")
    source._readers.threads = 8  # type: ignore[attr-defined]
    for epoch in range(4):
        tf.random.set_seed(epoch)
        xs, ys = source.batch(np.arange(N), seed=epoch)

        assert ys.tolist() == Y.tolist()
        np.testing.assert_array_equal(xs, X)


def test_a_worker_reads_each_batch_of_a_data_set_once_in_an_epoch() -> None:
    batches = Batches()
    source = open_source(batches, "train")
    batches.read.clear()
    of_epoch(source, 1, 0, 5)

    assert sorted(batches.read) == list(range(7))
    assert source.notes == ("the batches of Batches, of 8, are taken apart: Scavenger makes the batches",)


def test_a_sequence_is_read_once_in_an_epoch_whatever_the_number_of_workers() -> None:
    begun, given = [], []

    def counted() -> Iterator[Any]:
        begun.append(1)
        for index, pair in enumerate(zip(X, Y, strict=True)):
            given.append(index)
            yield pair

    for workers in (1, 3):
        sources = [open_source(FromGenerator(counted, N, shuffle_buffer=10), "train") for _ in range(workers)]
        begun.clear()
        given.clear()
        for worker, source in enumerate(sources):
            order = EpochOrder(1, 0, N, source.blocks)
            for low in range(0, N, 5):
                source.batch(np.array_split(order.indices(low, low + 5), workers)[worker])

        assert (len(begun), sorted(given)) == (workers, sorted(list(range(N)) * workers))


def test_what_fits_into_one_window_is_read_once_in_an_epoch_and_again_in_the_next() -> None:
    begun = []

    def counted() -> Iterator[Any]:
        begun.append(1)
        for x, y in samples():
            yield x + 1000 * len(begun), y  # as random augmentation would change it

    source = open_source(FromGenerator(counted, N), "train")
    assert source.notes == ()
    begun.clear()
    worker = Samples(source, seed=1)
    read = [[worker.read(epoch, Share(low, low + 10))[0] for low in range(0, N, 10)] for epoch in range(3)]

    assert [int(np.concatenate(epoch).min()) // 1000 for epoch in read] == [1, 2, 3]
    assert len(begun) == 3
    worker.close()


def test_notes_say_what_is_done_with_batches_and_order() -> None:
    class Reshuffled(Batches):
        def on_epoch_end(self) -> None:
            raise AssertionError

    source = open_source(SLICES.shuffle(9).batch(8).prefetch(1), "train")
    assert source.notes == ("the data set is taken without its final .shuffle().batch(8): Scavenger does it",)
    assert open_source(Reshuffled(), "train").notes[1:] == (
        "Reshuffled is used without its on_epoch_end: Scavenger orders its batches",
    )
    assert open_source(FromGenerator(samples, N, shuffle_buffer=10), "train").notes == (
        "samples is read in sequence, by every worker; shuffling is within windows of 10 samples",
    )
    assert open_source(SLICES.batch(8).map(double), "train").notes == (
        "the batches of the data set, of 8, are taken apart: Scavenger makes the batches",
    )


def test_large_samples_have_a_small_window() -> None:
    def images() -> Iterator[Any]:
        while True:
            yield np.zeros((1024, 1024, 4), np.uint8), 1

    blocks = open_source(FromGenerator(images, 1000), "train").blocks

    assert blocks == Blocks.alike(1000, 2**28 // (2**22 + 8), in_sequence=True)


ONE = iter([(X[0], 0)])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (SLICES.repeat(), "has no end: remove .repeat()"),
        (SLICES.repeat().batch(8), "has no end: remove .repeat()"),
        (SLICES.filter(lambda x, y: y > 3), ".apply(tf.data.experimental.assert_cardinality(n))"),
        (STREAM.shuffle(9).map(double), "remove .shuffle() (Scavenger shuffles)"),
        (SLICES.shuffle(9, seed=1).map(double).skip(5), "remove .shuffle() (Scavenger shuffles)"),
        (SLICES.shuffle(9).take(5), "remove .shuffle() (Scavenger shuffles)"),
        (SLICES.map(double, num_parallel_calls=2, deterministic=False), "has deterministic=False"),
        (SLICES.take(0), "there is no sample"),
        (TF.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])), "gives a RaggedTensor: make it dense"),
        (TF.from_tensor_slices((X, X)), "may be one sample or a batch of them: end it with .batch(n)"),
        (STREAM.batch(8).apply(tf.data.experimental.assert_cardinality(7)), "size of the last batch is not known"),
        (Batches(lambda index: 8 if index else 0), "the last batch has 2 samples and the first 0"),
        (FromGenerator(lambda: ONE, N), "must return a new iterator at each call"),
        (FromGenerator(lambda: iter(()), N), "there is no sample"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_again_is_refused_with_what_to_change(data: Any, complaint: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(data, "train")

    assert str(caught.value).startswith("KerasJob.train: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (Batches(lambda index: 7 if index == 3 else 8), "batch 3 has 7 samples instead of 8"),
        (FromGenerator(samples, N + 1), "samples ended after 50 of 51"),
        (FromGenerator(samples, N - 1), "samples gives more than its 49"),
    ],
)
def test_data_that_is_not_what_it_said_ends_the_job(data: Any, complaint: str) -> None:
    source = open_source(data, "train")

    with pytest.raises(DataError, match=complaint):
        of_epoch(source, 1, 0, 12)
