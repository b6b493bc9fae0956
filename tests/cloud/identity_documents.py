"""Proofs of a VM's identity as EC2 and Google issue them, signed with the keys of a cloud of tests.

EC2's document is a PKCS #7 message in BER with indefinite lengths and a string in parts, without certificates, and is
sent in base64 on lines of 64 characters. Google's is a token whose header names the key.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder
from google.auth import crypt, jwt

LINE = 64
PART = 200


class Signer:
    """A key with its self-signed certificate.

    Attributes:
        certificate: In PEM.
        key_id: As Google's tokens name it.
    """

    def __init__(self, key_id: str = "key-1", bits: int = 2048) -> None:
        self.key_id = key_id
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "A cloud of tests")])
        now = datetime.now(UTC)
        self.x509 = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=365))
            .sign(self.key, hashes.SHA256())
        )
        self.certificate = self.x509.public_bytes(Encoding.PEM).decode()

    @classmethod
    @functools.cache
    def of_tests(cls) -> Signer:
        """One for all tests: making a key takes a moment."""
        return cls()


def identity_document(signer: Signer, document: Mapping[str, Any], *, attributes: bool = True) -> str:
    """What `instance-identity/rsa2048` shows.

    Args:
        signer: The region's key.
        document: The content.
        attributes: Whether a digest of the content is signed, instead of the content itself.
    """
    signs = PKCS7Options.NoCapabilities if attributes else PKCS7Options.NoAttributes
    options = [PKCS7Options.Binary, PKCS7Options.NoCerts, signs]
    signed = (
        PKCS7SignatureBuilder()
        .set_data(json.dumps(document, indent=2).encode())
        .add_signer(signer.x509, signer.key, hashes.SHA256())
        .sign(Encoding.DER, options)
    )
    text = base64.b64encode(_as_of_ec2(signed)).decode()
    return "\n".join(text[start : start + LINE] for start in range(0, len(text), LINE))


def _as_of_ec2(der: bytes) -> bytes:
    """The same message, with the lengths of its outer elements left open and its content in parts."""
    kind, explicit = _elements(_elements(der)[0][1])
    version, digests, content_info, signers = _elements(_elements(explicit[1])[0][1])
    data, content = _elements(content_info[1])
    text = _elements(content[1])[0][1]
    parts = b"".join(_whole(0x04, text[start : start + PART]) for start in range(0, len(text), PART))
    inner = _open(0x30, _whole(*data) + _open(0xA0, _open(0x24, parts)))
    signed = _open(0x30, _whole(*version) + _whole(*digests) + inner + _whole(*signers))
    return _open(0x30, _whole(*kind) + _open(0xA0, signed))


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each element of DER."""
    found, at = [], 0
    while at < len(data):
        size, begin = data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
        found.append((data[at], data[begin : begin + size]))
        at = begin + size
    return found


def _whole(tag: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([tag, *([size] if size < 0x80 else [0x82, size >> 8, size & 0xFF])]) + content


def _open(tag: int, content: bytes) -> bytes:
    return bytes([tag, 0x80]) + content + bytes(2)


def identity_token(
    signer: Signer, audience: str, vm: Mapping[str, Any], *, now: datetime | None = None, **claims: object
) -> str:
    """What `service-accounts/default/identity` answers with `format=full`."""
    at = int((now or datetime.now(UTC)).timestamp())
    payload = {
        "iss": "https://accounts.google.com",
        "sub": "112233445566778899",
        "azp": "112233445566778899",
        "aud": audience,
        "iat": at,
        "exp": at + 3600,
        "google": {"compute_engine": dict(vm)},
        **claims,
    }
    pem = signer.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    token = jwt.encode(crypt.RSASigner.from_string(pem, signer.key_id), payload, key_id=signer.key_id)
    return bytes(token).decode()
