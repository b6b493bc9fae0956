"""Encodes messages as msgpack and decodes them. Any bytes decode to a valid message or raise `MessageError`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from scavenger.errors import MessageError

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes the messages of one protocol.

    Args:
        kinds: The union of the protocol's message types.
    """

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Any) -> bytes:
        """Encode a message as msgpack."""
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> T:
        """Decode a message from msgpack.

        Raises:
            MessageError: If the bytes are no valid message of this protocol.
        """
        try:
            return self._decoder.decode(data)
        except Exception as error:  # noqa: BLE001 - DecodeError, UnicodeDecodeError, RecursionError and others
            raise MessageError(str(error) or type(error).__name__) from None
