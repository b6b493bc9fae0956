"""Frames of a payload stream: each is a header and, mostly, a payload, sealed with AES-GCM.

A stream has one key for each direction, which no other stream has, and the n-th record of a direction has the nonce n.
Nonces are not sent: both ends count. So a record that was changed, left out, repeated, moved, or taken from another
stream or direction does not open, and that ends the stream. A frame is

    sizes of header and payload (8 bytes, not encrypted)
    the header, sealed; its associated data are the sizes
    the payload in records of at most `RECORD_BYTES`, each sealed; their associated data is the header

The receiver opens the header before it takes any memory for the payload.

References:
    D. McGrew and J. Viega, "The Galois/Counter Mode of Operation (GCM)", 2004; NIST SP 800-38D, section 8.2.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from scavenger.errors import MessageError

KEY_BYTES = 32
RECORD_BYTES = 1 << 19
"""Measured: smaller ones cost calls, larger ones leave the processor's cache before they are sent."""
HEADER_BYTES_MAX = 1 << 16
PAYLOAD_BYTES_MAX = 64 << 20

_SIZES = struct.Struct(">II")
_NONCE_BYTES = 12
_TAG_BYTES = 16
_RECORDS_MAX = 1 << 32
"""Records under one key: 2 PB, of which AES-GCM would allow more (2^47 of its blocks)."""
FRAME_BYTES_MAX = _SIZES.size + HEADER_BYTES_MAX + RECORD_BYTES + 2 * _TAG_BYTES
"""Most bytes that are written, or have to be read, at once."""


class PayloadFrame(NamedTuple):
    """A frame that has arrived. The payload is None, or the whole of a buffer's part."""

    header: bytes
    payload: memoryview | None


class _Nonces:
    """Counts the records of one direction of a stream."""

    def __init__(self) -> None:
        self._used = 0

    def next(self) -> bytes:
        """Return the next nonce, which was never returned before.

        Raises:
            MessageError: If the key has sealed as many records as it may.
        """
        if self._used >= _RECORDS_MAX:
            raise MessageError("the key of this stream is used up")
        self._used += 1
        return self._used.to_bytes(_NONCE_BYTES, "big")


class FrameWriter:
    """Seals the frames of one direction of a stream.

    Args:
        key: `KEY_BYTES` bytes, which no other writer has.
    """

    def __init__(self, key: bytes) -> None:
        self._aead, self._nonces = AESGCM(key), _Nonces()
        self._header = b""
        self._payload: memoryview | None = None
        self._at: int | None = 0  # None before a frame's header is sealed

    def begin(self, header: bytes, payload: memoryview | None = None) -> None:
        """Begin a frame, when the one before is complete.

        Args:
            header: At most `HEADER_BYTES_MAX` bytes.
            payload: At most `PAYLOAD_BYTES_MAX` bytes, in one dimension; they are read by `fill`.

        Raises:
            ValueError: If header or payload is too large.
        """
        size = 0 if payload is None else len(payload)
        if len(header) > HEADER_BYTES_MAX or size > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a frame of {len(header)} and {size} bytes is too large")
        self._header, self._payload, self._at = header, payload, None

    @property
    def more(self) -> bool:
        """Whether a part of the frame is not sealed yet."""
        size = 0 if self._payload is None else len(self._payload)
        return self._at is None or self._at < size

    def fill(self, buffer: memoryview) -> int:
        """Seal the next part of the frame into a buffer of `FRAME_BYTES_MAX` bytes; returns its size.

        Raises:
            MessageError: If the key has sealed as many records as it may.
        """
        end = 0
        if self._at is None:
            self._at = 0
            sizes = _SIZES.pack(len(self._header), 0 if self._payload is None else len(self._payload))
            end = _SIZES.size
            buffer[:end] = sizes
            end += self._seal(self._header, sizes, buffer[end:])
        if self._payload is not None and self._at < len(self._payload):
            part = self._payload[self._at : self._at + RECORD_BYTES]
            self._at += len(part)
            end += self._seal(part, self._header, buffer[end:])
        if not self.more:
            self._payload = None
        return end

    def _seal(self, data: bytes | memoryview, associated: bytes, into: memoryview) -> int:
        size = len(data) + _TAG_BYTES
        self._aead.encrypt_into(self._nonces.next(), data, associated, into[:size])
        return size


class FrameReader:
    """Opens the frames of one direction of a stream.

    Args:
        key: That of the writer.
        memory: Returns a buffer of so many bytes for a payload; it is asked when the header has been opened.

    Attributes:
        needed: How many bytes to pass to `feed` next; at most `FRAME_BYTES_MAX`.
    """

    def __init__(self, key: bytes, memory: Callable[[int], memoryview]) -> None:
        self._aead, self._nonces, self._memory = AESGCM(key), _Nonces(), memory
        self.needed = _SIZES.size
        self._sizes: bytes | None = None
        self._header: bytes | None = None
        self._payload: memoryview | None = None
        self._at = 0

    def feed(self, data: memoryview) -> PayloadFrame | None:
        """Take the next `needed` bytes; returns the frame if it is complete with them.

        Raises:
            MessageError: If the bytes are not those that the writer has written. The reader cannot be used any more.
        """
        if self._sizes is None:
            self._begin(bytes(data))
            return None
        if self._header is None:
            return self._open_header(data, self._sizes)
        assert self._payload is not None
        end = self._at + len(data) - _TAG_BYTES
        self._open(data, self._header, self._payload[self._at : end])
        self._at = end
        return self._next()

    def _begin(self, sizes: bytes) -> None:
        header, payload = _SIZES.unpack(sizes)
        if header > HEADER_BYTES_MAX or payload > PAYLOAD_BYTES_MAX:
            raise MessageError(f"a frame of {header} and {payload} bytes")
        self._sizes, self.needed = sizes, header + _TAG_BYTES

    def _open_header(self, data: memoryview, sizes: bytes) -> PayloadFrame | None:
        header = bytearray(len(data) - _TAG_BYTES)
        self._open(data, sizes, header)
        self._header = bytes(header)
        size = _SIZES.unpack(sizes)[1]
        self._payload, self._at = (self._memory(size) if size else None), 0
        return self._next()

    def _next(self) -> PayloadFrame | None:
        left = 0 if self._payload is None else len(self._payload) - self._at
        if left:
            self.needed = min(RECORD_BYTES, left) + _TAG_BYTES
            return None
        assert self._header is not None
        frame = PayloadFrame(self._header, self._payload)
        self._sizes = self._header = self._payload = None
        self.needed = _SIZES.size
        return frame

    def _open(self, data: memoryview, associated: bytes, into: bytearray | memoryview) -> None:
        try:
            self._aead.decrypt_into(self._nonces.next(), data, associated, into)
        except InvalidTag:
            raise MessageError("a record that was not sealed for this place") from None
