"""TFRecord and Parquet files: any sample can be read, from a disk or a URL, and what cannot be is said in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorflow as tf

from scavenger.elastic.order import Blocks, EpochOrder
from scavenger.sdk import ParquetFiles, TFRecords
from scavenger.train.failure import DataError
from scavenger.train.worker.data import open_source
from scavenger.train.worker.data.files import RecordSource

pytestmark = pytest.mark.slow

SIZES = (5, 0, 12, 1)
N = sum(SIZES)
X, Y = np.arange(3.0 * N, dtype="float32").reshape(N, 3), np.arange(N)


def serialised(index: int) -> bytes:
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=X[index])),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
                "padding": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"-" * (7 * index)])),
            }
        )
    )
    written: bytes = example.SerializeToString()
    return written


def parse(record: Any) -> Any:
    features = {"x": tf.io.FixedLenFeature((3,), tf.float32), "y": tf.io.FixedLenFeature((), tf.int64)}
    parsed = tf.io.parse_single_example(record, features)
    return parsed["x"], parsed["y"]


def write(folder: Path, compression: str = "") -> None:
    folder.mkdir(exist_ok=True)
    index = iter(range(N))
    for number, size in enumerate(SIZES):
        with tf.io.TFRecordWriter(str(folder / f"part-{number}.tfrecord"), compression) as file:
            for _ in range(size):
                file.write(serialised(next(index)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scavenger" / "tfrecords"


def test_any_record_of_any_file_can_be_read(tmp_path: Path) -> None:
    write(tmp_path / "data")
    source = open_source(TFRecords(tmp_path / "data" / "part-*.tfrecord", parse), "train")

    assert (len(source), source.blocks, source.notes) == (N, None, ())
    order = np.random.default_rng(1).permutation(N)
    x, y = source.batch(order)
    np.testing.assert_array_equal(x, X[order])
    np.testing.assert_array_equal(y, order)


def test_a_file_is_indexed_once_until_it_changes(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "data")
    files = TFRecords([str(tmp_path / "data" / f"part-{number}.tfrecord") for number in (2, 0)], parse)

    first = open_source(files, "train").batch(np.arange(17))[1].tolist()
    indexes = sorted(cache.iterdir())
    again = open_source(files, "train").batch(np.arange(17))[1].tolist()

    assert first == again == [*range(5, 17), *range(5)]
    assert len(indexes) == 2
    assert sorted(cache.iterdir()) == indexes
    shutil.copy(tmp_path / "data" / "part-3.tfrecord", tmp_path / "data" / "part-2.tfrecord")
    assert open_source(files, "train").batch(np.arange(6))[1].tolist() == [17, *range(5)]


def test_records_are_read_from_a_url(tmp_path: Path) -> None:
    write(tmp_path / "data")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "data"), "/records", recursive=True)

    source = RecordSource(TFRecords("memory://records/*.tfrecord", parse), tmp_path / "index")

    assert source.batch(np.array([17, 0, 9]))[1].tolist() == [17, 0, 9]
    memory.rm("/records", recursive=True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda folder: shutil.rmtree(folder), "no file matches"),
        (lambda folder: write(folder, "GZIP"), "no record begins at byte 0: the file is no TFRecord file, is cut off"),
        (lambda folder: (folder / "part-2.tfrecord").write_bytes(b"abc"), "2.tfrecord: no record begins at byte 0"),
        (lambda folder: cut_off(folder / "part-0.tfrecord"), "part-0.tfrecord: no record begins at byte"),
    ],
)  # fmt: skip
def test_files_that_are_no_records_are_told_apart(
    tmp_path: Path, change: Callable[[Path], Any], complaint: str
) -> None:
    write(tmp_path / "data")
    change(tmp_path / "data")

    with pytest.raises(DataError, match=complaint) as caught:
        open_source(TFRecords(str(tmp_path / "data" / "*.tfrecord"), parse), "train")
    assert str(caught.value).startswith("KerasJob.train: ")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def test_a_parse_that_gives_no_dense_tensor_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data")

    def sparse(record: Any) -> Any:
        return tf.io.parse_single_example(record, {"x": tf.io.VarLenFeature(tf.float32)})["x"]

    with pytest.raises(DataError, match="parse of TFRecords gives a SparseTensor: make it dense"):
        open_source(TFRecords(str(tmp_path / "data" / "*"), sparse), "train")


def test_a_record_that_cannot_be_parsed_says_so(tmp_path: Path) -> None:
    write(tmp_path / "data")

    def other(record: Any) -> Any:
        return tf.io.parse_single_example(record, {"z": tf.io.FixedLenFeature((), tf.int64)})["z"]

    source = open_source(TFRecords(str(tmp_path / "data" / "*"), other), "train")
    with pytest.raises(DataError, match="records could not be parsed"):
        source.batch(np.arange(3))


# ---- Parquet -----------------------------------------------------------------------------------------------


def write_parquet(folder: Path, rows_per_group: int = 4, **other: Any) -> ParquetFiles:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    low = 0
    for number, size in enumerate(SIZES):
        at = slice(low, low + size)
        low += size
        columns = {
            "a": X[at, 0],
            "b": X[at, 1].astype("int64"),
            "word": [f"w{index}" for index in Y[at]],
            "list": pyarrow.array(X[at].tolist(), pyarrow.list_(pyarrow.float32())),
            "fixed": pyarrow.array(X[at].tolist(), pyarrow.list_(pyarrow.float32(), 3)),
            "y": Y[at],
            "gap": [None if index == 3 else 1.0 for index in Y[at]],
            "uneven": [[1.0] * int(1 + index % 2) for index in Y[at]],
        }
        parquet.write_table(
            pyarrow.table(columns), folder / f"{number}.parquet", row_group_size=rows_per_group
        )
    return ParquetFiles(str(folder / "*.parquet"), **{"x": ["a", "b"], "y": "y", **other})


def test_rows_are_read_by_row_groups_and_each_once(tmp_path: Path) -> None:
    source = open_source(write_parquet(tmp_path / "data", shuffle_buffer=8), "train")

    assert source.blocks == Blocks(((1, 4), (1, 1), (3, 4), (1, 1)), mixed=2)
    assert source.notes == ("shuffling mixes the rows of 2 row groups at a time, of about 3 rows each",)
    order = EpochOrder(1, 0, N, source.blocks).indices(0, N)
    x, y = source.batch(order)
    assert sorted(y.tolist()) == Y.tolist()
    np.testing.assert_array_equal(x, X[y, :2])
    assert x.dtype == np.float32


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ("a", X[:, 0]),
        ("list", X),
        ("fixed", X),
        ("word", np.array([f"w{index}" for index in Y], object)),
        (
            {"left": "a", "right": "word"},
            {"left": X[:, 0], "right": np.array([f"w{index}" for index in Y], object)},
        ),
    ],
)
def test_columns_become_arrays_text_and_inputs_of_a_name(tmp_path: Path, x: Any, expected: Any) -> None:
    read = open_source(write_parquet(tmp_path / "data", x=x, sample_weight="a"), "train").batch(np.arange(N))

    assert len(read) == 3
    tf.nest.map_structure(np.testing.assert_array_equal, read[0], expected, check_types=False)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"x": "gap"}, "column gap has missing values"),
        ({"x": "uneven"}, "the lists in column uneven differ in length"),
        ({"x": "none"}, "has no column none"),
        ({"x": ["a", "word"]}, "a list of columns makes one array of numbers"),
    ],
)
def test_columns_that_are_no_arrays_are_refused(tmp_path: Path, files: Any, complaint: str) -> None:
    source = open_source(write_parquet(tmp_path / "data", **files), "train")

    with pytest.raises(DataError, match=complaint):
        source.batch(np.arange(N))
