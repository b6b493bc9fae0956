"""Who may see and change what in the dashboard, and what browsers are sent."""

from __future__ import annotations

import gzip
import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from server_world import JOB, World, end_runner, submission
from starlette.testclient import TestClient

from scavenger.api.preparing import prepared
from scavenger.api.preview import expected_words
from scavenger.domain.operation import Migrate, ScaleTo, StopJob
from scavenger.domain.report import Actual, Predicted
from scavenger.policy.admission import QueueLimits
from scavenger.server.app import create_app
from scavenger.server.dashboard import routes, submission_routes
from scavenger.store import Store

OWN = {"Origin": "http://127.0.0.1:8765"}
FORM = {**OWN, "Content-Type": "application/x-www-form-urlencoded"}


def login(client: TestClient, world: World, user: str) -> TestClient:
    answer = client.get("/login", params={"token": world.tokens[user]}, follow_redirects=False)
    assert answer.headers["location"] == "/"
    return client


def test_every_page_needs_a_token_and_says_how_to_get_one(client: TestClient) -> None:
    paths = {
        (method, route.path)
        for route in (*routes.router.routes, *submission_routes.router.routes)
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert len(paths) > 10
    for method, path in paths:
        answer = client.request(method, re.sub(r"\{\w+\}", "1", path), headers=OWN)
        assert (path, answer.status_code) == (path, 404 if path in routes.OPEN_PATHS else 401)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "problem" in answer.text
        assert path in routes.OPEN_PATHS or "scavenger api token" in answer.text


def test_pages_load_their_own_scripts_only(client: TestClient, world: World) -> None:
    page = login(client, world, "ann").get(f"/jobs/{world.jobs['ann']}")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    # with `no-referrer`, as the API has it, a browser's forms come with the origin `null`, and are refused
    assert page.headers["referrer-policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]* src=\"/static/)", page.text)
    assert not re.search(r"\son\w+=|javascript:|https?://", page.text)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
        sent = client.get(path, headers={"Accept-Encoding": "gzip"})
        assert sent.status_code == 200
        assert "immutable" in sent.headers["cache-control"]
        assert sent.headers["x-content-type-options"] == "nosniff"
        assert sent.content
    assert client.get(re.sub(r"/static/\w+/", "/static/0/", path)).status_code == 404
    assert gzip.decompress(routes.asset("dashboard.js").compressed)  # type: ignore[union-attr]


def test_another_users_job_is_not_found_in_the_words_of_one_that_is_not_there(
    client: TestClient, world: World
) -> None:
    login(client, world, "ann")
    job = world.jobs["bob"]
    for path in (f"/jobs/{job}", f"/jobs/{job}/live", f"/jobs/{job}/tables", f"/jobs/{job}/figures"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "bob-secret" not in answer.text
    assert client.post(f"/jobs/{job}/operate", content="what=stop", headers=FORM).status_code == 404
    listed = client.get("/").text
    assert "ann-secret" in listed
    assert "bob-secret" not in listed
    assert "bob-secret" in login(client, world, "eve").get("/").text  # a viewer sees all


def test_a_job_is_scaled_and_stopped_after_a_question(client: TestClient, world: World, store: Store) -> None:
    login(client, world, "ann")
    job = world.jobs["ann"]
    page = client.get(f"/jobs/{job}")
    assert f'action="/jobs/{job}/confirm"' in page.text
    question = client.get(f"/jobs/{job}/confirm", params={"what": "scale", "workers": "3"})
    assert "Scale to 3 workers" in question.text
    assert store.operations(job, limit=5) == ()
    done = client.post(
        f"/jobs/{job}/operate", content="what=scale&workers=3", headers=FORM, follow_redirects=False
    )
    assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{job}")
    (asked,) = store.operations(job, limit=5)
    assert (asked.operation, asked.requested_by) == (ScaleTo(3), "ann (dashboard)")
    busy = client.post(f"/jobs/{job}/operate", content="what=stop", headers=FORM)
    assert busy.status_code == 409
    assert 'role="alert"' in busy.text
    store.end_operation(asked.id, "done", "")
    client.post(f"/jobs/{job}/operate", content="what=stop", headers=FORM)
    assert store.operations(job, limit=5)[-1].operation == StopJob()


def test_a_job_is_migrated_and_a_request_is_withdrawn_after_a_question(
    client: TestClient, world: World, store: Store
) -> None:
    login(client, world, "ann")
    job = world.jobs["ann"]
    path = f"/jobs/{job}"
    assert "Withdraw the request" not in client.get(path).text
    assert "Migrate every worker" in client.get(f"{path}/confirm", params={"what": "migrate"}).text
    client.post(f"{path}/operate", content="what=migrate", headers=FORM)
    (asked,) = store.operations(job, limit=5)
    assert asked.operation == Migrate()
    assert f'name="operation" value="{asked.id}"' in client.get(path).text
    wanted = {"what": "withdraw", "operation": str(asked.id)}
    assert "request to migrate every worker" in client.get(f"{path}/confirm", params=wanted).text
    other = f"/jobs/{world.jobs['bob']}/operate"
    assert client.post(other, content=urlencode(wanted), headers=FORM).status_code == 404
    client.post(f"{path}/operate", content=urlencode(wanted), headers=FORM)
    assert store.operation(asked.id).message == "withdrawn by ann before the job started it"
    assert client.get(f"{path}/confirm", params=wanted).status_code == 409
    for number in ("", "x", "9" * 30, "0"):
        body = urlencode({"what": "withdraw", "operation": number})
        assert client.post(f"{path}/operate", content=body, headers=FORM).status_code == 404


def test_a_job_is_resumed_and_one_that_waits_is_withdrawn_after_a_question(
    client: TestClient, world: World, store: Store
) -> None:
    login(client, world, "ann")
    job = world.jobs["ann"]
    assert client.post(f"/jobs/{job}/operate", content="what=resume", headers=FORM).status_code == 409
    store.update_job(job, checkpoint="/jobs/checkpoint")
    store.finish_job(job, state="stopped", report=None, exit_code=0)
    assert "Resume…" not in client.get(f"/jobs/{job}").text  # its runner has not ended
    end_runner(store, job)
    assert "Resume…" in client.get(f"/jobs/{job}").text
    assert "goes on from its last checkpoint" in client.get(f"/jobs/{job}/confirm?what=resume").text
    client.post(f"/jobs/{job}/operate", content="what=resume", headers=FORM)
    resumed = store.submission(job)
    assert resumed is not None
    assert resumed.state == "queued"
    waiting = store.submit(submission("ann", world.job_file, "later"))
    assert "Withdraw…" in client.get(f"/jobs/{waiting.id}").text
    assert "Withdraw later from the queue" in client.get(f"/jobs/{waiting.id}/confirm?what=cancel").text
    login(client, world, "bob")
    body = {"content": "what=cancel", "headers": FORM}
    assert client.post(f"/jobs/{waiting.id}/operate", **body).status_code == 404  # type: ignore[arg-type]
    login(client, world, "eve")
    assert "Withdraw…" not in client.get(f"/jobs/{waiting.id}").text
    login(client, world, "ann")
    client.post(f"/jobs/{waiting.id}/operate", **body)  # type: ignore[arg-type]
    withdrawn = store.submission(waiting.id)
    assert withdrawn is not None
    assert withdrawn.state == "cancelled"


def test_a_missed_target_is_given_more_epochs_on_the_page(
    client: TestClient, world: World, store: Store
) -> None:
    login(client, world, "root")
    spec = {"version": 1, "name": "far", "train": "train:job", "goal": {"max_epochs": 9}}
    job = store.create_job("far", spec=spec, job_file=str(world.job_file)).id
    store.update_job(job, checkpoint="/jobs/checkpoint")
    store.finish_job(job, state="target_missed", report=None, exit_code=0)
    assert "Resume…" in client.get(f"/jobs/{job}").text
    page = client.get(f"/jobs/{job}/confirm?what=resume").text
    assert 'name="max_epochs" placeholder="9" maxlength="40" required' in page
    for epochs in ("", "9", "x"):
        body = urlencode({"what": "resume", "max_epochs": epochs})
        assert client.post(f"/jobs/{job}/operate", content=body, headers=FORM).status_code == 409
    assert 'name="output" placeholder=".scavenger" maxlength="4000">' in page
    output = str(world.job_file.parent / "elsewhere")
    body = urlencode({"what": "resume", "max_epochs": "12", "budget": "", "deadline": "", "output": output})
    client.post(f"/jobs/{job}/operate", content=body, headers=FORM)
    resumed = store.submission(job)
    assert resumed is not None
    assert (resumed.job.spec["goal"]["max_epochs"], resumed.job.spec["output"]) == (12, output)


def test_budgets_tell_what_is_used_and_set_aside(store: Store, world: World) -> None:
    """A user sees their own; who sees all jobs also sees the total."""
    limits = QueueLimits(budget_usd=10.0, user_budgets_usd={"ann": 0.5})
    with TestClient(create_app(store, limits=limits), base_url="http://127.0.0.1:8765") as client:
        mine = login(client, world, "ann").get("/budgets").text
        assert "bob" not in mine
        assert "all users" not in mine
        assert "$0.50 of $0.50 (100 %)" in mine
        everybody = login(client, world, "eve").get("/budgets/live").text
        assert "bob" in everybody
        assert "$1.00 of $10.00 (10 %)" in everybody
        assert "no limit" in everybody


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Origin": "http://evil.example"}, "what=stop", 403),
        ({}, "what=stop", 403),
        (FORM, "what=dance", 409),
        (FORM, "\xff", 422),
        (FORM, "a=1" + "&a=1" * 50, 422),
        (FORM, "what=stop&x=" + "x" * (1 << 18), 413),
    ],
)
def test_a_foreign_or_malformed_form_changes_nothing(
    client: TestClient, world: World, store: Store, headers: dict[str, str], body: str, status: int
) -> None:
    login(client, world, "ann")
    job = world.jobs["ann"]
    answer = client.post(f"/jobs/{job}/operate", content=body.encode("latin-1"), headers=headers)
    assert answer.status_code == status
    assert store.operations(job, limit=5) == ()


def test_a_viewer_sees_no_forms_and_changes_nothing(client: TestClient, world: World, store: Store) -> None:
    login(client, world, "eve")
    job = world.jobs["ann"]
    assert "/confirm" not in client.get(f"/jobs/{job}").text
    assert client.post(f"/jobs/{job}/operate", content="what=stop", headers=FORM).status_code == 403
    assert store.operations(job, limit=5) == ()


def test_what_has_not_changed_is_not_sent_again(client: TestClient, world: World) -> None:
    login(client, world, "ann")
    path = f"/jobs/{world.jobs['ann']}/figures"
    first = client.get(path)
    assert client.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code in (200, 304)
    tag = client.get("/models/figures").headers["etag"]
    again = client.get("/models/figures", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_a_list_of_many_jobs_has_pages_that_lack_none_and_repeat_none(
    client: TestClient, world: World, store: Store
) -> None:
    made = set()
    for number in range(120):
        job = store.create_job(f"many-{number}", spec={}, job_file=world.job_file)
        made.add(job.id)
    login(client, world, "root")
    path, seen = "/?name=many-*", []
    for _ in range(4):
        text = client.get(path).text
        seen += re.findall(r'href="/jobs/([0-9a-f-]{36})"', text)
        following = re.search(r'<a href="([^"]+)" rel="next">', text)
        if following is None:
            break
        path = following[1].replace("&amp;", "&")
        assert parse_qs(urlsplit(path).query)["name"] == ["many-*"]
    assert len(seen) == 120
    assert set(seen) == made
    assert client.get("/?cursor=nonsense").status_code == 409


def test_a_submission_that_waits_is_shown_until_its_job_is_on_record(
    client: TestClient, world: World, store: Store
) -> None:
    waiting = store.submit(submission("ann", world.job_file, "patient"))
    login(client, world, "ann")
    assert "patient" in client.get("/").text
    assert "queued" in client.get(f"/jobs/{waiting.id}").text
    login(client, world, "bob")
    assert "patient" not in client.get("/").text
    assert client.get(f"/jobs/{waiting.id}").status_code == 404


def test_the_other_pages_answer(client: TestClient, world: World, app: FastAPI) -> None:
    login(client, world, "ann")
    for path, words in (
        ("/pools", "one job at a time has all of them"),
        ("/vms", "No VM is rented"),
        ("/models", "No models yet"),
        ("/vms/live", "as of"),
    ):
        answer = client.get(path)
        assert answer.status_code == 200
        assert words in answer.text


class TestTour:
    """Who sees no job yet is told what this is, what to type, and where to go on."""

    def test_it_stands_where_no_job_is_and_nowhere_else(
        self, client: TestClient, world: World, store: Store
    ) -> None:
        assert "tour-title" not in login(client, world, "ann").get("/").text
        store.set_user("carl", "user")
        client.get("/login", params={"token": store.new_token("carl", "test")[1]})
        page = client.get("/").text
        assert re.findall(r"<li><code>(.*?)</code>", page) == [
            "scavenger demo",
            "scavenger optimize train.py",
            "scavenger optimize job.yaml --detach",
        ]
        assert "docs/tutorials/quickstart.md" in page
        assert 'href="/submit"' in page
        assert "/submit/demo" not in page  # which writes files, as an admin may
        assert client.get("/live").text in page
        assert "No job matches" in client.get("/", params={"name": "none"}).text

    def test_an_admin_sees_the_plan_of_the_demo_and_submits_it(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with Store.open(f"sqlite:///{tmp_path}/empty.db") as empty:
            empty.set_user("root", "admin")
            empty.set_user("ann", "user")
            tokens = {name: empty.new_token(name, "test")[1] for name in ("root", "ann")}
            with TestClient(create_app(empty), base_url="http://127.0.0.1:8765") as client:
                client.get("/login", params={"token": tokens["ann"]})
                assert client.post("/submit/demo", content="", headers=FORM).status_code == 403
                assert list(tmp_path.glob("scavenger-demo")) == []
                client.get("/login", params={"token": tokens["root"]})
                assert 'action="/submit/demo"' in client.get("/").text
                for _ in range(2):
                    plan = client.post("/submit/demo", content="", headers=FORM)
                    assert plan.status_code == 200
                    assert "Submit digits" in plan.text
                assert {one.name for one in (tmp_path / "scavenger-demo").iterdir()} >= {
                    "job.yaml",
                    "train.py",
                }
                assert empty.submissions(10) == ()
                hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', plan.text)
                client.post("/submit/confirm", content=urlencode(hidden), headers=FORM)
                (made,) = empty.submissions(10)
                assert made.job.job_file == str(tmp_path / "scavenger-demo" / "job.yaml")


class TestSubmission:
    """A job file by its path, or with its text, becomes a plan, and after a confirmation a submission."""

    def test_nothing_is_submitted_or_saved_before_the_confirmation_and_then_once(
        self, client: TestClient, world: World, store: Store, tmp_path: Path
    ) -> None:
        login(client, world, "root")
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "train.py").write_text("")
        path, before = folder / "job.yaml", len(store.submissions(100))
        fields = {"path": str(path), "text": JOB.replace("digits-cnn", "pasted")}
        plan = client.post("/submit", content=urlencode(fields), headers=FORM)
        assert plan.status_code == 200
        for words in ("Submit pasted?", "K 1, 2", "val_accuracy reaches 0.97", "an hour each", "no budget"):
            assert words in plan.text
        assert len(store.submissions(100)) == before
        assert [one.name for one in folder.iterdir()] == ["train.py"]
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', plan.text))
        confirmed = urlencode({name: unescape(value) for name, value in hidden.items()})
        for _ in range(2):
            done = client.post("/submit/confirm", content=confirmed, headers=FORM, follow_redirects=False)
            assert done.status_code == 303
        made = store.submissions(100)
        assert len(made) == before + 1
        assert (made[0].job.name, made[0].job.user) == ("pasted", "root")
        assert path.read_text() == fields["text"]
        assert path.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("version: 1\nnmae: x\n", "nmae"),
            ("a: [", "job.yaml"),
            (JOB.replace("train:", "train: no_"), "no_"),
        ],
    )
    def test_a_fault_in_the_text_is_told_beside_it(
        self, client: TestClient, world: World, tmp_path: Path, text: str, words: str
    ) -> None:
        login(client, world, "root")
        form = urlencode({"path": f"{tmp_path}/job.yaml", "text": text})
        answer = client.post("/submit", content=form, headers=FORM)
        assert answer.status_code == 422
        assert words in answer.text
        assert "preview" not in answer.text
        assert unescape(answer.text).count(text.splitlines()[0])

    def test_no_file_is_overwritten_and_only_an_admin_saves_any(
        self, client: TestClient, world: World, store: Store, tmp_path: Path
    ) -> None:
        path = tmp_path / "job.yaml"
        path.write_text("precious: true\n")
        form = urlencode({"path": str(path), "text": JOB, "key": "k"})
        before = len(store.submissions(100))
        for user, status in (("root", 409), ("ann", 403), ("eve", 403)):
            login(client, world, user)
            assert client.post("/submit/confirm", content=form, headers=FORM).status_code == status
        assert path.read_text() == "precious: true\n"
        assert len(store.submissions(100)) == before

    def test_a_user_submits_a_file_that_is_there(
        self, client: TestClient, world: World, store: Store
    ) -> None:
        login(client, world, "ann")
        assert "textarea" not in client.get("/submit").text
        form = urlencode({"path": str(world.job_file), "text": "", "key": "k"})
        assert "Submit digits-cnn?" in client.post("/submit", content=form, headers=FORM).text
        done = client.post("/submit/confirm", content=form, headers=FORM, follow_redirects=False)
        assert done.headers["location"] == f"/jobs/{store.submissions(1)[0].id}"
        for path in ("relative.yaml", "/etc/passwd", "/x\0.yaml", ""):
            wrong = urlencode({"path": path, "text": ""})
            assert client.post("/submit", content=wrong, headers=FORM).status_code == 422

    def test_the_plan_begins_with_the_dollars_and_the_time_that_are_known(
        self, client: TestClient, world: World, store: Store
    ) -> None:
        login(client, world, "ann")
        form = urlencode({"path": str(world.job_file), "text": "", "key": "k"})

        def total() -> str:
            page = unescape(client.post("/submit", content=form, headers=FORM).text)
            shown = re.search(r'<p class="total" id="total">Total: (.*)\.</p>', page)
            assert shown is not None
            asked = {"job_file": str(world.job_file)}
            told = client.post("/v1/preview", json=asked, headers=OWN).json()["rows"]
            assert told[0] == ["total", shown[1]]  # as the command has it
            return shown[1]

        assert total().startswith("not known before the search, which measures 20 steps")
        job = prepared(world.job_file)
        predicted = Predicted(380.0, (210.0, 780.0), 0.025, (0.012, 0.053), 0.1, 5.0, 5.0, 0.0041)
        for spec in (
            job.job.written(),
            {**job.job.written(), "objective": "cost"},
        ):  # the last is another job
            queued = store.submit(submission("ann", world.job_file))
            store.create_job(job.job.name, spec=spec, job_file=world.job_file, job_id=queued.id)
            store.start_runner(queued.id, "", None)
            store.update_job(queued.id, predicted=predicted)
            done = store.finish_job(queued.id, state="planned", report=None, exit_code=0)
            if spec == job.job.written():
                plan = done
        words = total()
        assert words == expected_words(job, plan)
        assert words.startswith("You will pay about $0.025 (90 %: $0.012 to $0.053) in 6 min 20 s")
        assert "starting $0.0041, training $0.0209" in words
        assert f"by plan {plan.id[:8]}" in words
        page = client.get(f"/jobs/{plan.id}").text
        assert "You will pay about $0.025" in page
        assert 'action="/submit"' in page

        queued = store.submit(submission("ann", world.job_file))
        store.create_job(job.job.name, spec=job.job.written(), job_file=world.job_file, job_id=queued.id)
        store.start_runner(queued.id, "", None)
        actual = Actual(400.0, 0.03, 0.1, 5.0)
        store.finish_job(queued.id, state="succeeded", report=None, exit_code=0, actual=actual)
        assert total().startswith("about what the last run of this file paid: $0.03 in 6 min 40 s")
        login(client, world, "bob")
        assert total().startswith("not known before")  # what others paid is theirs

    @pytest.mark.parametrize(("answer", "runs"), [("yes", True), ("no", False)])
    def test_the_search_alone_is_submitted_as_a_plan(
        self, client: TestClient, world: World, store: Store, answer: str, runs: bool
    ) -> None:
        login(client, world, "ann")
        form = urlencode({"path": str(world.job_file), "text": "", "key": answer, "run": answer})
        client.post("/submit/confirm", content=form, headers=FORM)
        assert store.submissions(1)[0].job.run is runs
