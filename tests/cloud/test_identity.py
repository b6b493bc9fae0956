"""A VM proves which one it is by what its cloud gives to it alone; no other proof, and no altered one, is taken."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_imds import Imds
from gce_metadata import GceMetadata
from hypothesis import given
from hypothesis import strategies as st
from identity_documents import Signer, identity_document, identity_token
from properties import examples

from scavenger.cloud.aws.identity import AwsIdentity, key_of_region
from scavenger.cloud.gcp.identity import GcpIdentity, saved_certificates
from scavenger.cloud.identity import audience_of, read_proof
from scavenger.cloud.metadata import http_transport
from scavenger.errors import CloudUnavailableError, ConfigurationError

INSTANCE, REGION, PROJECT = "i-0123456789abcdef0", "us-east-1", "a-project"
NUMBER, KEY = "8087716956832600000", "x" * 40
DOCUMENT = {
    "accountId": "123456789012",
    "architecture": "x86_64",
    "availabilityZone": "us-east-1a",
    "instanceId": INSTANCE,
    "instanceType": "c5.large",
    "pendingTime": "2026-01-01T00:00:00Z",
    "region": REGION,
    "version": "2017-09-30",
}
VM = {"instance_id": NUMBER, "instance_name": "scavenger-x", "project_id": PROJECT, "zone": "us-central1-a"}


def aws(signer: Signer | None = None) -> AwsIdentity:
    return AwsIdentity(REGION, (signer or Signer.of_tests()).key.public_key())


def refusal(proof: str, instance_id: str = INSTANCE) -> str:
    return aws().refusal(proof, instance_id=instance_id, public_key=KEY)


@pytest.mark.parametrize("attributes", [True, False])
def test_ec2_s_document_proves_the_vm_that_it_names(attributes: bool) -> None:
    proof = identity_document(Signer.of_tests(), DOCUMENT, attributes=attributes)

    assert refusal(proof) == ""
    assert refusal(proof, "i-0fedcba9876543210") == f"is that of VM '{INSTANCE}' in '{REGION}'"


def test_a_document_of_another_region_or_signer_is_refused() -> None:
    other = Signer()

    assert "is not signed by AWS" in refusal(identity_document(other, DOCUMENT))
    assert "eu-west-1" in refusal(identity_document(Signer.of_tests(), {**DOCUMENT, "region": "eu-west-1"}))
    assert aws(other).refusal(identity_document(other, DOCUMENT), instance_id=INSTANCE, public_key=KEY) == ""


def test_a_document_whose_content_was_exchanged_is_refused() -> None:
    theirs = {**DOCUMENT, "instanceId": "i-0fedcba9876543210"}
    for attributes in (True, False):
        message = base64.b64decode(identity_document(Signer.of_tests(), theirs, attributes=attributes))
        altered = message.replace(b"i-0fedcba9876543210", INSTANCE.encode())

        assert refusal(base64.b64encode(altered).decode()) != ""


@pytest.mark.parametrize(
    "proof", ["", "!", "AAAA", base64.b64encode(b"0\x80" * 4000).decode(), "MIAGCSqGSIb3DQEHAqCA"]
)
def test_what_is_no_document_is_refused(proof: str) -> None:
    assert refusal(proof) == "is not an identity document of EC2"


@examples(300)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_altered_byte_makes_the_document_another_vm_s(place: int, change: int) -> None:
    message = bytearray(base64.b64decode(_THEIRS))
    message[place % len(message)] ^= change

    assert refusal(base64.b64encode(bytes(message)).decode()) != ""


_THEIRS = identity_document(Signer.of_tests(), {**DOCUMENT, "instanceId": "i-0fedcba9876543210"})


def test_the_keys_of_aws_s_regions_are_known_and_another_s_can_be_named(tmp_path: Path) -> None:
    keys = {key_of_region(region).public_numbers().n for region in ("us-east-1", "us-west-2", "eu-central-1")}
    assert len(keys) == 3
    assert all(number.bit_length() == 2048 for number in keys)
    with pytest.raises(ConfigurationError, match=r"identity_certificate"):
        key_of_region("xx-north-9")

    path = tmp_path / "certificate.pem"
    path.write_text(Signer.of_tests().certificate)
    named = key_of_region("xx-north-9", str(path))
    assert named.public_numbers() == Signer.of_tests().key.public_key().public_numbers()
    path.write_text("nothing")
    with pytest.raises(ConfigurationError, match="not a certificate"):
        key_of_region("xx-north-9", str(path))


def test_a_vm_reads_its_proof_from_its_own_metadata_service() -> None:
    now = datetime.now(UTC)
    document = identity_document(Signer.of_tests(), DOCUMENT)
    with closing(Imds(lambda: now, lambda: None, lambda: None, document=lambda: document)) as service:
        proof = read_proof("aws", KEY, transport=http_transport("127.0.0.1", service.port))
    assert refusal(proof) == ""

    with closing(GceMetadata(token=lambda audience: token(audience))) as server:
        proof = read_proof("gcp", KEY, transport=http_transport("127.0.0.1", server.port))
    identity = Google(Signer.of_tests()).identity()
    assert identity.refusal(proof, instance_id=NUMBER, public_key=KEY) == ""


def test_a_vm_without_a_proof_has_none_and_one_whose_service_is_late_waits_for_it() -> None:
    with closing(GceMetadata()) as server:
        ask = http_transport("127.0.0.1", server.port)
        assert read_proof("gcp", KEY, transport=ask) == "", "it has no service account"
        assert read_proof("local", KEY, transport=ask) == ""
        server.down, slept = True, list[float]()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            server.down = len(slept) < 3

        assert read_proof("gcp", KEY, transport=ask, sleep=sleep) == ""
        assert len(slept) == 3
        server.down = True
        with pytest.raises(OSError, match="503"):
            read_proof("gcp", KEY, transport=ask, sleep=lambda _: None)


class Google:
    """Google's certificates, as they are published at a time."""

    def __init__(self, *signers: Signer) -> None:
        self.signers, self.reads, self.now_s, self.fails = signers, 0, 0.0, False

    def read(self) -> Mapping[str, str]:
        self.reads += 1
        if self.fails:
            raise CloudUnavailableError("no answer")
        return {signer.key_id: signer.certificate for signer in self.signers}

    def identity(self) -> GcpIdentity:
        return GcpIdentity(PROJECT, self.read, clock=lambda: self.now_s)


def token(audience: str = audience_of(KEY), vm: Mapping[str, Any] = VM, **more: Any) -> str:
    return identity_token(more.pop("signer", Signer.of_tests()), audience, vm, **more)


def test_google_s_token_proves_the_vm_that_it_names_to_the_holder_of_the_key() -> None:
    identity = Google(Signer.of_tests()).identity()

    assert identity.refusal(token(), instance_id=NUMBER, public_key=KEY) == ""
    assert "is that of VM" in identity.refusal(token(), instance_id="1", public_key=KEY)
    assert "audience" in identity.refusal(token(), instance_id=NUMBER, public_key="y" * 40)


@pytest.mark.parametrize(
    "proof",
    [
        token(vm={**VM, "project_id": "another"}),
        token(iss="https://accounts.example.com"),
        token(google={}),
        token(now=datetime.now(UTC) - timedelta(hours=2)),
        token(signer=Signer()),
        "",
        "a.b.c",
        ".".join(["e30"] * 3),
    ],
    ids=["project", "issuer", "no-vm", "expired", "forged", "empty", "text", "no-claims"],
)
def test_no_other_token_is_taken(proof: str) -> None:
    identity = Google(Signer.of_tests()).identity()

    assert identity.refusal(proof, instance_id=NUMBER, public_key=KEY) != ""


def test_a_key_that_google_has_begun_to_use_is_read_but_not_at_each_token_that_names_one() -> None:
    new = Signer("key-2")
    google = Google(Signer.of_tests())
    identity = google.identity()
    assert identity.refusal(token(), instance_id=NUMBER, public_key=KEY) == ""
    google.signers = (new,)

    with pytest.raises(CloudUnavailableError, match="not known yet"):
        identity.refusal(token(signer=new), instance_id=NUMBER, public_key=KEY)
    google.now_s += 61
    assert identity.refusal(token(signer=new), instance_id=NUMBER, public_key=KEY) == ""
    assert google.reads == 2


def test_while_the_certificates_cannot_be_read_nothing_is_decided() -> None:
    google = Google(Signer.of_tests())
    google.fails = True

    with pytest.raises(CloudUnavailableError):
        google.identity().refusal(token(), instance_id=NUMBER, public_key=KEY)


def test_certificates_can_be_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "certificates.json"
    path.write_text(json.dumps({"key-1": Signer.of_tests().certificate}))
    assert saved_certificates(str(path)) == {"key-1": Signer.of_tests().certificate}

    path.write_text("[]")
    with pytest.raises(ConfigurationError, match="not certificates by key id"):
        saved_certificates(str(path))
