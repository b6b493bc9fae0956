"""Traces arrive at a real OTLP receiver where the environment asks for them; else nothing of it is imported."""

from __future__ import annotations

import gzip
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from server_world import World
from starlette.testclient import TestClient

from scavenger.control.jobs.job_trace import traced
from scavenger.domain.configuration import Configuration
from scavenger.domain.report import Event, Noted, Observer, PhaseChanged, ViewChanged
from scavenger.server.app import create_app
from scavenger.store import Store
from scavenger.tracing import is_wanted, tracing


class Collector:
    """An OTLP receiver over HTTP on loopback."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.services: set[str] = set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    outer.services |= {
                        one.value.string_value
                        for one in part.resource.attributes
                        if one.key == "service.name"
                    }
                    outer.spans |= {span.name: span for scope in part.scope_spans for span in scope.spans}
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def attributes(self, name: str) -> dict[str, str]:
        return {one.key: one.value.string_value for one in self.spans[name].attributes}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.close()


def test_a_request_is_traced_and_continues_the_trace_of_its_client(
    store: Store, world: World, collector: Collector
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with tracing("scavenger-server") as provider:
        app = create_app(store, tracer_provider=provider)
        with TestClient(app, base_url="http://127.0.0.1:8765") as client:
            headers = {**world.headers("ann"), "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
            client.get(f"/v1/jobs/{world.jobs['ann']}", headers=headers)
            client.get(f"/login?token={world.tokens['ann']}", follow_redirects=False)
            client.get("/healthz")
    assert collector.services == {"scavenger-server"}
    assert set(collector.spans) == {"GET /v1/jobs/{job}"}
    assert collector.spans["GET /v1/jobs/{job}"].trace_id.hex() == trace
    assert world.tokens["ann"] not in str(collector.spans)


def test_a_job_has_a_span_for_each_phase_with_what_happened_in_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    events: list[Event] = [
        PhaseChanged("starting", "1 worker on local"),
        PhaseChanged("profiling", "6 configurations at most"),
        ViewChanged(2, Configuration("local-1", 2, 64), 28, 0.004, "profiling"),
        Noted("warning", "password=hunter2hunter2"),
        PhaseChanged("running", "to 0.99"),
        PhaseChanged("done", "failed"),
    ]
    seen: list[Event] = []

    class Seeing(Observer):
        def on_event(self, event: Event) -> None:
            seen.append(event)

    with traced(Seeing(), "digits") as (observer, trace):
        for event in events:
            observer.on_event(event)
        assert trace is not None
        trace.end("c75918c9", "failed", "the training code failed")
    assert seen == events
    assert collector.services == {"training"}
    assert set(collector.spans) == {"job", "starting", "profiling", "running"}
    job = collector.spans["job"]
    assert {collector.spans[name].parent_span_id for name in ("starting", "profiling", "running")} == {
        job.span_id
    }
    assert (job.status.code, job.status.message) == (2, "the training code failed")
    assert collector.attributes("job") == {
        "scavenger.job.name": "digits",
        "scavenger.job.id": "c75918c9",
        "scavenger.job.state": "failed",
    }
    assert [one.name for one in collector.spans["profiling"].events] == ["view", "warning"]
    assert "hunter2" not in str(collector.spans)


def test_a_job_that_can_not_begin_ends_its_trace(collector: Collector) -> None:
    with pytest.raises(ValueError, match="no cloud"), traced(Observer(), "digits"):
        raise ValueError("no cloud")
    assert collector.spans["job"].status.message == "no cloud"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_variables_of_opentelemetry_decide(variables: dict[str, str], wanted: bool) -> None:
    assert is_wanted(variables) is wanted


def test_nothing_is_imported_where_no_traces_are_asked_for() -> None:
    code = (
        "import sys\n"
        "from scavenger.control.jobs.job_trace import traced\n"
        "from scavenger.domain.report import Observer\n"
        "with traced(given := Observer(), 'digits') as (observer, trace): assert observer is given\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "[]\n"
