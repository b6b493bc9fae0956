"""Real jobs on this machine: a small model, its job file, and the command that runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from warm_commands import Command

import scavenger
from scavenger.store import Store

ROOT = Path(scavenger.__file__).parents[1]
MARK = "SCAVENGER_TEST_MARK"

_MODULE = """
import os, signal, time
import keras
import numpy as np
from scavenger.sdk import KerasJob

SLEEP_S = {sleep_s}  # per sample: work that K workers divide, however few processors there are

class Samples:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        {in_sample}
        if SLEEP_S:
            time.sleep(SLEEP_S)
        return self.x[index], self.y[index]

def job():
    {in_job}
    rng = np.random.default_rng({seed})
    x = rng.normal(size=({samples} + 400, 16)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(16, 1))).astype("float32")
    model = keras.Sequential([keras.Input(({inputs},)), keras.layers.Dense({width}, activation="relu"),
                              keras.layers.Dense({outputs})])
    model.compile(optimizer=keras.optimizers.SGD({rate}), loss="mse")
    train = (x[:{samples}], y[:{samples}])
    return KerasJob(model, Samples(*train) if {itemwise} else train, (x[{samples}:], y[{samples}:]))
"""


@dataclass
class Job:
    """A folder with a job file and its training module."""

    folder: Path
    store: str
    mark: str
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "job.yaml"

    def write(self, **code: Any) -> Job:
        """Write both files; see `_MODULE` for what may be said of the code."""
        said = {
            "sleep_s": 0.0,
            "in_sample": "pass",
            "in_job": "pass",
            "seed": 0,
            "samples": 1600,
            "width": 32,
            "inputs": 16,
            "outputs": 1,
            "rate": 0.01,
            **code,
        }
        said["itemwise"] = bool(said["sleep_s"]) or said["in_sample"] != "pass"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "train.py").write_text(_MODULE.format(**said))
        self.file.write_text(json.dumps(self.spec))
        return self

    def change(self, **sections: Any) -> Job:
        """The job file with some sections replaced."""
        self.spec = {**self.spec, **sections}
        self.file.write_text(json.dumps(self.spec))
        return self

    def start(
        self, command: str = "optimize", *options: str, yes: bool = True, stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Run a command of the program on the job file, with its answer as JSON."""
        agreed = ("--yes",) if yes and command == "optimize" else ()
        return self.begin(command, str(self.file), *agreed, *options, stderr=stderr)

    def begin(self, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Run a command of the program with the job's store, and its answer as JSON."""
        return Command(
            [sys.executable, "-m", "scavenger_cli", *arguments, "--store", self.store, "-o", "json"],
            env=environment(self.mark),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    def ask(self, *arguments: str) -> Outcome:
        """As `begin`, to its end."""
        return ended(self.begin(*arguments))

    def run(self, command: str = "optimize", *options: str, yes: bool = True) -> Outcome:
        """As `start`, to its end."""
        return ended(self.start(command, *options, yes=yes))


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        """The JSON document: standard output holds nothing else."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        return document

    @property
    def error(self) -> str:
        """The one line that tells of the error."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("scavenger: error: ")]
        assert len(lines) == 1, self.stderr
        assert "Traceback" not in self.stderr
        return lines[0].removeprefix("scavenger: error: ")


def environment(mark: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "SCAVENGER_LOCAL_PRICE": "3.6",  # a tenth of a cent for each second of a worker
        MARK: mark,
    }


def ended(process: subprocess.Popen[str], within_s: float = 150.0) -> Outcome:
    """Wait for a command."""
    try:
        stdout, stderr = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"it did not end within {within_s} s: {stderr[-3000:]}") from None
    return Outcome(process.returncode, stdout, stderr)


def marked(mark: str) -> list[psutil.Process]:
    """Every living process that was started with the mark, by whomever."""
    found, shown = [], f"{MARK}={mark}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if shown in Path("/proc", pid, "environ").read_bytes():  # of a process that has ended it is empty
                found.append(psutil.Process(int(pid)))
        except (OSError, psutil.Error):
            continue
    return found


_opened: dict[str, tuple[int, Store]] = {}


def opened(job: Job) -> Store:
    """The store of a job, for one look after another: it stays open until `close_stores`, or until its file is gone."""
    url = job.store
    file = Path(url.removeprefix("sqlite:///").partition("?")[0])
    number, store = _opened.get(url, (0, None))
    if store is None or not file.exists() or file.stat().st_ino != number:
        if store is not None:
            store.close()
        store = Store.open(url)
        _opened[url] = file.stat().st_ino, store
    return store


def close_stores() -> None:
    """Close what looks have opened."""
    while _opened:
        _opened.popitem()[1][1].close()


def training(
    job: Job, *, role: str = "worker", at_least: int = 1, phase: str = ""
) -> Callable[[], list[int]]:
    """Process ids of a job's processes in a role, once so many of them train (in a phase)."""

    def look() -> list[int]:
        store = opened(job)
        running = store.running_jobs(job.file)
        if not running or (phase and running[0].phase != phase):
            return []
        training = [p for p in store.processes(running[0].id) if p.state == "training"]
        found = [p.pid for p in training if p.role == role and p.pid]
        return found if sum(p.role == "worker" for p in training) >= at_least else []

    return look


def lines(path: str | Path) -> Iterator[Mapping[str, Any]]:
    """The records of a measurements file."""
    for line in Path(path).read_text().splitlines():
        if line:  # a resumed job begins on a new line, whatever the one before it was
            yield json.loads(line)
