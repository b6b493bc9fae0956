"""The proof of a VM's identity that its cloud gives to the VM alone, with which it joins its leader.

User data is readable by every account that may describe the VM, so a one-time key in it does not show who holds it.
EC2 signs a document that names the VM; Compute Engine signs a token that names the VM and, as its audience, the public
key that the agent has made. Both come from the metadata service, which answers the VM itself only.
`cloud.aws.identity` and `cloud.gcp.identity` verify them.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import quote

from scavenger.cloud.metadata import (
    Ec2Metadata,
    Transport,
    address_of_service,
    gce_page,
    good,
    http_transport,
)
from scavenger.domain.providers import capabilities_of

_TRIES = 5
_PAUSE_S = 1.0
_TOKEN_MAX_S = 5.0
"""Time limit of a request for a token, which Compute Engine has to sign."""
_DOCUMENT = "/latest/dynamic/instance-identity/rsa2048"
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/identity?format=full&audience="  # noqa: S105


class IdentityVerifier(Protocol):
    """Verifies the proofs of one cloud's VMs."""

    def refusal(self, proof: str, *, instance_id: str, public_key: str) -> str:
        """Say why a proof does not show that the holder of a key is a VM.

        Args:
            proof: What `read_proof` has returned on the VM.
            instance_id: The VM, as the cloud names it.
            public_key: Public key of the VM's agent, Z85.

        Returns:
            The reason, as the predicate of a sentence about the proof; empty if the proof is valid.

        Raises:
            CloudUnavailableError: If it cannot be verified now.
        """


def audience_of(public_key: str) -> str:
    """The audience of a token for the holder of a public key (Z85)."""
    return f"scavenger-{hashlib.sha256(public_key.encode()).hexdigest()}"


def read_proof(
    provider: str,
    public_key: str,
    *,
    transport: Transport | None = None,
    environment: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Read the proof of this VM's identity; blocks for some seconds if the metadata service does not answer.

    Args:
        provider: The VM's cloud.
        public_key: Public key of the VM's agent, Z85.
        transport: Transport to the metadata service; by default HTTP to its address.
        environment: See `scavenger.cloud.metadata.address_of_service`.
        sleep: Waits between attempts, seconds.

    Returns:
        The proof; empty if the cloud gives this VM none (Compute Engine: a VM without a service account).

    Raises:
        OSError, http.client.HTTPException: If the service does not answer.
        ConfigurationError: If the variable for its address holds none.
    """
    service = capabilities_of(provider).metadata
    if not service:
        return ""
    ask = transport or http_transport(*address_of_service(service, environment))
    for left in reversed(range(_TRIES)):
        try:
            if service == "ec2":
                return (Ec2Metadata(ask).page(_DOCUMENT) or "").strip()
            reply = gce_page(ask, _TOKEN + quote(audience_of(public_key)), _TOKEN_MAX_S)
            return "" if reply.status == 404 else good(reply).body.strip()
        except (OSError, http.client.HTTPException):
            if not left:
                raise
        sleep(_PAUSE_S)
    raise AssertionError("the last attempt returns or raises")
