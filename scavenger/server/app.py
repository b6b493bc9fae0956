"""The application: routes, what every request passes, and the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.routing import BaseRoute

from scavenger.api import (
    catalog,
    costs,
    curves,
    history,
    indicators,
    jobs,
    leftovers,
    logs,
    models,
    operating,
    operations,
    pool,
    pools,
    submissions,
    submitting,
    users,
    why,
)
from scavenger.policy.admission import QueueLimits
from scavenger.server import problems
from scavenger.server.access import CallerOf
from scavenger.server.callers import Callers
from scavenger.server.context import Context, answer
from scavenger.server.dashboard import pool_routes, session_routes, submission_routes, vm_routes
from scavenger.server.dashboard import routes as dashboard
from scavenger.server.routes import health, outputs, streaming
from scavenger.server.routing import add_routes
from scavenger.server.settings import ServerSettings
from scavenger.server.shield import Shield
from scavenger.server.turns import Turns
from scavenger.server.writer import Writer
from scavenger.store import Store
from scavenger.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

BODY_BYTES_MAX = 8 << 20
"""Largest accepted body: a batch of indicators of the largest size has some 2 MB."""
_ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""Fields of a value with their description, in its docstring."""
_ABOUT: dict[str, Any] = {
    "title": "Scavenger",
    "version": __version__,
    "description": "Decides which machines a training job should run on, and runs it there.",
    "license_info": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": problems.Problem, "description": "Refused; see `code` and `fix`"},
    "5XX": {"model": problems.Problem, "description": "The server, its store or a cloud failed"},
}


def create_app(
    store: Store,
    settings: ServerSettings | None = None,
    *,
    is_ready: Callable[[], bool] = lambda: True,
    tracer_provider: TracerProvider | None = None,
    limits: QueueLimits | None = None,
) -> FastAPI:
    """The ASGI application over a store, which stays open as long as the application runs.

    Args:
        store: Shared by all requests.
        settings: Where it listens; decides which hosts it answers to.
        is_ready: Tells whether whoever runs submitted jobs works.
        tracer_provider: Makes the spans of requests; None: there are none.
        limits: Under which those begin; None: those of the settings file.
    """
    context = Context(
        store,
        Writer(store),
        settings or ServerSettings(),
        Callers(store),
        is_ready=is_ready,
        limits=limits,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        context.writer.start()
        yield
        context.writer.stop()

    routes, document = _routes()
    app = FastAPI(
        **_ABOUT,
        routes=[*routes],
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        max_body_size=BODY_BYTES_MAX,
        telemetry={
            "tracing": tracer_provider is not None,
            "tracer_provider": tracer_provider,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": lambda scope: scope["path"] in health.UNTRACED_PATHS,
        },
    )
    app.state.context = context
    app.add_middleware(Turns)
    app.add_middleware(Shield, context=context)
    problems.register(app)
    app.openapi = lambda: document  # type: ignore[method-assign]
    return app


@cache
def _routes() -> tuple[tuple[BaseRoute, ...], dict[str, Any]]:
    """The routes and their OpenAPI document: all applications of a process have the same, which take long to make."""
    router = APIRouter(redirect_slashes=False, max_body_size=BODY_BYTES_MAX)
    for part in (outputs, streaming):
        router.include_router(part.router, responses=_REFUSALS)
    calls = APIRouter(prefix="/v1")
    of_jobs = (jobs, curves, why, costs, logs, submissions, submitting, operations, operating, indicators)
    add_routes(calls, *of_jobs, models, catalog, pool, pools, history, leftovers, users)
    router.include_router(calls, responses=_REFUSALS)
    router.include_router(health.router, responses=_REFUSALS)
    for pages in (dashboard, submission_routes, pool_routes, vm_routes, session_routes):
        router.include_router(pages.router)
    document = _openapi(router.routes)

    @router.get("/openapi.json", include_in_schema=False)
    def openapi(_: CallerOf) -> Response:
        return answer(document)

    return tuple(router.routes), document


def _openapi(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document, with what FastAPI cannot know: problems have a media type of their own."""
    document = get_openapi(**_ABOUT, routes=routes)
    for path, item in document["paths"].items():
        for operation in item.values():
            for status, told in operation["responses"].items():
                if status in _REFUSALS and "content" in told:
                    told["content"] = {problems.MEDIA_TYPE: told["content"]["application/json"]}
            if path in health.OPEN_PATHS:
                operation["security"] = []
    for name, schema in document["components"]["schemas"].items():
        if not name.endswith("Request"):
            _allow_null(schema)
            _complete(schema)
    return document


def _complete(schema: dict[str, Any]) -> None:
    """Answers have all their fields, which the docstring of their value describes."""
    fields = schema.get("properties", {})
    text, _, entries = schema.get("description", "").partition("\n\nAttributes:\n")
    if text:
        schema["description"] = text
    for names, told in _ENTRY.findall(entries):
        for name in names.split(", "):
            if name in fields:
                fields[name].setdefault("description", " ".join(told.split()))
    if fields:
        schema["required"] = list(fields)
    for field in fields.values():
        field.pop("default", None)


def _allow_null(schema: Any) -> None:
    """Numbers of answers may be null: documents tell so what is not finite."""
    if isinstance(schema, list):
        for item in schema:
            _allow_null(item)
    elif isinstance(schema, dict):
        if schema.get("type") == "number":
            schema["type"] = ["number", "null"]
        for item in schema.values():
            _allow_null(item)
