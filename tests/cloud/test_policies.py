"""The policies that users apply hold what the providers call, no more than that, and nothing that ends others' VMs.

That they suffice is held by every test before the faithful servers, which refuse whatever the policies do not allow.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from importlib import resources
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from aws_server import POLICY
from aws_world import AwsWorld, Session, aws, make_provider, server, session, started
from gcp_server import ROLE, ComputeServer
from gcp_state import Clock
from gcp_world import world_on

from scavenger.cloud.aws import provider
from scavenger.cloud.policies import policy_of
from scavenger.errors import CredentialsError
from scavenger.testing.provider_conformance import OWNER, make_request

pytestmark = pytest.mark.slow

__all__ = ["aws", "server", "session", "started"]  # fixtures

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDu5UiG38rx9aC62wMm1qBJDkD18frO/HruuFg10U8Bk test"
BESIDE = {
    "ec2:DescribeSpotPriceHistory": "cloud/catalog/refresh_aws.py",
    "ec2:GetConsoleOutput": "console logs",
    "ec2:CreateTags": "part of RunInstances and of what makes shared resources",
    "iam:CreateServiceLinkedRole": "part of the first RunInstances of a spot VM",
    "iam:PassRole": "part of RunInstances with an instance profile",
    "pricing:GetProducts": "cloud/catalog/refresh_aws.py",
}
"""What is needed for other calls than those to EC2, Systems Manager and Service Quotas by the provider."""


def statements(name: str) -> dict[str, dict[str, Any]]:
    document = json.loads(resources.files("scavenger.cloud.policies").joinpath(name).read_text())
    assert document["Version"] == "2012-10-17"
    return {one["Sid"]: one for one in document["Statement"]}


def test_the_aws_policy_has_nothing_that_no_call_needs(aws: AwsWorld, session: Session) -> None:
    rented_by = make_provider(aws.server, session, public_key=PUBLIC_KEY)
    seen = rented_by.launch(make_request(aws, spot=True))
    rented_by.describe(seen.instance_id, seen.zone)
    rented_by.impaired([seen.instance_id])
    rented_by.quotas()
    for address in ("203.0.113.7/32", "203.0.113.8/32"):
        rented_by.let_in(make_request(aws, logins_from=(address,)))
    rented_by.terminate(seen.instance_id, seen.zone)
    aws.advance(200.0)
    rented_by.remove_leftovers(OWNER)
    services = {"GetParameter": "ssm", "ListServiceQuotas": "servicequotas"}
    called = {f"{services.get(action, 'ec2')}:{action}" for action in aws.server.calls}

    assert called <= POLICY
    assert POLICY - called - BESIDE.keys() == {"ec2:DeleteVolume"}, "of a disk whose VM has left it"


def test_every_image_that_is_looked_for_may_be_found() -> None:
    allowed = statements("aws.json")["FindTheImage"]["Resource"]
    for image in (provider._IMAGES, provider._GPU_IMAGES):
        parameter = "arn:aws:ssm:us-east-1::parameter" + image.format(architecture="x86_64")
        assert any(fnmatch(parameter, one) for one in allowed), parameter


def allows(document: str, action: str, **tags: str) -> bool:
    """Whether a policy allows something for what has these tags: `ResourceTag` or `RequestTag`, by our key."""

    def holds(condition: dict[str, dict[str, Any]]) -> bool:
        return all(
            any(
                fnmatch(tags.get(key.partition(":")[2].partition("/")[0], ""), pattern)
                for pattern in patterns
            )
            for kind, wanted in condition.items()
            for key, patterns in wanted.items()
            if kind == "StringLike" and key.endswith("/scavenger-owner")
        )

    return any(
        action in one["Action"] and holds(one.get("Condition", {}))
        for one in json.loads(document)["Statement"]
    )


def test_an_installation_ends_what_has_its_tag_or_that_of_its_leaders_and_nothing_of_another() -> None:
    document = policy_of("aws", "scavenger-0a1b2c3d4e5f")

    for action in ("ec2:TerminateInstances", "ec2:DeleteVolume", "ec2:DeleteSecurityGroup"):
        for tag in ("scavenger-0a1b2c3d4e5f", "scavenger-0a1b2c3d4e5f-8d3c1a90"):
            assert allows(document, action, ResourceTag=tag)
        for tag in (
            "",
            "scavenger-ffffffffffff",
            "scavenger-0a1b2c3d4e5f0",
            "scavenger-ffffffffffff-8d3c1a90",
        ):
            assert not allows(document, action, ResourceTag=tag)
    started = [
        one for one in json.loads(document)["Statement"] if "arn:aws:ec2:*:*:instance/*" in one["Resource"]
    ]
    whole = json.dumps({"Statement": started})
    assert allows(whole, "ec2:RunInstances", RequestTag="scavenger-0a1b2c3d4e5f")
    assert not allows(whole, "ec2:RunInstances", RequestTag="scavenger-ffffffffffff")
    assert "INSTALLATION" not in document


def test_only_one_statement_ends_anything_and_each_action_is_named() -> None:
    ending = ("Terminate", "Delete", "Authorize", "Stop", "Modify")
    for sid, statement in statements("aws.json").items():
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if any(action.partition(":")[2].startswith(ending) for action in actions):
            assert sid == "EndAndRemoveOwn"
        assert not any("*" in action for action in actions)


def test_what_the_policies_lack_is_refused_by_the_servers(
    aws: AwsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(aws)
    monkeypatch.setattr("aws_server.POLICY", POLICY - {"ec2:RunInstances"})
    with pytest.raises(CredentialsError, match="UnauthorizedOperation"):
        aws.provider.launch(request)

    with ComputeServer(Clock()) as compute:
        for gcp in world_on(compute):
            asked = make_request(gcp)
            gcp.provider.launch(asked)
            monkeypatch.setattr("gcp_server.ROLE", ROLE - {"compute.instances.setLabels"})
            with pytest.raises(CredentialsError, match=r"compute\.instances\.setLabels"):
                gcp.provider.launch(make_request(gcp, 2))


def test_vms_may_read_and_write_one_bucket_and_nothing_else() -> None:
    for statement in statements("aws-vms.json").values():
        assert statement["Resource"].startswith("arn:aws:s3:::BUCKET")
        assert all(action.startswith("s3:") and "*" not in action for action in statement["Action"])
