"""On a real terminal: questions, the live display, Ctrl-C once and twice."""

from __future__ import annotations

import atexit
import codecs
import functools
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from screens import Screen
from warm_commands import Command

from scavenger.control.job_file.load import load_job
from scavenger.store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("cli_fake.py")
JOB = """\
version: 1
name: digits-cnn
train: train:job
search: {workers: 1..2, batch_size: {min: 64, max: 256}}
goal: {max_epochs: 60}
"""
PATIENCE_S = 30.0


@functools.cache
def _migrated_store() -> Path:
    """A store that is ready, so that not every process migrates one."""
    path = Path(tempfile.mkdtemp()) / "store.db"
    atexit.register(shutil.rmtree, path.parent)
    Store.open(f"sqlite:///{path}").close()
    return path


class Terminal:
    """The command line with the driver's stand-in, on a pseudo-terminal."""

    def __init__(
        self,
        folder: Path,
        mode: str,
        *arguments: str,
        size: tuple[int, int] = (24, 80),
        command: Path = FAKE,
        **environment: str,
    ) -> None:
        (folder / "job.yaml").write_text(JOB)
        (folder / "train.py").write_text("")
        shutil.copy(_migrated_store(), folder / "store.db")
        self._mine, theirs = pty.openpty()
        self.screen = Screen(*size)
        self.resize(*size)
        self.process = Command(
            [sys.executable, command, mode, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
                "SCAVENGER_STORE": f"sqlite:///{folder / 'store.db'}",
                "TERM": "xterm-256color",
                "CI": "",
                **environment,
            },
        )
        os.close(theirs)
        self.seen, self._decoder = "", codecs.getincrementaldecoder("utf-8")("replace")

    def until(self, words: str) -> None:
        """Read on until the words have been seen."""
        end = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            assert time.monotonic() < end, self.seen
            if not self._read():
                raise AssertionError(f"ended before {words!r}: {self.seen}")

    def _read(self) -> bool:
        ready, _, _ = select.select([self._mine], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._mine, 65536)
        except OSError:  # the other side is closed
            return False
        text = self._decoder.decode(data)
        self.seen += text
        self.screen.feed(text)
        return bool(data)

    def resize(self, lines: int, columns: int) -> None:
        """Change the window, as its user does."""
        self.screen.resize(lines, columns)
        termios.tcsetwinsize(self._mine, (lines, columns))

    def until_shown(self, holds: Callable[[list[str]], bool]) -> None:
        """Read on until something holds of the rows of the screen and above it, as it does once all is drawn anew."""
        end = time.monotonic() + PATIENCE_S
        while not holds(self.screen.history):
            assert time.monotonic() < end, "\n".join(self.screen.history)
            assert self._read()

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def close(self) -> int:
        """The exit code, where the user closes the window."""
        os.close(self._mine)
        self.process.send_signal(signal.SIGHUP)
        return self.process.wait(PATIENCE_S)

    def end(self) -> int:
        """The exit code, with everything read."""
        while self._read() and self.process.poll() is None:
            pass
        while select.select([self._mine], [], [], 0)[0] and self._read():
            pass
        os.close(self._mine)
        return self.process.wait(PATIENCE_S)


@pytest.mark.parametrize(("answer", "state"), [("y\n", "succeeded"), ("\n", "planned")])
def test_only_yes_is_yes(tmp_path: Path, answer: str, state: str) -> None:
    terminal = Terminal(tmp_path, "ask", "optimize", "job.yaml")
    terminal.until("Run it? [y/N]")
    assert "This will run" in terminal.seen
    terminal.type(answer)

    assert terminal.end() == 0
    assert state in terminal.seen.split("[y/N]")[1]
    assert terminal.seen.count("Predicted for 6") == 1


GPU_JOB = """\
version: 1
name: digits-cnn
train: train:job
infra: aws/us-east-1
resources: {vm: g4dn.xlarge}
search: {workers: 1..2, batch_size: [64]}
goal: {max_epochs: 60}
limits: {price_age: 1d}
"""


@pytest.mark.parametrize(("answer", "then"), [("n\n", ""), ("y\n", "Run it? [y/N]")])
def test_a_gpu_by_an_old_price_is_asked_about_with_its_date_and_source(
    tmp_path: Path, answer: str, then: str
) -> None:
    (tmp_path / "gpu.yaml").write_text(GPU_JOB)
    rented = {"SCAVENGER_UNPROVEN": "gpu-vms", "SCAVENGER_ADDRESS": "127.0.0.1"}
    offline = {"SCAVENGER_PRICE_REFRESH": "never", "XDG_CACHE_HOME": str(tmp_path)}
    terminal = Terminal(tmp_path, "ask", "optimize", "gpu.yaml", **rented, **offline)
    terminal.until("Rent VMs to profile on? [y/N]")
    question = " ".join(terminal.seen.partition("job file")[2].split())
    assert re.search(
        r"The price of g4dn\.xlarge, \$0\.526 an hour, is \d+ days old \(AWS price list by Karpenter, 2026-07-20\)\. "
        r"Rent VMs",
        question,
    )
    terminal.type(answer)
    if then:
        terminal.until(then)
        terminal.type("n\n")

    assert terminal.end() == 0

    refused = Terminal(tmp_path, "ask", "optimize", "gpu.yaml", "--yes", **rented, **offline)
    refused.until("price_age")
    assert refused.end() == 2


def test_ctrl_c_takes_a_question_back(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "ask", "optimize", "job.yaml")
    terminal.until("Run it? [y/N]")
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == 130
    assert "interrupted" in terminal.seen


def test_a_closed_terminal_ends_the_job_in_order(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "wait", "optimize", "job.yaml", "--yes", XDG_STATE_HOME=str(tmp_path))
    terminal.until("chosen:")

    assert terminal.close() == 130
    assert not list(tmp_path.rglob("*.traceback"))


def test_what_is_said_on_ctrl_c_stays_on_the_screen_under_the_live_display(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "wait", "optimize", "job.yaml", "--yes")
    terminal.until("chosen:")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130

    said = [row for row in terminal.screen.history if row.startswith("scavenger: stopping in order;")]
    assert len(said) == 1
    assert "Ctrl-C again, or kill" in " ".join(terminal.screen.history)


@pytest.mark.parametrize(("lines", "columns"), [(24, 80), (10, 40)])
def test_a_running_job_fits_the_screen_also_when_its_window_is_changed_and_leaves_it_clean(
    tmp_path: Path, lines: int, columns: int
) -> None:
    terminal = Terminal(
        tmp_path, "train", "optimize", "job.yaml", "--yes", size=(lines, columns), NO_COLOR="1"
    )
    terminal.until("killed by")
    terminal.until("\x1b[2K")
    before = terminal.screen.history
    assert before[0].startswith("20")  # the record of the log, above
    assert len(before) - before.index(next(row for row in before if row.startswith("running:"))) < lines
    assert "WARNING scavenger: the store is slow" in " ".join(before)
    assert sum("running: to val_accuracy" in row for row in before) == 1
    assert any(row.startswith("cost      $") for row in before)
    assert "\x1b[3" not in terminal.seen  # no colour, but live

    for size in ((lines - 2, columns - 17), (lines, columns + 20)):
        terminal.resize(*size)
        terminal.until_shown(
            lambda rows: (
                [sum(words in row for row in rows) for words in ("running: to val", "cost      $")] == [1, 1]
                and sum(row.startswith(("time ", "step ", "metric ")) for row in rows) <= 3
                and max(map(len, rows)) <= terminal.screen.columns
            )
        )
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130

    left = terminal.screen.history
    assert not any(row.startswith(("running:", "cost      $", "runs on")) for row in left), left
    assert "WARNING scavenger: the store is slow" in " ".join(left)
    assert sum(row.startswith("Job digits-cnn") for row in left) == 1
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_where_nobody_looks_at_a_screen_events_are_lines(tmp_path: Path, environment: dict[str, str]) -> None:
    terminal = Terminal(tmp_path, "train", "optimize", "job.yaml", "--yes", **environment)
    terminal.until("killed by")
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == 130
    assert "\x1b[?25l" not in terminal.seen
    assert "\x1b[2K" not in terminal.seen
    assert "running: to val_accuracy>=0.97 within 60 epochs\r\n" in terminal.seen


PROGRAM = """
import sys, time
from scavenger.domain.configuration import Configuration
from scavenger.domain.report import PhaseChanged, ViewChanged
from scavenger.pipelines.progress import shown_progress
with shown_progress(None, budget_usd=2.0) as observer:
    observer.on_event(PhaseChanged("running", "to the goal"))
    for number in range(40):
        print("of the user", number)
        print("of the user, too", number, file=sys.stderr)
        time.sleep(0.02)
print("after it")
"""


def test_what_a_program_prints_meanwhile_stands_above_the_display_in_order(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    terminal = Terminal(tmp_path, "", command=tmp_path / "program.py")

    assert terminal.end() == 0
    assert "running: to the goal" in terminal.seen
    assert "budget    $2.00" in terminal.seen
    printed = [row for number in range(40) for row in (f"of the user {number}", f"of the user, too {number}")]
    assert [row for row in terminal.screen.history if row] == [*printed, "after it"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_in_order_and_says_what_still_runs(tmp_path: Path, number: int) -> None:
    terminal = Terminal(tmp_path, "wait", "optimize", "job.yaml", "--yes")
    terminal.until("chosen:")
    terminal.process.send_signal(number)

    assert terminal.end() == 130
    assert "2 processes of this job are still running" in terminal.seen
    assert "Ctrl-C again" in terminal.seen
    assert "Job digits-cnn" in terminal.seen


def test_the_second_ctrl_c_kills_and_leaves_at_once_with_the_cursor_back(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "stubborn", "optimize", "job.yaml", "--yes")
    terminal.until("chosen:")
    terminal.process.send_signal(signal.SIGINT)
    terminal.until("Ctrl-C again")
    began = time.monotonic()
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == 130
    assert time.monotonic() - began < 10
    assert "killed" in terminal.seen
    assert "scavenger resume 01234567" in terminal.seen
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")


def test_no_color_means_no_colour_even_on_a_terminal(tmp_path: Path) -> None:
    coloured = Terminal(tmp_path, "finish", "optimize", "job.yaml", "--yes")
    assert coloured.end() == 0
    plain = Terminal(tmp_path, "finish", "optimize", "job.yaml", "--yes", NO_COLOR="1")
    assert plain.end() == 0

    colours = [f"\x1b[{code}m" for code in range(30, 38)] + ["\x1b[38;", "\x1b[33m"]
    assert not any(colour in plain.seen for colour in colours)
    assert "Chosen" in plain.seen


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_poor_terminals_get_plain_words(tmp_path: Path, environment: dict[str, str]) -> None:
    terminal = Terminal(tmp_path, "finish", "optimize", "job.yaml", "--yes", **environment)

    assert terminal.end() == 0
    assert terminal.seen.isascii()
    assert ("\x1b[" in terminal.seen) == ("PYTHONIOENCODING" in environment)


def test_what_other_libraries_write_goes_to_the_log_of_the_job(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "noisy", "optimize", "job.yaml", "--yes")
    assert terminal.end() == 0
    piped = Command(
        [sys.executable, FAKE, "noisy", "optimize", "job.yaml", "--yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
            "SCAVENGER_STORE": f"sqlite:///{tmp_path / 'store.db'}",
        },
    )
    stdout, stderr = piped.communicate(timeout=PATIENCE_S)

    for shown in (terminal.seen, stdout + stderr):
        assert "at-first" not in shown
        assert "later-on" not in shown
        assert "WARNING scavenger: of Scavenger's own" in shown
        assert "Job digits-cnn" in shown
    assert stderr.splitlines()[0] == "starting: 1 worker"
    logs = [one.read_text() for one in tmp_path.rglob("command.log")]
    assert len(logs) == 2
    for log in logs:
        for when in ("at-first", "later-on"):
            for words in (
                f"I0000 {when} port.cc:153] oneDNN",
                f"{when}: printed by C++",
                f"{when}: printed by Python",
                f"{when}: written to stderr",
                f"{when}: Retrying (Retry",
                f"{when}: is deprecated",
                f"{when}: a child\n",
                f"{when}: a child of old",
            ):
                assert log.count(words) == 1, words
        assert "Scavenger's own" not in log


def test_init_asks_on_a_terminal_and_again_after_an_invalid_answer(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "finish", "init", "new")
    for words, answer in [
        ("Name of the job [new]: ", "My Job"),
        ("name must be made of lower-case letters", "my-job"),
        ("module:function [train:job]: ", ""),
        ("Metric to reach [val_accuracy]: ", "val_loss"),
        ("Its target: ", "0.3"),
        ("workers to consider [1..2]: ", "1..3"),
        ("Budget in US dollars, if any: ", ""),
    ]:
        terminal.until(words)
        terminal.type(f"{answer}\n")
    terminal.until("next: scavenger optimize new/job.yaml")

    assert terminal.end() == 0
    job = load_job(tmp_path / "new" / "job.yaml")
    assert (job.name, job.goal.metric, job.goal.target) == ("my-job", "val_loss", 0.3)
    assert (job.search.workers, job.constraints.budget) == ((1, 2, 3), None)


def test_a_terminal_that_closes_at_a_question_of_init_leaves_nothing(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "finish", "init", "new")
    terminal.until("Name of the job [new]: ")
    terminal.type("\x04")

    assert terminal.end() == 130
    assert not (tmp_path / "new").exists()
