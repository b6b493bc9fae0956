"""What the processes of a job, and the files that they share, are called."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BEATING", "SUPERVISOR", "aggregator_name", "coordinator_name", "partial_model"]

BEATING = "!"
"""What a process's name ends with where it only says that it lives."""
SUPERVISOR = ""
"""The supervisor itself, among those whom a coordinator speaks to."""


def aggregator_name(index: int) -> str:
    """A job's aggregator by its place; the first one sequences."""
    return f"aggregator-{index}"


def coordinator_name(token: int) -> str:
    """Each coordinator of a job has a name of its own, so that one that was replaced can be told by it."""
    return f"coordinator-{token}"


def partial_model(path: Path) -> Path:
    """What a model's file is called as long as it is not whole; Keras insists on the ending."""
    return path.with_name(f".{path.stem}.partial.keras")
