"""Verifies which EC2 VM has sent a message, by the identity document that AWS signs for each VM.

The document is a PKCS #7 message [1]_ in BER, signed with RSA and SHA-256. Each region signs with a key of its own
[2]_, whose certificates are valid until 2195 and later; `identity_keys.json` holds these keys. So nothing is asked of
AWS here. The document is not bound to the agent's key: it proves the VM because it travels only over the encrypted
connection to the leader, and because only the VM itself can read it.

References:
    .. [1] RFC 2315, "PKCS #7: Cryptographic Message Syntax".
    .. [2] "AWS public certificates for instance identity document signatures", Amazon EC2 User Guide.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from scavenger.errors import ConfigurationError

_OCTETS, _SET, _ATTRIBUTES = 0x04, 0x31, 0xA0
_CONSTRUCTED, _INDEFINITE = 0x20, 0x80
_DEPTH_MAX = 16
_MESSAGE_DIGEST = bytes.fromhex("2a864886f70d010904")  # 1.2.840.113549.1.9.4


def key_of_region(region: str, certificate: str = "") -> RSAPublicKey:
    """The public key with which a region signs identity documents.

    Args:
        region: Such as `us-east-1`.
        certificate: File with the region's RSA-2048 certificate (PEM); empty for the key that is known.

    Raises:
        ConfigurationError: If no key is known for the region, or the file holds no such certificate.
    """
    key: object
    if certificate:
        try:
            key = x509.load_pem_x509_certificate(Path(certificate).expanduser().read_bytes()).public_key()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{certificate}: not a certificate in PEM: {error}") from None
    else:
        known = json.loads(resources.files(__package__).joinpath("identity_keys.json").read_text())
        if region not in known:
            raise ConfigurationError(
                f"the key with which {region} signs its VMs' identity documents is not known: save the region's "
                "RSA-2048 certificate from the page 'AWS public certificates for instance identity document "
                "signatures' of the EC2 User Guide, and name the file as aws.identity_certificate in the settings"
            )
        key = load_der_public_key(base64.b64decode(known[region]))
    if not isinstance(key, RSAPublicKey):
        raise ConfigurationError(f"{certificate}: its key is not an RSA key; save the RSA-2048 certificate")
    return key


class AwsIdentity:
    """See `scavenger.cloud.identity.IdentityVerifier`.

    Args:
        region: Region of the VMs.
        key: The region's public key.
    """

    def __init__(self, region: str, key: RSAPublicKey) -> None:
        self._region, self._key = region, key

    def refusal(self, proof: str, *, instance_id: str, public_key: str) -> str:
        try:
            content, signed, digest, signature = _parts(base64.b64decode(proof))
            document = json.loads(content)
            named = (document["instanceId"], document["region"])
        except (binascii.Error, ValueError, KeyError, TypeError, IndexError):
            return "is not an identity document of EC2"
        if digest is not None and digest != hashlib.sha256(content).digest():
            return "is not what was signed"
        try:
            self._key.verify(signature, signed, PKCS1v15(), SHA256())
        except InvalidSignature:
            return f"is not signed by AWS for {self._region}"
        if named != (instance_id, self._region):
            return f"is that of VM {str(named[0])[:40]!r} in {str(named[1])[:40]!r}"
        return ""


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of BER (X.690): its tag with the class, its content, and the elements in it if it is constructed."""

    tag: int
    content: bytes
    inner: tuple[_Element, ...] = ()

    def octets(self) -> bytes:
        """The value of an octet string, which may be in parts."""
        if self.tag == _OCTETS:
            return self.content
        if self.tag != _OCTETS | _CONSTRUCTED:
            raise ValueError("not an octet string")
        return b"".join(part.octets() for part in self.inner)


def _element(data: bytes, at: int = 0, depth: int = 0) -> tuple[_Element, int]:
    """Read the element at a place; returns also the place after it.

    Raises:
        ValueError, IndexError: If there is none.
    """
    if depth > _DEPTH_MAX:
        raise ValueError("too deep")
    tag, length, begin = data[at], data[at + 1], at + 2
    end = -1  # where it ends is not told before: two zeros follow its last element
    if length != _INDEFINITE:
        if length > _INDEFINITE:
            count = length - _INDEFINITE
            length, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
        end = begin + length
        if end > len(data):
            raise ValueError("longer than the message")
    inner: list[_Element] = []
    place = begin
    if tag & _CONSTRUCTED:
        while place != end and not (end < 0 and data[place : place + 2] == b"\0\0"):
            element, place = _element(data, place, depth + 1)
            inner.append(element)
    elif end < 0:
        raise ValueError("a primitive element without a length")
    return _Element(tag, data[begin : max(place, end)], tuple(inner)), end if end >= 0 else place + 2


def _parts(message: bytes) -> tuple[bytes, bytes, bytes | None, bytes]:
    """Split a PKCS #7 message.

    Returns:
        Content; what was signed; the content's digest in it (None: the content itself was signed); signature.

    Raises:
        ValueError, IndexError: If it is no such message with one signer.
    """
    _, signed_data = _element(message)[0].inner
    _, _, content_info, *_, signers = signed_data.inner[0].inner
    content = content_info.inner[1].inner[0].octets()
    (signer,) = signers.inner
    signature = signer.inner[-1 if signer.inner[-1].tag == _OCTETS else -2].octets()
    attributes = next((one for one in signer.inner if one.tag == _ATTRIBUTES), None)
    if attributes is None:
        return content, content, None, signature
    (digest,) = (
        one.inner[1].inner[0].octets() for one in attributes.inner if one.inner[0].content == _MESSAGE_DIGEST
    )
    # what is signed is the set under its own tag, not under the one that it has within the message (RFC 2315, 9.3)
    return content, bytes([_SET]) + _length(len(attributes.content)) + attributes.content, digest, signature


def _length(size: int) -> bytes:
    """A length in DER: the shortest form."""
    if size < _INDEFINITE:
        return bytes([size])
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([_INDEFINITE + len(digits)]) + digits
