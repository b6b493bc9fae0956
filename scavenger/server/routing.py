"""Routes made of calls: who may ask, with what, under which key, and what the answer looks like."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature, getdoc
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

from fastapi import APIRouter, Body, Path, Query
from pydantic import ConfigDict, create_model
from pydantic.fields import FieldInfo
from starlette.responses import Response

from scavenger.api.calls import Call
from scavenger.api.values import document
from scavenger.domain.access import Caller, KeyedRequest
from scavenger.server.access import Admin, CallerOf, Changer, Overseer
from scavenger.server.context import Context, ContextOf, answer
from scavenger.server.repeating import IdempotencyKey, KeyedOf

_ROLES: dict[str, Any] = {"anyone": CallerOf, "changer": Changer, "overseer": Overseer, "admin": Admin}


def add_routes(router: APIRouter, *modules: ModuleType) -> None:
    """Add a route for each call of modules, in their order."""
    for call in calls_of(*modules):
        router.add_api_route(
            f"/{call.route.path}",
            _endpoint(call),
            methods=[call.route.method.upper()],
            response_model=call.answer,
            status_code=call.route.status,
            tags=[call.route.tag],
            summary=call.route.summary,
            description=getdoc(call.function),
            name=call.function.__name__,
        )


def calls_of(*modules: ModuleType) -> Iterator[Call[..., Any]]:
    """The calls of modules, in their order."""
    for module in modules:
        for one in vars(module).values():
            if isinstance(one, Call) and one.function.__module__ == module.__name__:
                yield one


def _endpoint(call: Call[..., Any]) -> Any:
    """A function with the signature that FastAPI validates requests by."""

    def endpoint(
        context: Context,
        caller: Caller,
        keyed: KeyedRequest | None = None,
        idempotency_key: str | None = None,
        **given: Any,
    ) -> Response:
        at = context.local(caller, idempotency_key)
        if call.route.body not in ("", "*"):
            request = given.pop("request")
            given |= {name: getattr(request, name) for name in type(request).model_fields}

        def answered() -> dict[str, Any]:
            return document(call.function(at, **given))

        if keyed is not None:
            made = context.writer.call(lambda: context.store.once(keyed, answered))
        else:
            made = answered() if call.route.writes in ("", "keyed") else context.writer.call(answered)
        if call.route.writes == "access":
            context.callers.forget()
        return answer(made, call.route.status)

    kind = Parameter.KEYWORD_ONLY
    own = [Parameter("context", kind, annotation=ContextOf)]
    own.append(Parameter("caller", kind, annotation=_ROLES[call.route.role]))
    if call.route.writes == "once":
        own.append(Parameter("keyed", kind, annotation=KeyedOf))
    elif call.route.writes == "keyed":
        own.append(Parameter("idempotency_key", kind, annotation=IdempotencyKey, default=None))
    asked = dict(call.parameters)
    parts = [name for name in asked if f"{{{name}}}" in call.route.path]
    own += [_parameter(asked.pop(name), Path) for name in parts]
    if call.route.body == "*":
        own += [
            one.replace(kind=kind, annotation=Annotated[one.annotation, Body()]) for one in asked.values()
        ]
    elif call.route.body:
        fields = {
            one.name: (one.annotation, ... if one.default is Parameter.empty else one.default)
            for one in asked.values()
        }
        config = ConfigDict(extra="forbid", strict=True)
        form: Any = create_model(call.route.body, __config__=config, **fields)  # type: ignore[call-overload]
        own.append(Parameter("request", kind, annotation=form))
    else:
        own += [_parameter(one, Query) for one in asked.values()]
    endpoint.__signature__ = Signature(own)  # type: ignore[attr-defined]
    endpoint.__name__ = call.function.__name__
    return endpoint


def _parameter(one: Parameter, place: Any) -> Parameter:
    """A parameter of a path or a query, as FastAPI has it: with its description beside the bounds."""
    base, *marks = get_args(one.annotation) if get_origin(one.annotation) is Annotated else (one.annotation,)
    bounds = [bound for mark in marks if isinstance(mark, FieldInfo) for bound in mark.metadata]
    told = next((mark.description for mark in marks if isinstance(mark, FieldInfo)), None)
    form = Annotated[(base, *bounds, place(description=told))]  # type: ignore[valid-type]
    return one.replace(kind=Parameter.KEYWORD_ONLY, annotation=form)
