"""One part of a checkpoint: named tensors in the safetensors format, streamed in both directions.

The format [1]_ is eight bytes of header length (little endian), a JSON header `{name: {dtype, shape,
data_offsets}}`, and the tensors' bytes. It is written and read here in chunks, hashed on the way: no part is
ever held twice in memory, unlike with the reference library's `save` and `load`. The files are compatible with that
library in both directions.

References:
    .. [1] https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol

import ml_dtypes  # noqa: F401 - gives NumPy the type bfloat16
import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.errors import NotSupportedError

__all__ = [
    "Array",
    "DamagedError",
    "Readable",
    "TensorStream",
    "check_size",
    "read_tensors",
    "verify_tensors",
]

Array = npt.NDArray[Any]

_CHUNK_BYTES = 1 << 20
"""Size of the chunks that are checked, hashed and written: small enough to stay in the second-level cache."""

_HEADER_BYTES_MAX = 16 << 20
"""Enough for about 100,000 tensors; a header that claims more is refused before memory is allocated."""

_DTYPES = {
    "BOOL": "|b1",
    "BF16": "bfloat16",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "|i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}
_CODES = {np.dtype(form).name: code for code, form in _DTYPES.items()}

_Count = Annotated[int, msgspec.Meta(ge=0)]


class DamagedError(Exception):
    """The data read is not what was written; the message describes the difference, without the path."""


class Readable(Protocol):
    """An open binary file."""

    def readinto(self, buffer: Any, /) -> int | None:
        """Read into the buffer; return the number of bytes, 0 at the end."""
        ...


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["BOOL", "BF16", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"]
    # NumPy allows at most 64 dimensions; no trained model comes near
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=32)]
    data_offsets: tuple[_Count, _Count]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize


_header_decoder = msgspec.json.Decoder(dict[str, _Entry])


class TensorStream:
    """The bytes of a part, chunk by chunk; the attributes are final after the last chunk.

    Args:
        tensors: Arrays of any shape and memory order, by name. They must not change while they are written:
            otherwise the part fails verification.

    Attributes:
        bytes: Size of the whole part.
        sha256: Digest of the chunks taken so far, hex.
        finite: Whether no floating-point number among them was NaN or infinite.

    Raises:
        NotSupportedError: If checkpoints do not support a tensor's type.
        ValueError: If a tensor has the reserved name `__metadata__`, or there are too many names.
    """

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = []
        header, at = {}, 0
        # the widest types first, so that every tensor is aligned to its item size
        for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
            code = _CODES.get(tensor.dtype.name)
            if code is None:
                raise NotSupportedError(
                    f"tensor {name!r} is {tensor.dtype.name}, which a checkpoint does not hold;"
                    f" it holds {', '.join(_CODES)}"
                )
            if name == "__metadata__":
                raise ValueError("a tensor may not be called __metadata__")
            header[name] = _Entry(code, tensor.shape, (at, at + tensor.nbytes))  # type: ignore[arg-type]
            at += tensor.nbytes
            self._tensors.append((tensor, _DTYPES[code]))
        encoded = msgspec.json.encode(header)
        encoded += b" " * (-len(encoded) % 8)
        if len(encoded) > _HEADER_BYTES_MAX:
            raise ValueError(
                f"the names and shapes of {len(header)} tensors are more than a checkpoint holds"
            )
        self._header = len(encoded).to_bytes(8, "little") + encoded
        self.bytes = len(self._header) + at
        self.finite = True
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Digest of the chunks taken so far, hex."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[memoryview]:
        self._digest.update(self._header)
        yield memoryview(self._header)
        for tensor, form in self._tensors:
            flat = np.asarray(tensor, dtype=form, order="C").reshape(
                -1
            )  # copies only if the memory order differs
            count = max(1, _CHUNK_BYTES // flat.itemsize)
            for start in range(0, flat.size, count):
                chunk = flat[start : start + count]
                if (chunk.dtype.kind == "f" or form == "bfloat16") and self.finite:
                    self.finite = bool(np.isfinite(chunk).all())
                buffer = chunk.view(np.uint8).data
                self._digest.update(buffer)
                yield buffer


class _Hashed:
    """Reads exact byte counts from a file, and hashes them."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def fill(self, buffer: memoryview) -> None:
        at = 0
        while at < len(buffer):
            count = self._file.readinto(buffer[at : at + _CHUNK_BYTES])
            if not count:
                raise DamagedError("it ends early")
            self.digest.update(buffer[at : at + count])
            at += count

    def check(self, sha256: str) -> None:
        if self._file.readinto(bytearray(1)):
            raise DamagedError("it is longer than it was")
        if self.digest.hexdigest() != sha256:
            raise DamagedError("its SHA-256 is not the one written down")


def _read_header(source: _Hashed, size: int) -> list[tuple[str, _Entry]]:
    """Return the header's entries in data order; check that they fill the part without gap or overlap."""
    if size < 8:
        raise DamagedError("it has no header")
    length = bytearray(8)
    source.fill(memoryview(length))
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > min(_HEADER_BYTES_MAX, size - 8):
        raise DamagedError(f"its header claims {header_bytes} bytes")
    header = bytearray(header_bytes)
    source.fill(memoryview(header))
    try:
        entries = _header_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamagedError(f"its header is not valid: {error}") from None
    ordered = sorted(entries.items(), key=lambda item: item[1].data_offsets)
    bounds = [(0, 0), *(entry.data_offsets for _, entry in ordered), (size - 8 - header_bytes,) * 2]
    if any(before[1] != after[0] for before, after in pairwise(bounds)):
        raise DamagedError("its tensors do not fill it exactly")
    for name, entry in ordered:
        start, end = entry.data_offsets
        # NumPy multiplies the other dimensions even if one is 0
        if end - start != entry.bytes or math.prod(max(1, n) for n in entry.shape) > sys.maxsize // 8:
            raise DamagedError(f"tensor {name!r} of shape {list(entry.shape)} has {end - start} bytes")
    return ordered


def check_size(size: int, expected: int) -> None:
    """Compare the size of a part with the expected one, in bytes.

    Raises:
        DamagedError: If they differ.
    """
    if size != expected:
        raise DamagedError(f"it has {size} bytes instead of {expected}")


def verify_tensors(file: Readable, *, size: int, sha256: str) -> None:
    """Verify a part by reading all of it, in constant memory.

    Args:
        file: The file, positioned at its beginning.
        size: Expected size, bytes.
        sha256: Expected digest, hex.

    Raises:
        DamagedError: If it is not exactly what was written.
        OSError: If it cannot be read.
    """
    source = _Hashed(file)
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    left = sum(entry.bytes for _, entry in _read_header(source, size))
    while left:
        source.fill(buffer[: min(left, _CHUNK_BYTES)])
        left -= min(left, _CHUNK_BYTES)
    source.check(sha256)


def read_tensors(file: Readable, *, size: int, sha256: str) -> dict[str, Array]:
    """Read and verify a part; see `verify_tensors`. Returns arrays by name only after all data was verified.

    `size` limits the memory that is allocated, so it must be the actual size of the file.
    """
    source = _Hashed(file)
    tensors = {}
    for name, entry in _read_header(source, size):
        tensors[name] = np.empty(entry.shape, _DTYPES[entry.dtype])
        source.fill(tensors[name].reshape(-1).view(np.uint8).data)
    source.check(sha256)
    return tensors
