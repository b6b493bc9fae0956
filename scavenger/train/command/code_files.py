"""The Python files of a job's folder: a command imports from there what its words do not name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["python_files"]

_LEFT_OUT = frozenset({"__pycache__", "runs", "checkpoints", "node_modules", "site-packages"})
"""Folders that Python and jobs write next to the training code, and those of installed packages."""

_ENVIRONMENT = "pyvenv.cfg"
"""Marks the folder of a virtual environment."""


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, in the order of their paths.

    Left out are hidden and unreadable ones, and folders of outputs and of virtual environments; links are not followed.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and not (Path(place) / name / _ENVIRONMENT).exists()
        )
        for name in sorted(names):
            path = Path(place) / name
            if (
                name.endswith(".py")
                and not name.startswith(".")
                and path.is_file()
                and os.access(path, os.R_OK)
            ):
                yield path
