"""Where the server listens, and which hosts it answers to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scavenger.domain.access import is_loopback
from scavenger.errors import ConfigurationError

DEFAULT_PORT = 8765
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens.

    Attributes:
        host: Address to listen at. Any but a loopback address needs a certificate.
        port: 0 for one that is free.
        allowed_hosts: Names, besides those of the loopback interface, under which clients may address the server; a
            request with another `Host` is refused, so that no web page can reach the server by a name of its own.
        certificate, key: PEM files for TLS; None for plain HTTP.

    Raises:
        ConfigurationError: Not a loopback address without TLS, or a certificate without its key.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("TLS needs both: a certificate and its key")
        if not is_loopback(self.host) and not self.tls:
            raise ConfigurationError(
                f"the server listens at {self.host} only with TLS, as tokens would be read on the way; give a "
                "certificate and its key, or listen at 127.0.0.1 and forward the port through SSH"
            )

    @property
    def tls(self) -> bool:
        """Whether the server speaks TLS."""
        return self.certificate is not None

    @property
    def hosts(self) -> frozenset[str]:
        """Names that a `Host` header may have, without the port, in lower case."""
        own = () if self.host in ("0.0.0.0", "::") else (self.host,)  # noqa: S104 - compared, not bound
        return frozenset(name.lower() for name in (*_LOOPBACK_NAMES, *own, *self.allowed_hosts))

    def url(self, port: int) -> str:
        """The address for clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{port}"
