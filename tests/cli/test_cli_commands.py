"""The commands, as their user and as scripts see them."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import cli_fake
import pytest
from cli_fake import JOB, Run
from cli_samples import make_report
from scavenger_cli.commands.driving import drive
from scavenger_cli.main import app
from scavenger_cli.options import Invocation
from scavenger_cli.ui import console
from typer.testing import CliRunner
from warm_commands import Command

from scavenger.control.job_file.load import load_job
from scavenger.domain.document import report_document
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.report import ReportedJob, RunReport
from scavenger.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stored(store_url: str) -> str:
    """The id of a finished job in the store."""
    with Store.open(store_url) as store:
        job = store.create_job("digits-cnn", spec={}, job_file="job.yaml")
        store.add_event(job.id, "phase", "running: at 2 x 128")
        store.finish_job(job.id, state="succeeded", report=report_document(make_report()), exit_code=0)
    return job.id


@pytest.mark.slow
def test_help_takes_little_more_than_typer_itself_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, time, scavenger_cli.main as m; m.main(['--help']);"
        "print(sorted({n.split('.')[0] for n in sys.modules}))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    listing = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    heavy = {
        "numpy",
        "sqlalchemy",
        "scipy",
        "pydantic",
        "matplotlib",
        "alembic",
        "requests",
        "rich",
        "tensorflow",
        "keras",
    }
    assert not heavy & set(eval(listing.stdout.splitlines()[-1]))

    def spent(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    of_help = min(spent("-m", "scavenger_cli", "--help") for _ in range(3))
    assert of_help < 4.0 * min(spent("-c", "import typer") for _ in range(3))


def test_typers_own_runner_sees_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])

    assert result.exit_code == 0
    commands = "init demo optimize plan curves status logs scale migrate stop resume models schema doctor"
    for command in commands.split():
        assert f"  {command} " in result.output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("scavenger ")


def test_optimize_prints_the_report_on_stdout_and_progress_on_stderr(scavenger: Run, job_file: Path) -> None:
    code, out, err = scavenger("optimize", job_file, "--yes")

    assert code == 0
    assert "Chosen: 2 x e2-standard-4" in out
    assert "succeeded" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "starting: 1 worker" in err
    assert "starting" not in out


def test_json_is_one_document_on_stdout_whatever_happens(scavenger: Run, job_file: Path) -> None:
    code, out, _ = scavenger("optimize", job_file, "--yes", "-o", "json")
    assert code == 0
    assert json.loads(out) == report_document(make_report())

    code, out, err = scavenger("plan", job_file, "-o", "json")
    assert json.loads(out)["actual"] is None

    code, out, err = scavenger("plan", job_file.parent / "none.yaml", "-o", "json")
    assert code == 2
    assert json.loads(out)["exit_code"] == 2
    assert err.startswith("scavenger: error: ")


def test_the_training_codes_failure_ends_with_its_exit_code_and_one_line(
    scavenger: Run, job_file: Path
) -> None:
    code, out, err = scavenger("optimize", job_file, "--yes", mode="fail")

    assert code == 6
    assert "failed" in out
    assert err.splitlines()[-1] == "scavenger: error: train.py:12: ValueError: no data"


def test_what_nobody_expects_is_one_line_and_a_file_with_the_traceback(
    scavenger: Run, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = scavenger("optimize", job_file, "--yes", mode="break")
    last = err.splitlines()[-1]
    path = Path(last.split("the traceback is in ")[1])

    assert code == 1
    assert "Traceback" not in err
    assert "ZeroDivisionError: by zero;" in last
    assert "ZeroDivisionError" in path.read_text()

    monkeypatch.setenv("SCAVENGER_DEBUG", "1")
    assert "Traceback" in scavenger("optimize", job_file, "--yes", mode="break")[2]


def test_without_a_terminal_and_without_yes_nothing_starts(scavenger: Run, job_file: Path) -> None:
    code, out, err = scavenger("optimize", job_file)

    assert (code, out) == (2, "")
    assert "--yes" in err
    assert "starting" not in err


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (("optimize", "--yes"), True),
        (("plan",), True),
        (("plan", "--dry-run"), False),
        (("optimize",), False),  # there is no terminal to ask on
    ],
)
def test_what_begins_ahead_is_ended_with_the_command_however_that_ends(
    scavenger: Run, job_file: Path, arguments: tuple[str, ...], begins: bool
) -> None:
    cli_fake.begun.clear()
    scavenger(arguments[0], job_file, *arguments[1:])
    assert cli_fake.begun == (["digits-cnn", "-digits-cnn"] if begins else [])
    (job_file.parent / "train.py").unlink()
    assert scavenger("optimize", job_file, "--yes")[0] == 2
    assert cli_fake.begun[-2:] == ["digits-cnn", "-digits-cnn"]


def test_a_dry_run_says_what_would_be_done_and_starts_nothing(
    scavenger: Run, job_file: Path, tmp_path: Path
) -> None:
    code, out, err = scavenger("optimize", job_file, "--dry-run", "--budget", "5", "--deadline", "8h")
    words = " ".join(out.split())

    assert (code, err) == (0, "")
    assert "6 configurations: K 1, 2, B 64, 128, 256 " in words
    assert " an hour each: " in words
    assert "at most 8 h and $5.00" in words
    assert not (tmp_path / "store.db").exists()

    document = json.loads(scavenger("plan", job_file, "--dry-run", "-o", "json", "--strategy", "full")[1])
    assert document["job"]["search"]["strategy"] == "full"
    assert (document["runs"], document["asks"]) == (False, False)
    assert document["offers"][0]["price_usd_per_hour"] >= 0


def test_sizes_of_the_command_line_replace_those_of_the_job_file(scavenger: Run, job_file: Path) -> None:
    def searched(*words: str) -> tuple[list[int], list[int]]:
        code, out, _ = scavenger("plan", job_file, "--dry-run", "-o", "json", *words)
        assert code == 0
        search = json.loads(out)["job"]["search"]
        return search["workers"], search["batch_size"]

    assert searched() == ([1, 2], [64, 128, 256])
    assert searched("--workers", "1..4") == ([1, 2, 3, 4], [64, 128, 256])
    assert searched("--workers", "[1, 4]", "--batch-size", "32,64") == ([1, 4], [32, 64])
    assert searched("--workers", "1,3..4", "--batch-size", "32..128") == ([1, 3, 4], [32, 64, 128])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--workers", "4..1"), "--workers '4..1': give positive whole numbers and ranges, such as 1,2,4"),
        (("--workers", "two"), "--workers 'two': give positive whole numbers"),
        (("--workers", "1..5000"), "--workers 1..5000: must be from 1 to 4096 workers, not 5000"),
        (("--batch-size", "1..99999999"), "--batch-size 1..99999999: must be from 1 to 16777216 samples"),
        (
            ("--workers", "8", "--batch-size", "4"),
            "search.batch_size must reach 8, one sample for each worker",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_one_line(
    scavenger: Run, job_file: Path, words: tuple[str, ...], complaint: str
) -> None:
    code, out, err = scavenger("optimize", job_file, "--dry-run", *words)

    assert (code, out) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_a_dry_run_refuses_what_the_run_would_refuse(scavenger: Run, job_file: Path) -> None:
    job_file.write_text(JOB + "spot: always\n")
    assert scavenger("optimize", job_file, "--dry-run")[0] == 2

    job_file.write_text(JOB.replace("train:job", "trian:job"))
    code, _, err = scavenger("optimize", job_file, "--dry-run")
    assert code == 2
    assert "did you mean train:job?" in err


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--deadline", "8x"), "constraints.deadline must be a duration"),
        (("--budget", "-1"), "constraints.budget must be US dollars"),
        (("--objective", "fun"), "--objective"),
        (("--frobnicate",), "--frobnicate"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(
    scavenger: Run, job_file: Path, arguments: tuple[str, ...], fragment: str
) -> None:
    code, out, err = scavenger("optimize", job_file, "--dry-run", *arguments)

    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("scavenger: error: ")
    assert fragment in err


def test_overrides_reach_the_driver_as_a_valid_job(job_file: Path) -> None:
    from scavenger.control.job_file.load import load_job, override_job
    from scavenger.domain.overrides import Overrides

    before = load_job(job_file)
    after = override_job(before, Overrides("cost", "full", "$3", "90m").changes())

    assert (after.objective, after.search.strategy) == ("cost", "full")
    assert (after.constraints.budget, after.constraints.deadline) == (3.0, 5400.0)
    assert after.search.workers == before.search.workers
    assert after.goal == before.goal
    assert Overrides().changes() == {}


def test_a_job_is_found_by_id_start_of_id_name_or_as_the_latest(scavenger: Run, stored: str) -> None:
    texts = {scavenger("curves", *key)[1] for key in ((), (stored,), (stored[:8],), ("digits-cnn",))}

    assert len(texts) == 1
    assert "cost" in texts.pop()


@pytest.mark.parametrize(
    ("name", "form"),
    [("c.svg", "svg"), ("c.HTML", "html"), ("c.txt", "terminal"), ("c.csv", "csv"), ("c.json", "json")],
)
def test_a_curve_is_the_same_on_stdout_and_in_a_file_whose_ending_names_the_format(
    scavenger: Run, stored: str, tmp_path: Path, name: str, form: str
) -> None:
    text = scavenger("curves", "-f", form)[1]

    assert text
    assert scavenger("curves", "--out", tmp_path / name)[0] == 0
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize(("name", "begins"), [("c.png", b"\x89PNG"), ("c.PDF", b"%PDF-")])
def test_a_picture_is_written_as_its_name_says(
    scavenger: Run, stored: str, tmp_path: Path, name: str, begins: bytes
) -> None:
    assert scavenger("curves", "--out", tmp_path / name)[0] == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "c.jpg"), "no curve is written as .jpg: use .svg, .png, .pdf"),
        (("-f", "csv", "--out", "c.png"), "the file's name says png, and -f csv"),
    ],
)
def test_a_file_whose_name_says_something_else_is_refused(
    scavenger: Run,
    stored: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = scavenger("curves", *arguments)

    assert code == 2
    assert words in err
    assert not list(tmp_path.glob("c.*"))


def test_the_limits_of_the_job_file_are_drawn(scavenger: Run, store_url: str, job_file: Path) -> None:
    report, job_file = make_report(), job_file.with_name("limited.yaml")
    job_file.write_text(JOB + "constraints: {deadline: 25m}\n")
    with Store.open(store_url) as store:
        spec = load_job(job_file).written()
        job = store.create_job("digits-cnn", spec=spec, job_file="job.yaml")
        store.finish_job(job.id, state="succeeded", report=report_document(report), exit_code=0)

    assert "deadline 25 min" in scavenger("curves", "-f", "svg")[1]


def test_curves_as_json_holds_every_point(scavenger: Run, stored: str) -> None:
    document = json.loads(scavenger("curves", "-o", "json")[1])

    assert document["schema_version"] == 1
    assert len(document["curve"]) == 6


def test_a_curve_that_cannot_be_written_leaves_no_half_file(
    scavenger: Run, stored: str, tmp_path: Path
) -> None:
    code, _, err = scavenger("curves", "-f", "svg", "--out", tmp_path / "none" / "curve.svg")
    assert code == 2
    assert "No such file or directory" in err

    (tmp_path / "folder").mkdir()
    assert scavenger("curves", "-f", "csv", "--out", tmp_path / "folder")[0] == 2
    assert not list(tmp_path.glob(".folder*"))


def test_status_lists_jobs_and_shows_one(scavenger: Run, stored: str) -> None:
    code, out, _ = scavenger("status")
    assert code == 0
    assert stored[:8] in out
    assert "succeeded" in out

    out = scavenger("status", "digits-cnn")[1]
    assert stored in out
    assert "running: at 2 x 128" in out
    assert json.loads(scavenger("status", "-o", "json")[1])["jobs"][0]["id"] == stored
    assert json.loads(scavenger("status", stored[:8], "-o", "json")[1])["job"]["report"]["steps"] == 4242


def test_an_unknown_job_is_a_usage_error_with_the_nearest_name(scavenger: Run, stored: str) -> None:
    code, _, err = scavenger("status", "digits-cn")

    assert code == 2
    assert "digits-cnn" in err


def test_an_empty_store_says_how_to_begin(scavenger: Run) -> None:
    assert "scavenger plan" in scavenger("status")[1]
    assert scavenger("curves")[0] == 2
    assert "No models yet" in scavenger("models", "list")[1]


def test_models_travel_to_another_store_and_can_be_removed(
    scavenger: Run, store_url: str, tmp_path: Path
) -> None:
    fingerprint = Fingerprint("a" * 64, 1000, "Adam:1", 60_000, 784, "val_accuracy>=0.97", "local", "cpu")
    with Store.open(store_url) as store:
        model = store.save_model(
            fingerprint, {"x": 1.5}, job_id=None, schema_version=1, measurements=4, runs=1
        )
    exported, other = tmp_path / "models.json", f"sqlite:///{tmp_path / 'other.db'}"

    assert scavenger("models", "export", "--out", exported)[0] == 0
    assert json.loads(scavenger("models", "import", exported, "--store", other, "-o", "json")[1])["imported"]
    assert model.id[:8] in scavenger("models", "list", "--store", other)[1]
    assert "val_accuracy>=0.97" in scavenger("models", "show", model.id[:8], "--store", other)[1]
    shown = json.loads(scavenger("models", "show", model.id, "-o", "json")[1])
    assert shown["model"]["model"] == {"x": 1.5}

    assert scavenger("models", "rm", model.id)[0] == 2  # no terminal to ask on
    assert "would delete" in scavenger("models", "rm", model.id, "--dry-run")[1]
    assert scavenger("models", "rm", model.id, "--yes")[0] == 0
    assert json.loads(scavenger("models", "list", "-o", "json")[1])["models"] == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema_version": 1}', "[" * 100_000])
def test_what_is_no_export_is_refused_in_one_line(scavenger: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(content)
    code, out, err = scavenger("models", "import", path)

    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "internal" not in err


def test_the_job_schema_is_a_document(scavenger: Run) -> None:
    assert "properties" in json.loads(scavenger("schema", "job")[1])


def test_the_doctor_says_of_each_thing_whether_it_is_well(scavenger: Run, tmp_path: Path) -> None:
    code, out, _ = scavenger("doctor")
    assert code == 0
    *checks, last = out.splitlines()
    assert {line.split()[0] for line in checks} <= {"ok", "warn"}
    assert last == "next: scavenger optimize train.py (a script that calls fit), or scavenger demo"
    for name in ("Python", "TensorFlow", "memory", "shared memory", "store", "leftovers"):
        assert f" {name}: " in out

    (tmp_path / "garbage.db").write_text("not a database, but long enough to be looked at" * 50)
    code, out, _ = scavenger("doctor", "-o", "json", "--store", f"sqlite:///{tmp_path / 'garbage.db'}")
    document = json.loads(out)
    assert (code, document["ok"]) == (1, False)
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    assert [check["name"] for check in failed] == ["store"]
    assert all(check["fix"] for check in failed)


@pytest.mark.parametrize(("host", "status"), [(socket.gethostname(), "warn"), ("another-machine", "ok")])
def test_the_doctor_names_what_a_dead_job_left_on_this_machine_alone(
    scavenger: Run, tmp_path: Path, host: str, status: str
) -> None:
    path = tmp_path / "dead.db"
    with Store.open(f"sqlite:///{path}") as store:
        job = store.create_job("tiny", spec={}, job_file="job.yaml")
        store.set_process(job.id, "w0", role="worker", state="training", pid=os.getpid())
    with closing(sqlite3.connect(path)) as connection, connection:
        long_ago = "2020-01-01 00:00:00.000000"
        connection.execute(
            "UPDATE jobs SET owner_installation = NULL, owner_pid = 2147483647, owner_host = ?", (host,)
        )
        connection.execute("UPDATE jobs SET heartbeat_at = ?", (long_ago,))

    checks = json.loads(scavenger("doctor", "-o", "json", "--store", f"sqlite:///{path}")[1])["checks"]
    (leftovers,) = [check for check in checks if check["name"] == "leftovers"]
    assert (leftovers["status"], str(os.getpid()) in leftovers["fix"]) == (status, status == "warn")


def test_the_doctor_refuses_a_cloud_that_there_is_not_and_has_nothing_more_to_say_of_this_machine(
    scavenger: Run,
) -> None:
    code, _, err = scavenger("doctor", "--infra", "aws/virginia")
    assert (code, "aws/us-east-1 or aws/us-east-1a" in err) == (2, True)

    code, out, _ = scavenger("doctor", "--infra", "local")
    assert (code, " address: " in out) == (0, False)


@pytest.mark.slow
def test_what_runs_a_job_imports_what_all_jobs_need_and_no_command_a_training_framework(
    stored: str, store_url: str
) -> None:
    """In a process of its own: this one may have imported what other tests need."""
    commands = [
        *([name, "--store", store_url] for name in ("status", "cost", "gc")),
        *([*name.split(), "--store", store_url] for name in ("jobs queue", "models list", "api info")),
        *([name, stored, "--store", store_url] for name in ("status", "logs", "curves")),
        ["catalog", "--provider", "gcp"],
        ["doctor"],
    ]
    script = (
        "import json, sys\n"
        "import scavenger.control.jobs.job_run\n"
        "loaded = sorted(sys.modules)\n"
        "from scavenger_cli.main import main\n"
        "codes = [main(one) for one in json.loads(sys.argv[1])]\n"
        "assert codes == [0] * len(codes), codes\n"
        "assert not {'tensorflow', 'keras', 'ray'} & set(sys.modules)\n"
        "print(json.dumps(loaded))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    of_some = {
        *(
            "tensorflow",
            "keras",
            "torch",
            "jax",
            "ray",
            "sklearn",
            "matplotlib",
            "pandas",
            "plotly",
            "pyarrow",
        ),
        *("kubernetes", "boto3", "botocore", "google", "requests", "fsspec", "opentelemetry"),
        *("alembic", "psycopg", "fastapi", "uvicorn", "typer", "rich", "kneed", "optuna", "mlflow", "wandb"),
    }
    assert not of_some & {name.partition(".")[0] for name in loaded}
    assert not loaded & {
        "scavenger.train.command.job_supervisor",
        "scavenger.train.custom_loop.job_supervisor",
        "scavenger.train.supervisor.supervisor",
        "scipy.stats",
        "scipy.interpolate",
    }


def test_a_reader_who_leaves_early_changes_no_outcome(job_file: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
        "SCAVENGER_STORE": f"sqlite:///{tmp_path / 'store.db'}",
    }
    process = Command(
        [sys.executable, Path(__file__).with_name("cli_fake.py"), "fail", "optimize", job_file, "-y"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert process.wait() == 6
    assert "BrokenPipe" not in err


def test_the_fake_driver_takes_what_the_real_one_takes() -> None:
    import inspect

    real = importlib.import_module("scavenger.control.jobs.job_run").JobRun
    fake = inspect.signature(cli_fake.FakeRun.__init__).parameters
    taken = inspect.signature(real.__init__).parameters

    assert fake.keys() <= taken.keys()
    assert all(taken[name].default is not inspect.Parameter.empty for name in taken.keys() - fake.keys())
    for method in ("run", "request_stop", "kill_now"):
        assert callable(getattr(real, method))
    for name in ("processes", "vms", "job_id"):
        assert isinstance(getattr(real, name), property)


def test_console_records_become_json() -> None:
    report = console.plain(make_report())

    assert json.loads(json.dumps(report, allow_nan=False))["job"]["name"] == "digits-cnn"


def test_a_model_is_listed_with_the_name_of_the_job_that_fitted_it(
    scavenger: Run, store_url: str, stored: str
) -> None:
    fingerprint = Fingerprint("a" * 64, 1000, "Adam:1", 60_000, 784, "val_accuracy>=0.97", "local", "cpu")
    with Store.open(store_url) as store:
        store.save_model(fingerprint, {"x": 1.5}, job_id=stored, schema_version=1, measurements=4, runs=1)

    assert "digits-cnn" in scavenger("models", "list")[1]
    assert json.loads(scavenger("models", "list", "-o", "json")[1])["models"][0]["job_name"] == "digits-cnn"


class _Cut:
    """A driver whose job ends before its goal, with a checkpoint or without one."""

    processes = vms = 0
    job_id = ""

    def __init__(self, store: Store, *, checkpoint: str | None) -> None:
        self._store, self._checkpoint = store, checkpoint

    def run(self) -> RunReport:
        job = self._store.create_job("digits-cnn", spec={}, job_file="job.yaml")
        report = replace(make_report(), job=ReportedJob(job.id, "digits", "interrupted"), exit_code=130)
        if self._checkpoint is not None:
            self._store.update_job(job.id, checkpoint=self._checkpoint)
        self._store.finish_job(job.id, state="interrupted", report=report_document(report), exit_code=130)
        return report

    def request_stop(self, reason: str) -> None: ...

    def kill_now(self) -> None: ...


@pytest.mark.parametrize("checkpoint", [None, "/home/u/checkpoints"])
def test_an_interrupted_job_says_how_to_go_on_where_it_has_a_checkpoint(
    store_url: str, capsys: pytest.CaptureFixture[str], checkpoint: str | None
) -> None:
    code = drive(
        lambda store, observer, confirm: _Cut(store, checkpoint=checkpoint),
        Invocation(store_url, as_json=False),
        ask=False,
    )

    assert code == 130
    assert ("scavenger resume " in capsys.readouterr().err) == (checkpoint is not None)


def test_a_dry_run_keeps_the_path_of_the_job_file_whole(scavenger: Run, tmp_path: Path) -> None:
    folder = tmp_path / ("a-long-name-of-a-folder-" * 5)
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "train.py").write_text("job = None")

    code, out, err = scavenger("plan", folder / "job.yaml", "--dry-run")

    assert code == 0, err
    assert any(line.endswith(str(folder / "job.yaml")) for line in out.splitlines())


def test_a_quiet_run_writes_its_report_and_no_progress(scavenger: Run, job_file: Path) -> None:
    code, out, err = scavenger("optimize", job_file, "--yes", "-q")

    assert code == 0
    assert "Chosen: " in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "at", "offered"), [("scavenger cur", 1, "curves"), ("scavenger plan --objective ", 3, "knee")]
)
def test_a_shell_is_offered_commands_and_values(words: str, at: int, offered: str) -> None:
    shell = {"_SCAVENGER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    command = [sys.executable, "-m", "scavenger_cli"]
    process = Command(command, env={**os.environ, **shell}, stdout=subprocess.PIPE)

    assert offered in process.communicate(timeout=60)[0].split()
