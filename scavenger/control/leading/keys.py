"""Keys of the connection to leaders: who may log in, and by what each VM proves which one it is."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from scavenger.private_files import make_private_folder, private_opener

LOGIN_KEY = "id_ed25519"
"""File name of the secret key of an installation."""


@dataclass(frozen=True, slots=True)
class SshKey:
    """A pair of keys (Ed25519), in OpenSSH's formats.

    Attributes:
        public: As in a `known_hosts` file, without a comment.
    """

    secret: str = field(repr=False)
    public: str


def new_key() -> SshKey:
    """Make a pair of keys, such as that by which one VM proves which one it is."""
    made = Ed25519PrivateKey.generate()
    secret = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return SshKey(secret.decode(), public.decode())


def login_key(folder: Path) -> str:
    """The public key of this installation; the secret one, made when it is first needed, lies in the folder.

    Args:
        folder: A private folder.
    """
    make_private_folder(folder)
    key, fresh = folder / LOGIN_KEY, folder / f"new-{os.getpid()}"
    if not key.is_file():
        with open(fresh, "w", opener=private_opener) as file:
            file.write(new_key().secret)
        with suppress(FileExistsError):  # of two commands at once, one makes the key
            os.link(fresh, key)
        fresh.unlink()
    public = load_ssh_private_key(key.read_bytes(), None).public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
