"""The same commands, against a store and against a server over the same store, print the same."""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fake import FakeProvider, install
from nested import built
from scavenger_cli.leftovers import BY_SERVER, OF_THIS_MACHINE, WHY_NOT
from scavenger_cli.main import app, main
from server_world import World, end_runner, submission
from typer.main import get_command
from waiting import wait_for

from scavenger import Client, RunningJob
from scavenger.control.provisioning import clean_up
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.intent import FleetSpec, PlacementOption, VmSlot
from scavenger.domain.measurement import Measurement, Profile
from scavenger.domain.operation import ScaleOut, ScaleTo, StopJob
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmSeen
from scavenger.errors import ConfigurationError, NotSupportedError
from scavenger.models.job_model import JobModel
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger.store.records import Verdict
from scavenger.store.schema import RestoreRow
from tests.golden.documents import POOL, filled

Outputs = tuple[int, str, str]
Both = Callable[..., tuple[Outputs, Outputs]]


@pytest.fixture
def jobs(store: Store, world: World, logs: Path) -> dict[str, str]:
    """Ids of a running job, one that has succeeded with a curve, and one that waits."""
    return filled(store, world)


@pytest.fixture
def both(
    store: Store,
    world: World,
    jobs: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Both]:
    """Runs a command against the store, then against a real server over it, as an admin."""
    monkeypatch.setattr("scavenger.train.pool.connection.load_of", lambda _: POOL)
    monkeypatch.setattr("typer.main.get_command", functools.cache(get_command))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Outputs:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    with serving(store, ServerSettings(port=0)) as url:

        def call(*arguments: object) -> tuple[Outputs, Outputs]:
            monkeypatch.delenv("SCAVENGER_SERVER", raising=False)
            monkeypatch.setenv("SCAVENGER_STORE", store.url)
            here = run(*arguments)
            monkeypatch.setenv("SCAVENGER_SERVER", url)
            monkeypatch.setenv("SCAVENGER_TOKEN", world.tokens["root"])
            monkeypatch.setenv("SCAVENGER_STORE", f"sqlite:///{tmp_path}/none.db")
            there = run(*arguments)
            assert not (tmp_path / "none.db").exists()  # no command opens a store beside the server
            return here, there

        yield call


READS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", "--state", "succeeded", "--name", "tr*"),
    ("status", "{running}"),
    ("status", "trained"),
    ("status", "{waiting}"),
    ("status", "unknown"),
    ("status", "trained", "-f"),
    ("jobs", "queue"),
    ("pool",),
    ("pool", "none"),
    ("pool", "explain", "{running}"),
    ("pool", "explain", "{waiting}"),
    ("pool", "explain", "trained"),
    ("pool", "what-if", "{job_file}"),
    ("pool", "pause", "{waiting}"),
    ("simulate", "--history", "30d", "--policy", "even"),
    ("hosts", "{running}"),
    ("hosts", "unknown"),
    ("logs", "{running}", "-n", "1"),
    ("logs", "{running}", "--process", "w0"),
    ("logs", "{running}", "--process", "w9"),
    ("logs", "trained"),
    ("logs", "trained", "-f"),
    ("curves",),
    ("curves", "trained", "-f", "csv"),
    ("curves", "{running}"),
    ("curves", "{running}", "--why", "2", "64"),
    ("curves", "trained", "--why", "2", "64"),
    ("cost",),
    ("cost", "trained"),
    ("cost", "{running}"),
    ("models", "list"),
    ("models", "show", "{model}"),
    ("models", "rm", "{model}", "--dry-run"),
    ("catalog", "--provider", "aws", "--cpus", "4", "--memory", "16+"),
    ("catalog", "--gpu", "none"),
    ("aggregators",),
    ("aggregators", "drain", "node-9"),
    ("models", "export"),
    ("models", "export", "{model}"),
    ("models", "export", "none"),
    ("jobs", "rm", "trained", "--dry-run"),
    ("jobs", "rm", "{running}", "--yes"),
    ("gc", "--dry-run"),
    ("gc", "--in", "nowhere", "--dry-run"),
    ("gc", "--keep", "aws/us-east-1/i-1"),
    ("api", "info"),
    ("plan", "{job_file}", "--dry-run"),
    ("optimize", "{job_file}", "--dry-run", "--workers", "1,2"),
    ("optimize", "{job_file}", "--dry-run", "--workers", "0"),
)


def test_what_is_printed_is_the_same(both: Both, jobs: dict[str, str], world: World) -> None:
    for command in READS:
        words = [word.format(**jobs) for word in command]
        here, there = both(*words)
        assert here[0] == there[0], command
        assert [_steady(text) for text in here[1:]] == [_steady(text) for text in there[1:]], command
        assert here[1] or here[2], command
        if "-f" not in words:
            (code, document, _), (there_code, there_document, _) = both(*words, "-o", "json")
            assert code == there_code, command
            assert json.loads(document) == json.loads(there_document), command


def test_a_prediction_is_explained_the_same(both: Both, store: Store, jobs: dict[str, str]) -> None:
    at = Configuration("local-1", 2, 10**6)
    measured = Measurement(at, 20, 0.05, 0.001, 0.04, 0.01, None, 300.0, 2**20)
    offer = Offer("local", "", "local-1", 0.1, "notional", cpus=1, memory_bytes=2**30)
    model = JobModel.fit(
        Profile((measured,), dataset_size=50_000),
        space=SearchSpace((offer,), (1, 2, 3), (10**6,)),
        epochs_hint=30.0,
        max_epochs=60,
    )
    fingerprint = replace(store.model(jobs["model"]).fingerprint, goal="another")
    kept = {"schema_version": 2, "measurements": 1, "runs": 0, "job_id": jobs["done"]}
    store.save_model(fingerprint, model.to_dict(), **kept)
    for words in (("2", "1000000"), ("2", "1000000", "-o", "json"), ("3", "2"), ("0", "64")):
        here, there = both("curves", "trained", "--why", *words)
        assert here[0] == there[0], words
        assert here[1] == there[1], words
    here, _ = both("curves", "trained", "--why", "2", "1000000", "-o", "json")
    (why,) = json.loads(here[1])["predictions"]
    assert why["measured"]
    assert why["point"]["step_time_s"] == 0.05


def _steady(text: str) -> str:
    """Without how long a job has run by now."""
    return re.sub(r"^(began .* [0-9:]+), .*", r"\1", text, flags=re.MULTILINE)


def test_changes_are_made_and_told_the_same(both: Both, store: Store, jobs: dict[str, str]) -> None:
    """What a command changes by the server is what it changes in the store; each is told in the same words."""
    again = store.submit(replace(submission(this_process().user, Path("/jobs/job.yaml"), "second")))
    store.set_user("root", "admin")
    (code, here, _), _ = both("jobs", "cancel", jobs["waiting"], "--yes")
    _, (there_code, there, _) = both("jobs", "cancel", again.id, "--yes")
    assert (code, there_code) == (0, 0)
    assert here.replace(jobs["waiting"][:8], "ID").replace("later", "N") == there.replace(
        again.id[:8], "ID"
    ).replace("second", "N")
    assert [store.submission(key).state for key in (jobs["waiting"], again.id)] == ["cancelled"] * 2  # type: ignore[union-attr]

    taken = store.next_operation(jobs["running"])
    assert taken is not None
    store.end_operation(taken.id, "done", "3 workers")
    (code, _, _), (busy, _, error) = both("stop", jobs["running"], "--no-wait")
    assert (code, busy) == (0, 3)  # the second is refused while the first is open
    assert "one thing at a time" in " ".join(error.split())
    open_one = store.open_operation(jobs["running"])
    assert open_one is not None
    assert open_one.operation == StopJob()
    store.withdraw_operation(open_one.id, "withdrawn")
    here, there = both("migrate", jobs["running"], "--timeout", "1s", "--worker", "w0")
    assert (here[0], there[0]) == (3, 3)
    assert "the request was withdrawn, and nothing was changed" in " ".join(there[2].split())
    assert here[2] == there[2]


def test_a_model_is_deleted_by_the_server(both: Both, store: Store, jobs: dict[str, str]) -> None:
    (_, here, _), (code, _, error) = both("models", "rm", jobs["model"], "--yes")
    assert f"deleted model {jobs['model']}" in here
    assert (code, store.models()) == (2, ())
    assert f"there is no model '{jobs['model']}'" in " ".join(error.split())


@pytest.mark.parametrize(
    "command",
    [
        ("catalog", "refresh"),
        ("store", "backup", "a.backup"),
        ("store", "restore", "a.backup"),
        ("store", "recover", "folder"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_by_a_server_says_why_and_what_to_do(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCAVENGER_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("SCAVENGER_TOKEN", "scv_x")
    assert main(list(command)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(r"does not go through the server .*, as .*; run it on the server's machine", told)


def test_every_command_goes_by_a_server_or_is_known_not_to() -> None:
    """A new command with a store is sorted, too: it is not refused by oversight."""
    found = {name for name, command in _commands(get_command(app)) if _has_store(command)}
    assert found == {*BY_SERVER, *OF_THIS_MACHINE, *WHY_NOT} - {"catalog refresh"}


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None) or {}
    if not below:
        yield name, command
    for word, one in below.items():
        yield from _commands(one, f"{name} {word}".strip())


def _has_store(command: Any) -> bool:
    return any("--store" in one.opts for one in command.params)


def test_records_of_jobs_are_deleted_by_the_server(both: Both, store: Store, jobs: dict[str, str]) -> None:
    (_, here, _), (code, _, error) = both("jobs", "rm", "trained", "--yes")
    assert f"deleted job trained ({jobs['done'][:8]})" in " ".join(here.split())
    assert (code, store.has_job(jobs["done"])) == (2, False)
    assert "there is no job 'trained'" in " ".join(error.split())
    both("status")  # names the server
    other = store.create_job("other", spec={}, job_file="/jobs/job.yaml").id
    store.finish_job(other, state="failed", report=None, exit_code=1)
    assert main(["jobs", "rm", "other", jobs["running"], "--yes"]) == 3
    assert store.has_job(other)  # all or none
    assert main(["jobs", "rm", "other", "--yes"]) == 0
    assert not store.has_job(other)


def test_models_are_exported_and_imported_by_the_server(
    both: Both, store: Store, jobs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "models.json"
    both("models", "export", "--out", file)
    kept = store.model(jobs["model"])
    store.delete_model(jobs["model"])
    assert main(["models", "import", str(file)]) == 0
    assert "imported 1 model" in capsys.readouterr().out
    assert (store.models()[0].fingerprint, store.models()[0].origin) == (kept.fingerprint, "imported")
    file.write_text(file.read_text().replace('"law"', '"lav"'))
    here, there = both("models", "import", file)
    assert here == there
    assert (here[0], "digest" in here[2]) == (2, True)


def test_a_fit_of_files_here_is_stored_by_the_server(
    both: Both, store: Store, jobs: dict[str, str], tmp_path: Path
) -> None:
    rows = [
        f"a,local-1,{workers},{batch},{0.02 + 0.001 * batch + 0.002 * (workers - 1)}"
        for workers in (1, 2, 4)
        for batch in (8, 32, 64)
    ]
    file = tmp_path / "steps.csv"
    file.write_text("\n".join(("workload,cluster,workers,local_batch_size,step_time_s", *rows)))
    fit = ("models", "fit", "--step-times", file, "--price", "1", "--for", jobs["running"], "--dataset-size")
    here, there = both(*fit, 100)
    assert (here, here[0]) == (there, 2)
    fingerprint = Fingerprint("a" * 64, 1000, "Adam:1", 100, 64, "loss<=1", "local-1", "machine")
    store.update_job(jobs["running"], fingerprint=fingerprint)
    here, there = both(*fit, 100)
    assert (here[:2], here[0]) == (there[:2], 0)
    assert store.models()[0].fingerprint == fingerprint


def test_vms_that_no_job_uses_are_ended_and_kept_by_the_server(
    both: Both, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = FakeProvider(stop_s=0.0)
    install(monkeypatch, cloud)
    monkeypatch.setattr(clean_up, "POLL_S", 0.0)
    tags = {"owner": store.installation(), "job_id": "j", "slot": 0, "generation": 0, "run_max_s": 60.0}
    request = {**tags, "vm": "small", "zone": "fake-1a", "spot": False}
    first, second = (cloud.launch(built(VmRequest, token=str(uuid4()), **request)).instance_id for _ in "ab")
    where = ("gc", "--in", "fake/fake-1")
    here, there = both(*where, "--dry-run")
    assert here == there
    assert first in here[1]
    assert main([*where, "--yes", "-o", "json"]) == 0  # the server is named
    assert not any(fact.alive for fact in cloud.truth())
    assert second


def test_status_tells_of_vms_in_quarantine_whoever_may_see_them(
    both: Both,
    store: Store,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id, now = world.jobs["ann"], datetime.now(UTC)
    slots, options = (VmSlot(0),), (PlacementOption("small", "fake-1a", False, 0.1),)
    spec = FleetSpec(
        job_id,
        "fake",
        "fake-1",
        slots=slots,
        options=options,
        vms_max=1,
        budget_usd=1.0,
        template=LaunchTemplate(60.0),
    )
    store.want_vms(spec)
    assert [one[2] for one in both("status")] == ["", ""]

    with store._database.writing() as session:
        session.add(RestoreRow(at=now, backup_at=now, token_floor=1))
    here, there = both("status")
    assert "`scavenger gc` looks for VMs" in here[2]
    assert here == there

    store.set_quarantine(
        "fake", "fake-1", [VmSeen(f"vm-{n}", "small", "fake-1a", False, "running") for n in "ab"]
    )
    here, there = both("status")
    assert "2 VMs" in here[2]
    assert here == there
    for user, told in (("eve", here[2]), ("ann", "")):
        monkeypatch.setenv("SCAVENGER_TOKEN", world.tokens[user])  # the server is named
        assert main(["status"]) == 0
        assert capsys.readouterr().err == told

    store.keep_quarantined("fake/fake-1/vm-a", "root")
    store.keep_quarantined("fake/fake-1/vm-b", "root")
    assert [one[2] for one in both("status")] == ["", ""]


def test_a_token_is_made_by_the_server(
    both: Both, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both("status")  # names the server
    capsys.readouterr()
    assert main(["api", "token", "zoe", "--role", "viewer"]) == 0
    monkeypatch.setenv("SCAVENGER_TOKEN", capsys.readouterr().out.strip())
    assert main(["status"]) == 0
    assert main(["api", "token", "zoe2", "--role", "admin"]) == 2
    assert main(["api", "info"]) == 2
    assert "is no admin" in " ".join(capsys.readouterr().err.split())


def test_a_token_is_revoked_by_the_server(
    both: Both, store: Store, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    both("status")  # names the server
    [anns] = store.tokens("ann")
    capsys.readouterr()
    assert main(["api", "revoke", str(anns.id)]) == 0
    assert main(["api", "revoke", "--sessions", "bob"]) == 0
    assert "bob has no session" in capsys.readouterr().out
    assert store.caller(world.tokens["ann"]) is None


def test_a_job_is_submitted_to_the_server(
    both: Both, store: Store, world: World, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with `--yes`, where nobody can be asked; with the options of the command line."""
    both("status")  # names the server
    assert main(["optimize", str(world.job_file), "--detach"]) == 2
    options = ["--workers", "1", "--budget", "3", "--objective", "cost", "--audit"]
    assert main(["optimize", str(world.job_file), "--detach", "--yes", *options]) == 0
    made = store.submissions(1)[0]
    assert (made.job.user, made.job.audit, made.job.reserved_usd) == ("root", True, 3.0)
    assert made.job.spec["search"]["workers"] == [1]
    assert main(["jobs", "launch", str(world.job_file), "-d", "--yes", "--priority", "5"]) == 0
    assert (store.submissions(1)[0].job.priority, store.submissions(1)[0].job.run) == (5, True)


def test_a_job_goes_on_by_the_server(both: Both, store: Store, world: World, jobs: dict[str, str]) -> None:
    both("status")  # names the server
    running = jobs["running"]
    store.update_job(running, checkpoint="/jobs/checkpoint")
    assert main(["resume", running, "--yes", "--detach"]) == 3
    store.finish_job(running, state="stopped", report=None, exit_code=0)
    end_runner(store, running)
    assert main(["resume", running, "--yes", "--detach"]) == 0
    assert store.submission(running).state == "queued"  # type: ignore[union-attr]


class _Piped:
    """Standard input that is no terminal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        return self._text


def test_a_token_is_kept_once_the_server_knows_it(
    both: Both, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both("status")  # names the server
    monkeypatch.delenv("SCAVENGER_TOKEN")
    monkeypatch.setattr(sys, "stdin", _Piped("scv_unknown\n"))
    assert main(["api", "login"]) == 2
    assert main(["status"]) == 2
    assert "scavenger api login" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", _Piped(world.tokens["eve"] + "\n"))
    assert main(["api", "login"]) == 0
    assert "eve (viewer) at http://127.0.0.1" in capsys.readouterr().out
    assert main(["status"]) == 0


def test_a_running_job_is_asked_from_python_by_the_server(
    store: Store, world: World, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also by a client that a program has open; a request that the job refuses comes back in its own words."""
    monkeypatch.setenv("SCAVENGER_STORE", f"sqlite:///{tmp_path}/none.db")
    before = store.next_operation(jobs["running"])
    assert before is not None
    store.end_operation(before.id, "done", "3 workers")

    def drive(verdict: Verdict, message: str) -> threading.Thread:
        def answer() -> None:
            taken = wait_for(lambda: store.next_operation(jobs["running"]))
            store.end_operation(taken.id, verdict, message)

        thread = threading.Thread(target=answer)
        thread.start()
        return thread

    with serving(store, ServerSettings(port=0)) as url:
        running = RunningJob(jobs["running"], server=url, token=world.tokens["root"], timeout_s=30.0)
        driver = drive("done", "")
        running.scale_to(2)
        driver.join()
        driver = drive("refused", "it has 1 to 4 workers")
        with (
            Client(server=url, token=world.tokens["root"]) as client,
            pytest.raises(ConfigurationError, match="asked to add 9 workers: refused: it has 1 to 4 workers"),
        ):
            client.running(jobs["running"]).scale_out(9)
        driver.join()
        with pytest.raises(NotSupportedError, match="a server takes no profile"):
            running.profile(1, 2)
        with pytest.raises(ConfigurationError, match="no token is known"):
            RunningJob("digits", server="http://127.0.0.1:1").stop()
    with pytest.raises(ConfigurationError, match="a store or a server, not both"):
        RunningJob("digits", "sqlite:///s.db", server=url)

    asked = [one.operation for one in store.operations(jobs["running"])]
    assert asked == [ScaleTo(3), ScaleTo(2), ScaleOut(9)]
