"""Log records: who writes them, from which level on, and in which form."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from scavenger_cli.main import main

from scavenger import logs
from scavenger.errors import ConfigurationError
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.transport.messages.values import LogSettings
from scavenger.train.transport.sockets import new_keys

LOG = logging.getLogger("scavenger.train.supervisor.supervisor")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    logger = logging.getLogger("scavenger")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def written(settings: logs.LogChoice, level: str = "INFO") -> list[str]:
    """What the lines of one process look like."""
    stream = io.StringIO()
    logs.set_up("w0", settings, job_id="job-1", level=level, stream=stream)
    LOG.debug("a %s", "detail")
    LOG.info("a %s", "step")
    LOG.warning("a %s", "danger")
    return stream.getvalue().splitlines()


def test_a_line_tells_time_level_job_process_and_message() -> None:
    first, second = written(logs.LogChoice())

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO job-1 w0: a step", first)
    assert second.endswith("WARNING job-1 w0: a danger")


def test_a_process_with_several_jobs_names_the_one_that_a_record_is_about() -> None:
    for settings, begin in (
        (logs.LogChoice(), "INFO job-2 server: "),
        (logs.LogChoice(format="json"), '"job": "job-2"'),
    ):
        stream = io.StringIO()
        logs.set_up("server", settings, stream=stream)
        logs.of_job(LOG, "job-2").info("runner %d started", 7)
        assert begin in stream.getvalue()
        assert "runner 7 started" in stream.getvalue()


def test_in_json_a_line_is_an_object_with_the_same_fields_and_the_module() -> None:
    first, _ = (json.loads(line) for line in written(logs.LogChoice(format="json")))

    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "INFO",
        "job": "job-1",
        "process": "w0",
        "module": "scavenger.train.supervisor.supervisor",
        "message": "a step",
    }


def test_an_exception_stays_on_one_line_in_json() -> None:
    stream = io.StringIO()
    logs.set_up("w0", logs.LogChoice(format="json"), stream=stream)
    try:
        raise ValueError("of the user's")
    except ValueError:
        LOG.exception("it failed")
    (line,) = stream.getvalue().splitlines()

    assert "ValueError: of the user's" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", 3), ("info", 2), ("WARNING", 1), ("", 1), ("error", 0)]
)
def test_the_user_s_level_comes_before_that_of_the_process(level: str, lines: int) -> None:
    settings = logs.read_settings({logs.LEVEL_VARIABLE: level})

    assert len(written(settings, level="WARNING")) == lines


@pytest.mark.parametrize("variable", [logs.LEVEL_VARIABLE, logs.FORMAT_VARIABLE])
def test_a_choice_that_there_is_not_is_refused_by_its_name(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=f"{variable} must be one of"):
        logs.read_settings({variable: "loud"})
    monkeypatch.setenv(variable, "loud")

    assert main(["--version"]) == ConfigurationError.exit_code
    assert variable in capsys.readouterr().err


def test_set_up_again_nothing_is_written_twice_and_the_job_may_be_named_later() -> None:
    stream = io.StringIO()
    for _ in range(2):
        logs.set_up("scavenger", logs.LogChoice(), stream=stream)
    logs.set_job("job-2")
    LOG.info("once")

    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "INFO job-2 scavenger: once"
    ]


def test_what_is_logged_is_not_written_again_by_a_logger_of_the_training_code() -> None:
    program = (
        "import logging; from scavenger import logs\n"
        "logging.basicConfig(level=0)\n"
        "logs.set_up('w0', logs.LogChoice())\n"
        "logging.getLogger('scavenger.train.worker.worker').info('once')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stderr.count("once") == 1


@pytest.mark.timeout(60)
def test_a_process_of_a_job_logs_as_its_bootstrap_says(tmp_path: Path) -> None:
    keys = new_keys()
    boots = ProcessConfigurations(
        JobSource("train:job", tmp_path, 1, threads=1, job_id="job-3"),
        hub="tcp://127.0.0.1:9",
        server_key=keys[0],
    )
    boot = msgspec.structs.replace(
        boots.of("coordinator", "coordinator-1", token=1), logs=LogSettings("job-3", "INFO", "json")
    )
    with subprocess.Popen(
        [sys.executable, "-m", "scavenger.train.process"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # it ends its own process group when its standard input does
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(msgspec.json.encode(boot) + b"\n")
        process.stdin.flush()
        said = json.loads(process.stderr.readline())
        process.stdin.close()
        process.wait()

    assert (said["job"], said["process"], said["level"]) == ("job-3", "coordinator-1", "INFO")
    assert f"process {process.pid}" in said["message"]


def test_what_a_user_chooses_reaches_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "debug")
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    source = JobSource("train:job", tmp_path, 1, threads=1, job_id="job-4")
    boots = ProcessConfigurations(source, hub="tcp://127.0.0.1:9", server_key=b"key")

    assert boots.of("worker", "w0").logs == LogSettings("job-4", "DEBUG", "json")


def test_a_warning_that_lasts_is_logged_when_it_begins_and_once_a_minute() -> None:
    stream, now = io.StringIO(), [0.0]
    logs.set_up("server", logs.LogChoice(), stream=stream)
    problem = logs.Repeated(LOG, lambda: now[0])
    for second in range(70):
        now[0] = second
        problem.warn("the store is away")
    problem.warn("the store is read-only")
    problem.over()
    problem.warn("the store is read-only")

    said = [line.rpartition("store is ")[2] for line in stream.getvalue().splitlines()]
    assert said == ["away", "away", "read-only", "read-only"]


def test_what_a_process_prints_is_utf8_whatever_the_locale_is() -> None:
    code = "from scavenger import logs; logs.write_utf8(); print('\\u2501 \\u00e9 \\udc80')"
    ascii_locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=ascii_locale, stdout=subprocess.PIPE, check=True
    ).stdout
    assert out == "\u2501 \u00e9 \\udc80\n".encode()


def test_records_of_other_libraries_are_held_until_there_is_a_log_and_not_where_they_are_to_stay() -> None:
    other, stream = logging.getLogger("alib"), io.StringIO()
    logs.set_up("scavenger", logs.LogChoice(), hold_others=True)
    try:
        other.warning("%s", "at first")
        logs.show_others(stream)
        other.warning("later")
        other.info("a detail")
    finally:
        logs.set_up("scavenger", logs.LogChoice())
    other.warning("after that")

    assert [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()] == [
        "WARNING alib: at first",
        "WARNING alib: later",
    ]


def test_records_of_scavengers_are_shown_by_a_display_meanwhile() -> None:
    stream, shown = io.StringIO(), []
    logs.set_up("scavenger", logs.LogChoice(), level="WARNING", stream=stream)
    with logs.shown_by(shown.append):
        LOG.warning("beside a display")
        LOG.info("a detail")
    LOG.warning("again")

    assert [line.partition("scavenger: ")[2] for line in shown] == ["beside a display"]
    assert [line.partition("scavenger: ")[2] for line in stream.getvalue().splitlines()] == ["again"]
