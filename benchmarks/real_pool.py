"""A real pool of this machine: `scavenger serve`, jobs that a client submits, and what their records say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import played_job
from benchmarks.scheduling import a100_curves
from scavenger import Client, Job
from scavenger.domain.curve import FloatArray
from scavenger.domain.submission import Submission
from scavenger.scheduler.jobs.seeing import CHANGES_MAX
from scavenger.server.serving import first_token
from scavenger.store import Store

POOL = "gpu"
_START_S, _LOOK_S = 120.0, 0.25


@dataclass(frozen=True, slots=True)
class Kind:
    """A model whose curve is played.

    Attributes:
        batch: Global batch size, samples.
        rates: Steps a second with 1, 2, ... workers.
    """

    name: str
    batch: int
    rates: tuple[float, ...]

    def samples(self, epoch_s: float) -> int:
        """Samples of an epoch that lasts so long with four workers."""
        return self.batch * round(epoch_s * self.rates[3])

    def spec(
        self, *, epochs: int, epoch_s: float, workers: Sequence[int], elastic: tuple[int, int]
    ) -> dict[str, Any]:
        """The job file of a job of this model.

        Args:
            epoch_s: See `samples`.
            workers: Numbers that it searches.
            elastic: Fewest and most.
        """
        return {
            "train": "train:job",
            "params": {
                "rates": list(self.rates),
                "batch": self.batch,
                "samples": self.samples(epoch_s),
            },
            "goal": {"max_epochs": epochs},
            "objective": "time",
            "search": {"workers": list(workers), "batch_size": [self.batch]},
            "elastic": {"min": elastic[0], "max": elastic[1]},
            "profile": {"steps": 4},
            "checkpoint": {"path": "./saved", "every": "30s"},
        }


def kinds(names: Sequence[str], most: int) -> list[Kind]:
    """Models and batch sizes of ElasticFlow's A100 step times, up to so many workers."""
    known = a100_curves()
    rows = [known.names.index(name) for name in names]
    rates = known.curves.rates[rows, 1 : most + 1]
    return [
        Kind(name, int(name.split()[1]), tuple(row.tolist())) for name, row in zip(names, rates, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that a job has made, one row each.

    Attributes:
        end_s: Unix time.
        took_s: Since the step before.
        workers: In its view.
    """

    end_s: FloatArray
    took_s: FloatArray
    samples: FloatArray
    workers: FloatArray


@dataclass(frozen=True, slots=True)
class Moves:
    """What the server did: when, unix time, and the line."""

    at_s: FloatArray
    lines: tuple[str, ...]

    def first_s(self, words: str, after_s: float = 0.0) -> float:
        """When, from some moment on, a line with these words came first."""
        rows = [row for row, line in enumerate(self.lines) if words in line and self.at_s[row] >= after_s]
        return float(self.at_s[rows[0]])


@dataclass
class RealPool:
    """A server with a store of its own, its pool, and the jobs that were submitted.

    Attributes:
        jobs: Submissions, in order.
        used: Readings of (unix time, processor seconds of the server so far).
    """

    folder: Path
    client: Client
    store: Store
    server: psutil.Process
    jobs: list[str] = field(default_factory=list)
    used: list[tuple[float, float]] = field(default_factory=list)

    def submit(self, name: str, spec: Mapping[str, Any]) -> str:
        """Submit a job; returns its id."""
        path = self.folder / "jobs" / f"{name}.yaml"
        path.write_text(json.dumps({"version": 1, "name": name, "infra": f"pool/{POOL}", **spec}))
        self.jobs.append(self.client.submit(Job.from_yaml(path)).id)
        return self.jobs[-1]

    def submission(self, job: str) -> Submission:
        """A job as it is on record."""
        found = self.store.submission(job)
        assert found is not None
        return found

    def wait(self, until: Callable[[], bool], limit_s: float) -> None:
        """Wait, and read the server's processor time meanwhile.

        Raises:
            RuntimeError: It takes too long.
        """
        end = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > end:
                raise RuntimeError(f"not so within {limit_s:g} s: see {self.folder}")
            times = self.server.cpu_times()
            self.used.append((now_s(), times.user + times.system))
            time.sleep(_LOOK_S)

    def ended(self, *jobs: str) -> bool:
        """Whether these jobs have run to their ends.

        Raises:
            RuntimeError: One of them failed.
        """
        for job in jobs:
            one = self.submission(job)
            if one.is_open:
                return False
            if one.reason not in ("succeeded", "target missed"):
                raise RuntimeError(f"{one.job.name}: {one.reason}")
        return True

    def trains(self, job: str, workers: int) -> bool:
        """Whether a job trains on so many workers."""
        standing = self.store.standings([job]).get(job)
        return standing is not None and standing.state == "training" and standing.held == workers

    def may_change(self, job: str) -> bool:
        """Whether a job's last change has paid for itself, so that its share may change again."""
        allotment, standing = self.store.allotment(POOL), self.store.standings([job]).get(job)
        share = None if allotment is None else allotment.shares.get(job)
        if share is None or share.changed is None or standing is None or standing.change_s is None:
            return True
        return standing.change_s <= CHANGES_MAX * (now_s() - share.changed.timestamp())

    def folder_of(self, job: str) -> Path:
        """Where a job writes."""
        return self.folder / "jobs" / ".scavenger" / job

    def steps(self, job: str) -> Steps:
        """The steps of a job by its journal, which says now and then what time of day it is."""
        rows, offset_s = [], 0.0
        for line in (self.folder_of(job) / "measurements.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "cost":
                offset_s = record["unix_s"] - record["at_s"]
            elif record["kind"] == "step":
                rows.append(
                    (
                        offset_s + record["at_s"],
                        record["step_time_s"],
                        record["samples"],
                        record["workers"],
                    )
                )
        return Steps(*np.array(rows, dtype=np.float64).T)

    def moves(self) -> Moves:
        """What the server's log says of the pool."""
        found = [
            (_unix_s(line), line.partition(": ")[2])
            for line in (self.folder / "server.log").read_text().splitlines()
            if f"pool {POOL}, allotment" in line
        ]
        return Moves(np.array([at for at, _ in found]), tuple(line for _, line in found))

    def events(self, job: str) -> list[tuple[float, str]]:
        """Unix times and messages of a job's events."""
        return [(one.at.timestamp(), one.message) for one in self.store.events(job, limit=9999)]

    def process_ends_s(self, job: str) -> list[float]:
        """Unix times at which workers that left a job have said their last word, growing."""
        logs = (self.folder_of(job) / "logs").glob("w*.log")
        return sorted(
            _unix_s(line)
            for log in logs
            for line in log.read_text().splitlines()
            if "ends with status" in line
        )

    def workers_gone_s(self, job: str) -> float:
        """Unix time at which the last worker of a job that has ended was gone."""
        return max(one.updated_at.timestamp() for one in self.store.processes(job) if one.role == "worker")

    def changes_s(self) -> list[float]:
        """What changes of size cost the jobs that had any, as each told last."""
        standings = self.store.standings(self.jobs).values()
        return [one.change_s for one in standings if one.change_s is not None]

    def worker_starts_s(self) -> list[float]:
        """How long the workers of all jobs took from the start of their processes until they were ready."""
        found = (
            re.search(r"^w\d+ ready after ([\d.]+) s", message)
            for job in self.jobs
            for _, message in self.events(job)
        )
        return [float(one[1]) for one in found if one]


def now_s() -> float:
    """Unix time, as records have it."""
    return datetime.now(UTC).timestamp()


def _unix_s(line: str) -> float:
    return datetime.strptime(line.split()[0], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


@contextmanager
def real_pool(folder: Path, slots: int, policy: str, known: Path | None = None) -> Iterator[RealPool]:
    """Serve a pool on loopback within the block.

    Args:
        folder: Empty, or not there yet.
        known: A store to begin with: what earlier jobs have left in it is known.
    """
    (folder / "jobs").mkdir(parents=True)
    shutil.copy(played_job.__file__, folder / "jobs" / "train.py")
    if known is not None:
        shutil.copy(known, folder / "store.db")
    pools = folder / "pools.toml"
    pools.write_text(f"[pool.{POOL}]\nslots = {slots}\npolicy = '{policy}'\n")
    url = f"sqlite:///{folder}/store.db"
    with Store.open(url) as store:
        token = first_token(store) or store.new_token(store.me().user, "benchmark")[1]
        command = [sys.executable, "-m", "scavenger_cli", "serve", "--port", "0", "--pool", str(pools)]
        with open(folder / "server.log", "ab") as log:
            server = subprocess.Popen(
                command,
                env={**os.environ, "SCAVENGER_STORE": url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            address = _address(store, server)
            with Client(server=address, token=token) as client:
                yield RealPool(folder, client, store, psutil.Process(server.pid))
        finally:
            for one in store.submissions(999, states=("queued", "running")):
                store.cancel(one.id, "the benchmark has ended")
            _wait_for_none(store)
            server.terminate()
            server.wait(_START_S)


def _address(store: Store, server: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.poll() is None:
        if found := [one.address for one in store.servers() if one.pid == server.pid and one.address]:
            return found[0]
        time.sleep(0.05)
    raise RuntimeError("the server did not begin")


def _wait_for_none(store: Store) -> None:
    until = time.monotonic() + _START_S
    while store.submissions(1, states=("running",)) and time.monotonic() < until:
        time.sleep(_LOOK_S)
