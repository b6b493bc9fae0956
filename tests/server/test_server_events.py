"""Events as they come: each once, in order, resumed after the last one that was received."""

from __future__ import annotations

import json
import threading
import time

import httpx2
import pytest
from server_world import World
from starlette.testclient import TestClient

from scavenger.server.metrics import STREAMS_MAX
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store


def _messages(text: str) -> list[tuple[int, str]]:
    """Ids and messages of the events in a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if fields.get("event") == "job":
            data = json.loads(fields["data"])
            assert data["id"] == int(fields["id"])
            found.append((data["id"], data["message"]))
    return found


def test_a_stream_is_resumed_after_any_event(client: TestClient, store: Store, world: World) -> None:
    job = world.jobs["ann"]
    store.add_event(job, "note", "two\nlines: \x85 and data: none")
    store.finish_job(job, state="succeeded", report=None, exit_code=0)
    path, headers = f"/v1/jobs/{job}/events/stream", world.headers("ann")
    whole = client.get(path, headers=headers)
    assert whole.headers["content-type"].startswith("text/event-stream")
    assert whole.text.endswith("event: end\ndata: {}\n\n")
    told = _messages(whole.text)
    assert [message for _, message in told] == [event.message for event in store.events(job)]
    for number, (last, _) in enumerate(told):
        again = client.get(path, headers={**headers, "Last-Event-ID": str(last)})
        assert _messages(again.text) == told[number + 1 :]


def test_too_many_streams_are_refused(client: TestClient, store: Store, world: World) -> None:
    context = client.app.state.context  # type: ignore[attr-defined]
    for _ in range(STREAMS_MAX):
        assert context.metrics.begin_stream()
    path, headers = f"/v1/jobs/{world.jobs['ann']}/events/stream", world.headers("ann")
    refused = client.get(path, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (503, "streams")
    context.metrics.end_stream()
    store.finish_job(world.jobs["ann"], state="succeeded", report=None, exit_code=0)
    for _ in range(3):  # each gives its place back
        assert client.get(path, headers=headers).status_code == 200


@pytest.mark.slow
def test_events_of_a_running_job_come_over_a_socket_as_they_are_added(store: Store, world: World) -> None:
    """A real server on a port of its own; a client that was cut off goes on where it was."""
    job, headers = world.jobs["ann"], world.headers("ann")
    with serving(store, ServerSettings(port=0)) as address:
        url = f"{address}/v1/jobs/{job}/events/stream"

        def add() -> None:
            for number in range(5, 10):
                time.sleep(0.1)
                store.add_event(job, "note", f"ann {number}")
            store.finish_job(job, state="succeeded", report=None, exit_code=0)

        adding = threading.Thread(target=add)
        with httpx2.stream("GET", url, headers=headers, timeout=60) as answer:
            adding.start()
            first = []
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    first.append(json.loads(line.removeprefix("data: "))["message"])
                if len(first) == 7:
                    break
                last = int(line.removeprefix("id: ")) if line.startswith("id: ") else 0
        events = {event.message: event.id for event in store.events(job)}
        assert last in (0, events[first[-1]])
        resumed = httpx2.get(url, headers={**headers, "Last-Event-ID": str(events[first[-1]])}, timeout=60)
        adding.join()
        rest = [message for _, message in _messages(resumed.text)]
        assert first + rest == [f"ann {number}" for number in range(10)]
