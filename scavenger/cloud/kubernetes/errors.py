"""Translates the errors of Kubernetes and its client library to `scavenger.errors`.

A launch is repeated, given up or moved by the type of its error. What is unknown, and may have been the cluster's own
fault, is `CloudUnavailableError`: the request may have been carried out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes.client.exceptions import ApiException, OpenApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from scavenger import errors

_MESSAGE_CHARACTERS = 200
# Admission controllers refuse with 403 as authorisation does. The API has no reason of its own for them: their words
# are all that tells them apart.
_QUOTA = re.compile(r"exceeded quota: ([^,]+)")
_NOT_ALLOWED = re.compile(r"User .* cannot \w+ resource")
_REFUSED = (400, 403, 405, 413, 415, 422)


def message_of(error: ApiException) -> str:
    """The API server's own words, as one line for a person."""
    body = _body(error)
    text = str(body.get("message") or error.reason or error.status)
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"


def is_reason(error: ApiException, reason: str) -> bool:
    """Whether the API server gives this reason, such as `AlreadyExists`."""
    return _body(error).get("reason") == reason


def _body(error: ApiException) -> dict[str, Any]:
    try:
        found = json.loads(error.body or "{}")
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def translated_errors(doing: str, *, region: str) -> Iterator[None]:
    """Turn whatever the client library raises into one of our errors.

    Args:
        doing: For the message: "starting a pod".
        region: For errors that name it.

    Raises:
        QuotaError, CredentialsError, ThrottledError, CloudUnavailableError: See `scavenger.cloud.base`.
        ConfigurationError: The cluster does not take the request, or there is no such context or namespace.
        GoneError: There is no such object.
    """
    try:
        yield
    except ApiException as error:
        raise _of_answer(error, doing, region) from error
    except ConfigException as error:
        raise errors.ConfigurationError(
            f"infra: {doing}: {_line(error)}; `kubectl config get-contexts` lists contexts", key="infra"
        ) from error
    except (HTTPError, OpenApiException, OSError) as error:
        raise errors.CloudUnavailableError(f"{doing}: no answer from the cluster: {_line(error)}") from error


def _of_answer(error: ApiException, doing: str, region: str) -> errors.ScavengerError:
    words = f"{doing}: {message_of(error)}"
    whole, status = str(_body(error).get("message", "")), int(error.status or 0)
    if status == 429:
        return errors.ThrottledError(words)
    if status == 401 or (status == 403 and _NOT_ALLOWED.search(whole)):
        return errors.CredentialsError(words)
    if status == 403 and (found := _QUOTA.search(whole)):
        return errors.QuotaError(words, quota=found[1], region=region)
    if status == 404:
        kind = (_body(error).get("details") or {}).get("kind")
        if kind == "namespaces":
            return errors.ConfigurationError(
                f"{words}; create it, or name another as kubernetes.namespace in the settings"
            )
        return errors.GoneError(words)
    if status in _REFUSED:
        return errors.ConfigurationError(words)
    return errors.CloudUnavailableError(words)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MESSAGE_CHARACTERS]
