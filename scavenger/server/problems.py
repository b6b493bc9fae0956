"""Errors as `application/problem+json` [1]_, with a code, a remedy, and whether it helps to try again.

The status tells who can help: 422 where the request itself does not have the form of its schema, 409 where it has, but
what it refers to does not allow it.

References:
    .. [1] RFC 9457, "Problem Details for HTTP APIs", 2023.
"""

from __future__ import annotations

import http
import logging
import re
from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from scavenger import errors
from scavenger.masking import mask

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class Problem(BaseModel):
    """What went wrong."""

    type: str = Field(description="`about:blank`: the status tells the kind; `code` tells it more closely.")
    title: str
    status: int
    detail: str = Field(description="One line: what went wrong, where, and the remedy.")
    code: str = Field(description="Kind of the error, one word, which does not change between versions.")
    fix: str = Field(description="What to do about it; empty where nothing is known.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    exit_code: int = Field(description="Exit code of the command for this error.")


STATUSES: Mapping[type[errors.ScavengerError], int] = {
    errors.ScavengerError: 500,
    errors.ConfigurationError: 409,
    errors.NotFoundError: 404,
    errors.ForbiddenError: 403,
    errors.TransientError: 409,
    errors.StoreBusyError: 503,
    errors.ModelNotSavedError: 503,
    errors.WorkersLostError: 503,
    errors.NoFeasiblePlanError: 409,
    errors.LimitReachedError: 409,
    errors.TrainingError: 409,
    errors.CloudError: 502,
    errors.StockOutError: 503,
    errors.ThrottledError: 503,
    errors.GoneError: 409,
    errors.CloudUnavailableError: 503,
    errors.StoreError: 503,
}
"""HTTP status of each class of errors that has one of its own; others have that of their nearest base."""


class RefusedError(Exception):
    """A request that is refused for a reason of HTTP: no token, a foreign host, a wrong form."""

    def __init__(
        self, status: int, code: str, detail: str, *, fix: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        exit_code = errors.ConfigurationError.exit_code
        self.problem = _problem(status, code, detail, fix, status in (429, 503), exit_code)
        self.headers = dict(headers or {})


def problem_of(error: errors.ScavengerError) -> Problem:
    """The problem that an error is."""
    status = next(STATUSES[base] for base in type(error).__mro__ if base in STATUSES)
    return _problem(status, error.code, str(error), error.fix, error.retryable, error.exit_code)


def _problem(status: int, code: str, detail: str, fix: str, retryable: bool, exit_code: int) -> Problem:
    return Problem(
        type="about:blank",
        title=http.HTTPStatus(status).phrase,
        status=status,
        detail=mask(detail),
        code=code,
        fix=mask(fix),
        retryable=retryable,
        exit_code=exit_code,
    )


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that tells a problem."""
    more = {"Retry-After": str(RETRY_AFTER_S)} if problem.retryable else {}
    return Response(
        msgspec.json.encode(problem.model_dump()),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers={**more, **(headers or {})},
    )


def _allowed(request: Request) -> dict[str, str]:
    """The header with all methods of a path of the API; the router names those of its first route only."""
    path = getattr(request.scope.get("route"), "path", "")
    methods = request.app.openapi()["paths"].get(path, ())
    return {"Allow": ", ".join(sorted(method.upper() for method in methods))} if methods else {}


def register(app: FastAPI) -> None:
    """Answer every error of the application as a problem."""

    @app.exception_handler(errors.ScavengerError)
    def known(_: Request, error: errors.ScavengerError) -> Response:
        problem = problem_of(error)
        if problem.status >= 500:
            log.warning("%s: %s", problem.code, problem.detail)
        return problem_response(problem)

    @app.exception_handler(RefusedError)
    def refused(_: Request, error: RefusedError) -> Response:
        return problem_response(error.problem, error.headers)

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        detail = " ".join(f"{place}: {first['msg']}".split())[:500]
        return problem_response(RefusedError(422, "malformed", detail, fix="see /openapi.json").problem)

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> Response:
        name = re.sub(r"\W+", "_", http.HTTPStatus(error.status_code).phrase.lower())
        problem = RefusedError(error.status_code, name, str(error.detail)).problem
        headers = error.headers
        if error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {**(headers or {}), **_allowed(request)}
        return problem_response(problem, headers)

    @app.exception_handler(Exception)
    def internal(_: Request, error: Exception) -> Response:
        log.error("internal fault", exc_info=error)
        fault = errors.ScavengerError(f"internal fault: {type(error).__name__}")
        return problem_response(problem_of(fault))
