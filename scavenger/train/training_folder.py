"""The folder of a job's training code: what in it is code and data, and what is not."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_LEFT_OUT = frozenset({"__pycache__", "runs", "checkpoints"})
"""Folders that Python and jobs write next to the training code."""
_ENVIRONMENT = "pyvenv.cfg"
"""Marks the folder of a virtual environment, which works on its own machine alone."""


def entries(folder: Path, leave_out: Collection[Path] = ()) -> Iterator[Path]:
    """Yield what is in a folder of training code, in the order of paths, each folder before what is in it.

    Left out are hidden files, folders named `__pycache__`, `runs` and `checkpoints`, virtual environments, and what
    cannot be listed. Links are given, and not followed.

    Args:
        leave_out: Further paths to leave out.
    """
    paths: list[Path] = []
    with contextlib.suppress(OSError):
        paths = sorted(folder.iterdir())
    for path in paths:
        if path.name.startswith(".") or path.name in _LEFT_OUT or path in leave_out:
            continue
        if not path.is_dir() or path.is_symlink():
            yield path
        elif not (path / _ENVIRONMENT).exists():
            yield path
            yield from entries(path, leave_out)


def programs(folder: Path, endings: Collection[str] = (".py",)) -> Iterator[Path]:
    """Yield the readable files of a folder of training code with certain endings: by default, what may be imported."""
    return (
        path
        for path in entries(folder)
        if path.suffix in endings and path.is_file() and os.access(path, os.R_OK)
    )


def digest_of(files: Iterable[Path], folder: Path) -> bytes:
    """Digest of files and of their paths in the folder; line ends of Windows count as those of others."""
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{os.path.relpath(path, folder)}:{len(data)}:".encode())
        digest.update(data)
    return digest.digest()
