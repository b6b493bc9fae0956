"""Temporary folders of engines, and the removal of folders that killed engines left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

SHORT_PARENT = "/tmp"  # noqa: S108 - the folders in it are private
"""Where folders are made whose path has to be short: the system's temporary folder may be anywhere."""
PREFIX = "scavenger-"
_LOCK, _NEW = "engine", "engine.new"


def make_folder(tag: str, parent: str | None = None) -> tuple[str, int]:
    """Create a temporary folder of an engine, with mode 0700.

    Args:
        tag: Marker of the engine's processes in their environment.
        parent: `SHORT_PARENT`; None for the system's temporary folder.

    Returns:
        The path, and a file descriptor that locks the folder: while any process holds it or a copy, `sweep` keeps
        the folder.
    """
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    lock = os.open(os.path.join(folder, _NEW), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, tag.encode())
    # renamed only now, so that the file is locked from the moment when it has its final name
    os.rename(os.path.join(folder, _NEW), os.path.join(folder, _LOCK))
    return folder, lock


def sweep(end: Callable[[str], object]) -> int:
    """Remove the folders of this user's engines whose leader and reaper are both dead.

    Args:
        end: Called with the tag of each engine, to kill its remaining processes.

    Returns:
        Number of removed folders.
    """
    swept = 0
    parents = {Path(tempfile.gettempdir()), Path(SHORT_PARENT)}
    for folder in (folder for parent in parents for folder in parent.glob(f"{PREFIX}*")):
        # a folder that cannot be read belongs to another user, or is being created or swept by another process
        with contextlib.suppress(OSError, ValueError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                tag = os.read(lock, 64).decode("ascii")
                if len(tag) == 32 and tag.isalnum():
                    end(tag)
                    shutil.rmtree(folder, ignore_errors=True)
                    swept += 1
            finally:
                os.close(lock)
    return swept
