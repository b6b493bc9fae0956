"""Keys of the connection to leaders: who may log in, and by what each VM proves which one it is."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from scavenger.errors import ConfigurationError
from scavenger.private_files import make_private_folder

_KEYGEN = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "scavenger")


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key by which a VM proves which one it is.

    Attributes:
        secret: In OpenSSH's format, for the VM.
        public: As in a `known_hosts` file, without a comment.
    """

    secret: str = field(repr=False)
    public: str


def login_key(folder: Path) -> Path:
    """The secret key of this installation, made when it is first needed; its public part lies beside it, as `.pub`.

    Args:
        folder: A private folder.

    Raises:
        ConfigurationError: OpenSSH is not installed, or the key cannot be made.
    """
    make_private_folder(folder)
    key = folder / "id_ed25519"
    if not key.is_file():
        made = _made(folder, f"new-{os.getpid()}")
        os.replace(made.with_suffix(".pub"), key.with_suffix(".pub"))
        try:
            os.link(made, key)  # of two commands at once, one makes the key
        except FileExistsError:
            public = _keygen("-y", "-f", str(key))
            key.with_suffix(".pub").write_text(public)
        made.unlink()
    return key


def new_host_key(folder: Path) -> HostKey:
    """Make the key of one VM; nothing of it stays in the folder.

    Raises:
        ConfigurationError: As `login_key`.
    """
    make_private_folder(folder)
    made = _made(folder, f"host-{os.getpid()}")
    public = made.with_suffix(".pub")
    try:
        kind, text = public.read_text().split()[:2]
        return HostKey(made.read_text(), f"{kind} {text}")
    finally:
        made.unlink()
        public.unlink()


def _made(folder: Path, name: str) -> Path:
    path = folder / name
    path.unlink(missing_ok=True)
    _run([*_KEYGEN, "-f", str(path)])
    return path


def _keygen(*arguments: str) -> str:
    return _run(["ssh-keygen", *arguments])


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        raise ConfigurationError("a leader's VM is reached by OpenSSH: install its client (ssh)") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{command[0]} cannot make a key: {error}") from error
