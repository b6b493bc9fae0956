"""Translates the errors of AWS and its client library to `scavenger.errors`.

A launch is repeated, given up or moved by the type of its error, so the table decides about money: what stands in it as
a definite refusal has started nothing, and whatever is unknown and may have been the cloud's own fault is
`CloudUnavailableError`. Codes as in "Error codes for the Amazon EC2 API", Amazon EC2 Developer Guide.
"""

from __future__ import annotations

import re
from typing import Any, cast

from botocore import exceptions as sdk

from scavenger import errors
from scavenger.cloud.aws.values import quota_name

_NO_ROLE = {"AuthFailure.ServiceLinkedRoleCreationNotPermitted"}
_POLICY = "explicit deny in a service control policy"
_ACTION = re.compile(r"not authorized to perform: ([a-z0-9]+:\w+)")
_STOCK_OUT = {
    "InsufficientCapacity",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "SpotMaxPriceTooLow",
}
_THROTTLED = {
    "EC2ThrottledException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_CREDENTIALS = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "Blocked",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "NotAuthorized",
    "OperationNotPermitted",
    "OptInRequired",
    "PendingVerification",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
}
_GONE = {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"}
_VCPU_QUOTA = {
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
}
_NO_CREDENTIALS = (
    sdk.CredentialRetrievalError,
    sdk.NoAuthTokenError,
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.SSOError,
    sdk.TokenRetrievalError,
)
_OUR_FAULT = (sdk.NoRegionError, sdk.ParamValidationError, sdk.UnknownServiceError, sdk.InvalidRegionError)
_HINTS = {
    "InvalidGroup.NotFound": "see aws.security_groups in the settings",
    "InvalidGroupId.Malformed": "see aws.security_groups in the settings",
    "InvalidSubnetID.NotFound": "see aws.subnets in the settings",
    "VPCIdNotSpecified": "name a VPC or subnets in the settings (aws.vpc, aws.subnets)",
    "DefaultVpcDoesNotExist": "name a VPC or subnets in the settings (aws.vpc, aws.subnets)",
}
_WORDS_MAX = 220
"""Of the cloud's own words; authorization failures come with a kilobyte of encoded details."""


def error_code(error: Exception) -> str:
    """AWS's own name of the error; empty where the answer, if there was one, holds none."""
    if not isinstance(error, sdk.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def translated(
    error: Exception, *, region: str, location: str = "", vm: str = "", spot: bool = False
) -> errors.ScavengerError:
    """The error to raise in place of `error`, with one line for a person: where, what, and what may help.

    Args:
        error: A `ClientError` or `BotoCoreError`.
        region: That was asked.
        location: The zone, where the call was about one.
        vm, spot: What was to be launched, where something was.
    """
    where = f"aws {location or region}"
    code = error_code(error)
    words = _words(error)
    if code in _NO_ROLE:
        return errors.CredentialsError(
            f"{where}: the first spot VM of an account needs a service-linked role: run 'aws iam "
            "create-service-linked-role --aws-service-name spot.amazonaws.com' once, or allow "
            "iam:CreateServiceLinkedRole"
        )
    if code in _CREDENTIALS and _POLICY in str(error):
        denied = _ACTION.search(str(error))
        return errors.CredentialsError(
            f"{where}: a policy of the organisation (service control policy) forbids "
            f"{denied[1] if denied else 'this call'}; ask its administrator, or choose another region or other settings"
        )
    if isinstance(error, _NO_CREDENTIALS) or code in _CREDENTIALS:
        return errors.CredentialsError(
            f"{where}: no access ({words}); check the credentials with 'aws sts get-caller-identity' "
            "and the permissions of that user"
        )
    if code in _STOCK_OUT:
        kind = f"{vm or 'VM'}{' at spot price' if spot else ''}"
        return errors.StockOutError(f"{where} has no {kind} now ({code}); another zone or type may have")
    if code in _THROTTLED or _status(error) == 429:
        return errors.ThrottledError(f"{where}: too many calls ({code}); wait a while, then try again")
    if code in _VCPU_QUOTA or (code.endswith("LimitExceeded") and _status(error) < 500):
        quota = quota_name(vm, spot=spot) if code in _VCPU_QUOTA else code.removesuffix("Exceeded")
        return errors.QuotaError(
            f"{where}: quota {quota!r} is used up ({words}); end other VMs or ask for more at Service Quotas",
            quota=quota,
            region=region,
        )
    if code in _GONE:
        return errors.GoneError(f"{where}: there is no such VM ({words})")
    if code in _HINTS:
        return errors.ConfigurationError(f"{where} does not take the request: {words}; {_HINTS[code]}")
    if isinstance(error, _OUR_FAULT) or (code and 400 <= _status(error) < 500):
        return errors.ConfigurationError(f"{where} does not take the request: {words}")
    return errors.CloudUnavailableError(f"{where}: no answer ({words}); try again")


def _status(error: Exception) -> int:
    if not isinstance(error, sdk.ClientError):
        return 0
    metadata = cast("dict[str, Any]", error.response.get("ResponseMetadata", {}))
    return int(metadata.get("HTTPStatusCode", 0))


def _words(error: Exception) -> str:
    text = str(error)
    if isinstance(error, sdk.ClientError):
        details = error.response.get("Error", {})
        text = f"{details.get('Code', '')}: {details.get('Message', '')}"
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= _WORDS_MAX else f"{line[:_WORDS_MAX]}..."
