"""Shared resources of an owner's VMs at AWS: a security group and a key pair."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from scavenger.cloud.aws.errors import error_code
from scavenger.cloud.aws.values import OWNER_TAG
from scavenger.errors import CloudUnavailableError
from scavenger.policy.leaders import ingress_changes

SSH_PORT = 22


class SharedResources:
    """Creates the shared resources when first needed and removes them at the end; safe with several services at once.

    Args:
        ec2: The client.
        call: Makes a call, repeats it as needed, and raises what `translated` gives.
        public_key: Public key of the key pair; empty for no key pair.
    """

    def __init__(self, ec2: Any, call: Callable[[Callable[[], Any]], Any], public_key: str) -> None:
        self._ec2, self._call, self._public_key = ec2, call, public_key
        self._groups: dict[tuple[str, str], str] = {}
        self._keys: set[str] = set()

    def of(
        self, owner: str, *, vpc: str = "", groups: tuple[str, ...] = (), logins_from: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Launch parameters for the security group, whose members reach each other, and for the key.

        Args:
            owner: Of the VMs.
            vpc: Of the security group; empty for the default VPC.
            groups: Security groups to use instead; none is made then, unless somebody may log in.
            logins_from: Networks from which SSH is let in, and from no others.

        Raises:
            ConfigurationError: If there is no default VPC, or the public key is none.
            CredentialsError, QuotaError, ThrottledError, CloudUnavailableError: As the cloud says.
        """
        used = list(groups)
        if logins_from or not groups:
            used.append(self._group_id(owner, vpc))
        if logins_from:
            self._let_in(used[-1], logins_from)
        parameters: dict[str, Any] = {"SecurityGroupIds": used}
        if self._public_key:
            parameters["KeyName"] = self._key_name(owner)
        return parameters

    def forget(self, owner: str) -> None:
        """Forget removed resources, so that they are created again when next needed."""
        self._groups = {key: group for key, group in self._groups.items() if key[0] != owner}
        self._keys.discard(owner)

    def remove(self, owner: str) -> tuple[str, ...]:
        """Remove them, and the disks without a VM; what was removed. What a VM still holds stays."""
        self.forget(owner)
        mine = [{"Name": f"tag:{OWNER_TAG}", "Values": [owner]}]
        removed = []
        groups = self._call(partial(self._ec2.describe_security_groups, Filters=mine))["SecurityGroups"]
        keys = self._call(partial(self._ec2.describe_key_pairs, Filters=mine))["KeyPairs"]
        free = {"Name": "status", "Values": ["available"]}
        volumes = self._call(partial(self._ec2.describe_volumes, Filters=[*mine, free]))["Volumes"]
        for kind, identifier, call in (
            *(
                (
                    "security group",
                    group["GroupId"],
                    partial(self._ec2.delete_security_group, GroupId=group["GroupId"]),
                )
                for group in groups
                if _owned(group, owner)
            ),
            *(
                ("key pair", key["KeyName"], partial(self._ec2.delete_key_pair, KeyName=key["KeyName"]))
                for key in keys
                if _owned(key, owner)
            ),
            *(
                ("disk", volume["VolumeId"], partial(self._ec2.delete_volume, VolumeId=volume["VolumeId"]))
                for volume in volumes
                if _owned(volume, owner)
            ),
        ):
            if self._idempotent(
                call, "InvalidGroup.NotFound", "InvalidVolume.NotFound", "DependencyViolation", "VolumeInUse"
            ):
                removed.append(f"{kind} {identifier}")
        return tuple(removed)

    def _group_id(self, owner: str, vpc: str) -> str:
        if (owner, vpc) not in self._groups:
            group = self._find_group(owner, vpc) or self._make_group(owner, vpc)
            members = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
            self._idempotent(
                partial(self._ec2.authorize_security_group_ingress, GroupId=group, IpPermissions=[members]),
                "InvalidPermission.Duplicate",
            )
            self._groups[owner, vpc] = group
        return self._groups[owner, vpc]

    def _let_in(self, group: str, networks: tuple[str, ...]) -> None:
        """Let SSH in from these networks alone: rules of others, which an earlier address has left, are removed."""
        found = self._call(partial(self._ec2.describe_security_groups, GroupIds=[group]))["SecurityGroups"]
        present = {
            str(one["CidrIp"])
            for rule in found[0]["IpPermissions"]
            if rule.get("FromPort") == SSH_PORT
            for one in rule.get("IpRanges", ())
        }
        changes = ingress_changes(present, networks)
        for networks_of, call, code in (
            (changes.add, self._ec2.authorize_security_group_ingress, "InvalidPermission.Duplicate"),
            (changes.remove, self._ec2.revoke_security_group_ingress, "InvalidPermission.NotFound"),
        ):
            for network in networks_of:
                ranges = [{"CidrIp": network, "Description": "the command of a job, by SSH"}]
                rule = {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT, "IpRanges": ranges}
                self._idempotent(partial(call, GroupId=group, IpPermissions=[rule]), code)

    def _key_name(self, owner: str) -> str:
        name = _name(owner)
        if owner not in self._keys:
            self._idempotent(
                partial(
                    self._ec2.import_key_pair,
                    KeyName=name,
                    PublicKeyMaterial=self._public_key.encode(),
                    TagSpecifications=[_tags("key-pair", owner)],
                ),
                "InvalidKeyPair.Duplicate",
            )
            self._keys.add(owner)
        return name

    def _find_group(self, owner: str, vpc: str) -> str:
        named = [{"Name": "group-name", "Values": [_group_name(owner, vpc)]}]
        groups = self._call(partial(self._ec2.describe_security_groups, Filters=named))["SecurityGroups"]
        return next((str(group["GroupId"]) for group in groups if _owned(group, owner)), "")

    def _make_group(self, owner: str, vpc: str) -> str:
        made = self._idempotent(
            partial(
                self._ec2.create_security_group,
                GroupName=_group_name(owner, vpc),
                Description="VMs of one Scavenger installation",
                **({"VpcId": vpc} if vpc else {}),
                TagSpecifications=[_tags("security-group", owner)],
            ),
            "InvalidGroup.Duplicate",
        )
        if made:
            return str(made["GroupId"])
        group = self._find_group(owner, vpc)
        if not group:
            raise CloudUnavailableError(
                f"aws has a security group {_group_name(owner, vpc)!r} that is not listed as Scavenger's own; try "
                "again, and delete it if that does not help"
            )
        return group

    def _idempotent(self, call: Callable[[], Any], *codes: str) -> Any:
        """The answer, or None where one of these errors says that there is nothing (more) to do."""

        def attempt() -> Any:
            try:
                return call()
            except (ClientError, BotoCoreError) as error:
                if error_code(error) not in codes:
                    raise
                return None

        return self._call(attempt)


def _name(owner: str) -> str:
    return f"scavenger-{owner}"


def _group_name(owner: str, vpc: str) -> str:
    return f"{_name(owner)}-{vpc}" if vpc else _name(owner)


def _tags(kind: str, owner: str) -> dict[str, Any]:
    return {"ResourceType": kind, "Tags": [{"Key": OWNER_TAG, "Value": owner}]}


def _owned(thing: dict[str, Any], owner: str) -> bool:
    return {"Key": OWNER_TAG, "Value": owner} in thing.get("Tags", ())
