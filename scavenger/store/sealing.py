"""Seals what the database must not hold in clear, by a key beside the installation's id.

The database, its backups and its dumps have the sealed text alone; the key is a file of its own, for its account only.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.errors import ConfigurationError
from scavenger.private_files import make_private_folder

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_FILE = "environment-key"


def seal(text: str, folder: Path) -> str:
    """Seal a text; the key is made if there is none yet.

    Args:
        text: Any text.
        folder: Where the key's file is.

    Raises:
        ConfigurationError: The key is damaged.
        OSError: It cannot be read or written.
    """
    from cryptography.fernet import Fernet

    path = _path(folder)
    if not path.exists():
        _make(path, Fernet.generate_key())
    return _fernet(path).encrypt(text.encode()).decode()


def unseal(sealed: str, folder: Path) -> str:
    """The text that was sealed.

    Raises:
        ConfigurationError: The key is not there, or another one.
        OSError: It cannot be read.
    """
    from cryptography.fernet import InvalidToken

    path = _path(folder)
    try:
        return _fernet(path).decrypt(sealed.encode()).decode()
    except FileNotFoundError:
        raise ConfigurationError(
            f"the environment that it was submitted with cannot be read: {path} is gone; submit it again"
        ) from None
    except InvalidToken:
        raise ConfigurationError(
            f"the environment that it was submitted with cannot be read: {path} is another key by now; submit it again"
        ) from None


def _path(folder: Path) -> Path:
    return folder / f"{_FILE}-{os.getuid()}"


def _fernet(path: Path) -> Fernet:
    from cryptography.fernet import Fernet

    try:
        return Fernet(path.read_bytes().strip())
    except ValueError:
        raise ConfigurationError(f"{path} has no key; delete it, and submit again what waits") from None


def _make(path: Path, key: bytes) -> None:
    """Write a new key; of several processes that do so at once, one succeeds."""
    make_private_folder(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:  # for the owner only
        file.write(key + b"\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
