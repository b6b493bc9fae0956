"""Verifies audits, the records of which worker computed which samples of each applied step."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from scavenger.control.training.journal import AUDIT_FILE
from scavenger.control.training.segments import lines_of

__all__ = ["AUDIT_FILE", "verify_audit"]


class _Applied(msgspec.Struct, tag_field="kind", tag="step"):
    step: int
    view: int
    epoch: int
    pieces: list[tuple[str, int, int]]


class _Resumed(msgspec.Struct, tag_field="kind", tag="resumed"):
    step: int


def verify_audit(path: Path, dataset_size: int) -> list[str]:
    """Verify a job's use of its data; returns one line per problem.

    The audit is correct if the applied steps are numbered from 1 without gaps, and every epoch used each sample in
    exactly one step. In the last epoch, which may be unfinished, each sample is in at most one step, without a gap.
    Steps that were undone before the job was resumed do not count. A line that cannot be read counts as a missing step.

    Args:
        path: The job's `AUDIT_FILE`.
        dataset_size: D, samples per epoch.

    Raises:
        OSError: If the file cannot be read.
    """
    problems: list[str] = []
    steps = _applied(path, problems)
    if missing := [step for step in range(1, max(steps, default=0) + 1) if step not in steps]:
        problems.append(f"{len(missing)} steps are not recorded, the first is {missing[0]}")
    epochs: dict[int, list[_Applied]] = {}
    for applied in steps.values():
        epochs.setdefault(applied.epoch, []).append(applied)
    last = max(epochs, default=-1)
    for epoch in range(last + 1):
        counts = np.zeros(dataset_size, dtype=np.int64)
        for applied in epochs.get(epoch, ()):
            for worker, start, stop in applied.pieces:
                if not 0 <= start <= stop <= dataset_size:
                    problems.append(
                        f"step {applied.step}: {worker} computed {start} to {stop} of {dataset_size} samples"
                    )
                counts[max(start, 0) : stop] += 1
        if repeated := int(np.sum(counts > 1)):
            problems.append(f"epoch {epoch}: {repeated} samples were trained on more than once")
        due = counts if epoch < last else counts[: int(np.max(np.flatnonzero(counts), initial=-1)) + 1]
        if left_out := int(np.sum(due == 0)):
            problems.append(f"epoch {epoch}: {left_out} samples were left out")
    return problems


def _applied(path: Path, problems: list[str]) -> dict[int, _Applied]:
    """The steps that were not undone, by number."""
    decoder = msgspec.json.Decoder(_Applied | _Resumed)
    steps: dict[int, _Applied] = {}
    for line in lines_of(path):
        try:
            found = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):  # the header, or cut off when the job was killed
            continue
        if isinstance(found, _Resumed):
            steps = {number: applied for number, applied in steps.items() if number <= found.step}
        elif found.step in steps:
            problems.append(f"step {found.step} is recorded twice")
        else:
            steps[found.step] = found
    return steps
