"""Messages as msgpack and back. Whatever bytes arrive, they are a message or a `MessageError`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from scavenger.errors import MessageError

__all__ = ["Codec"]

T = TypeVar("T")


class Codec(Generic[T]):
    """Of the messages of one protocol.

    Args:
        kinds: The union of their types.
    """

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Any) -> bytes:
        """A message as msgpack."""
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> T:
        """A message from msgpack.

        Raises:
            MessageError: If the bytes are no message of this protocol, or not a valid one.
        """
        try:
            return self._decoder.decode(data)
        except Exception as error:  # noqa: BLE001 - of bytes: DecodeError, UnicodeDecodeError, RecursionError, ...
            raise MessageError(str(error) or type(error).__name__) from None
