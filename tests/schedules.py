"""Schedules of a simulation that once broke a law, as kept beside it."""

from __future__ import annotations

from pathlib import Path


def kept(path: Path) -> list[tuple[int, str]]:
    """Each seed with the mutant that brings its fault back; lines that begin with # are remarks."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return [(int(seed), mutant.strip()) for seed, mutant in (line.split(maxsplit=1) for line in lines)]
