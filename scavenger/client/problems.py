"""What a server answers instead of a result, as the error that the command itself would end with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scavenger import errors
from scavenger.errors import ScavengerError, error_code

__all__ = ["error_of"]

_OTHERWISE: dict[type[ScavengerError], type[ScavengerError]] = {
    # these carry more than their message, which an answer does not have
    errors.JobFileError: errors.ConfigurationError,
    errors.QuotaError: errors.CloudError,
}


def _all(base: type[ScavengerError]) -> Iterator[type[ScavengerError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _all(kind)


def _by_exit_code() -> dict[int, type[ScavengerError]]:
    """The base of the errors with each exit code."""
    found: dict[int, type[ScavengerError]] = {}
    for kind in _all(ScavengerError):
        found.setdefault(kind.exit_code, kind)
    return found


def error_of(status: int, problem: Any, url: str) -> ScavengerError:
    """The error that an answer is.

    Args:
        status: HTTP status, 400 or higher.
        problem: The decoded `application/problem+json`; anything else if the answer has none.
        url: The server, for the message.

    Returns:
        One of the class that the server raised, with its message; where the server refused for a reason of HTTP, one
        whose message ends with what to do.
    """
    if not isinstance(problem, dict) or not isinstance(problem.get("detail"), str):
        other = errors.TransientError if status >= 500 or status == 429 else errors.ConfigurationError
        return other(f"{url} answered with status {status}, not as a Scavenger server does; is it one?")
    detail, code, fix = problem["detail"], problem.get("code"), problem.get("fix")
    if status == 401:
        return errors.ConfigurationError(
            f"{url} does not know the token; `scavenger api token` makes one there, `scavenger api login` keeps it"
        )
    retryable = problem.get("retryable") is True
    for kind in _all(ScavengerError):
        if error_code(kind) == code:
            return _OTHERWISE.get(kind, kind)(detail).as_told(code, str(fix or ""), retryable=retryable)
    kind = _by_exit_code().get(problem.get("exit_code", 1), ScavengerError)
    if retryable:
        kind = errors.TransientError
    told = kind(f"{detail}; {fix}" if fix else detail)
    return told.as_told(str(code or told.code), str(fix or told.fix), retryable=retryable)
