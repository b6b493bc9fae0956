"""Verifies which VM of Compute Engine has sent a message, by the token that Google signs for it.

The token [1]_ is a JSON Web Token, signed with RSA and SHA-256, that names the VM, and as its audience the public key
of the VM's agent, so that it is worth nothing to anyone else. Google replaces its signing keys every few days; their
certificates are read from the address below when a token names one that is not known yet.

References:
    .. [1] "Verify VM identity", Compute Engine documentation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import requests
from google.auth import jwt
from google.auth.exceptions import GoogleAuthError

from scavenger.cloud.identity import audience_of
from scavenger.errors import CloudUnavailableError, ConfigurationError

CERTIFICATES = "https://www.googleapis.com/oauth2/v1/certs"
"""Where Google publishes the certificates of its signing keys, PEM by key id."""
_FETCH_MAX_S = 5.0
_FETCH_AGAIN_S = 60.0
"""Shortest time between two reads, since anyone can name a key that does not exist."""
_SKEW_S = 300
"""How far this machine's clock may be off."""
_ISSUERS = ("https://accounts.google.com", "accounts.google.com")


def fetched_certificates() -> dict[str, str]:
    """Read Google's present certificates.

    Raises:
        CloudUnavailableError: If they cannot be read.
    """
    try:
        answer = requests.get(CERTIFICATES, timeout=_FETCH_MAX_S)
        answer.raise_for_status()
        return _certificates(answer.json())
    except (requests.RequestException, ValueError) as error:
        raise CloudUnavailableError(
            f"the certificates of Google's signing keys cannot be read: {error}"
        ) from error


def saved_certificates(path: str) -> dict[str, str]:
    """Read certificates from a file, as `CERTIFICATES` has them.

    Raises:
        ConfigurationError: If the file holds none.
    """
    try:
        return _certificates(json.loads(Path(path).expanduser().read_text()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: not certificates by key id, as at {CERTIFICATES}: {error}"
        ) from None


def _certificates(document: object) -> dict[str, str]:
    if not (
        isinstance(document, dict) and document and all(isinstance(value, str) for value in document.values())
    ):
        raise ValueError("not an object of PEM texts")
    return {str(key): value for key, value in document.items()}


class GcpIdentity:
    """See `scavenger.cloud.identity.IdentityVerifier`.

    Args:
        project: Project of the VMs, by its id.
        read: Reads the certificates of Google's signing keys.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        project: str,
        read: Callable[[], Mapping[str, str]] = fetched_certificates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._project, self._read, self._clock = project, read, clock
        self._certificates: Mapping[str, str] = {}
        self._read_at = float("-inf")

    def refusal(self, proof: str, *, instance_id: str, public_key: str) -> str:
        try:
            key_id = str(jwt.decode_header(proof).get("kid"))  # type: ignore[no-untyped-call]
            if key_id not in self._certificates:
                self._read_again(key_id)
            claims = jwt.decode(  # type: ignore[no-untyped-call]
                proof,
                certs=dict(self._certificates),
                audience=audience_of(public_key),
                clock_skew_in_seconds=_SKEW_S,
            )
            vm = claims["google"]["compute_engine"]
            named = (str(vm["instance_id"]), vm["project_id"])
        except (GoogleAuthError, ValueError, KeyError, TypeError) as error:
            return f"is not a valid token of Google's for this VM: {str(error)[:100]}"
        if claims.get("iss") not in _ISSUERS:
            return "is not a token of Google's"
        if named != (instance_id, self._project):
            return f"is that of VM {named[0][:40]!r} of project {str(named[1])[:40]!r}"
        return ""

    def _read_again(self, key_id: str) -> None:
        now = self._clock()
        if now - self._read_at < _FETCH_AGAIN_S:
            raise CloudUnavailableError(f"whether key {key_id[:40]!r} is one of Google's is not known yet")
        self._read_at = now
        self._certificates = self._read()
