"""`logs`: what happened, what was written, and what a terminal must not obey."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fake import Run
from hypothesis import given
from hypothesis import strategies as st
from scavenger_cli.commands import logs as logs_module
from warm_commands import Command

from scavenger.api.logs import LINE_BYTES_MAX, LogTail, harmless
from scavenger.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(store_url: str, tmp_path: Path) -> Path:
    """The log folder of a running job with two workers and two events."""
    with Store.open(store_url) as store:
        job = store.create_job("digits-cnn", spec={"output": "out"}, job_file=tmp_path / "job.yaml")
        store.add_event(job.id, "phase", "running: at 2 x 128")
        store.add_event(job.id, "worker", "w1 lost \x1b]52;c;aGk=\x07", level="warning")
    folder = tmp_path / "out" / job.id / "logs"
    folder.mkdir(parents=True)
    (folder / "w0.log").write_text("".join(f"line {number}\n" for number in range(30)))
    (folder / "w10.log").write_bytes(b"caf\xff \x1b[31mred\x1b[0m\r\nno end")
    return folder


def finish(store_url: str) -> None:
    with Store.open(store_url) as store:
        store.finish_job(store.job("digits-cnn").id, state="succeeded", report=None, exit_code=0)


def test_everything_is_shown_with_its_origin_and_nothing_is_obeyed(scavenger: Run, folder: Path) -> None:
    code, out, err = scavenger("logs", "digits-cnn", "-n", 2)
    lines = out.splitlines()

    assert (code, err) == (0, "")
    assert lines[0].endswith("info    phase: running: at 2 x 128")
    assert lines[1].endswith(r"warning worker: w1 lost \x1b]52;c;aGk=\x07")
    assert lines[2:] == ["w0 | line 28", "w0 | line 29", r"w10 | caf\xff \x1b[31mred\x1b[0m", "w10 | no end"]


def test_events_alone_and_a_process_alone(scavenger: Run, folder: Path) -> None:
    assert len(scavenger("logs", "digits-cnn", "--events")[1].splitlines()) == 2
    assert scavenger("logs", "digits-cnn", "--process", "w0", "-n", 1)[1] == "line 29\n"
    assert scavenger("logs", "digits-cnn", "-n", 0)[1] == ""


def test_json_is_one_document(scavenger: Run, folder: Path) -> None:
    document = json.loads(scavenger("logs", "digits-cnn", "-n", 1, "-o", "json")[1])

    assert document["logs"] == {"w0": ["line 29"], "w10": ["no end"]}
    assert [(event["level"], event["kind"]) for event in document["events"]] == [("warning", "worker")]
    assert document["folder"] == str(folder)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--events", "--process", "w0"), "not both"),
        (("-f", "-o", "json"), "-f prints without end"),
        (("--process", "../../job"), "has no log of '../../job'; it has w0, w10 in"),
        (("--process", "fifo"), "has no log of 'fifo'"),
        (("-n", "-1"), "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_exit_2(
    scavenger: Run, folder: Path, arguments: tuple[str, ...], fragment: str
) -> None:
    os.mkfifo(folder / "fifo.log")
    code, _, err = scavenger("logs", "digits-cnn", *arguments)

    assert code == 2
    assert len(err.splitlines()) == 1
    assert fragment in err


def test_a_job_that_wrote_nothing_says_so(scavenger: Run, store_url: str) -> None:
    with Store.open(store_url) as store:
        store.create_job("new", spec={}, job_file="job.yaml")
    code, out, err = scavenger("logs", "new")

    assert (code, out) == (0, "")
    assert "no process has written a log" in err
    assert ".scavenger" in err


@pytest.mark.slow
def test_following_shows_all_that_comes_and_ends_with_the_job(
    folder: Path, store_url: str, tmp_path: Path
) -> None:
    child = Command(
        [sys.executable, "-m", "scavenger_cli", "logs", "digits-cnn", "-f", "-n", "1"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "SCAVENGER_STORE": store_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert "w1 lost" in child.stdout.readline()
    assert child.stdout.readline() == "w0 | line 29\n"
    assert child.stdout.readline().startswith("w10 | caf")
    with (folder / "w10.log").open("a") as log:  # what had no end is shown when it has one
        log.write(" yet\nlast")
    assert child.stdout.readline() == "w10 | no end yet\n"
    (folder / "w2.log").write_text("a joiner\n")
    assert child.stdout.readline() == "w2 | a joiner\n"
    finish(store_url)
    rest, notes = child.communicate(timeout=30)

    assert rest == "w10 | last\n"
    assert "is succeeded" in notes
    assert child.returncode == 0


def test_following_ends_when_nobody_reads(
    scavenger: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []

    def gone(stream: object, text: str) -> bool:
        printed.append(text)
        return False

    monkeypatch.setattr(logs_module.console, "write", gone)
    assert scavenger("logs", "digits-cnn", "-f")[0] == 0
    assert len(printed) == 1 + 1  # the second is the command line's own last flush


class TestATail:
    def test_says_where_a_log_was_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "w.log"
        path.write_text("one\ntwo\n")
        tail = LogTail(path)
        assert tail.last(9, whole=False) == ["one", "two"]
        path.write_text("two\n")
        assert tail.more() == ["(the log was cut: lines may be missing here)"]
        with path.open("a") as log:
            log.write("three\n")
        assert tail.more() == ["three"]

    def test_reads_a_log_that_is_not_there_yet(self, tmp_path: Path) -> None:
        tail = LogTail(tmp_path / "w.log")
        assert tail.last(5, whole=False) == []
        (tmp_path / "w.log").write_text("now\n")
        assert tail.more() == ["now"]

    def test_holds_no_endless_line_in_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "w.log"
        path.write_bytes(b"x" * (LINE_BYTES_MAX + 1))
        tail = LogTail(path)
        tail.last(0, whole=False)
        assert tail.more() == []
        with path.open("ab") as log:
            log.write(b"y" * (LINE_BYTES_MAX + 1))
        assert [len(line) for line in tail.more()] == [LINE_BYTES_MAX + 1]

    def test_of_a_long_log_begins_with_a_whole_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scavenger.api.logs.READ_BYTES_MAX", 1 << 10)
        path = tmp_path / "w.log"
        path.write_bytes(b"0123456789abcdef\n" * (1 << 7))
        lines = LogTail(path).last(10**6, whole=True)

        assert set(lines) == {"0123456789abcdef"}
        assert len(lines) == (1 << 10) // 17

    @given(st.lists(st.binary(max_size=12), max_size=8))
    def test_loses_and_doubles_nothing_however_it_is_written(
        self, tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]
    ) -> None:
        path = tmp_path_factory.mktemp("log") / "w.log"
        path.touch()
        tail, found = LogTail(path), []
        for chunk in chunks:
            with path.open("ab") as log:
                log.write(chunk)
            found += tail.more()
        found += tail.more(whole=True)
        whole = LogTail(path).last(10**6, whole=True)

        assert found == whole


@given(st.text())
def test_a_harmless_line_has_nothing_to_obey_and_hides_nothing(text: str) -> None:
    shown = harmless(text)

    assert not any(ord(c) < 32 and c != "\t" for c in shown)
    assert "\x7f" not in shown
    assert len(shown) >= len(text)
    assert harmless(shown) == shown
