"""What changes jobs: operations, the queue, indicators; each problem with its code and remedy."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from server_world import JOB, World, end_runner, submission
from starlette.testclient import TestClient

from scavenger import errors
from scavenger.domain.access import KeyedRequest
from scavenger.domain.operation import ScaleAggregators, ScaleIn, ScaleOut, ScaleTo, StopJob
from scavenger.server.problems import STATUSES, problem_of
from scavenger.server.writer import Writer
from scavenger.store import Store


def test_an_operation_is_the_one_that_the_command_makes(
    client: TestClient, store: Store, world: World
) -> None:
    job, headers = world.jobs["ann"], world.headers("ann")
    for name, body, operation in (
        ("scale", {"workers": 3}, ScaleTo(3)),
        ("scale", {"add": 2}, ScaleOut(2)),
        ("scale", {"remove": ["w0"]}, ScaleIn(("w0",))),
        ("scale", {"aggregators": 1}, ScaleAggregators(1)),
        ("stop", {"save": False}, StopJob(False)),
    ):
        asked = client.post(f"/v1/jobs/{job}/{name}", headers=headers, json=body)
        assert asked.status_code == 202
        number = asked.json()["operation"]["id"]
        assert store.operation(number).operation == operation
        busy = client.post(f"/v1/jobs/{job}/stop", headers=headers, json={})
        assert (busy.status_code, busy.json()["retryable"]) == (409, True)
        assert busy.headers["retry-after"]
        taken = store.next_operation(job)
        assert taken is not None
        store.end_operation(taken.id, "done", "so it is")
        path = f"/v1/jobs/{job}/operations/{number}"
        assert client.get(path, headers=headers).json()["operation"]["message"] == "so it is"


def test_an_operation_that_was_not_started_is_withdrawn(client: TestClient, world: World) -> None:
    job, headers = world.jobs["ann"], world.headers("ann")
    asked = client.post(f"/v1/jobs/{job}/migrate", headers=headers, json={}).json()["operation"]
    path = f"/v1/jobs/{job}/operations/{asked['id']}"
    assert client.delete(path, headers=headers).json()["operation"]["state"] == "refused"
    elsewhere = f"/v1/jobs/{world.jobs['bob']}/operations/{asked['id']}"
    assert client.get(elsewhere, headers=world.headers("root")).status_code == 404


def test_a_job_that_waits_is_shown_and_withdrawn(client: TestClient, store: Store, world: World) -> None:
    waiting = store.submit(submission("ann", world.job_file, "later"))
    headers = world.headers("ann")
    for key in (waiting.id, "later"):
        shown = client.get(f"/v1/jobs/{key}", headers=headers).json()
        assert (shown["job"], shown["submission"]["state"]) == (None, "queued")
    assert client.get(f"/v1/jobs/{waiting.id}", headers=world.headers("bob")).status_code == 404
    stopped = client.post(f"/v1/jobs/{waiting.id}/stop", headers=headers, json={})
    assert stopped.json()["submission"]["state"] == "cancelled"


def test_a_job_that_was_stopped_goes_on_from_its_checkpoint(
    client: TestClient, store: Store, world: World
) -> None:
    job, headers = world.jobs["ann"], world.headers("ann")
    path = f"/v1/jobs/{job}/resume"
    store.update_job(job, checkpoint="/jobs/checkpoint")
    assert client.post(path, headers=headers, json={}).status_code == 409  # it runs
    store.finish_job(job, state="stopped", report=None, exit_code=0)
    assert client.post(path, headers=headers, json={}).status_code == 409  # its runner has not ended
    end_runner(store, job)
    assert client.post(path, headers=world.headers("bob"), json={}).status_code == 404
    resumed = client.post(path, headers=headers, json={"audit": True})
    assert (resumed.status_code, resumed.json()["submission"]["state"]) == (202, "queued")
    made = store.submission(job)
    assert made is not None
    assert (made.id, made.state, made.job.user, made.job.audit) == (job, "queued", "ann", True)


def test_a_submitted_job_is_cancelled_whether_it_waits_or_runs(
    client: TestClient, store: Store, world: World
) -> None:
    waiting, running = store.submit(submission("ann", world.job_file, "later")), world.jobs["ann"]
    headers = world.headers("ann")
    assert client.delete(f"/v1/queue/{waiting.id}", headers=world.headers("bob")).status_code == 404
    assert client.delete(f"/v1/queue/{waiting.id}", headers=world.headers("eve")).status_code == 403
    answers = [client.delete(f"/v1/queue/{key}", headers=headers).json() for key in ("later", running)]
    rows = [answer["submission"] for answer in answers]
    assert [(row["state"], row["cancelling"]) for row in rows] == [("cancelled", False), ("running", True)]
    assert rows[1]["job_state"] == "running"
    alone = store.create_job("alone", spec={}, job_file=world.job_file)
    refused = client.delete(f"/v1/queue/{alone.id}", headers=world.headers("root"))
    assert (refused.status_code, "was not submitted" in refused.json()["detail"]) == (409, True)


class TestRepeatedRequests:
    """A client that has lost an answer sends its request again, with the same key."""

    def test_an_operation_is_requested_once_and_each_repetition_has_the_first_answer(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        job, headers = world.jobs["ann"], {**world.headers("ann"), "Idempotency-Key": "lost"}
        path = f"/v1/jobs/{job}/scale"
        first = client.post(path, headers=headers, json={"add": 1})
        assert client.post(path, headers=headers, json={"add": 1}).json() == first.json()
        taken = store.next_operation(job)
        assert taken is not None
        store.end_operation(taken.id, "done", "one more")
        again = client.post(path, headers=headers, json={"add": 1})

        assert (again.status_code, again.json()) == (202, first.json())
        assert len(store.operations(job)) == 1

    def test_a_key_names_one_request_of_one_user(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        key = {"Idempotency-Key": "one"}
        for user in ("ann", "bob"):
            asked = client.post(
                f"/v1/jobs/{world.jobs[user]}/migrate", headers={**world.headers(user), **key}, json={}
            )
            assert asked.status_code == 202
        other = client.post(
            f"/v1/jobs/{world.jobs['ann']}/stop", headers={**world.headers("ann"), **key}, json={}
        )
        assert (other.status_code, "used for another request" in other.json()["detail"]) == (409, True)
        assert len(store.operations(world.jobs["ann"])) == 1

    def test_what_was_refused_may_be_asked_again(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        job, headers = world.jobs["ann"], {**world.headers("ann"), "Idempotency-Key": "busy"}
        busy = store.submit_operation(job, ScaleTo(2), "bob")
        assert client.post(f"/v1/jobs/{job}/stop", headers=headers, json={}).status_code == 409
        store.withdraw_operation(busy.id, "withdrawn")
        assert client.post(f"/v1/jobs/{job}/stop", headers=headers, json={}).status_code == 202

    def test_a_job_is_resumed_and_a_waiting_one_withdrawn_once(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        job, headers = world.jobs["ann"], {**world.headers("ann"), "Idempotency-Key": "resume"}
        store.update_job(job, checkpoint="/jobs/checkpoint")
        store.finish_job(job, state="stopped", report=None, exit_code=0)
        end_runner(store, job)
        first = client.post(f"/v1/jobs/{job}/resume", headers=headers, json={})
        store.start_runner(job, "", None)  # the server begins it before the request comes again
        again = client.post(f"/v1/jobs/{job}/resume", headers=headers, json={})
        assert (again.status_code, again.json()) == (202, first.json())

        waiting = store.submit(submission("ann", world.job_file, "later"))
        headers["Idempotency-Key"] = "stop"
        answers = [client.post(f"/v1/jobs/{waiting.id}/stop", headers=headers, json={}) for _ in range(2)]
        assert [one.json()["submission"]["state"] for one in answers] == ["cancelled"] * 2

    def test_a_missed_target_is_resumed_with_more_epochs_in_every_form_of_a_whole_number(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        job = store.create_job(
            "digits",
            spec={"version": 1, "name": "digits", "train": "train:job", "goal": {"max_epochs": 9}},
            job_file=str(world.job_file),
        )
        store.update_job(job.id, checkpoint="/jobs/checkpoint")
        store.finish_job(job.id, state="target_missed", report=None, exit_code=0)
        path, headers = f"/v1/jobs/{job.id}/resume", world.headers("root")

        def ask(body: str) -> int:
            return client.post(
                path, headers={**headers, "Content-Type": "application/json"}, content=body
            ).status_code

        assert [ask(body) for body in ("{}", '{"max_epochs": 8}', '{"max_epochs": 9}')] == [409, 409, 409]
        assert [ask(body) for body in ('{"max_epochs": 12.5}', '{"max_epochs": "12"}')] == [422, 422]
        output = world.job_file.parent / "elsewhere"
        assert [ask('{"output": ""}'), ask(f'{{"max_epochs": 12, "output": "{world.job_file}"}}')] == [
            422,
            409,
        ]
        assert ask(f'{{"max_epochs": 12.0, "budget": "$3", "output": "{output}"}}') == 202
        submitted = store.submission(job.id)
        assert submitted is not None
        assert submitted.job.spec["goal"]["max_epochs"] == 12
        assert submitted.job.reserved_usd == 3.0

    def test_requests_of_one_key_at_the_same_moment_are_one_operation(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        job, headers = world.jobs["ann"], {**world.headers("ann"), "Idempotency-Key": "burst"}

        def ask(_: int) -> int:
            made = client.post(f"/v1/jobs/{job}/scale", headers=headers, json={"workers": 2})
            return int(made.json()["operation"]["id"])

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(ask, range(16)))) == 1
        assert len(store.operations(job)) == 1

    def test_an_answer_is_kept_for_a_day(self, store: Store) -> None:
        now, count = datetime.now(UTC), itertools.count()

        def ask(key: str, hours: int) -> object:
            with Store.open(store.url, clock=lambda: now + timedelta(hours=hours)) as later, later.together():
                return later.once(KeyedRequest("ann", key, "digest"), lambda: {"n": next(count)})["n"]

        assert [ask("a", 0), ask("b", 23), ask("a", 23)] == [0, 1, 0]
        assert [ask("c", 25), ask("b", 25), ask("a", 25)] == [2, 1, 3]


class TestIndicators:
    def test_a_batch_is_read_back_and_counts_once(self, client: TestClient, world: World) -> None:
        path, headers = f"/v1/jobs/{world.jobs['ann']}/indicators", world.headers("ann")
        batch = {"steps": [3, 4, 7], "values": {"loss": [1.5, None, 0.25], "step_time_s": [0.1, 0.2, 0.3]}}
        taken = client.post(path, headers=headers, json=batch)
        assert (taken.status_code, taken.json()["taken"], taken.json()["on_record"]) == (202, 6, 8)
        again = client.post(path, headers=headers, json=batch)
        assert (again.status_code, again.json()["detail"]) == (
            409,
            "indicators up to step 7 are on record; send those after it",
        )
        batches = client.get(path, headers=headers).json()["batches"]
        assert [one["values"] for one in batches] == [{"step_time_s": [0.1, None]}, batch["values"]]

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({"steps": [9, 9], "values": {"loss": [1.0, 1.0]}}, "whole numbers from 0 on that grow"),
            ({"steps": [9, 10], "values": {"loss": [1.0]}}, "loss has 1 values for 2 steps"),
            ({"steps": list(range(9, 60_009)), "values": {"a": [0.0] * 60_000, "b": []}}, "at most 100,000"),
        ],
    )
    def test_a_batch_that_is_not_consistent_is_refused(
        self, client: TestClient, world: World, body: dict[str, object], words: str
    ) -> None:
        path = f"/v1/jobs/{world.jobs['ann']}/indicators"
        refused = client.post(path, headers=world.headers("ann"), json=body)
        assert refused.status_code == 409
        assert words in refused.json()["detail"]

    def test_a_body_that_is_too_large_is_refused(self, client: TestClient, world: World) -> None:
        path = f"/v1/jobs/{world.jobs['ann']}/indicators"
        refused = client.post(path, headers=world.headers("ann"), content=b" " * (9 << 20))
        assert refused.status_code == 413


class TestProblems:
    def test_every_error_has_a_status_and_a_code(self) -> None:
        def tree(kind: type[errors.ScavengerError]) -> list[type[errors.ScavengerError]]:
            return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]

        of_project = [kind for kind in tree(errors.ScavengerError) if kind.__module__ == "scavenger.errors"]
        codes = set()
        for kind in of_project:
            error = Exception.__new__(kind)
            Exception.__init__(error, "where: what; do this")
            problem = problem_of(error)
            codes.add(problem.code)
            assert (problem.detail, problem.fix) == ("where: what; do this", "do this")
            assert problem.exit_code == kind.exit_code
            assert 400 <= problem.status < 600
        assert len(codes) == len(of_project)
        assert set(STATUSES) <= set(of_project)

    def test_no_secret_is_told(self) -> None:
        error = errors.ConfigurationError("postgresql://ann:hunter2secret@host/db cannot be read")
        assert "hunter2secret" not in problem_of(error).detail

    def test_an_unknown_path_and_method_are_problems_too(self, client: TestClient, world: World) -> None:
        for method, path, status in (("GET", "/nowhere", 404), ("PATCH", "/v1/jobs", 405)):
            answer = client.request(method, path, headers=world.headers("root"))
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"

    def test_a_refused_method_is_told_with_all_that_its_path_has(
        self, app: FastAPI, client: TestClient
    ) -> None:
        for path, item in app.openapi()["paths"].items():
            told = client.options(path.replace("{operation}", "1").replace("{token}", "1")).headers["allow"]
            assert {method.upper() for method in item} == set(told.split(", ")), path


class TestWriter:
    def test_writes_that_wait_are_one_transaction_and_a_failed_one_leaves_nothing(
        self, store: Store, world: World
    ) -> None:
        writer, before = Writer(store), len(store.submissions(1000))

        def tried(number: int) -> str:
            new = replace(
                submission("ann", world.job_file, f"burst-{number}"), idempotency_key=str(number // 2)
            )
            try:
                return writer.call(lambda: store.submit(new)).job.name
            except errors.ConfigurationError:
                return "refused"

        writer.start()
        with ThreadPoolExecutor(16) as pool:
            told = list(pool.map(tried, range(100)))
        writer.stop()
        # of two jobs with one key, the first is submitted; the other is told of it, as its content is the same
        assert len(store.submissions(1000)) == before + 50
        for first, second in zip(told[::2], told[1::2], strict=True):
            assert first == second
        assert writer.transactions < 100

    def test_after_its_end_nothing_is_written(self, store: Store) -> None:
        writer = Writer(store).start()
        writer.stop()
        with pytest.raises(errors.StoreError):
            writer.call(lambda: store.set_user("late", "user"))


class TestSubmission:
    def test_a_job_file_is_submitted_once_for_a_key(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        headers = {**world.headers("ann"), "Idempotency-Key": "once"}
        body = {"job_file": str(world.job_file), "objective": "cost", "budget": "$5", "priority": 2}
        first = client.post("/v1/jobs", headers=headers, json=body)
        assert first.status_code == 202
        made = first.json()["submission"]
        assert (made["user"], made["state"], made["name"]) == ("ann", "queued", "digits-cnn")
        kept = store.submission(made["id"])
        assert kept is not None
        assert (kept.job.spec["objective"], kept.job.reserved_usd, kept.job.priority) == ("cost", 5.0, 2)
        again = client.post("/v1/jobs", headers=headers, json=body)
        assert again.json()["submission"]["id"] == made["id"]
        other = client.post("/v1/jobs", headers=headers, json={**body, "objective": "time"})
        assert (other.status_code, "once" in other.json()["detail"]) == (409, True)
        of_bob = client.post("/v1/jobs", headers={**headers, **world.headers("bob")}, json=body)
        assert of_bob.json()["submission"]["id"] != made["id"]

    def test_requests_with_one_key_at_the_same_moment_are_one_submission(
        self, client: TestClient, store: Store, world: World
    ) -> None:
        headers = {**world.headers("ann"), "Idempotency-Key": "burst"}
        before = len(store.submissions(1000))

        def submit(_: int) -> str:
            made = client.post("/v1/jobs", headers=headers, json={"job_file": str(world.job_file)})
            return str(made.json()["submission"]["id"])

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(submit, range(16)))) == 1
        assert len(store.submissions(1000)) == before + 1

    @pytest.mark.parametrize("name", ["job.yaml", "/etc/passwd", "/nowhere/job.yaml", "/a\0b.yaml"])
    def test_what_is_no_job_file_is_refused(self, client: TestClient, world: World, name: str) -> None:
        refused = client.post("/v1/jobs", headers=world.headers("ann"), json={"job_file": name})
        assert refused.status_code == 409
        assert "root:" not in refused.text

    def test_a_fault_in_the_job_file_is_told_with_its_line(
        self, client: TestClient, world: World, tmp_path: Path
    ) -> None:
        (tmp_path / "job.yaml").write_text(JOB.replace("workers", "workres"))
        refused = client.post(
            "/v1/jobs", headers=world.headers("ann"), json={"job_file": str(tmp_path / "job.yaml")}
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "job_file")
        assert "job.yaml:4:10" in refused.json()["detail"]
