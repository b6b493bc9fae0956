"""Writes the model to its file at the end of training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from scavenger.private_files import private_opener
from scavenger.train.names import partial_model
from scavenger.train.transport import messages as m


class Saving:
    """The state of saving one model.

    Attributes:
        step: The step whose weights the model has; None until all aggregators have finalised them.
        lr_scale: Factor on the optimizer's learning rate.
        saved: Whether a worker has written the file, or sent all of it.
        refusal: Why the file cannot be written, such as a full disk; empty if no worker has reported that.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.lr_scale = 1.0
        self.saved = False
        self.refusal = ""
        self._incoming: tuple[str, IO[bytes]] | None = None

    def take(self, peer: str, message: m.Done | m.Saved | m.SavedPart | m.Unsaved) -> None:
        """Handle a message about the model from an aggregator or a worker."""
        match message:
            case m.Done():
                self.step, self.lr_scale = message.step, message.lr_scale
            case m.Saved():
                self.saved = True
            case m.Unsaved():
                self.refusal = message.cause
            case m.SavedPart() if self._incoming is not None and self._incoming[0] == peer:
                self._incoming[1].seek(message.offset)
                self._incoming[1].write(message.data)
            case m.SavedPart():
                pass

    @contextlib.contextmanager
    def received(self, writer: str, path: Path) -> Iterator[None]:
        """Write what a worker sends to a temporary file, and rename it to `path` if it is complete on exit.

        If it is not, the caller removes the temporary file, as it does after a worker that wrote the file itself.
        """
        partial = partial_model(path)
        with open(partial, "wb", opener=private_opener) as file:
            self._incoming = writer, file
            try:
                yield
            finally:
                self._incoming = None
        if self.saved:
            partial.replace(path)
