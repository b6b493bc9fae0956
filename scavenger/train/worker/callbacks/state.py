"""The state of an object's attributes as JSON, from which another process can go on.

Numbers, texts, bytes, NumPy arrays and the built-in collections of them are kept exactly; nothing is pickled.
"""

from __future__ import annotations

import base64
from collections import deque
from typing import Any

import numpy as np

STATE_BYTES_MAX = 256 << 10
"""Largest size of an attribute: the state is kept with the record of every epoch."""

_PLAIN = (type(None), bool, int, float, str)


class UnkeepableError(Exception):
    """A value is of a type that cannot be kept, or too large."""


class _Room:
    """Bytes that the encoded value may still take."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise UnkeepableError("it is too large")


def encode(value: Any, *, bytes_max: int = STATE_BYTES_MAX) -> Any:
    """Turn a value into one of JSON types, from which `decode` makes an equal one of the same type.

    Raises:
        UnkeepableError: If the value, or a part of it, cannot be kept.
    """
    return _encoded(value, _Room(bytes_max))


def decode(document: Any) -> Any:
    """Return the value that `encode` has turned into this document."""
    if isinstance(document, list):
        return [decode(item) for item in document]
    if not isinstance(document, dict):
        return document
    ((kind, content),) = document.items()
    match kind:
        case "tuple":
            return tuple(decode(item) for item in content)
        case "set":
            return {decode(item) for item in content}
        case "frozenset":
            return frozenset(decode(item) for item in content)
        case "deque":
            items, maxlen = content
            return deque((decode(item) for item in items), maxlen)
        case "dict":
            return {decode(key): decode(item) for key, item in content}
        case "bytes":
            return base64.b64decode(content)
        case "array" | "scalar":
            dtype, shape, data = content
            array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
            return array[()] if kind == "scalar" else array
        case _:
            raise ValueError(f"unknown kind of value {kind!r}")


def _encoded(value: Any, room: _Room) -> Any:
    room.take(8)
    kind = type(value)
    if kind in _PLAIN:
        room.take(len(value) if kind is str else 8)
        return value
    if kind is bytes:
        room.take(len(value))
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic) or kind is np.ndarray:
        # `hasobject`: its bytes would be addresses; a name such as `<V2` does not name the type of ml_dtypes
        dtype = value.dtype
        if dtype.hasobject or np.dtype(dtype.str) != dtype:
            raise UnkeepableError(f"its type is {dtype}")
        room.take(value.nbytes)
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array" if kind is np.ndarray else "scalar": [dtype.str, list(value.shape), data]}
    if kind is dict:
        return {"dict": [[_encoded(key, room), _encoded(item, room)] for key, item in value.items()]}
    if kind is list:
        return [_encoded(item, room) for item in value]
    if kind is deque:
        return {"deque": [[_encoded(item, room) for item in value], value.maxlen]}
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [_encoded(item, room) for item in value]}
    raise UnkeepableError(f"it is a {kind.__name__}")
