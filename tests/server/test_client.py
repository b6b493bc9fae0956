"""The client of the REST API: its server and token, errors as in a command, and events that go on after a break."""

from __future__ import annotations

import http.server
import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from server_world import World, end_runner, submission

from scavenger import errors
from scavenger.api.calls import Remote
from scavenger.api.jobs import list_jobs, show_job
from scavenger.api.logs import show_logs
from scavenger.api.operating import request, stop
from scavenger.api.operations import show_operation, withdraw
from scavenger.api.submissions import SubmissionAnswer, SubmittedJob, list_submissions, submission_of
from scavenger.api.submitting import ResumeRequest, SubmitRequest, resume, submit
from scavenger.client import Client, ServerAddress, server_address
from scavenger.client import client as client_module
from scavenger.client.address import keep_token, tokens_path
from scavenger.client.events import SentEvent, read_events
from scavenger.client.problems import error_of
from scavenger.domain import operation as op
from scavenger.domain.submission import GivenEnvironment
from scavenger.server.problems import RefusedError, problem_of
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store


@pytest.fixture
def ann(store: Store, world: World) -> Iterator[Remote]:
    """A real server on a port of its own, asked with ann's token."""
    with (
        serving(store, ServerSettings(port=0)) as url,
        Remote(Client(ServerAddress(url, world.tokens["ann"]))) as source,
    ):
        yield source


class TestAddress:
    def test_no_server_is_named_by_default(self) -> None:
        assert server_address({}) is None
        assert server_address({"SCAVENGER_SERVER": " "}) is None

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("127.0.0.1:8765", "is the URL of a server"),
            ("ftp://127.0.0.1", "is the URL of a server"),
            ("https://host/path", "is the URL of a server"),
            ("https://host:port", "is the URL of a server"),
            ("https://ann:secret@host", "names no user"),
            ("http://host:8765", "tokens would be read on the way"),
        ],
    )
    def test_what_names_no_server_or_would_tell_the_token_is_refused(self, url: str, words: str) -> None:
        with pytest.raises(errors.ConfigurationError, match=words):
            server_address({"SCAVENGER_SERVER": url, "SCAVENGER_TOKEN": "scv_x"})

    def test_the_token_is_that_of_the_environment_or_the_one_that_was_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        named = {"SCAVENGER_SERVER": "https://Host:8765/"}
        with pytest.raises(errors.ConfigurationError, match="scavenger api login"):
            server_address(named)
        keep_token("https://other", "scv_other")
        keep_token("https://host:8765", "scv_kept")

        assert server_address(named) == ServerAddress("https://host:8765", "scv_kept")
        given = server_address({**named, "SCAVENGER_TOKEN": "scv_given"})
        assert given is not None
        assert given.token == "scv_given"
        assert "scv_given" not in repr(given)
        assert stat.S_IMODE(tokens_path().stat().st_mode) == 0o600


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            errors.NotFoundError("there is no job 'x'; `scavenger status` lists the jobs"),
            errors.TransientError("job a is busy; try again"),
            errors.NoFeasiblePlanError("every configuration misses the deadline"),
            errors.JobFileError("unknown key", path="job.yaml", line=3),
            errors.QuotaError("the quota is used up", quota="CPUS", region="us"),
            errors.StoreUnavailableError("the disk is full"),
        ],
    )
    def test_an_error_of_the_server_is_the_error_of_the_command(self, error: errors.ScavengerError) -> None:
        problem = problem_of(error)
        found = error_of(problem.status, problem.model_dump(), "http://127.0.0.1:1")

        assert (str(found), found.exit_code) == (str(error), error.exit_code)
        assert isinstance(error, type(found))

    def test_a_refusal_tells_what_to_do(self) -> None:
        refused = RefusedError(503, "not_ready", "the store does not answer", fix="see the server's log")
        found = error_of(503, refused.problem.model_dump(), "http://127.0.0.1:1")

        assert isinstance(found, errors.TransientError)
        assert str(found) == "the store does not answer; see the server's log"

    @pytest.mark.parametrize("problem", [None, "no", {"detail": 3}])
    def test_an_answer_of_something_else_is_told(self, problem: object) -> None:
        assert isinstance(error_of(502, problem, "https://host"), errors.TransientError)
        assert "is it one?" in str(error_of(404, problem, "https://host"))

    def test_an_unknown_token_and_a_server_that_is_gone(self, store: Store, world: World) -> None:
        with serving(store, ServerSettings(port=0)) as url:
            client = Client(ServerAddress(url, "scv_unknown"))
            with client, pytest.raises(errors.ConfigurationError, match="does not know the token"):
                client.get("info")
        client = Client(ServerAddress(url, "scv_unknown"))
        with client, pytest.raises(errors.TransientError, match=r"does not answer \(Connection refused\)"):
            client.get("info")


def _submitted(source: Remote, job_file: Path | str, **given: Any) -> SubmittedJob:
    return submit(source, SubmitRequest(job_file=str(job_file), **given)).submission


def test_a_job_is_submitted_once_and_shown(ann: Remote, store: Store, world: World) -> None:
    once, options = Remote(ann.client, key="once"), {"objective": "cost", "budget": "$3", "priority": 2}
    first = _submitted(once, world.job_file, **options)
    assert _submitted(once, world.job_file, **options).id == first.id
    made = store.submission(first.id)
    assert made is not None
    assert (made.job.user, made.job.priority, made.job.reserved_usd) == ("ann", 2, 3.0)
    assert (made.job.spec["objective"], made.job.run) == ("cost", True)
    within = {"budget": "$3", "study_budget": 5.0, "study_workers": 4}
    second = _submitted(ann, world.job_file, **within).id
    third = store.submission(second)
    assert third is not None
    assert (third.job.reserved_usd, third.job.spec["constraints"]["budget"]) == (2.0, 2.0)
    assert third.job.study_workers == 4
    with pytest.raises(errors.LimitReachedError, match=r"\$5\.00 is used up"):
        _submitted(ann, world.job_file, **within)
    store.cancel(second, "withdrawn")
    planned = _submitted(ann, world.job_file, run=False)
    kept = store.submission(planned.id)
    assert kept is not None
    assert not kept.job.run
    store.cancel(planned.id, "withdrawn")
    named = world.job_file.with_name("named.yaml")
    named.write_text(world.job_file.read_text() + "\nenv: [DATA_VERSION]\n")
    with pytest.raises(errors.ConfigurationError, match="DATA_VERSION is not set where the job is begun"):
        _submitted(ann, named)
    with pytest.raises(errors.ConfigurationError, match=r"named.yaml does not name LD_PRELOAD"):
        _submitted(ann, named, environment={"DATA_VERSION": "2", "LD_PRELOAD": "x"})
    begun = _submitted(ann, named, environment={"DATA_VERSION": "2"})
    told = store.submission(begun.id)
    assert told is not None
    assert told.job.spec["env"] == {"DATA_VERSION": "2"}
    store.cancel(begun.id, "withdrawn")
    named.write_text(world.job_file.read_text() + "\nsecrets: [MY_KEY]\n")
    with pytest.raises(errors.ConfigurationError, match="secrets: MY_KEY is not set where the job is begun"):
        _submitted(ann, named)
    hidden = _submitted(ann, named, environment={"MY_KEY": "tell-nobody"})
    assert store.environment_of(hidden.id) == GivenEnvironment({"MY_KEY": "tell-nobody"}, whole=False)
    assert "tell-nobody" not in str(hidden) + str(show_job(ann, hidden.id)) + str(store.submission(hidden.id))
    store.cancel(hidden.id, "withdrawn")

    shown = show_job(ann, first.id).submission
    assert shown is not None
    assert shown.state == "queued"
    assert [one.id for one in list_submissions(ann, ["queued"], 10).submissions] == [first.id]
    assert [one.name for one in list_jobs(ann, limit=10).jobs] == ["ann-secret"]
    with pytest.raises(errors.NotFoundError, match="there is no job"):
        show_job(ann, world.jobs["bob"])
    with pytest.raises(errors.NotFoundError, match="there is no job"):
        show_job(ann, "..")
    with pytest.raises(errors.ConfigurationError, match="by its absolute path on the server"):
        _submitted(ann, "job.yaml")


def test_a_submission_that_waits_is_found_beside_an_earlier_job_of_its_name(
    ann: Remote, store: Store, world: World
) -> None:
    name = store.job(world.jobs["ann"]).name
    waiting = store.submit(submission("ann", world.job_file, name))
    found = submission_of(ann, name)
    assert found is not None
    assert (found.id, found.state) == (waiting.id, "queued")
    assert submission_of(ann, world.jobs["bob"]) is None


def test_operations_are_those_of_the_command(ann: Remote, store: Store, world: World) -> None:
    job = world.jobs["ann"]
    scalings = (op.ScaleTo(3), op.ScaleOut(2), op.ScaleIn(("w0",)), op.ScaleAggregators(1))
    for operation in (
        *scalings,
        op.Migrate(),
        op.Migrate(("w0",)),
        op.StopJob(False),
        op.StopJob(reason="too slow"),
    ):
        number = request(ann, job, operation).operation.id
        assert store.operation(number).operation == operation
        assert show_operation(ann, job, number).operation.state == "pending"
        assert withdraw(ann, job, number).operation.state == "refused"
    with pytest.raises(errors.NotSupportedError):
        request(ann, job, op.ProfileRange(1, 2))
    waiting = store.submit(submission("ann", world.job_file, "later"))
    stopped = stop(ann, waiting.id)
    assert isinstance(stopped, SubmissionAnswer)
    assert stopped.submission.state == "cancelled"


def test_logs_go_on_where_the_answer_before_ended(
    ann: Remote, store: Store, world: World, logs: Path
) -> None:
    job = world.jobs["ann"]
    log = logs / "w0.log"
    log.write_text("one\ntwo\nthr")
    begun = show_logs(ann, job, lines=1, follow=True)
    assert ([one.message for one in begun.events], begun.logs) == (["ann 4"], {"w0": ["two"]})
    with log.open("a") as file:
        file.write("ee\nfour")
    (logs / "w1.log").write_text("new\n")
    store.add_event(job, "note", "more")
    more = show_logs(ann, job, follow=True, cursor=begun.next)
    assert more.logs == {"w0": ["three"], "w1": ["new"]}
    assert ([one.message for one in more.events], more.over) == (["more"], False)

    store.finish_job(job, state="succeeded", report=None, exit_code=0)
    events_only = show_logs(ann, job, written=False, cursor=more.next)
    assert (events_only.logs, events_only.events) == ({}, ())
    with pytest.raises(errors.ConfigurationError, match="the cursor is not one of this list"):
        show_logs(ann, job, cursor="AAAA")


@contextmanager
def _broken_streams(answers: list[tuple[int, bytes]], seen: list[str | None]) -> Iterator[str]:
    """A server whose streams break off: each request gets the next answer, and what it asked for is noted."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Last-Event-ID"))
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) + (1 if answers else 0)))  # one byte never comes
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


@contextmanager
def _losing_answers(url: str, sent: list[str]) -> Iterator[str]:
    """Passes requests on to a server; the connection ends before the first answer to each has come."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.headers["Idempotency-Key"])
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept = {name: value for name, value in self.headers.items() if name != "Host"}
            answer = requests.post(url + self.path, data=body, headers=kept, timeout=60)
            if sent.count(sent[-1]) == 1:
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


def test_what_is_asked_is_done_once_though_answers_are_lost(store: Store, world: World) -> None:
    job, sent = world.jobs["ann"], list[str]()
    with (
        serving(store, ServerSettings(port=0)) as url,
        _losing_answers(url, sent) as lossy,
        Remote(Client(ServerAddress(lossy, world.tokens["ann"]))) as source,
    ):
        asked = request(source, job, op.ScaleOut(1)).operation
        assert [one.id for one in store.operations(job)] == [asked.id]
        store.withdraw_operation(asked.id, "withdrawn")
        store.update_job(job, checkpoint="/jobs/checkpoint")
        store.finish_job(job, state="stopped", report=None, exit_code=0)
        end_runner(store, job)
        assert resume(source, job, ResumeRequest()).submission.state == "queued"

    assert (len(sent), len(set(sent))) == (4, 2)


def _event(number: int) -> bytes:
    return f"id: {number}\nevent: job\ndata: {json.dumps({'id': number})}\n\n".encode()


def test_a_stream_that_breaks_off_goes_on_after_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "READ_S", 0.2)
    seen: list[str | None] = []
    answers = [
        (200, b"retry: 2000\n\n" + _event(1) + b": alive\n\n" + _event(4) + b"id: 5\ndata: {"),
        (503, b'{"detail": "the store is busy", "exit_code": 3, "retryable": true}'),
        (200, _event(5) + b"event: end\ndata: {}\n\n"),
    ]
    with _broken_streams(answers, seen) as url, Client(ServerAddress(url, "scv_x")) as client:
        told = [event["id"] for event in client.follow_events("a-job")]

    assert told == [1, 4, 5]
    assert seen == [None, "4", "4"]


def test_a_stream_is_not_waited_for_without_end() -> None:
    client = Client(ServerAddress("http://127.0.0.1:9", "scv_x"))
    with client, pytest.raises(errors.TransientError, match="does not answer"):
        next(client.follow_events("a-job", patience_s=0.0))


def test_events_are_read_from_lines() -> None:
    lines = [
        b": hello",
        b"",
        b"id:7",
        b"event: job",
        b"data: a",
        b"data:b",
        b"",
        b"data: c",
        b"",
        b"data: lost",
    ]

    assert list(read_events(lines)) == [SentEvent("7", "job", "a\nb"), SentEvent("7", "message", "c")]
