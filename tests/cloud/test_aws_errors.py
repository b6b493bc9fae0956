"""The type of an error decides whether money may be spent again: the table of AWS's errors, row by row."""

from __future__ import annotations

import string

import pytest
from botocore import exceptions as sdk
from hypothesis import assume, given
from hypothesis import strategies as st

from scavenger import errors
from scavenger.cloud.aws.errors import translated
from scavenger.cloud.aws.values import quota_name


def client_error(code: str, status: int = 400, message: str = "words") -> sdk.ClientError:
    return sdk.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "RunInstances",
    )


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, errors.StockOutError),
        ("InsufficientHostCapacity", 400, errors.StockOutError),
        ("InsufficientFreeAddressesInSubnet", 400, errors.StockOutError),
        ("SpotMaxPriceTooLow", 400, errors.StockOutError),
        ("VcpuLimitExceeded", 400, errors.QuotaError),
        ("InstanceLimitExceeded", 400, errors.QuotaError),
        ("MaxSpotInstanceCountExceeded", 400, errors.QuotaError),
        ("VolumeLimitExceeded", 400, errors.QuotaError),
        ("SomeNewLimitExceeded", 503, errors.CloudUnavailableError),
        ("RequestLimitExceeded", 503, errors.ThrottledError),
        ("Throttling", 400, errors.ThrottledError),
        ("SomeNewThrottle", 429, errors.ThrottledError),
        ("UnauthorizedOperation", 403, errors.CredentialsError),
        ("AuthFailure", 401, errors.CredentialsError),
        ("ExpiredToken", 400, errors.CredentialsError),
        ("RequestExpired", 400, errors.CredentialsError),
        ("OptInRequired", 401, errors.CredentialsError),
        ("PendingVerification", 400, errors.CredentialsError),
        ("InvalidInstanceID.NotFound", 400, errors.GoneError),
        ("InvalidAMIID.NotFound", 400, errors.ConfigurationError),
        ("Unsupported", 400, errors.ConfigurationError),
        ("SomethingNew", 400, errors.ConfigurationError),
        ("InternalError", 500, errors.CloudUnavailableError),
        ("Unavailable", 503, errors.CloudUnavailableError),
        ("ServiceUnavailable", 503, errors.CloudUnavailableError),
        ("502", 502, errors.CloudUnavailableError),
    ],
)
def test_each_code_has_its_error(code: str, status: int, kind: type[errors.ScavengerError]) -> None:
    error = translated(client_error(code, status), region="us-east-1", location="us-east-1b", vm="c5.large")

    assert type(error) is kind
    assert "us-east-1b" in str(error)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (sdk.NoCredentialsError(), errors.CredentialsError),
        (sdk.PartialCredentialsError(provider="env", cred_var="key"), errors.CredentialsError),
        (sdk.CredentialRetrievalError(provider="sso", error_msg="expired"), errors.CredentialsError),
        (sdk.TokenRetrievalError(provider="sso", error_msg="expired"), errors.CredentialsError),
        (sdk.UnauthorizedSSOTokenError(), errors.CredentialsError),
        (sdk.ProfileNotFound(profile="me"), errors.CredentialsError),
        (sdk.ParamValidationError(report="no such parameter"), errors.ConfigurationError),
        (sdk.EndpointConnectionError(endpoint_url="http://e"), errors.CloudUnavailableError),
        (sdk.ConnectTimeoutError(endpoint_url="http://e"), errors.CloudUnavailableError),
        (sdk.ReadTimeoutError(endpoint_url="http://e"), errors.CloudUnavailableError),
        (sdk.ConnectionClosedError(endpoint_url="http://e"), errors.CloudUnavailableError),
        (sdk.ResponseStreamingError(error="cut"), errors.CloudUnavailableError),
        (sdk.HTTPClientError(error="odd"), errors.CloudUnavailableError),
        (sdk.BotoCoreError(), errors.CloudUnavailableError),
    ],
)
def test_each_failure_of_the_library_has_its_error(
    raised: sdk.BotoCoreError, kind: type[errors.ScavengerError]
) -> None:
    assert type(translated(raised, region="us-east-1")) is kind


@given(st.text(string.ascii_letters, min_size=1, max_size=30), st.integers(500, 599))
def test_an_unknown_fault_of_the_clouds_own_is_never_called_definite(code: str, status: int) -> None:
    assume(type(translated(client_error(code, 400), region="us-east-1")) is errors.ConfigurationError)

    assert type(translated(client_error(code, status), region="us-east-1")) is errors.CloudUnavailableError


@given(st.text(max_size=2_000), st.sampled_from(["AuthFailure", "VcpuLimitExceeded", "InternalError", "Odd"]))
def test_a_message_is_one_short_line_whatever_the_cloud_says(message: str, code: str) -> None:
    text = str(translated(client_error(code, message=message), region="us-east-1", vm="c5.large"))

    assert text.isprintable()
    assert len(text) < 450


@pytest.mark.parametrize(
    ("vm", "spot", "name"),
    [
        ("c5.large", False, "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
        ("im4gn.large", True, "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
        ("g5.xlarge", False, "Running On-Demand G and VT instances"),
        ("p4d.24xlarge", True, "All P4, P3 and P2 Spot Instance Requests"),
        ("p5en.48xlarge", True, "All P5 Spot Instance Requests"),
        ("p5en.48xlarge", False, "Running On-Demand P instances"),
        ("inf2.xlarge", False, "Running On-Demand Inf instances"),
        ("trn1.2xlarge", False, "Running On-Demand trn1 instances"),
    ],
)
def test_a_quota_is_named_by_the_family_of_the_type(vm: str, spot: bool, name: str) -> None:
    code = "MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded"
    error = translated(client_error(code), region="us-east-1", vm=vm, spot=spot)

    assert isinstance(error, errors.QuotaError)
    assert (error.quota, error.region) == (name, "us-east-1")
    assert quota_name(vm, spot=spot) == name
