"""Data for `KerasJob` beside arrays and data sets: generators, and files by pattern."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FromGenerator", "ParquetFiles", "Pattern", "TFRecords", "sample_seed", "sample_seed_set"]

Pattern = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_reading = threading.local()


def sample_seed() -> int:
    """The seed of the sample that is being read, for augmentation in a map-style data set.

    It depends on the job's seed, the epoch and the sample's index, and on nothing else: not on the worker, nor on
    whether the sample is read a second time after a failure. Of validation data, it is the same in every epoch.

    Returns:
        A number below 2^63; 0 outside of a job.
    """
    seed: int = getattr(_reading, "seed", 0)
    return seed


@contextlib.contextmanager
def sample_seed_set(seed: int, index: int) -> Iterator[None]:
    """Set `sample_seed` in this thread while a sample is read."""
    text = f"{seed} {index}".encode()
    _reading.seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
    try:
        yield
    finally:
        _reading.seed = 0


@dataclass(frozen=True, slots=True)
class FromGenerator:
    """Samples of a Python generator, which can be read only from its beginning to its end.

    Every worker reads all of it, keeps a window, and takes its samples from there; so a generator should be cheap
    beside a step. Data whose samples can be read one by one trains faster with more workers.

    Attributes:
        make: A function that returns a new iterator at each call, over the same samples in the same order. A sample is
            x, (x, y) or (x, y, sample_weight), without an axis of a batch.
        length: The number of samples.
        shuffle_buffer: Samples of a window, within which an epoch shuffles; by default 16384, or fewer if they take
            more than 256 MiB.
    """

    make: Callable[[], Iterable[Any]]
    length: int
    shuffle_buffer: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or (self.shuffle_buffer is not None and self.shuffle_buffer < 1):
            raise ValueError(f"FromGenerator needs samples, and a buffer for at least one: {self}")


@dataclass(frozen=True, slots=True)
class TFRecords:
    """TFRecord files, of which any record can be read: each file is indexed once on a machine.

    Compressed files are refused, since no record of them can be read without those before it. Checksums of records
    are not verified.

    Attributes:
        pattern: A path or URL of files, with wildcards, such as `gs://bucket/train-*.tfrecord`, or several. URLs may be
            of any protocol that fsspec supports. Paths in the job's folder are best made from `__file__`.
        parse: A function of one serialised record, a string tensor, as `tf.data.Dataset.map` takes it, that returns
            x, (x, y) or (x, y, sample_weight) of one sample.
    """

    pattern: Pattern
    parse: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Columns of Parquet files, read row group by row group; needs pyarrow (`pip install scavenger-ml[parquet]`).

    An epoch shuffles row groups, and mixes the rows of so many of them as make up the shuffle buffer, if these take
    at most 256 MiB. So rows that are sorted need small row groups.

    Attributes:
        pattern: See `TFRecords`.
        x: A column; a list of columns of numbers, which become the columns of one array; or a dict of columns, for a
            model with named inputs. Columns may have numbers, text, or lists of numbers of one length.
        y: The same for the targets; None for x alone.
        sample_weight: A column of weights.
        shuffle_buffer: Rows of a window, within which an epoch shuffles.
    """

    pattern: Pattern
    x: str | Sequence[str] | Mapping[str, str]
    y: str | Sequence[str] | Mapping[str, str] | None = None
    sample_weight: str | None = None
    shuffle_buffer: int = 1 << 16

    def __post_init__(self) -> None:
        if self.shuffle_buffer < 1:
            raise ValueError(f"a shuffle buffer needs a row: {self.shuffle_buffer}")
        if self.y is None and self.sample_weight is not None:
            raise ValueError("ParquetFiles: a sample_weight needs y")
