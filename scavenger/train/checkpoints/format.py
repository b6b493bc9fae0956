"""One part of a checkpoint: named tensors in the safetensors format, streamed in both directions.

The format [1]_ is eight bytes of header length (little endian), a JSON header `{name: {dtype, shape,
data_offsets}}`, and the tensors' bytes. It is written and read here in chunks, hashed on the way: no part is
ever held twice in memory, which the reference library's `save` and `load` would do. What is written, that
library reads, and the other way round.

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
"""What is checked, hashed and written at once: it stays in a processor's second-level cache between the three."""

_HEADER_BYTES_MAX = 16 << 20
"""About 100,000 tensors; a header that claims more is refused before memory is taken for it."""

_DTYPES = {
    "BOOL": "|b1",
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
    """What was read is not what was written; the message says how, without the place."""


class Readable(Protocol):
    """An open binary file."""

    def readinto(self, buffer: Any, /) -> int | None: ...


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["BOOL", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"]
    # NumPy has at most 64 dimensions; nothing that is trained comes near
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=32)]
    data_offsets: tuple[_Count, _Count]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize


_header_decoder = msgspec.json.Decoder(dict[str, _Entry])


class TensorStream:
    """The bytes of a part, chunk by chunk; what they amount to is known when the last one was taken.

    Args:
        tensors: Arrays of any shape and memory order, by name. They must not change while they are written: a
            part that was torn in memory does not verify.

    Attributes:
        bytes: Size of the whole part.
        sha256: Of the chunks taken so far, hex.
        finite: Whether no floating-point number among them was NaN or infinite.

    Raises:
        NotSupportedError: If a tensor's type is none that a checkpoint holds.
        ValueError: If a name is that of the format's own metadata, or there are too many names.
    """

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = []
        header, at = {}, 0
        # the widest types first, so that every tensor lies at a multiple of its item's size
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
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[memoryview]:
        self._digest.update(self._header)
        yield memoryview(self._header)
        for tensor, form in self._tensors:
            flat = np.asarray(tensor, dtype=form, order="C").reshape(-1)  # copies only what lies otherwise
            count = max(1, _CHUNK_BYTES // flat.itemsize)
            for start in range(0, flat.size, count):
                chunk = flat[start : start + count]
                if chunk.dtype.kind == "f" and self.finite:
                    self.finite = bool(np.isfinite(chunk).all())
                buffer = chunk.view(np.uint8).data
                self._digest.update(buffer)
                yield buffer


class _Hashed:
    """Reads exactly what is asked for, and hashes it."""

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
    """The entries in the order of their data, which fills the part from the header on without gap or overlap."""
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
        # NumPy multiplies the other dimensions even where one is 0
        if end - start != entry.bytes or math.prod(max(1, n) for n in entry.shape) > sys.maxsize // 8:
            raise DamagedError(f"tensor {name!r} of shape {list(entry.shape)} has {end - start} bytes")
    return ordered


def check_size(size: int, expected: int) -> None:
    """Bytes that a part has, and is to have.

    Raises:
        DamagedError: If they are not the same.
    """
    if size != expected:
        raise DamagedError(f"it has {size} bytes instead of {expected}")


def verify_tensors(file: Readable, *, size: int, sha256: str) -> None:
    """Read a part through, in constant memory.

    Args:
        file: At its beginning.
        size: Bytes that it is to have.
        sha256: That it is to have, hex.

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
    """Read a part; see `verify_tensors`. No array is given out before all was verified.

    `size` bounds the memory that is taken, so it must be the file's own size.
    """
    source = _Hashed(file)
    tensors = {}
    for name, entry in _read_header(source, size):
        tensors[name] = np.empty(entry.shape, _DTYPES[entry.dtype])
        source.fill(tensors[name].reshape(-1).view(np.uint8).data)
    source.check(sha256)
    return tensors
