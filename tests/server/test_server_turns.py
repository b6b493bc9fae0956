"""Reads wait for their turn, and never for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scavenger.server.turns import Turns


class App:
    """Counts the answers that are computed at a time; a path `/stream` begins at once and goes on."""

    def __init__(self, takes_s: float = 0.02) -> None:
        self.takes_s, self.now, self.most, self.answered = takes_s, 0, 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if scope["path"] == "/stream":
            self.now -= 1
            await send({"type": "http.response.start"})
            await asyncio.sleep(0.3)
        else:
            await asyncio.sleep(self.takes_s)
            self.now -= 1
            if scope["path"] == "/fault":
                raise ValueError("a fault")
            await send({"type": "http.response.start"})
        await send({"type": "http.response.body"})
        self.answered += 1


def _asked(turns: Turns, *requests: tuple[str, str]) -> list[Any]:
    async def all_at_once() -> list[Any]:
        async def send(message: Any) -> None:
            pass

        scopes = [{"type": "http", "method": method, "path": path} for method, path in requests]
        return await asyncio.gather(*(turns(one, None, send) for one in scopes), return_exceptions=True)  # type: ignore[arg-type]

    return asyncio.run(all_at_once())


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_so_many_reads_are_computed_at_a_time_and_all_are_answered(at_once: int) -> None:
    app = App()
    _asked(Turns(app, at_once=at_once, wait_s=60), *[("GET", "/v1/jobs")] * 12)
    assert (app.most, app.answered) == (at_once, 12)


def test_changes_never_wait() -> None:
    app = App()
    _asked(Turns(app, at_once=1, wait_s=60), *[("POST", "/v1/jobs")] * 5)
    assert app.most == 5


def test_a_stream_holds_its_turn_until_it_begins_and_a_fault_gives_it_back() -> None:
    app = App()
    requests = [("GET", "/stream"), ("GET", "/fault"), ("GET", "/v1/jobs")]
    answers = _asked(Turns(app, at_once=1, wait_s=60), *requests)
    assert [type(one) for one in answers] == [type(None), ValueError, type(None)]
    assert (app.most, app.answered) == (1, 2)


def test_a_read_that_has_waited_long_enough_does_not_wait_for_slow_ones() -> None:
    app = App(takes_s=0.5)
    _asked(Turns(app, at_once=1, wait_s=0.05), *[("GET", "/v1/leftovers")] * 3)
    assert (app.most, app.answered) == (3, 3)
