"""How the model comes into its file at the end of training: what was said of it, and what was sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from scavenger.train.names import partial_model
from scavenger.train.transport import messages as m

__all__ = ["Saving"]


class Saving:
    """One model's.

    Attributes:
        step: Whose weights it has; None until all aggregators have finalised them.
        saved: A worker has written it, or sent all of it.
        refusal: Why there is no room for it; empty where nobody has found that.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.saved = False
        self.refusal = ""
        self._incoming: tuple[str, IO[bytes]] | None = None

    def take(self, peer: str, message: m.Done | m.Saved | m.SavedPart | m.Unsaved) -> None:
        """What an aggregator or a worker says of it."""
        match message:
            case m.Done():
                self.step = message.step
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
        """Meanwhile, what a worker sends is written beside `path`, and put there if it is whole in the end.

        If it is not, the caller removes what there is of it, as it does after a worker that wrote by itself.
        """
        partial = partial_model(path)
        with partial.open("wb") as file:
            self._incoming = writer, file
            try:
                yield
            finally:
                self._incoming = None
        if self.saved:
            partial.replace(path)
