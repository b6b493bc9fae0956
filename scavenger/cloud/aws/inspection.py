"""Checks an AWS account before a job needs it; see `scavenger.cloud.base.Inspection`.

EC2 tells whether a call would be permitted without making it, if asked with `DryRun`: `DryRunOperation` if so, else
`UnauthorizedOperation`. Other errors come from the parameters, which name things that do not exist, and are met only by
callers who have the permission.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from scavenger.cloud.aws.errors import error_code, translated
from scavenger.cloud.aws.provider import AwsProvider
from scavenger.domain.vm import VmRequest

_DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_NO_VM, _NO_VOLUME = "i-00000000000000000", "vol-00000000000000000"
_NO_GROUP, _NO_NETWORK = "sg-00000000000000000", "vpc-00000000000000000"
_PROBE = "scavenger-probe"
_ANSWER_MAX_S = 15.0

# tags are allowed only as part of what makes things (`policies/aws.json`), so that the trial of a launch shows it
_DRY_RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("describe_instances", {}),
    ("describe_instance_status", {}),
    ("describe_instance_types", {}),
    ("describe_instance_type_offerings", {}),
    ("describe_images", {"Owners": ["self"]}),
    ("describe_subnets", {}),
    ("describe_security_groups", {}),
    ("describe_key_pairs", {}),
    ("describe_volumes", {}),
    ("get_console_output", {"InstanceId": _NO_VM}),
    ("terminate_instances", {"InstanceIds": [_NO_VM]}),
    ("create_security_group", {"GroupName": _PROBE, "Description": _PROBE}),
    (
        "authorize_security_group_ingress",
        {
            "GroupId": _NO_GROUP,
            "IpPermissions": [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": _NO_GROUP}]}],
        },
    ),
    ("delete_security_group", {"GroupId": _NO_GROUP}),
    ("delete_volume", {"VolumeId": _NO_VOLUME}),
)


class AwsInspection:
    """See `Inspection`.

    Args:
        provider: Makes the parameters of launches.
        session: Where credentials come from; boto3's own search for them without.
    """

    def __init__(self, provider: AwsProvider, session: Any = None) -> None:
        self._provider = provider
        config = Config(
            connect_timeout=5.0,
            read_timeout=_ANSWER_MAX_S,
            retries={"total_max_attempts": 2, "mode": "standard"},
        )
        try:
            session = session or boto3.Session()
            self._ec2 = session.client("ec2", region_name=provider.region, config=config)
            self._sts = session.client("sts", region_name=provider.region, config=config)
        except BotoCoreError as error:
            raise translated(error, region=provider.region) from error

    def identity(self) -> str:
        try:
            return str(self._sts.get_caller_identity()["Arn"])
        except (ClientError, BotoCoreError) as error:
            raise translated(error, region=self._provider.region) from error

    def denied(self, request: VmRequest) -> tuple[str, ...]:
        """See `Inspection.denied`: by dry runs."""
        calls = (*_DRY_RUNS, ("run_instances", self._provider.parameters(request)))
        return tuple(self._refused(calls))

    def image(self, request: VmRequest) -> str:
        return str(self._provider.parameters(request)["ImageId"])

    def network(self, request: VmRequest) -> str:
        """See `Inspection.network`: the default VPC's subnets."""
        zones = self._provider.zones(request.vm)
        return f"default subnets in {', '.join(zones)}"

    def _refused(self, calls: tuple[tuple[str, dict[str, Any]], ...]) -> Iterator[str]:
        for name, parameters in calls:
            try:
                getattr(self._ec2, name)(**parameters, DryRun=True)
            except ClientError as error:
                if error_code(error) in _DENIED:
                    yield f"ec2:{''.join(word.capitalize() for word in name.split('_'))}"
                elif error_code(error) == "AuthFailure":
                    raise translated(error, region=self._provider.region) from error
            except BotoCoreError as error:
                raise translated(error, region=self._provider.region) from error
