"""The training code as a script; apart from the forms of a job file, which workers do not read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

KERAS_BATCH_SIZE = 32
"""Default batch size of Keras's `fit`, samples."""


@dataclass(frozen=True, slots=True)
class Script:
    """The training code as a script with its arguments, as `train.py --epochs 5`.

    It calls `fit`, or `prepare` of `scavenger.torch` or `scavenger.jax`.

    Attributes:
        path: Of the script, in the job file's folder.
    """

    path: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join((self.path, *self.arguments))

    @classmethod
    def find(cls, line: str) -> Script | None:
        """The script that a line names; None if it names none, as `train:job`."""
        try:
            path, *arguments = shlex.split(line) or [""]
        except ValueError:
            return None  # a quote is not closed
        return cls(path, tuple(arguments)) if path.endswith(".py") and ":" not in path else None
