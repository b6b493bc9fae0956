"""Names of a job's processes and of the files that they share."""

from __future__ import annotations

from pathlib import Path

HEARTBEAT_SUFFIX = "!"
"""Suffix of a process's name on the connection that carries only its heartbeats."""
SUPERVISOR = ""
"""The supervisor's name, as sender and receiver of the coordinator's messages."""


def aggregator_name(index: int) -> str:
    """Return the name of a job's aggregator by its index; aggregator 0 is the sequencer."""
    return f"aggregator-{index}"


def aggregator_number(name: str) -> int | None:
    """Return the index of the aggregator with a name, the inverse of `aggregator_name`; None for another process."""
    role, _, index = name.rpartition("-")
    return int(index) if role == "aggregator" and index.isdecimal() else None


def coordinator_name(token: int) -> str:
    """Return the name of the coordinator with this token; a coordinator that replaces another has a different name."""
    return f"coordinator-{token}"


def partial_model(path: Path) -> Path:
    """Return the temporary path of a model file until it is complete; Keras requires the file extension."""
    return path.with_name(f".{path.stem}.partial{path.suffix}")
