"""Launch parameters of EC2 for the network and identity of a VM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scavenger.domain.vm import VmSettings


def network_parameters(settings: VmSettings, shared: Mapping[str, Any], subnet: str = "") -> dict[str, Any]:
    """Parameters of `RunInstances` for the subnet, the security groups and the key pair.

    Args:
        shared: `SecurityGroupIds` and, with a key pair, `KeyName`.
        subnet: Id of the subnet; empty for the default one of the zone.
    """
    place = {"SubnetId": subnet} if subnet else {}
    if settings.public_address is None:
        return {**shared, **place}
    # whether there is a public address can be said of an interface only, which then has subnet and groups as well
    interface = {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": settings.public_address,
        "DeleteOnTermination": True,
        "Groups": shared["SecurityGroupIds"],
        **place,
    }
    others = {key: value for key, value in shared.items() if key != "SecurityGroupIds"}
    return {**others, "NetworkInterfaces": [interface]}


def encryption_parameters(settings: VmSettings) -> dict[str, Any]:
    """Parameters of the disk; without a key, the account's default decides whether it is encrypted."""
    return {"Encrypted": True, "KmsKeyId": settings.kms_key} if settings.kms_key else {}


def profile_parameters(settings: VmSettings) -> dict[str, str]:
    """The instance profile, by its name or ARN."""
    return {"Arn" if settings.identity.startswith("arn:") else "Name": settings.identity}


def no_subnet(vm: str, settings: VmSettings, subnets: Mapping[str, object]) -> str:
    """Say why there is no subnet for a VM type, and what to do.

    Args:
        vm: The VM type.
        subnets: By the zones that have one.
    """
    if settings.subnets or settings.network:
        where = f"subnets of {settings.network}" if settings.network else "subnets that aws.subnets names"
        zones = f"are in {', '.join(sorted(subnets))}" if subnets else "do not exist here"
        return f"{vm} is not offered where the {where} are: these {zones}; name one in another zone in aws.subnets"
    if not subnets:
        return (
            "this account has no default VPC here; name a VPC or subnets in the settings file (aws.vpc, aws.subnets), "
            "or make one with 'aws ec2 create-default-vpc'"
        )
    return (
        f"the default VPC has no subnet where {vm} is offered; name one in the settings file (aws.subnets), or make "
        "one with 'aws ec2 create-default-subnet'"
    )
