"""How the dashboard answers: pages, parts of pages, and problems as pages; and how it reads forms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from scavenger.errors import ScavengerError
from scavenger.server.dashboard.pages import CONTENT_SECURITY_POLICY, render
from scavenger.server.problems import RefusedError, problem_of

FORM_BYTES_MAX = 1 << 18


class PageRoute(APIRoute):
    """A route whose errors are told as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except RefusedError as error:
                return _problem_page(
                    error.problem.status, error.problem.detail, error.problem.fix, error.headers
                )
            except ScavengerError as error:
                problem = problem_of(error)
                return _problem_page(problem.status, problem.detail, problem.fix)
            except RequestValidationError:
                return _problem_page(422, "the request does not have the form of this page's", "")

        return handler


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form.

    Raises:
        RefusedError: It is not one, or too large.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise RefusedError(413, "too_large", "the form is too large")
    try:
        return dict(
            parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=20)
        )
    except ValueError:
        raise RefusedError(422, "malformed", "the request is not a form") from None


Form = Annotated[dict[str, str], Depends(_form)]


def page_answer(template: str, user: str, status: int = 200, **values: Any) -> Response:
    """A whole page for a user."""
    values.setdefault("here", "")
    return _html(render(template, user=user, **values), status)


def part_answer(request: Request, template: str, **values: Any) -> Response:
    """A part of a page, as the page's script fetches it again."""
    return _tagged(request, render(template, **values).encode(), "text/html; charset=utf-8")


def json_answer(request: Request, document: dict[str, Any]) -> Response:
    """Values for the page's script."""
    return _tagged(request, msgspec.json.encode(document), "application/json")


def _tagged(request: Request, content: bytes, media_type: str) -> Response:
    """An answer with a digest: whoever has it already gets none again."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    headers = {"ETag": tag, "Content-Security-Policy": CONTENT_SECURITY_POLICY}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


def _html(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        text,
        status_code=status,
        media_type="text/html; charset=utf-8",
        # without a referrer, browsers send the origin of a form as `null`, which no change is taken from
        headers={
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "Referrer-Policy": "same-origin",
            **(headers or {}),
        },
    )


def _problem_page(status: int, message: str, fix: str, headers: dict[str, str] | None = None) -> Response:
    titles = {401: "Who are you?", 403: "Not allowed", 404: "Not found"}
    if status == 401:
        fix = (
            "Open the link that the server printed when it started, or one that `scavenger api token` prints."
        )
    text = render(
        "problem.html",
        here="",
        user="",
        title=titles.get(status, "That did not work"),
        message=message,
        fix=fix,
    )
    return _html(text, status, headers)
