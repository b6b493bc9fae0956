"""TFRecord and Parquet files as sources, on this machine or at any URL that fsspec supports."""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from scavenger.elastic.order import Blocks
from scavenger.private_files import make_private_folder
from scavenger.sdk.data import ParquetFiles, Pattern, TFRecords
from scavenger.train.failure import DataError
from scavenger.train.object_stores import filesystem_at
from scavenger.train.worker.data.blocks import BlockSource
from scavenger.train.worker.data.items import cpus
from scavenger.train.worker.data.source import Array, Parts, blocks_of_large, to_array

_HEADER, _FOOTER = 12, 4
"""Bytes around a record: its length (8) and a checksum of that (4); a checksum of the record. See the description of
the format in TensorFlow's documentation of TFRecord."""
_WINDOW_BYTES = 1 << 28


def _find(pattern: Pattern) -> tuple[Any, list[str]]:
    """Return the file system and the sorted paths that a pattern matches.

    Raises:
        DataError: If there is none, or a package must be installed for the protocol.
    """
    patterns = [pattern] if isinstance(pattern, (str, os.PathLike)) else list(pattern)
    found: dict[str, None] = {}
    filesystem = None
    for one in patterns:
        try:
            filesystem, path = filesystem_at(os.fspath(one))
        except ImportError as error:
            raise DataError(f"{one}: a package is missing: {error}") from None
        except ValueError as error:
            raise DataError(f"{one}: {error}") from None
        matched = sorted(filesystem.glob(path))
        if not matched:
            raise DataError(f"no file matches {one}")
        found.update(dict.fromkeys(matched))
    if filesystem is None:
        raise DataError("no file is named")
    return filesystem, list(found)


# ---- TFRecord ----------------------------------------------------------------------------------------------


class RecordSource:
    """Records of TFRecord files, each of which can be read on its own.

    Args:
        files: The files, and how to parse a record.
        index_folder: Where the indexes of the files are kept.

    Raises:
        DataError: If there is no record, or a file is no uncompressed TFRecord file.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, files: TFRecords, index_folder: Path) -> None:
        self._filesystem, self._paths = _find(files.pattern)
        self._offsets = [_indexed(self._filesystem, path, index_folder) for path in self._paths]
        self._ends = np.cumsum([len(offsets) - 1 for offsets in self._offsets])
        if len(self) == 0:
            raise DataError("there is no record in the files")
        self.blocks: Blocks | None = blocks_of_large(len(self))
        self._parse = _parser(files.parse)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        import tensorflow as tf

        files = np.searchsorted(self._ends, indices, side="right")
        paths, starts, stops = [], [], []
        for file, index in zip(files.tolist(), indices.tolist(), strict=True):
            offsets = self._offsets[file]
            place = index - int(self._ends[file]) + len(offsets) - 1
            paths.append(self._paths[file])
            starts.append(int(offsets[place]) + _HEADER)
            stops.append(int(offsets[place + 1]) - _FOOTER)
        # over a network, fsspec asks for all of them at once
        records = self._filesystem.cat_ranges(paths, starts, stops)
        try:
            parsed = self._parse(tf.constant(records, dtype=tf.string))
        except tf.errors.InvalidArgumentError as error:
            raise DataError(f"the records could not be parsed into one shape: {_line(error)}") from None
        parts: Parts = keras.tree.map_structure(to_array, parsed)
        return parts


def _line(error: Any) -> str:
    return str(error.message).splitlines()[0]


def _parser(parse: Any) -> Any:
    """Compile a function of one record into one of many, which parses them in parallel."""
    import tensorflow as tf

    sparse = (tf.SparseTensor, tf.RaggedTensor)

    def one(record: Any) -> Any:
        parsed = parse(record)
        parsed = tuple(parsed) if isinstance(parsed, (tuple, list)) else (parsed,)
        return tf.nest.map_structure(
            lambda leaf: leaf if isinstance(leaf, sparse) else tf.convert_to_tensor(leaf), parsed
        )

    traced = tf.function(one, input_signature=[tf.TensorSpec((), tf.string)]).get_concrete_function()
    for leaf in tf.nest.flatten(traced.structured_outputs):
        if not isinstance(leaf, tf.Tensor):
            raise DataError(
                f"parse of TFRecords gives a {type(leaf).__name__.removesuffix('Spec')}: make it dense, as by "
                "tf.io.FixedLenFeature or tf.sparse.to_dense"
            )
    specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), traced.structured_outputs
    )

    def many(records: Any) -> Any:
        return tf.map_fn(one, records, fn_output_signature=specs, parallel_iterations=max(cpus(), 2))

    return tf.function(many, input_signature=[tf.TensorSpec((None,), tf.string)])


def _indexed(filesystem: Any, path: str, folder: Path) -> npt.NDArray[np.int64]:
    """Return where each record of a file begins, and the file ends; from the folder if it was indexed before."""
    identity = f"{filesystem.unstrip_protocol(path)} {filesystem.ukey(path)}"
    kept = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npy"
    if not kept.exists():
        offsets = _index(filesystem, path)
        make_private_folder(folder)
        # several workers of a machine may do it at the same time
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            np.save(file, offsets)
        Path(file.name).replace(kept)
    offsets = np.load(kept, mmap_mode="r", allow_pickle=False)
    return np.asarray(offsets)


def _index(filesystem: Any, path: str) -> npt.NDArray[np.int64]:
    size = int(filesystem.size(path))
    offsets = [0]
    with filesystem.open(path, "rb") as file:
        while offsets[-1] < size:
            header = file.read(_HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else size
            end = offsets[-1] + _HEADER + length + _FOOTER
            if end > size:
                raise DataError(
                    f"{path}: no record begins at byte {offsets[-1]}: the file is no TFRecord file, is cut off, or is "
                    "compressed; write it without compression"
                )
            offsets.append(end)
            file.seek(end)
    return np.array(offsets, dtype=np.int64)


# ---- Parquet -----------------------------------------------------------------------------------------------


class _RowGroups:
    """Row groups of Parquet files, by a number over all files."""

    def __init__(self, files: ParquetFiles) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise DataError("Parquet files need pyarrow: pip install scavenger-ml[parquet]") from None
        self._open, self._files = parquet.ParquetFile, files
        self._filesystem, paths = _find(files.pattern)
        self._groups: list[tuple[str, Any, int]] = []
        self.sizes: list[int] = []
        self.bytes = 0
        for path in paths:
            with self._filesystem.open(path, "rb") as file:
                metadata = parquet.read_metadata(file)
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if group.num_rows:
                    self._groups.append((path, metadata, number))
                    self.sizes.append(group.num_rows)
                    self.bytes += group.total_byte_size
        self._columns = _columns(files)

    def read(self, block: int) -> Parts:
        path, metadata, number = self._groups[block]
        with self._filesystem.open(path, "rb") as file:
            table = self._open(file, metadata=metadata).read_row_group(number, columns=self._columns)
        if lacking := set(self._columns) - set(table.column_names):
            raise DataError(f"{path} has no column {', '.join(sorted(lacking))}")
        files = self._files
        wanted = (files.x, files.y, files.sample_weight)
        return tuple(_part(table, one, path) for one in wanted if one is not None)


def _columns(files: ParquetFiles) -> list[str]:
    names: list[str] = []
    for part in (files.x, files.y, files.sample_weight):
        if isinstance(part, str):
            names.append(part)
        elif part is not None:
            names.extend(part.values() if isinstance(part, Mapping) else part)
    return list(dict.fromkeys(names))


def _part(table: Any, part: Any, path: str) -> Any:
    if isinstance(part, str):
        return _column(table, part, path)
    if isinstance(part, Mapping):
        return {name: _column(table, column, path) for name, column in part.items()}
    columns = [_column(table, column, path) for column in part]
    if any(column.dtype == object or column.ndim > 1 for column in columns):
        raise DataError(
            f"a list of columns makes one array of numbers: give {list(part)} as a dict of columns"
        )
    return to_array(np.stack(columns, axis=1))


def _column(table: Any, name: str, path: str) -> Array:
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise DataError(f"{path}: column {name} has missing values: fill them in before")
    if hasattr(column, "dictionary_decode") and callable(column.dictionary_decode):
        column = column.dictionary_decode()
    if hasattr(column, "flatten") and hasattr(column.type, "value_type"):  # lists
        values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
        lengths = {len(row) for row in column}
        if len(lengths) != 1:
            raise DataError(f"{path}: the lists in column {name} differ in length: pad them")
        return to_array(values.reshape(len(column), -1))
    return to_array(column.to_numpy(zero_copy_only=False))


def open_parquet(files: ParquetFiles) -> BlockSource:
    """Open `scavenger.sdk.ParquetFiles`.

    Raises:
        DataError: If there is no row or no such column, or pyarrow is not installed.
    """
    groups = _RowGroups(files)
    if not groups.sizes:
        raise DataError("there is no row in the files")
    number, rows = len(groups.sizes), sum(groups.sizes)
    mixed = min(files.shuffle_buffer * number // rows, _WINDOW_BYTES * number // max(groups.bytes, 1), number)
    blocks = Blocks.of(groups.sizes, mixed=max(1, mixed))
    note = f"shuffling mixes the rows of {blocks.mixed} row groups at a time, of about {rows // number} rows each"
    return BlockSource(
        groups.read, blocks, threads=min(cpus(), 8), notes=(note,) if number > blocks.mixed else ()
    )
