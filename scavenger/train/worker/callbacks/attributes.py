"""The state of one callback: the attributes that it has changed, and where its log file ends."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import keras

from scavenger.train.worker.callbacks.state import UnkeepableError, decode, encode

_LOG_END = "log file"
"""Key of the size of a CSVLogger's file; no attribute can have this name."""

_OF_PROCESS = frozenset({"params", "_model"})
"""Attributes of every callback that belong to the process."""

_MONITORING = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.ModelCheckpoint,
)

_OF_KIND: tuple[tuple[Any, frozenset[str]], ...] = (
    # chosen again from the metric's name at the first epoch, which turns the sign of `min_delta` then
    (_MONITORING, frozenset({"monitor_op", "min_delta"})),
    (keras.callbacks.CSVLogger, frozenset({"append", "append_header", "writer", "keys", "csv_file"})),
    (keras.callbacks.TensorBoard, frozenset({"_writers", "_summary_module", "_prev_summary_state"})),
)
"""Attributes of built-in callbacks that follow from others, or stand for open files."""


class CallbackAttributes:
    """Reads and writes the state of one callback.

    Attributes that have had their first value ever since the user's module built the callback are not part of the
    state, so that a job can be resumed with, for example, another `patience`.

    Args:
        callback: The callback, as the user's module built it.

    Attributes:
        unkept: Names of attributes that are not kept, because of their type or size, although they may have changed.
    """

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self._passed_over = _OF_PROCESS.union(
            *(names for kind, names in _OF_KIND if isinstance(callback, kind))
        )
        self._built = {name: (value, _encoded(value)) for name, value in vars(callback).items()}
        self._changed: set[str] = set()
        self.unkept: set[str] = set()

    def read(self) -> dict[str, Any]:
        """Return the state, of JSON types."""
        state: dict[str, Any] = {}
        for name, value in vars(self._callback).items():
            if name in self._passed_over:
                continue
            built, document = self._built.get(name, (None, None)), _encoded(value)
            if document is None:
                if built[0] is not value:
                    self.unkept.add(name)
            elif name in self._changed or built[1] != document:
                self._changed.add(name)
                state[name] = document[0]
        if isinstance(self._callback, keras.callbacks.CSVLogger):
            state[_LOG_END] = _size_of(self._callback.filename)
        return state

    def reset(self) -> None:
        """Undo the changes of attributes that are kept, as if the module had just built the callback."""
        for name in self._changed:
            built = self._built.get(name)
            if built is None:
                vars(self._callback).pop(name, None)
            elif built[1] is not None:
                setattr(self._callback, name, decode(built[1][0]))
        self._changed.clear()

    def write(self, state: dict[str, Any]) -> None:
        """Give the callback, whose `on_train_begin` has been called, a state that `read` has returned."""
        for name, document in state.items():
            if name != _LOG_END:
                setattr(self._callback, name, decode(document))
                self._changed.add(name)

    def cut_log(self, state: dict[str, Any]) -> None:
        """Have a CSVLogger append to its file, without the lines written after this state; before `on_train_begin`."""
        if isinstance(self._callback, keras.callbacks.CSVLogger):
            self._callback.append = True
            end = state.get(_LOG_END)
            if end is not None and (_size_of(self._callback.filename) or 0) > end:
                os.truncate(self._callback.filename, end)


def _encoded(value: Any) -> tuple[Any] | None:
    """Return the encoded value in a tuple, since it may itself be None; None if it cannot be kept."""
    try:
        return (encode(value),)
    except UnkeepableError:
        return None


def _size_of(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # it is not there, or at a URL
        return os.path.getsize(path)
    return None
