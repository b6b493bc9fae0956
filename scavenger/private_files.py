"""Files and folders with access for their owner only, as all outputs of a job are: they may contain its data."""

from __future__ import annotations

import os
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def make_private_folder(path: Path) -> None:
    """Create a folder and the missing ones above it, each with mode 0700; existing ones keep their mode.

    Raises:
        OSError: If one cannot be created.
    """
    whole = path.absolute()
    for folder in (*reversed(whole.parents), whole):
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file, for the `opener` argument of `open`; a new file gets mode 0600.

    Raises:
        OSError: If it cannot be opened.
    """
    return os.open(path, flags, FILE_MODE)
