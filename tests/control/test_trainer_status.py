"""The status of a TrainJob: a real server is told over TLS what Kubeflow Trainer asks for, and no more often."""

from __future__ import annotations

import http.server
import json
import logging
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate as make_certificate
from test_trackers import EVENTS, REPORT, VIEW, Seen, epoch, step
from waiting import wait_for

from scavenger.control.tracking import trainer_status as module
from scavenger.control.tracking.trainer_status import (
    CA_CERT,
    SERVER_URL,
    TOKEN,
    StatusServer,
    TrainerStatus,
    told_to_trainer,
)
from scavenger.domain.report import EpochsForecast, Forecasted

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits/status"
FORECAST = Forecasted(EpochsForecast(1, 4.0, (3.0, 6.0), 40.0, 0.4, 0.0, 1.0), kept=False)


@dataclass
class Trainer:
    """The status server; what it was told, and what it answers."""

    url: str
    certificate: Path
    folder: Path
    told: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    answer: int = 200

    @property
    def environment(self) -> dict[str, str]:
        return {SERVER_URL: self.url, CA_CERT: str(self.certificate), TOKEN: str(self.folder / "token")}

    def status(self, observer: Seen, **more: Any) -> TrainerStatus:
        server = StatusServer.of(self.environment)
        assert server is not None
        return TrainerStatus(observer, server, **more)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "token").write_text("first\n")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append((self.path, self.headers["Authorization"], self.headers.get_content_type()))
            if found.answer == 200:
                found.told.append(json.loads(body))
            self.send_response(found.answer)
            self.send_header("Location", found.url)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Trainer(f"https://127.0.0.1:{server.server_address[1]}{PATH}", certificate, tmp_path)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def test_progress_time_left_metrics_and_the_end_are_told_as_the_protocol_says(trainer: Trainer) -> None:
    seen = Seen()
    status = trainer.status(seen, every_s=0.01)
    events = [VIEW, epoch(0), FORECAST, step(1)]
    for event in events:
        status.on_event(event)
    wait_for(lambda: trainer.told)
    (trainer.folder / "token").write_text("second\n")  # as the kubelet does, every hour
    status.end(REPORT)

    assert seen.events == events
    (first, last) = trainer.told
    assert list(first) == ["trainerStatus"]
    at_s, whole_s = 10.0, 40.0
    told = first["trainerStatus"]
    assert (told["progressPercentage"], told["estimatedRemainingSeconds"]) == (
        int(100 * at_s / whole_s),
        whole_s - at_s,
    )
    assert time.strptime(told["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%SZ")
    metrics = {one["name"]: one["value"] for one in told["metrics"]}
    assert metrics == {
        "loss": "1",
        "val_loss": "1",
        "cost_usd": "0.01",
        "currentEpoch": "1",
        "step": "1",
        "workers": "2",
        "global_batch_size": "64",
    }
    ended = last["trainerStatus"]
    assert (ended["progressPercentage"], ended["estimatedRemainingSeconds"]) == (100, 0)
    assert trainer.requests == [
        (PATH, "Bearer first", "application/json"),
        (PATH, "Bearer second", "application/json"),
    ]


def test_only_the_latest_is_told_and_no_more_often_than_allowed(trainer: Trainer) -> None:
    status = trainer.status(Seen(), every_s=0.5)
    status.on_event(VIEW)
    began = time.monotonic()
    number = 0
    while time.monotonic() < began + 1.2:
        number += 1
        status.on_event(step(number))
        time.sleep(0.001)
    status.end(REPORT)

    steps = [
        int(next(one["value"] for one in told["trainerStatus"]["metrics"] if one["name"] == "step"))
        for told in trainer.told
    ]
    assert len(steps) <= 5
    assert steps == sorted(steps)
    assert steps[-1] == number
    assert "progressPercentage" not in trainer.told[0]["trainerStatus"], "nobody knows when it ends"


def test_a_job_that_failed_is_not_told_as_done(trainer: Trainer) -> None:
    status = trainer.status(Seen(), every_s=0.01)
    for event in (VIEW, epoch(0), FORECAST, step(1)):
        status.on_event(event)
    status.end(replace(REPORT, job=replace(REPORT.job, state="failed")))

    ended = trainer.told[-1]["trainerStatus"]
    assert ended["progressPercentage"] == 25
    assert "estimatedRemainingSeconds" not in ended


@pytest.mark.parametrize(
    "fault", ["refused", "redirected", "no token", "no server", "no certificate", "no url"]
)
def test_what_fails_there_does_not_reach_the_job_and_is_warned_of_once(
    trainer: Trainer, fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_PAUSE_S", 0.01)
    environment = trainer.environment
    trainer.answer = {"refused": 403, "redirected": 307}.get(fault, 200)
    changes = {
        "no token": {TOKEN: "/nowhere/token"},
        "no server": {SERVER_URL: "https://127.0.0.1:1/status"},
        "no certificate": {CA_CERT: "/nowhere/ca.crt"},
        "no url": {SERVER_URL: "http://[half/status"},
    }
    seen = Seen()
    with (
        caplog.at_level(logging.WARNING),
        told_to_trainer(seen, {**environment, **changes.get(fault, {})}) as (observer, end),
    ):
        for event in EVENTS:
            observer.on_event(event)
        end(REPORT)

    assert seen.events == EVENTS
    (record,) = caplog.records
    assert "the job goes on" in record.getMessage()
    assert trainer.told == []
    if fault == "redirected":
        assert {path for path, _, _ in trainer.requests} == {PATH}  # the token goes nowhere else


def test_outside_a_train_job_nothing_is_added() -> None:
    seen = Seen()
    with told_to_trainer(seen, {}) as (observer, end):
        assert observer is seen
        end(REPORT)
