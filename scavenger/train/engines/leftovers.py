"""The folder of an engine's temporary files, and what engines that were killed have left of theirs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["make_folder", "sweep"]

PREFIX = "scavenger-"
_LOCK, _NEW = "engine", "engine.new"


def make_folder(tag: str) -> tuple[str, int]:
    """A new folder for an engine.

    Args:
        tag: What the environment of the engine's processes tells them by.

    Returns:
        Its path, and a file descriptor: while anybody holds it or a copy of it, nobody sweeps the folder away.
    """
    folder = tempfile.mkdtemp(prefix=PREFIX)
    lock = os.open(os.path.join(folder, _NEW), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, tag.encode())
    # named only now: under its name, the file is held from its first moment on
    os.rename(os.path.join(folder, _NEW), os.path.join(folder, _LOCK))
    return folder, lock


def sweep(end: Callable[[str], object]) -> int:
    """Remove the folders of this user's engines of which neither the leader nor the reaper lives.

    Args:
        end: Called with the tag of each: ends what is left of its processes.

    Returns:
        How many folders went.
    """
    swept = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # whatever cannot be looked at is not ours, or is being made or swept by somebody else
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
