"""The commands that reach a running job, with a stand-in for the process that drives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cli_fake import Run
from scavenger_cli.ui import console
from warm_commands import Command

from scavenger.api import asking
from scavenger.domain import operation as op
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger.store.record_file import RECORD_FILE, RecordFile
from scavenger.store.records import OperationRecord

ROOT = Path(__file__).parents[2]
Answer = Callable[[Store, OperationRecord], object]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "POLL_S", 0.01)


@pytest.fixture
def job_id(store_url: str) -> str:
    """A running job, owned by this process."""
    with Store.open(store_url) as store:
        job = store.create_job("digits-cnn", spec={}, job_file="job.yaml")
        store.update_job(job.id, state="running")
        store.add_event(job.id, "phase", "long before")
    return job.id


@contextmanager
def driven(store_url: str, job_id: str, answer: Answer) -> Iterator[list[op.Operation]]:
    """Takes one operation and answers it, as the driver would between two steps; what it took."""
    taken: list[op.Operation] = []
    leave = threading.Event()

    def drive() -> None:
        with Store.open(store_url) as store:
            while not leave.wait(0.01):
                if (operation := store.next_operation(job_id)) is not None:
                    taken.append(operation.operation)
                    answer(store, operation)
                    return

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield taken
    finally:
        leave.set()
        thread.join()


def done(store: Store, operation: OperationRecord) -> None:
    store.add_event(operation.job_id, "view", "view 3 from step 90\x1b[2J", level="warning")
    store.end_operation(operation.id, "done", "view 3 from step 90")


@pytest.mark.parametrize(
    ("arguments", "operation"),
    [
        (("scale", "--workers", 4), op.ScaleTo(4)),
        (("scale", "-k", 1), op.ScaleTo(1)),
        (("scale", "--add", 2), op.ScaleOut(2)),
        (("scale", "--remove", "w1", "--remove", "w2,w3"), op.ScaleIn(("w1", "w2", "w3"))),
        (("scale", "--aggregators", 1), op.ScaleAggregators(1)),
        (("migrate",), op.Migrate()),
        (("migrate", "--worker", "w0"), op.Migrate(("w0",))),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_the_options_say_reaches_the_driver(
    scavenger: Run, store_url: str, job_id: str, arguments: tuple[object, ...], operation: op.Operation
) -> None:
    with driven(store_url, job_id, done) as taken:
        code, out, err = scavenger(arguments[0], "digits-cnn", *arguments[1:])

    assert (code, taken) == (0, [operation])
    assert out.endswith(": done: view 3 from step 90\n")
    assert "view: warning: view 3 from step 90" in err
    assert "\x1b" not in err
    assert "long before" not in err


def test_json_is_one_document_and_names_who_asked(scavenger: Run, store_url: str, job_id: str) -> None:
    with driven(store_url, job_id, done):
        code, out, _ = scavenger("scale", job_id[:8], "--workers", 4, "-o", "json")
    document = json.loads(out)

    assert (code, document["schema_version"], document["job"]["id"]) == (0, 1, job_id)
    assert document["operation"]["operation"] == {"kind": "scale_to", "workers": 4}
    assert document["operation"]["state"] == "done"
    assert document["operation"]["requested_by"].endswith(f"@{socket.gethostname()}")


@pytest.mark.parametrize(("verdict", "code"), [("refused", 2), ("failed", 3)])
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_answer_that_is_no_yes_is_an_error_with_its_reason(
    scavenger: Run, store_url: str, job_id: str, verdict: str, code: int, form: str
) -> None:
    def answer(store: Store, operation: OperationRecord) -> None:
        store.end_operation(operation.id, verdict, "elastic.max is 2")  # type: ignore[arg-type]

    with driven(store_url, job_id, answer):
        found, out, err = scavenger("scale", job_id, "--workers", 9, "-o", form)

    assert found == code
    assert err.splitlines()[-1].endswith(f"asked to scale to 9 workers: {verdict}: elastic.max is 2")
    if form == "json":
        assert json.loads(out)["operation"]["message"] == "elastic.max is 2"
    else:
        assert out == ""


def test_a_stop_is_waited_for_until_the_job_has_ended(scavenger: Run, store_url: str, job_id: str) -> None:
    def answer(store: Store, operation: OperationRecord) -> None:
        assert operation.operation == op.StopJob(save=False)
        store.end_operation(operation.id, "done", "stopping")
        time.sleep(0.1)  # a wait that gives up too soon would see the job run
        store.finish_job(job_id, state="interrupted", report=None, exit_code=130)

    with driven(store_url, job_id, answer):
        code, out, _ = scavenger("stop", job_id, "--no-save", "-o", "json")

    assert (code, json.loads(out)["job"]["state"]) == (0, "interrupted")


def test_without_waiting_the_request_stands_and_a_second_is_told_to_retry(
    scavenger: Run, store_url: str, job_id: str
) -> None:
    code, out, err = scavenger("scale", job_id, "--add", 1, "--no-wait")
    assert (code, err) == (0, "")
    assert "asked to add 1 worker: requested" in out

    code, out, err = scavenger("stop", job_id, "-o", "json")
    assert (code, json.loads(out)["exit_code"]) == (3, 3)
    assert "try again" in err
    with Store.open(store_url) as store:
        assert [each.operation for each in store.operations(job_id)] == [op.ScaleOut(1)]


def test_what_nobody_takes_in_time_is_withdrawn(scavenger: Run, store_url: str, job_id: str) -> None:
    code, out, err = scavenger("migrate", job_id, "--timeout", "50ms")

    assert (code, out) == (3, "")
    assert "no answer within 50 ms; the request was withdrawn, and nothing was changed" in err
    with Store.open(store_url) as store:
        assert store.open_operation(job_id) is None


def test_what_is_under_way_when_time_is_up_goes_on(scavenger: Run, store_url: str, job_id: str) -> None:
    with driven(store_url, job_id, lambda store, operation: None):
        code, _, err = scavenger("scale", job_id, "--workers", 2, "--timeout", "300ms")

    assert code == 3
    assert "the job is still working on it" in err
    with Store.open(store_url) as store:
        still = store.open_operation(job_id)
        assert still is not None
        assert still.state == "running"


def test_a_job_that_dies_meanwhile_ends_the_waiting(store_url: str, scavenger: Run) -> None:
    code = (
        "import sys; from scavenger.store import Store; store = Store.open(sys.argv[1])\n"
        "job = store.create_job('dies', spec={}, job_file='job.yaml')\n"
        "print(flush=True)\n"
        "while store.next_operation(job.id) is None: pass\n"
        "sys.exit(0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code, store_url], env=environment, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found, _, err = scavenger("scale", "dies", "--workers", 2)

    assert found == 3
    assert "ended unexpectedly" in err


def test_ctrl_c_stops_the_waiting_and_says_what_is_left(store_url: str, job_id: str) -> None:
    child = Command(
        [sys.executable, "-m", "scavenger_cli", "scale", job_id, "--workers", "2"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"},
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    assert "Ctrl-C stops the waiting" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)

    assert child.returncode == 130
    assert "stopped waiting; the request was withdrawn" in said
    assert "Traceback" not in said


def test_a_limit_may_be_a_plain_number_of_seconds(scavenger: Run, store_url: str, job_id: str) -> None:
    code, _, err = scavenger("migrate", job_id, "--timeout", "0.05")

    assert code == 3
    assert "no answer within 50 ms" in err


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("scale",), "give one of --workers N, --add N, --remove ID and --aggregators N"),
        (("scale", "--workers", 2, "--add", 1), "give one of"),
        (("scale", "--workers", 0), "greater than or equal to 1"),
        (("scale", "--workers", 10**9), "at most 4,096 workers"),
        (("scale", "--remove", "w1,w1"), "names a worker twice"),
        (("migrate", "--worker", "w 1"), "is no worker's id"),
        (("stop", "--timeout", "soon"), "--timeout must be a duration"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_asked_is_one_line_and_exit_2(
    scavenger: Run, store_url: str, job_id: str, arguments: tuple[object, ...], fragment: str
) -> None:
    code, out, err = scavenger(arguments[0], job_id, *arguments[1:])

    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert fragment in err
    with Store.open(store_url) as store:
        assert store.operations(job_id) == ()


def test_a_job_that_has_ended_cannot_be_asked(scavenger: Run, store_url: str, job_id: str) -> None:
    with Store.open(store_url) as store:
        store.update_job(job_id, checkpoint="/ckpt")
        store.finish_job(job_id, state="stopped", report=None, exit_code=5)
    code, _, err = scavenger("scale", job_id, "--workers", 2)

    assert code == 2
    assert f"it has ended as stopped; `scavenger resume {job_id[:8]}`" in err


class TestStatus:
    def test_names_every_process_and_what_the_job_was_asked(
        self, scavenger: Run, store_url: str, job_id: str
    ) -> None:
        with Store.open(store_url) as store:
            known = {"role": "worker", "state": "training", "pid": 4711, "host": "node-7"}
            store.set_process(job_id, "w0", **known, step=12, view=3)  # type: ignore[misc,arg-type]
            store.set_process(job_id, "w1", role="worker", state="lost", detail="was killed\x1b[2J")
            store.submit_operation(job_id, op.ScaleTo(4), "ann@host")
        _, out, _ = scavenger("status", job_id)
        row = next(line for line in out.splitlines() if line.startswith("w0"))

        assert row.split() == ["w0", "worker", "4711", "node-7", "3", "training", "12"]
        assert "was killed" in out
        assert "\x1b" not in out
        assert f"run by      process {os.getpid()} on {socket.gethostname()}" in out
        assert "scale to 4 workers  pending  asked by ann@host" in " ".join(out.split(" "))
        assert max(map(len, out.splitlines())) <= 80

        document = json.loads(scavenger("status", job_id, "-o", "json")[1])
        first = document["processes"][0]
        told = {name: first[name] for name in ("process", "role", "pid", "host", "view", "state", "step")}
        assert told == {"process": "w0", "view": 3, "step": 12, **known}
        assert document["operations"][0]["operation"] == {"kind": "scale_to", "workers": 4}

    def test_of_a_job_that_has_ended_shows_only_what_was_lost(
        self, scavenger: Run, store_url: str, job_id: str
    ) -> None:
        with Store.open(store_url) as store:
            store.set_process(job_id, "w0", role="worker", state="training")
            store.set_process(job_id, "w1", role="worker", state="lost", detail="no word for 10 s")
            store.finish_job(job_id, state="failed", report=None, error="no workers", exit_code=3)
        out = scavenger("status", job_id)[1]

        assert "no word for 10 s" in out
        assert "w0" not in out


class TestResume:
    @pytest.fixture
    def failed(self, store_url: str, job_id: str) -> str:
        with Store.open(store_url) as store:
            store.update_job(job_id, checkpoint="/ckpt")
            store.finish_job(job_id, state="failed", report=None, error="w1 raised", exit_code=6)
        return job_id

    def test_renders_what_optimize_renders(self, scavenger: Run, failed: str, job_file: Path) -> None:
        code, out, err = scavenger("resume", failed[:8], "--yes")

        assert code == 0
        assert (out, err) == scavenger("optimize", job_file, "--yes")[1:]

    def test_begins_the_stored_job_again(self, scavenger: Run, store_url: str, failed: str) -> None:
        assert scavenger("resume", "digits-cnn", "--yes", "-o", "json")[0] == 0
        with Store.open(store_url) as store:
            assert (store.job(failed).state, store.job(failed).attempts) == ("starting", 2)

    def test_asks_before_it_spends(self, scavenger: Run, store_url: str, failed: str) -> None:
        code, _, err = scavenger("resume", failed)

        assert code == 2
        assert "--yes" in err
        with Store.open(store_url) as store:
            assert store.job(failed).state == "failed"

    def test_refuses_a_job_that_runs_and_one_that_is_done(
        self, scavenger: Run, store_url: str, job_id: str
    ) -> None:
        code, _, err = scavenger("resume", job_id, "--yes")
        assert (code, "it runs, driven by process" in err) == (3, True)

        with Store.open(store_url) as store:
            store.finish_job(job_id, state="succeeded", report=None, exit_code=0)
        code, _, err = scavenger("resume", job_id, "--yes")
        assert (code, "nothing is left to do" in err) == (2, True)

    def test_a_job_of_another_account_must_be_named_by_its_id(
        self, scavenger: Run, store_url: str, failed: str, owned_by: Callable[..., None]
    ) -> None:
        owned_by(failed, "eve", 4242)
        code, _, err = scavenger("resume", "digits-cnn", "--yes")

        assert code == 2
        assert f"digits-cnn ({failed[:8]}) belongs to eve@{socket.gethostname()} (uid 4242)" in err
        assert f"`scavenger resume {failed[:8]}`" in err
        with Store.open(store_url) as store:
            assert store.job(failed).state == "failed"

    def test_a_job_of_another_account_needs_a_confirmation(
        self,
        scavenger: Run,
        store_url: str,
        failed: str,
        owned_by: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        owned_by(failed, "eve", 4242)
        assert scavenger("resume", failed)[0] == 2  # no terminal to confirm it on
        monkeypatch.setattr(console, "is_interactive", lambda: True)
        monkeypatch.setattr(console, "ask", lambda question: False)
        assert scavenger("resume", failed)[0] == 0
        with Store.open(store_url) as store:
            assert store.job(failed).state == "failed"

        code, _, err = scavenger("resume", failed[:8], "--yes")
        assert (code, "runs, under your account, the training code" in err) == (0, True)
        with Store.open(store_url) as store:
            assert store.job(failed).owner.is_same_account(this_process())
        assert scavenger("status", failed, "-o", "json")[1].count('"eve"') == 0

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "owner", [(None, None), ("root", 0), ("eve", os.getuid())], ids=["unrecorded", "root", "same number"]
    )
    def test_an_account_is_the_same_only_in_name_number_and_host(
        self, scavenger: Run, failed: str, owned_by: Callable[..., None], owner: tuple[str | None, int | None]
    ) -> None:
        owned_by(failed, *owner, host="elsewhere")

        assert scavenger("resume", "digits-cnn", "--yes")[0] == 2
        assert "elsewhere" in scavenger("status")[1]
        assert f"{owner[0] or '?'}@elsewhere" in scavenger("status", failed)[1]


def test_a_record_is_restored_once_from_the_folder_of_its_job(
    scavenger: Run, store_url: str, job_id: str, tmp_path: Path
) -> None:
    folder, path = tmp_path / job_id, Path(store_url.removeprefix("sqlite:///"))
    folder.mkdir()
    with Store.open(store_url) as store:
        RecordFile(folder / RECORD_FILE, store.job(job_id))
    path.unlink()

    assert scavenger("store", "recover", folder)[:2] == (
        0,
        f"digits-cnn ({job_id[:8]}), running: recovered\n",
    )
    assert scavenger("store", "recover", folder)[1].endswith("is on record already\n")
    assert "the record was restored from" in scavenger("status", job_id)[1]
    code, _, err = scavenger("store", "recover", tmp_path)
    assert (code, "is not the folder of a job: record.json" in err) == (2, True)


@pytest.fixture
def owned_by(store_url: str) -> Callable[..., None]:
    """Changes the owner on record of a job that has ended."""

    def change(job_id: str, user: str | None, uid: int | None, host: str = "") -> None:
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(
                "UPDATE jobs SET owner_installation = NULL, owner_user = ?, owner_uid = ?, owner_host = ? WHERE id = ?",
                (user, uid, host or socket.gethostname(), job_id),
            )

    return change
