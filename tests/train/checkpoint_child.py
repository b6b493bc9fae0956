"""Writes one checkpoint, to be interrupted: `checkpoint_child.py FOLDER VALUE atomic|in-place`.

Imports little, for it is started hundreds of times. Ends with 0 when the checkpoint is committed, with 3 and one
line when it is not.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np

from scavenger.errors import TransientError
from scavenger.train.checkpoints import files as checkpoint_files
from scavenger.train.checkpoints.checkpoint import Checkpoint, CheckpointStore
from scavenger.train.checkpoints.format import Array
from scavenger.train.checkpoints.manifest import CheckpointManifest

BEGIN, END = "/checkpoint-begins", "/checkpoint-ends"
PARTS = ("a0", "a1")


class InPlace(checkpoint_files.LocalFiles):
    """What must fail the proof: every checkpoint over the one before, without a temporary file."""

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        os.makedirs(os.path.join(self.root, folder), exist_ok=True)
        with open(os.path.join(self.root, folder, name), "wb", buffering=0) as file:
            for chunk in chunks:
                file.write(chunk)
            os.fsync(file.fileno())


def tensors(value: int, part: str) -> dict[str, Array]:
    """More than one chunk in the first part; a scalar and an empty tensor in the second."""
    if part == "a0":
        return {"kernel": np.full((600, 500), value, np.float32)}
    return {"step": np.array(value), "none": np.zeros((0, 3), np.float16)}


def write(store: CheckpointStore, value: int, *, step: int, attempt: str) -> None:
    parts = tuple(store.write_part(step, attempt, part, tensors(value, part)) for part in PARTS)
    store.commit(
        CheckpointManifest(
            fingerprint="f",
            step=step,
            attempt=attempt,
            epoch=0,
            consumed=value,
            view=1,
            parts=parts,
            state={"value": value},
            created_at=datetime(2030, 1, 1, tzinfo=UTC),
        )
    )


def value_of(checkpoint: Checkpoint | None) -> int | None:
    """The value of a checkpoint that is whole and unmixed; None for any other."""
    if checkpoint is None:
        return None
    value = int(checkpoint.manifest.state["value"])
    for part in PARTS:
        found = checkpoint.tensors(part)
        if not all(np.array_equal(found.pop(name), tensor) for name, tensor in tensors(value, part).items()):
            return None
        if found:
            return None
    return value


def main() -> int:
    folder, value, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if how == "in-place":
        checkpoint_files.LocalFiles = InPlace  # type: ignore[misc]
    store = CheckpointStore(folder, keep=2)
    step, attempt = (0, "only") if how == "in-place" else (value, f"try{value}")
    for mark in (BEGIN, END):
        with contextlib.suppress(OSError):
            os.stat(mark)
        if mark == BEGIN:
            try:
                write(store, value, step=step, attempt=attempt)
            except TransientError as error:
                print(error, file=sys.stderr)
                return 3
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
