"""VMs are where the settings say, with the identity given there; what a cloud refuses is said with its remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from aws_server import AwsServer
from aws_world import AwsWorld, Session, aws, make_provider, server, session, started
from gcp_world import GcpWorld

from scavenger.domain.vm import VmRequest, VmSettings
from scavenger.errors import ConfigurationError, CredentialsError
from scavenger.testing.provider_conformance import OWNER, make_request

__all__ = ["aws", "server", "session", "started"]  # fixtures


def asked(world: Any, settings: VmSettings, name: object = 0, **more: Any) -> VmRequest:
    request = make_request(world, name, **more)
    return replace(request, template=replace(request.template, settings=settings))


@pytest.fixture
def vpc(aws: AwsWorld) -> dict[str, str]:
    """A VPC of one's own: its id, and its subnets by zone."""
    made = aws.client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    ids = {
        zone: aws.client.create_subnet(
            VpcId=made, CidrBlock=f"10.9.{number}.0/24", AvailabilityZone=f"us-east-1{zone}"
        )["Subnet"]["SubnetId"]
        for number, zone in enumerate("ab")
    }
    return {"vpc": made, **ids}


def test_a_vm_is_in_the_subnet_of_its_zone_with_a_security_group_of_that_vpc(
    aws: AwsWorld, vpc: dict[str, str]
) -> None:
    for settings in (VmSettings(network=vpc["vpc"]), VmSettings(subnets=(vpc["a"], vpc["b"]))):
        assert aws.provider.zones(aws.vm, settings) == ("us-east-1a", "us-east-1b")
        aws.provider.launch(asked(aws, settings, len(aws.server.launches), zone="us-east-1b"))
        form = aws.server.launches[-1]

        assert form["SubnetId"] == vpc["b"]
        (group,) = aws.client.describe_security_groups(GroupIds=[form["SecurityGroupId.1"]])["SecurityGroups"]
        assert group["VpcId"] == vpc["vpc"]
    for seen in aws.provider.list_owned(OWNER):
        aws.provider.terminate(seen.instance_id, seen.zone)
    aws.advance(200.0)
    assert aws.provider.remove_leftovers(OWNER) == (f"security group {group['GroupId']}",)


def test_identity_key_and_public_address_are_those_of_the_settings(
    aws: AwsWorld, vpc: dict[str, str]
) -> None:
    aws.server.profiles.add("scavenger-vms")
    group = aws.client.create_security_group(GroupName="own", Description="own", VpcId=vpc["vpc"])["GroupId"]
    settings = VmSettings(
        subnets=(vpc["a"],),
        firewalls=(group,),
        public_address=False,
        identity="scavenger-vms",
        kms_key="alias/training",
    )
    aws.provider.launch(asked(aws, settings, zone="us-east-1a"))
    form = aws.server.launches[-1]

    assert form["NetworkInterface.1.SubnetId"] == vpc["a"]
    assert form["NetworkInterface.1.SecurityGroupId.1"] == group
    assert form["NetworkInterface.1.AssociatePublicIpAddress"] == "false"
    assert form["IamInstanceProfile.Name"] == "scavenger-vms"
    assert form["BlockDeviceMapping.1.Ebs.KmsKeyId"] == "alias/training"
    assert form["BlockDeviceMapping.1.Ebs.Encrypted"] == "true"
    assert aws.server.calls["CreateSecurityGroup"] == 1, "none is made beside that of the settings"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (VmSettings(identity="nobody"), "Invalid IAM Instance Profile name"),
        (VmSettings(firewalls=("sg-00000000",)), "see aws.security_groups in the settings"),
        (VmSettings(subnets=("subnet-00000000",)), "see aws.subnets in the settings"),
        (VmSettings(network="vpc-00000000"), "name one in another zone in aws.subnets"),
    ],
)
def test_what_does_not_exist_at_aws_is_refused_with_the_setting_that_names_it(
    aws: AwsWorld, settings: VmSettings, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        aws.provider.launch(asked(aws, settings))
    assert aws.truth() == ()


def test_an_account_without_a_default_vpc_is_told_of_the_settings_and_served_by_them(
    aws: AwsWorld, vpc: dict[str, str], server: AwsServer, session: Session
) -> None:
    request = make_request(aws)
    server.default_vpc = False
    provider = make_provider(server, session)

    with pytest.raises(ConfigurationError, match=r"no default VPC here; name .*aws\.subnets"):
        provider.zones(aws.vm)
    with pytest.raises(ConfigurationError, match=r"aws\.vpc, aws\.subnets"):
        provider.launch(request)
    mine = replace(request, template=replace(request.template, settings=VmSettings(network=vpc["vpc"])))
    assert provider.launch(mine).state == "pending"


def test_a_policy_of_the_organisation_and_a_missing_role_are_named(aws: AwsWorld) -> None:
    request = make_request(aws)
    aws.server.policy_denies = {"RunInstances"}
    with pytest.raises(CredentialsError, match=r"policy of the organisation .* forbids ec2:RunInstances"):
        aws.provider.launch(request)
    aws.server.policy_denies = set()
    aws.server.spot_role = False
    with pytest.raises(CredentialsError, match="create-service-linked-role"):
        aws.provider.launch(replace(request, spot=True))


def test_a_policy_of_google_s_organisation_is_named_with_the_setting_that_keeps_it(gcp: GcpWorld) -> None:
    gcp.server.project.constraints.add("compute.vmExternalIpAccess")

    with pytest.raises(
        ConfigurationError, match=r"policy of the organisation .* gcp\.public_address = false"
    ):
        gcp.provider.launch(make_request(gcp))
    gcp.provider.launch(asked(gcp, VmSettings(public_address=False), 2))


def test_a_project_without_the_default_network_is_told_of_the_settings(gcp: GcpWorld) -> None:
    gcp.server.project.networks = {"training"}

    with pytest.raises(ConfigurationError, match=r"gcp\.network, gcp\.subnetwork"):
        gcp.provider.launch(make_request(gcp))
    gcp.provider.launch(asked(gcp, VmSettings(network="training"), 2))


def test_a_service_account_that_may_not_be_used_is_a_matter_of_permissions(gcp: GcpWorld) -> None:
    gcp.server.project.forbidden_accounts.add("vms@p.iam.gserviceaccount.com")

    with pytest.raises(CredentialsError, match=r"iam\.serviceAccountUser"):
        gcp.provider.launch(asked(gcp, VmSettings(identity="vms@p.iam.gserviceaccount.com")))
