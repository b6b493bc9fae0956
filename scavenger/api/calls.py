"""Calls: functions over a store whose signature is the request, and whose annotation is the answer.

From each comes a route with its description in the OpenAPI document (`scavenger.server.routing`), and the way to ask a
server for it: `call(source, ...)` runs here where the source is a store, and there where it is a server.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, wraps
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, get_args, get_type_hints

import msgspec

from scavenger.client import Client
from scavenger.client.client import path_part
from scavenger.domain.access import Caller
from scavenger.domain.submission import Submission
from scavenger.errors import NotSupportedError
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger.store.records import JobRecord

P = ParamSpec("P")
A = TypeVar("A")

Role = Literal["anyone", "changer", "overseer", "admin"]
"""Who may call; see `scavenger.server.access`."""
Writes = Literal["", "store", "access", "once", "keyed"]
"""Whether a call changes the store; `access`: who may do what, too; `once`: a repetition under the same key has the
first answer; `keyed`: the function sees to that itself, by `Local.key`, and writes by `Local.write`."""


class Local:
    """A store, opened when it is first needed, the machine that it is used from, and who asks.

    Args:
        url: As of `Store.open`.
        store: One that is open, and stays so.
        caller: The user of a server; None: the owner of the store.
        key: Under which the request may be repeated; None: it is not.
        write: Carries out a change of the store: a server's writer, one after the other.
        count_indicators: Is told of indicators that were taken in.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        caller: Caller | None = None,
        key: str | None = None,
        write: Callable[[Callable[[], Any]], Any] = lambda change: change(),
        count_indicators: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._url, self._given, self.caller, self.key, self.write = url, store, caller, key, write
        self.count_indicators = count_indicators

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._given is None and "store" in self.__dict__:
            self.store.close()

    @cached_property
    def store(self) -> Store:
        """The opened store."""
        return self._given or Store.open(self._url)

    @property
    def name(self) -> str:
        """Location of the store, for the user."""
        return self.store.name

    @property
    def user(self) -> str:
        """Whose jobs are submitted through this."""
        return this_process().user if self.caller is None else self.caller.user.name

    @property
    def only_of(self) -> str | None:
        """The user whose jobs alone are seen; None for all jobs."""
        return None if self.caller is None or self.caller.user.sees_all else self.caller.user.name

    @property
    def sees_all(self) -> bool:
        """Whether what is of all users is seen."""
        return self.only_of is None

    @property
    def is_admin(self) -> bool:
        """Whether everything may be changed."""
        return self.caller is None or self.caller.user.role == "admin"

    def find_job(self, key: str) -> JobRecord:
        """A job with its report.

        Raises:
            NotFoundError: There is none; a job of another user is told in the same words.
            ConfigurationError: Several ids begin with `key`.
        """
        return self.store.job(key, user=self.only_of)

    def find_submission(self, key: str) -> Submission | None:
        """The latest submission of a key that the caller may see; None if there is none."""
        found = self.store.submission(key)
        return found if found is not None and self.only_of in (None, found.job.user) else None


class Remote:
    """A server, asked by its REST API.

    Args:
        client: Asks it.
        key: Under which changes are asked for; None: under a new one each.
    """

    def __init__(self, client: Client, *, key: str | None = None) -> None:
        self.client, self.key = client, key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @cached_property
    def info(self) -> dict[str, Any]:
        """What serves, and who asks."""
        return self.client.get("info")

    @property
    def name(self) -> str:
        """Location of the store, for the user."""
        return str(self.info["store"])

    @property
    def user(self) -> str:
        """Whose jobs are submitted through this."""
        return str(self.info["user"])

    @property
    def sees_all(self) -> bool:
        """Whether what is of all users is seen."""
        return bool(self.info["role"] != "user")


Source = Local | Remote
"""Jobs, models and prices, as commands show them; close it after use.

Keys of jobs are ids, beginnings of ids, or names. Every call raises `NotFoundError` where there is no such job, model
or operation, `ConfigurationError` where several begin so, and what the store or the server fails with."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a call; as a decorator, it makes a function over a store a call.

    Attributes:
        method, path: Below `/v1/`; names in braces are parameters.
        tag, summary: In the OpenAPI document.
        status: Of the answer.
        repeats: Whether a client may send it again if no answer comes.
        body: Name of the form of the request, if it has one; `*`: its last parameter is the whole of it.
    """

    method: str
    path: str
    _: KW_ONLY
    tag: str
    summary: str
    role: Role = "anyone"
    writes: Writes = ""
    status: int = 200
    repeats: bool = True
    body: str = ""

    def __call__(self, function: Callable[Concatenate[Local, P], A]) -> Call[P, A]:
        return Call(function, self)


call = Route


class Call(Generic[P, A]):
    """A call: asked of a source, it runs there.

    Attributes:
        function: Runs it over a store.
        answer: Type of the answer.
    """

    def __init__(self, function: Callable[Concatenate[Local, P], A], route: Route) -> None:
        wraps(function)(self)
        self.function, self.route = function, route

    def __call__(self, source: Source, /, *args: P.args, **kwargs: P.kwargs) -> A:
        if isinstance(source, Local):
            return self.function(source, *args, **kwargs)
        return self._asked(source, signature(self.function).bind(source, *args, **kwargs).arguments)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """What it is asked with, with annotations in place of their texts."""
        hints = get_type_hints(self.function, include_extras=True)
        _, *rest = signature(self.function).parameters.values()
        return {one.name: one.replace(annotation=hints[one.name]) for one in rest}

    @cached_property
    def answer(self) -> type[A]:
        return get_type_hints(self.function, include_extras=True)["return"]  # type: ignore[no-any-return]

    def _asked(self, source: Remote, arguments: Mapping[str, Any]) -> A:
        route = self.route
        given = {name: arguments[name] for name in self.parameters if arguments.get(name) is not None}
        parts = {name: path_part(str(given.pop(name))) for name in list(given) if f"{{{name}}}" in route.path}
        if route.body == "*":
            [given] = given.values()
        keyed = route.repeats and (route.writes == "once" or route.method == "post")
        key = source.key or str(uuid.uuid4()) if keyed else None
        path, body = route.path.format(**parts), bool(route.body)
        return read(source.client.ask(route.method, path, given, body=body, key=key), self.answer)


def read(document: Any, kind: type[A]) -> A:
    """Read a document as a value; as the first of several kinds that it fits.

    Raises:
        NotSupportedError: Another version has made it.
    """
    kinds: tuple[Any, ...] = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    *others, last = kinds
    for one in others:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(document, one)  # type: ignore[no-any-return]
    try:
        return msgspec.convert(document, last)  # type: ignore[no-any-return]
    except (msgspec.ValidationError, ValueError) as error:
        raise NotSupportedError(
            f"the server's answer cannot be read ({type(error).__name__}: {error}); use the version of the server, "
            "which `scavenger --version` on its machine prints"
        ) from error
