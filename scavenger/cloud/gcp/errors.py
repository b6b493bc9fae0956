"""What Compute Engine's refusals mean, by their codes and reasons; never by their wording alone.

A call is refused at once by an HTTP error, or accepted and refused later by the error of its operation. Both end here.

References:
    https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation,
    https://cloud.google.com/compute/docs/reference/rest/v1/errors
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.api_core.exceptions import GoogleAPICallError, NotFound
from google.auth.exceptions import GoogleAuthError, TransportError
from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
from requests.exceptions import RequestException

from scavenger import errors

_MESSAGE_CHARACTERS = 200
"""Of Google's own words: a line for a person."""

_THROTTLED = frozenset(
    {
        "ratelimitexceeded",
        "userratelimitexceeded",
        "dailylimitexceeded",
        "resourceoperationrateexceeded",
        "concurrentoperationsquotaexceeded",
        "operationinprogresslimitexceeded",
    }
)
_QUOTA = frozenset({"quotaexceeded", "limitexceeded"})
_DENIED = frozenset(
    {
        "forbidden",
        "permissionserror",
        "permissiondenied",
        "insufficientpermission",
        "serviceaccountaccessdenied",
    }
)
_REFUSED = frozenset({"unsupportedoperation", "conditionnotmet", "resourcenotfound", "notfound"})
_STOCK_OUT = ("zoneresourcepoolexhausted", "resourcepoolexhausted", "stockout")
_CONSTRAINT = re.compile(r"[Cc]onstraint (?:constraints/)?([\w.]+) violated")
_CONSTRAINTS = {
    "compute.vmExternalIpAccess": "set gcp.public_address = false in the settings; VMs then need a NAT or a proxy",
    "compute.requireOsLogin": "lead the job from a machine of your own; a leader's VM is logged in to by its own key",
    "compute.trustedImageProjects": "name an image of an allowed project in SCAVENGER_IMAGE",
    "compute.restrictSharedVpcSubnetworks": "name an allowed subnetwork as gcp.subnetwork in the settings",
    "compute.restrictNonCmekServices": "name a key as gcp.kms_key in the settings",
    "compute.restrictCmekCryptoKeyProjects": "name a key of an allowed project as gcp.kms_key in the settings",
    "gcp.resourceLocations": "choose an allowed region",
}
"""What helps where a policy of the organisation forbids a VM, by the name of its constraint."""
_NO_NETWORK = re.compile(r"field 'resource\.networkInterfaces\[\d+\]\.(?:sub)?network'")
_QUOTA_NAME = re.compile(r"[Qq]uota '(?:projects/\S*/)?([^']+)'")


@contextmanager
def translated_errors(
    doing: str,
    *,
    region: str,
    location: str,
    refused: type[errors.ScavengerError] = errors.CloudUnavailableError,
) -> Iterator[None]:
    """Turn whatever the client library raises into one of our errors.

    Args:
        doing: For the message: "starting a VM".
        location: The zone, or the region.
        refused: What a refusal is that nothing else fits: the request's own fault when it says what is wanted.

    Raises:
        StockOutError, QuotaError, CredentialsError, ThrottledError, CloudUnavailableError: See `Provider`.
        GoneError: If there is no such VM; a missing project or zone is no missing VM.
    """
    try:
        yield
    except GoogleAPICallError as error:
        raise _of_call(error, doing, region, location, refused) from error
    except (RequestException, ParseError, TransportError) as error:
        raise errors.CloudUnavailableError(
            f"{doing}: no answer from Google Cloud: {_line(str(error))}"
        ) from error
    except GoogleAuthError as error:
        if error.retryable:
            raise errors.CloudUnavailableError(
                f"{doing}: no answer from Google Cloud: {_line(str(error))}"
            ) from error
        raise errors.CredentialsError(
            f"{doing}: no valid credentials of Google Cloud; "
            f"`gcloud auth application-default login` makes some: {_line(str(error))}"
        ) from error


def of_operation(operation: Any, *, doing: str, region: str, location: str) -> errors.ScavengerError:
    """The error of an operation that ended with one."""
    first = operation.error.errors[0] if operation.error.errors else None
    code = first.code if first is not None else ""
    words = _line((first.message if first is not None else "") or operation.http_error_message or code)
    message = f"{doing} in {location}: {words}"
    reasons = {_folded(each.code) for each in operation.error.errors}
    status = int(operation.http_error_status_code or 0)
    quota = _quota_of(first) if first is not None else ""
    known = _by_reason(reasons, status, message, quota or words, region)
    if known is not None:
        return known
    if status in (401, 403):
        return errors.CredentialsError(message)
    if 400 <= status < 500 or reasons & _REFUSED or any(each.startswith("invalid") for each in reasons):
        return errors.ConfigurationError(_with_hint(message))
    return errors.CloudUnavailableError(message)


def is_taken(operation: Any) -> bool:
    """Whether an insert failed because there is a VM of its name."""
    return any(_folded(each.code) == "resourcealreadyexists" for each in operation.error.errors)


def is_missing(error: BaseException | None, kind: str) -> bool:
    """Whether Compute Engine says that there is no such thing of this kind.

    A missing project or zone, and what a proxy says that does not know the address, are something else.

    Args:
        kind: As in addresses: `instances`, `operations`, ...
    """
    return isinstance(error, NotFound) and any(
        f"/{kind}/" in str(each.get("message", "")) for each in error.errors if isinstance(each, dict)
    )


def _with_hint(message: str) -> str:
    """Add what helps against a refusal that settings can avoid."""
    if found := _CONSTRAINT.search(message):
        helps = _CONSTRAINTS.get(found[1], "ask its administrator for an exception")
        return f"{message}; this is a policy of the organisation ({found[1]}): {helps}"
    if _NO_NETWORK.search(message):
        return f"{message}; name a network or subnetwork in the settings (gcp.network, gcp.subnetwork)"
    return message


def _of_call(
    error: GoogleAPICallError, doing: str, region: str, location: str, refused: type[errors.ScavengerError]
) -> errors.ScavengerError:
    status = int(error.code or 0)
    given = [each for each in error.errors if isinstance(each, dict)]
    words = _line(str(given[0].get("message", "")) if given else str(error.message))
    message = f"{doing} in {location}: {words}"
    reasons = {_folded(str(each.get("reason", ""))) for each in given}
    reasons.add(_folded(str(error.reason or "")))
    known = _by_reason(reasons, status, message, words, region)
    if known is not None:
        return known
    if status in (401, 403):
        return errors.CredentialsError(message)
    if is_missing(error, "instances"):
        return errors.GoneError(message)
    if status in (408, 409) or status >= 500 or status < 400:
        return errors.CloudUnavailableError(message)
    return refused(_with_hint(message))


def _by_reason(
    reasons: set[str], status: int, message: str, quota: str, region: str
) -> errors.ScavengerError | None:
    if any(reason.startswith(_STOCK_OUT) for reason in reasons):
        return errors.StockOutError(message)
    if status == 429 or reasons & _THROTTLED:
        return errors.ThrottledError(message)
    if reasons & _QUOTA:
        found = _QUOTA_NAME.search(quota)
        name = found[1] if found else quota
        return errors.QuotaError(
            message if name in message else f"{message} ({name} in {region})", quota=name, region=region
        )
    if reasons & _DENIED:
        return errors.CredentialsError(message)
    return None


def _quota_of(error: Any) -> str:
    """The quota's name as `regions.get` has it, else the metric's."""
    if found := _QUOTA_NAME.search(error.message):
        return found[1]
    for detail in error.error_details:
        if detail.quota_info.metric_name:
            return str(detail.quota_info.metric_name)
    return ""


def _folded(reason: str) -> str:
    """`QUOTA_EXCEEDED` and `quotaExceeded` are the same word."""
    return reason.replace("_", "").lower()


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"
