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
from conformance import OWNER, make_request
from gcp_server import ROLE, ComputeServer
from gcp_state import Clock
from gcp_world import world_on

from scavenger.cloud.aws import provider
from scavenger.errors import CredentialsError

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


def test_only_what_bears_our_tag_can_be_ended(aws: AwsWorld) -> None:
    known = statements("aws.json")
    tagged = {"Null": {"aws:ResourceTag/scavenger-owner": "false"}}

    assert known["EndAndRemoveOwn"]["Condition"] == tagged
    assert "aws:RequestTag/scavenger-owner" in known["StartOwnVms"]["Condition"]["Null"]
    ending = ("Terminate", "Delete", "Authorize", "Stop", "Modify")
    for sid, statement in known.items():
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if any(action.partition(":")[2].startswith(ending) for action in actions):
            assert sid == "EndAndRemoveOwn"
        assert not any("*" in action for action in actions), "each action is named"


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
