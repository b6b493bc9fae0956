"""Calls: functions over a store whose signature is the request, and whose annotation is the answer.

From each comes a route with its description in the OpenAPI document (`scavenger.server.routing`), and the way to ask a
server for it: `call(source, ...)` runs here where the source is a store, and there where it is a server.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from inspect import Parameter, signature
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, get_type_hints
from urllib.parse import quote

import msgspec

from scavenger.client import Client
from scavenger.domain.access import Caller
from scavenger.errors import NotFoundError, NotSupportedError
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger.store.records import JobRecord

P = ParamSpec("P")
A = TypeVar("A")

Role = Literal["anyone", "changer", "overseer", "admin"]
"""Who may call; see `scavenger.server.access`."""
Writes = Literal["", "store", "once"]
"""Whether a call changes the store; `once`: a repetition under the same key has the first answer."""


class Local:
    """A store, opened when it is first needed, the machine that it is used from, and who asks.

    Args:
        url: As of `Store.open`.
        store: One that is open, and stays so.
        caller: The user of a server; None: the owner of the store.
        write: Carries out a change of the store: a server's writer, one after the other.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        caller: Caller | None = None,
        write: Callable[[Callable[[], Any]], Any] = lambda change: change(),
    ) -> None:
        self._url, self._given, self.caller, self.write = url, store, caller, write

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


class Remote:
    """A server, asked by its REST API."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


class Call(Generic[P, A]):
    """A call: asked of a source, it runs there.

    Attributes:
        function: Runs it over a store.
        method, path: Of its route, below `/v1/`; names in braces are parameters.
        tag, summary: Of its route in the OpenAPI document.
        status: Of the answer.
        repeats: Whether a client may send it again if no answer comes.
        body: Name of the form of the request, if it has one; `*`: its last parameter is the whole of it.
        answer: Type of the answer.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Local, P], A],
        method: str,
        path: str,
        *,
        tag: str,
        summary: str,
        role: Role,
        writes: Writes,
        status: int,
        repeats: bool,
        body: str,
    ) -> None:
        wraps(function)(self)
        self.function, self.method, self.path, self.tag, self.summary = function, method, path, tag, summary
        self.role, self.writes, self.status, self.repeats, self.body = role, writes, status, repeats, body

    def __call__(self, source: Local | Remote, /, *args: P.args, **kwargs: P.kwargs) -> A:
        if isinstance(source, Local):
            return self.function(source, *args, **kwargs)
        return self._asked(source.client, signature(self.function).bind(source, *args, **kwargs).arguments)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """What it is asked with, with annotations in place of their texts."""
        hints = get_type_hints(self.function, include_extras=True)
        _, *rest = signature(self.function).parameters.values()
        return {one.name: one.replace(annotation=hints[one.name]) for one in rest}

    @cached_property
    def answer(self) -> type[A]:
        return get_type_hints(self.function, include_extras=True)["return"]  # type: ignore[no-any-return]

    def _asked(self, client: Client, arguments: Mapping[str, Any]) -> A:
        given = {name: arguments[name] for name in self.parameters if arguments.get(name) is not None}
        parts = {name: _part(str(given.pop(name))) for name in self.parameters if f"{{{name}}}" in self.path}
        if self.body == "*":
            [given] = given.values()
        key = str(uuid.uuid4()) if self.repeats and (self.writes == "once" or self.method == "post") else None
        document = client.ask(self.method, self.path.format(**parts), given, body=bool(self.body), key=key)
        return read(document, self.answer)


def call(
    method: str,
    path: str,
    *,
    tag: str,
    summary: str,
    role: Role = "anyone",
    writes: Writes = "",
    status: int = 200,
    repeats: bool = True,
    body: str = "",
) -> Callable[[Callable[Concatenate[Local, P], A]], Call[P, A]]:
    """Make a function over a store a call; see `Call`."""

    def made(function: Callable[Concatenate[Local, P], A]) -> Call[P, A]:
        return Call(
            function,
            method,
            path,
            tag=tag,
            summary=summary,
            role=role,
            writes=writes,
            status=status,
            repeats=repeats,
            body=body,
        )

    return made


def read(document: Any, kind: type[A]) -> A:
    """Read a document as a value.

    Raises:
        NotSupportedError: Another version has made it.
    """
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> NotSupportedError:
    """The error of a server's answer that another version has made."""
    return NotSupportedError(
        f"the server's answer cannot be read ({type(error).__name__}: {error}); use the version of the server, "
        "which `scavenger --version` on its machine prints"
    )


def _part(text: str) -> str:
    """A name as one part of a path.

    Raises:
        NotFoundError: It is one that paths give another meaning.
    """
    if text.strip(".") == "":
        raise NotFoundError(f"there is no job {text!r}; `scavenger status` lists the jobs")
    return quote(text, safe="")
