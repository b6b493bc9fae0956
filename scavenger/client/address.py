"""Which server commands speak to, and the token by which it knows the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from platformdirs import user_config_path

from scavenger.domain.access import SERVER, is_loopback
from scavenger.errors import ConfigurationError
from scavenger.private_files import make_private_folder, private_opener

__all__ = [
    "CERTIFICATES",
    "TOKEN",
    "ServerAddress",
    "checked_url",
    "keep_token",
    "kept_token",
    "known_address",
    "server_address",
    "tokens_path",
]

TOKEN = "SCAVENGER_TOKEN"  # noqa: S105 - the name of a variable
CERTIFICATES = "REQUESTS_CA_BUNDLE"
"""File of the certificates that are trusted instead of the usual ones, as for a server with one of its own."""
_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server, and how to be known to it.

    Attributes:
        url: As `https://host:8765`, without a path.
        token: As `scavenger api token` makes it.
        certificates: PEM file of the certificates that are trusted; None for the usual ones.

    Raises:
        ConfigurationError: The URL is none, or would carry the token over a network without TLS.
    """

    url: str
    token: str = field(repr=False)
    certificates: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checked_url(self.url))

    @property
    def local(self) -> bool:
        """Whether requests stay on this machine, or go through a port that is forwarded from it."""
        return is_loopback(urlsplit(self.url).hostname or "")


def checked_url(url: str) -> str:
    """The URL of a server, in the one form in which its token is kept.

    Raises:
        ConfigurationError: As of `ServerAddress`.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query:
        raise ConfigurationError(f"{SERVER} is the URL of a server, as http://127.0.0.1:8765, not {url!r}")
    if parts.username or parts.password:
        raise ConfigurationError(f"{SERVER} names no user; set {TOKEN}, or run `scavenger api login`")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigurationError(
            f"tokens would be read on the way to {url}; give an https:// URL, or forward the port through SSH "
            "and give http://127.0.0.1:PORT"
        )
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")


def server_address(environment: Mapping[str, str] = os.environ) -> ServerAddress | None:
    """The server that the environment names; None if it names none.

    Raises:
        ConfigurationError: The URL is none, or no token is known for it.
    """
    named = environment.get(SERVER, "").strip()
    if not named:
        return None
    url = checked_url(named)
    token = environment.get(TOKEN, "").strip() or kept_token(url)
    if token is None:
        raise ConfigurationError(
            f"no token is known for {url}; set {TOKEN}, or keep one with `scavenger api login`"
        )
    return ServerAddress(url, token, environment.get(CERTIFICATES) or None)


def tokens_path() -> Path:
    """The file that `scavenger api login` keeps tokens in, for the user only."""
    return user_config_path("scavenger") / "tokens.json"


def kept_token(url: str) -> str | None:
    """The token that is kept for a server; None if there is none.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    return _kept().get(url)


def known_address(server: str, token: str | None = None) -> ServerAddress:
    """A server that is named in a program, with its token: the one given, that of `SCAVENGER_TOKEN`, or the kept one.

    Raises:
        ConfigurationError: The URL is none, or no token is known for it.
    """
    url = checked_url(server)
    found = token or os.environ.get(TOKEN, "").strip() or kept_token(url)
    if not found:
        raise ConfigurationError(
            f"no token is known for {url}; give token=, or keep one with `scavenger api login`"
        )
    return ServerAddress(url, found, os.environ.get(CERTIFICATES) or None)


def keep_token(url: str, token: str) -> Path:
    """Keep the token of a server, in place of an earlier one; returns the file.

    Raises:
        ConfigurationError: The file cannot be read or written.
    """
    path = tokens_path()
    tokens = {**_kept(), url: token}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_private_folder(path.parent)
        with open(partial, "wb", opener=private_opener) as file:
            file.write(msgspec.json.format(msgspec.json.encode(tokens)) + b"\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    return path


def _kept() -> dict[str, str]:
    path = tokens_path()
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_BYTES_MAX), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; delete it, and log in again") from error
