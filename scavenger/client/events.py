"""Server-sent events [1]_: what a stream of lines tells.

References:
    .. [1] WHATWG, "HTML Living Standard", section 9.2, "Server-sent events".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["SentEvent", "read_events"]


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event.

    Attributes:
        id: By which a stream goes on after this event; empty if it has none.
        kind: `message` unless the stream names another.
    """

    id: str
    kind: str
    data: str


def read_events(lines: Iterable[bytes]) -> Iterator[SentEvent]:
    """The events of a stream, each as soon as the empty line after it has come; comments are left out.

    An event that the stream breaks off within is not told: it comes again.
    """
    identity, kind, data = "", "message", list[str]()
    for line in lines:
        if not line:
            if data:
                yield SentEvent(identity, kind, "\n".join(data))
            kind, data = "message", []
            continue
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            identity = value
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
