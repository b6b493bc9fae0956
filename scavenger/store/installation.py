"""The installation that a store is used from: which machine's jobs they are, whatever the machine is called.

A host's name changes: a container has another one at each start, and a laptop in each network. So an installation has
an id, in a file beside the store's or, for PostgreSQL, in the user's folder of data.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

from scavenger.errors import ConfigurationError
from scavenger.private_files import make_private_folder

INSTALLATION_VARIABLE = "SCAVENGER_INSTALLATION"
"""Names the installation instead of the file, such as one whose file was lost."""
_FILE = "installation"
_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_installation(text: str) -> bool:
    """Whether a text has the form of an installation's id."""
    return _FORM.fullmatch(text) is not None


def user_folder() -> Path:
    """The folder of the user's data."""
    return user_data_path("scavenger", appauthor=False)


def installation_in(folder: Path, *, shared: bool) -> str:
    """The id of the installation, which is made if there is none yet.

    Args:
        folder: Where its file is.
        shared: Whether several machines may share the folder, so that each host name has an id of its own there.

    Raises:
        ConfigurationError: The variable, or the file, has no such id.
        OSError: The file cannot be read or written.
    """
    if given := os.environ.get(INSTALLATION_VARIABLE):
        if not is_installation(given):
            raise ConfigurationError(
                f"{INSTALLATION_VARIABLE}={given[:80]!r} is not 1 to 64 of A-Z a-z 0-9 . _ -"
            )
        return given
    path = folder / (f"{_FILE}-{socket.gethostname()}" if shared else _FILE)
    if not path.exists():
        _make(path)
    found = path.read_text().strip()
    if not is_installation(found):
        raise ConfigurationError(
            f"{path} has no id of an installation; delete it, or give {INSTALLATION_VARIABLE}"
        )
    return found


def _make(path: Path) -> None:
    """Write a new id; of several processes that do so at once, one succeeds."""
    make_private_folder(path.parent)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(f"{uuid.uuid4()}\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
