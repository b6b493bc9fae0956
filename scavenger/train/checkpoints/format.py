"""One part of a checkpoint: named tensors in the safetensors format, streamed in both directions.

The format [1]_ is eight bytes of header length (little endian), a JSON header `{name: {dtype, shape,
data_offsets}}`, and the tensors' bytes. It is written and read here in chunks: no part is ever held twice in memory,
unlike with the reference library's `save` and `load`. The files are compatible with that library in both directions.

The header's `__metadata__` has the SHA-256 of each tensor's bytes, and the digest of a part is that of its header. So a
tensor can be verified without reading the others. A part of an older checkpoint has no `__metadata__` in its
header, and the digest of all its bytes.

References:
    .. [1] https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol

import ml_dtypes  # noqa: F401 - gives NumPy the type bfloat16
import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.errors import NotSupportedError

Array = npt.NDArray[Any]

_CHUNK_BYTES = 1 << 20
"""Size of the chunks that are checked, hashed and written: small enough to stay in the second-level cache."""

_HEADER_BYTES_MAX = 32 << 20
"""Enough for about 100,000 tensors; a header that claims more is refused before memory is allocated."""

_METADATA = "__metadata__"

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


class SavedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as the header describes it; its offsets count from the end of the header."""

    dtype: Literal["BOOL", "BF16", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"]
    # NumPy allows at most 64 dimensions; no trained model comes near
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=32)]
    data_offsets: tuple[_Count, _Count]

    @property
    def type(self) -> np.dtype[Any]:
        """Its type in NumPy."""
        return np.dtype(_DTYPES[self.dtype])

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.type.itemsize


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a part.

    Attributes:
        tensors: Names and descriptions of the tensors, in the order of their data, which fills the part exactly.
        digests: The SHA-256 of each tensor, hex; None in a part of an older checkpoint, which is verified as a whole.
        data_at: Where the data begins, bytes.
    """

    tensors: tuple[tuple[str, SavedTensor], ...]
    digests: Mapping[str, str] | None
    data_at: int


_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TensorStream:
    """The bytes of a part, chunk by chunk.

    Args:
        tensors: Arrays of any shape and memory order, by name. They must not change until they are written: otherwise
            the part fails verification.
        infinite: Whether infinities are meant, as in a mask of attention or where a minimum begins.

    Attributes:
        bytes: Size of the whole part.
        sha256: The part's digest, hex.
        finite: Whether no floating-point number in it is NaN, nor infinite unless that is meant.

    Raises:
        NotSupportedError: If checkpoints do not support a tensor's type.
        ValueError: If a tensor has the reserved name `__metadata__`, or there are too many names.
    """

    def __init__(self, tensors: Mapping[str, Array], *, infinite: bool = False) -> None:
        self._tensors = []
        self.finite, self._infinite = True, infinite
        header: dict[str, Any] = {}
        digests: dict[str, str] = {}
        at = 0
        # the widest types first, so that every tensor is aligned to its item size
        for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
            code = _CODES.get(tensor.dtype.name)
            if code is None:
                raise NotSupportedError(
                    f"tensor {name!r} is {tensor.dtype.name}, which a checkpoint does not hold;"
                    f" it holds {', '.join(_CODES)}"
                )
            if name == _METADATA:
                raise ValueError(f"a tensor may not be called {_METADATA}")
            header[name] = SavedTensor(code, tensor.shape, (at, at + tensor.nbytes))  # type: ignore[arg-type]
            digests[name] = self._digest(tensor, _DTYPES[code])
            at += tensor.nbytes
            self._tensors.append((tensor, _DTYPES[code]))
        encoded = msgspec.json.encode({_METADATA: digests, **header})
        encoded += b" " * (-len(encoded) % 8)
        if len(encoded) > _HEADER_BYTES_MAX:
            raise ValueError(
                f"the names and shapes of {len(header)} tensors are more than a checkpoint holds"
            )
        self._header = len(encoded).to_bytes(8, "little") + encoded
        self.bytes = len(self._header) + at
        self.sha256 = hashlib.sha256(self._header).hexdigest()

    def _digest(self, tensor: Array, form: str) -> str:
        digest = hashlib.sha256()
        for chunk in _chunks(tensor, form):
            if (chunk.dtype.kind == "f" or form == "bfloat16") and self.finite:
                self.finite = not np.isnan(chunk).any() if self._infinite else bool(np.isfinite(chunk).all())
            digest.update(chunk.view(np.uint8).data)
        return digest.hexdigest()

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(self._header)
        for tensor, form in self._tensors:
            for chunk in _chunks(tensor, form):
                yield chunk.view(np.uint8).data


def _chunks(tensor: Array, form: str) -> Iterator[Array]:
    """Yield the elements of a tensor in flat pieces of some type; copies it only if its memory order differs."""
    flat = np.asarray(tensor, dtype=form, order="C").reshape(-1)
    count = max(1, _CHUNK_BYTES // flat.itemsize)
    for start in range(0, flat.size, count):
        yield flat[start : start + count]


class _Hashed:
    """Reads exact byte counts from a file, and hashes them."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def begin(self) -> None:
        """Forget what was hashed."""
        self._digest = hashlib.sha256()

    def fill(self, buffer: memoryview) -> None:
        at = 0
        while at < len(buffer):
            count = self._file.readinto(buffer[at : at + _CHUNK_BYTES])
            if not count:
                raise DamagedError("it ends early")
            self._digest.update(buffer[at : at + count])
            at += count

    def check(self, sha256: str) -> None:
        if self._digest.hexdigest() != sha256:
            raise DamagedError("its SHA-256 is not the one written down")

    def check_end(self) -> None:
        if self._file.readinto(bytearray(1)):
            raise DamagedError("it is longer than it was")


def read_header(file: Readable, *, size: int, sha256: str) -> Header:
    """Read the header of a part, and verify it if it has digests; see `verify_tensors`."""
    return _header(_Hashed(file), size, sha256)


def _header(source: _Hashed, size: int, sha256: str) -> Header:
    """Read the header; check that the tensors fill the part without gap or overlap."""
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
        raw = _header_decoder.decode(header)
        metadata = raw.pop(_METADATA, None)
        digests = None if metadata is None else msgspec.json.decode(metadata, type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=SavedTensor) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedError(f"its header is not valid: {error}") from None
    if digests is not None:
        source.check(sha256)
        if digests.keys() != entries.keys():
            raise DamagedError("its header does not have the SHA-256 of every tensor")
    ordered = tuple(sorted(entries.items(), key=lambda item: item[1].data_offsets))
    data_at = 8 + header_bytes
    bounds = [(0, 0), *(entry.data_offsets for _, entry in ordered), (size - data_at,) * 2]
    if any(before[1] != after[0] for before, after in pairwise(bounds)):
        raise DamagedError("its tensors do not fill it exactly")
    for name, entry in ordered:
        start, end = entry.data_offsets
        # NumPy multiplies the other dimensions even if one is 0
        if end - start != entry.bytes or math.prod(max(1, n) for n in entry.shape) > sys.maxsize // 8:
            raise DamagedError(f"tensor {name!r} of shape {list(entry.shape)} has {end - start} bytes")
    return Header(ordered, digests, data_at)


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
    buffer = memoryview(bytearray(_CHUNK_BYTES))

    def pieces(name: str, entry: SavedTensor) -> Iterator[memoryview]:
        for at in range(0, entry.bytes, _CHUNK_BYTES):
            yield buffer[: min(_CHUNK_BYTES, entry.bytes - at)]

    _read_through(file, size, sha256, pieces)


def read_tensors(file: Readable, *, size: int, sha256: str) -> dict[str, Array]:
    """Read and verify a part; see `verify_tensors`. Returns arrays by name only after all data was verified.

    `size` limits the memory that is allocated, so it must be the actual size of the file.
    """
    tensors: dict[str, Array] = {}

    def pieces(name: str, entry: SavedTensor) -> Iterator[memoryview]:
        tensors[name] = np.empty(entry.shape, entry.type)
        yield tensors[name].reshape(-1).view(np.uint8).data

    _read_through(file, size, sha256, pieces)
    return tensors


def read_tensor(file: Readable, tensor: SavedTensor, *, sha256: str) -> Array:
    """Read and verify one tensor of a part.

    Args:
        file: The file, positioned at the tensor's data.
        tensor: The tensor, as the header describes it.
        sha256: Its digest, hex.

    Raises:
        DamagedError: If it is not exactly what was written.
        OSError: If it cannot be read.
    """
    source, array = _Hashed(file), np.empty(tensor.shape, tensor.type)
    source.fill(array.reshape(-1).view(np.uint8).data)
    source.check(sha256)
    return array


def _read_through(
    file: Readable, size: int, sha256: str, pieces: Callable[[str, SavedTensor], Iterator[memoryview]]
) -> None:
    """Read and verify a part, each tensor into the pieces of memory that are given for it."""
    source = _Hashed(file)
    header = _header(source, size, sha256)
    for name, entry in header.tensors:
        if header.digests is not None:
            source.begin()
        for piece in pieces(name, entry):
            source.fill(piece)
        if header.digests is not None:
            source.check(header.digests[name])
    source.check_end()
    if header.digests is None:
        source.check(sha256)
