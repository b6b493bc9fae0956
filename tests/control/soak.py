"""Servers of one store while PostgreSQL, servers and runners are killed: nothing is lost, and nothing runs twice.

`python -m tests.control.soak --minutes 10` starts a PostgreSQL server of its own and three real `scavenger serve`,
submits jobs through REST, kills with SIGKILL at random, and in the end holds the store against what was answered:

- every submission that was acknowledged is on record once, under its key, and its job has succeeded;
- each step of each job is on record exactly once, in order, and tokens of leases only grow with them;
- no two processes of one job were there at once (a lock in the job's folder);

The memory of the first server, which is killed only if it is alone, is in the figures.

Jobs make steps on record and train nothing (`soak_runner`). `--kill` names what is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from postgresql_server import Server as PostgreSQL  # noqa: E402
from postgresql_server import running_server  # noqa: E402

from scavenger.domain.submission import Submission, runner_lease  # noqa: E402
from scavenger.errors import ScavengerError, StoreUnavailableError  # noqa: E402
from scavenger.policy.runners import STARTS_MAX  # noqa: E402
from scavenger.store import Store  # noqa: E402
from tests.control.soak_runner import OVERLAP, STEP  # noqa: E402

KINDS = ("postgresql", "servers", "runners")
KILL_EVERY_S = {"postgresql": (5.0, 40.0), "servers": (10.0, 40.0), "runners": (2.0, 10.0)}
DRAIN_S = 900.0
"""How long the jobs that were submitted may take to end, once nothing is killed any more."""
OPEN_MAX = 12
"""Most jobs that wait or run."""
SAMPLE_S = 5.0
_JOB = """\
version: 1
name: {name}
train: train:job
search: {{workers: 1..2, batch_size: {{min: 64, max: 256}}}}
goal: {{metric: val_accuracy, target: 0.97, max_epochs: {steps}}}
"""
_POOLS = "[pool.local]\nslots = 4\n"
_SERVE = (
    "import sys; from scavenger.control.service import runners;"
    "runners.RUNNER = ('-m', 'tests.control.soak_runner');"
    "runners._TARGET = 'tests.control.soak_runner:main';"
    "from scavenger_cli.main import main; main()"
)


@dataclass(slots=True)
class Seen:
    """What happened, for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    submitted: dict[str, str] = field(default_factory=dict)
    repeated: int = 0
    rss: list[tuple[float, int]] = field(default_factory=list)


class Serving:
    """One `scavenger serve`, which can be killed and started again at its port."""

    def __init__(
        self,
        number: int,
        url: str,
        folder: Path,
        *,
        code: str = _SERVE,
        pools: str = _POOLS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._number, self._url, self._folder = number, url, folder
        self._code, self._pools, self._env = code, pools, env or {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, if it does not run: a server that begins while the store is away ends at once."""
        if self.process is not None and self.process.poll() is None:
            return
        pools = self._folder / f"pools-{self._number}.toml"
        pools.write_text(self._pools)
        with open(self._folder / f"server-{self._number}.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self._code, "serve", "--port", str(self.port), "--pool", str(pools)],
                env={
                    **os.environ,
                    **self._env,
                    "SCAVENGER_STORE": self._url,
                    "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )

    def kill(self) -> None:
        """Kill it, if it was started."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def answers(self) -> bool:
        """Whether it has begun to serve."""
        with socket.socket() as asking:
            asking.settimeout(5.0)
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def submit(self, token: str, job_file: Path, key: str, **given: object) -> str:
        """Submit a job; returns its id. Raises OSError or `http.client.HTTPException` without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        }
        with contextlib.closing(connection):
            connection.request("POST", "/v1/jobs", json.dumps({"job_file": str(job_file), **given}), headers)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 202:
            raise OSError(f"{answer.status} {text[:200]!r}")
        return str(json.loads(text)["submission"]["id"])


class Soak:
    """One soak, of jobs that make steps on record.

    Args:
        url: The store.
        servers: Number of `scavenger serve`.
        folder: For jobs and logs.
        kill: What is killed, of `KINDS`.
        every_s: Time between submissions, seconds.
        rng: Decides when and what.
    """

    kill_every_s, runner = KILL_EVERY_S, "tests.control.soak_runner"

    def __init__(
        self,
        url: str,
        postgresql: PostgreSQL | None,
        servers: int,
        folder: Path,
        *,
        kill: tuple[str, ...],
        every_s: float,
        rng: random.Random,
    ) -> None:
        self.url, self._postgresql, self._folder = url, postgresql, folder
        self._kill, self._every_s, self._rng = kill, every_s, rng
        self.serving = [self._server(number) for number in range(servers)]
        self.seen = Seen()
        self._over = threading.Event()
        with Store.open(url) as store:
            store.set_user("soak", "admin")
            _, self._token = store.new_token("soak", "soak")

    def _server(self, number: int) -> Serving:
        return Serving(number, self.url, self._folder)

    def run(self, duration_s: float) -> None:
        """Submit and kill for so long, then let the jobs end."""
        parts = [self._submitting, self._keeping, self._sampling]
        parts += [getattr(self, f"_killing_{name}") for name in self._kill]
        threads = [threading.Thread(target=part, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        time.sleep(duration_s)
        self._over.set()
        for thread in threads:
            thread.join()
        self._drain(time.monotonic() + DRAIN_S)

    # ---- what is done meanwhile ----------------------------------------------------------------------------

    def _submitting(self) -> None:
        """Submit jobs one after another; what was not answered is sent again with its key, to any server.

        While many wait, as on a busy machine, none is submitted: they could not all end in time.
        """
        number = 0
        while not self._over.wait(self._rng.expovariate(1 / self._every_s)):
            if self._open() >= OPEN_MAX:
                continue
            number += 1
            folder = self._folder / f"job-{number}"
            folder.mkdir()
            given = self._written(folder)
            self._submit(folder / "job.yaml", str(uuid.uuid4()), **given)

    def _open(self) -> int:
        """Jobs that wait or run; 0 while the store is away."""
        with contextlib.suppress(StoreUnavailableError), Store.open(self.url) as store:
            return len(store.submissions(OPEN_MAX, states=("queued", "running")))
        return 0

    def _written(self, folder: Path) -> dict[str, object]:
        """Write a job into its folder; returns what is given with its submission."""
        (folder / "train.py").write_text("")
        job = _JOB.format(name=folder.name, steps=self._rng.randint(10, 60))
        (folder / "job.yaml").write_text(job)
        return {}

    def _submit(self, job_file: Path, key: str, **given: object) -> None:
        until = time.monotonic() + DRAIN_S
        while True:
            try:
                found = self._rng.choice(self.serving).submit(self._token, job_file, key, **given)
            except (OSError, http.client.HTTPException):
                self.seen.repeated += 1
                if time.monotonic() > until:
                    raise
                time.sleep(0.3)
            else:
                self.seen.submitted[key] = found
                return

    def _keeping(self) -> None:
        """Start again what was killed, as systemd does."""
        while not self._over.wait(1.0):
            self._start_servers()

    def _start_servers(self) -> None:
        for one in self.serving:
            one.start()

    def _sampling(self) -> None:
        begin = time.monotonic()
        while not self._over.wait(SAMPLE_S):
            first = self.serving[0].process
            with contextlib.suppress(psutil.Error):
                if first is not None:
                    size = psutil.Process(first.pid).memory_info().rss
                    self.seen.rss.append((time.monotonic() - begin, size))

    def _moments(self, kind: str) -> Iterator[None]:
        while not self._over.wait(self._rng.uniform(*self.kill_every_s[kind])):
            self.seen.kills[kind] += 1
            yield

    def _killing_postgresql(self) -> None:
        assert self._postgresql is not None
        for _ in self._moments("postgresql"):
            self._postgresql.kill()
            time.sleep(self._rng.uniform(0.0, 5.0))
            self._postgresql.start()

    def _killing_servers(self) -> None:
        for _ in self._moments("servers"):
            victim = self._rng.choice(self.serving[1:] or self.serving)  # the first one's memory is measured
            victim.kill()

    def _killing_runners(self) -> None:
        for _ in self._moments("runners"):
            with contextlib.suppress(psutil.Error, StoreUnavailableError, IndexError):  # it may end meanwhile
                if found := [one for one in self.runners() if self._may_end(one)]:
                    self._rng.choice(found).kill()

    def runners(self) -> list[psutil.Process]:
        """Runners of this soak's jobs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self.runner in process.cmdline() and process.cwd().startswith(str(self._folder)):
                    found.append(process)
        return found

    def _may_end(self, runner: psutil.Process) -> bool:
        """Whether a runner's job may have another one: it fails after so many in a row without a further step."""
        with Store.open(self.url) as store:
            submission = store.submission(runner.cmdline()[-2])
        return submission is not None and submission.starts.fruitless < STARTS_MAX - 1

    def _drain(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            self._start_servers()
            with contextlib.suppress(StoreUnavailableError), Store.open(self.url) as store:
                if not store.submissions(1, states=("queued", "running")):
                    return
            time.sleep(1.0)

    # ---- what came of it -----------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """What is wrong in the end; empty if nothing is."""
        found = []
        with Store.open(self.url) as store:
            on_record = {one.job.idempotency_key: one for one in store.submissions(1_000_000)}
            for key, job_id in self.seen.submitted.items():
                one = on_record.get(key)
                if one is None or one.id != job_id:
                    found.append(f"submission {job_id} was acknowledged, and is lost")
                elif (one.state, one.reason) != ("ended", "succeeded"):
                    found.append(f"job {one.job.name} is {one.state}: {one.reason}")
                else:
                    found += self._faults_of(store, one)
            if len(on_record) != len(self.seen.submitted):
                found.append(f"{len(on_record)} submissions on record, of {len(self.seen.submitted)}")
        return found

    def _faults_of(self, store: Store, one: Submission) -> list[str]:
        """What is wrong with a job that has succeeded."""
        return _faults_of(store, one.id, one.job.job_file)

    def growth(self) -> dict[str, float]:
        """RSS of the first server: medians of the second and the last fifth of the time, bytes, and the growth."""
        if not self.seen.rss:
            return {}
        last_s = self.seen.rss[-1][0]

        def level(low: float, high: float) -> float:
            sizes = [size for at, size in self.seen.rss if low <= at / last_s <= high]
            return statistics.median(sizes) if sizes else float("nan")

        early, late = level(0.2, 0.4), level(0.8, 1.0)
        return {"early_bytes": early, "late_bytes": late, "growth": late / early - 1}


def _faults_of(store: Store, job_id: str, job_file: str) -> list[str]:
    job = store.job(job_id)
    told = [event.data for event in store.events(job_id, limit=100_000, kind=STEP)]
    found = []
    if [data["step"] for data in told] != list(range(1, job.spec["goal"]["max_epochs"] + 1)):
        found.append(f"job {job.name}: its steps on record are {[data['step'] for data in told]}")
    tokens = [data["token"] for data in told]
    if tokens != sorted(tokens):
        found.append(f"job {job.name}: an old token wrote after a new one: {tokens}")
    lease = store.lease(runner_lease(job_id))
    if lease is None or lease.holder:
        found.append(f"job {job.name}: its lease is still held")
    if (Path(job_file).parent / OVERLAP).exists():
        found.append(f"job {job.name}: two runners at once")
    return found


@contextmanager
def place_of(database: str, folder: Path | None) -> Iterator[tuple[str, PostgreSQL | None, Path]]:
    """The URL of the store, PostgreSQL's server if it is one, and the folder, a temporary one if None is given."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as made:
        where = folder or Path(made)
        if database == "sqlite":
            yield f"sqlite:///{where}/store.db", None, where
            return
        with running_server() as server:
            yield server.url, server, where


def soak(
    duration_s: float,
    *,
    database: str = "postgresql",
    servers: int = 3,
    kill: tuple[str, ...] = ("postgresql",),
    every_s: float = 5.0,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[list[str], dict[str, object]]:
    """Run a soak; returns what is wrong, and figures.

    Args:
        folder: For jobs, logs and the store, which stay; None for a temporary one.
    """
    with place_of(database, folder) as (url, postgresql, where):
        one = Soak(url, postgresql, servers, where, kill=kill, every_s=every_s, rng=random.Random(seed))
        try:
            one.run(duration_s)
            faults = one.faults()
        finally:
            for server in one.serving:
                server.end()
            for process in one.runners():
                process.kill()
        with Store.open(url) as store:
            starts = [each.starts.count for each in store.submissions(1_000_000)]
        logs = [(where / f"server-{n}.log").read_text() for n in range(servers)]
    figures: dict[str, object] = {
        "database": database,
        "servers": servers,
        "duration_s": duration_s,
        "kills": dict(one.seen.kills),
        "jobs": len(one.seen.submitted),
        "requests_sent_again": one.seen.repeated,
        "runners_started": sum(starts),
        "most_starts_of_a_job": max(starts, default=0),
        "tracebacks": sum(text.count("Traceback") for text in logs),
        **one.growth(),
    }
    return faults, figures


def options_of(
    module: str, what: str | None, kinds: Sequence[str], *, minutes: float, every: float, **defaults: object
) -> dict[str, Any]:
    """The options of a soak as arguments of its function; SIGTERM ends what it has started with it.

    Args:
        kinds: Of what can be killed.
        minutes, every, defaults: Of the options.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=what)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--database", choices=("postgresql", "sqlite"))
    parser.add_argument("--servers", type=int, help="1 for SQLite")
    parser.add_argument("--kill", help=f"of {', '.join(kinds)}, with commas")
    parser.add_argument("--every", type=float, default=every, help="seconds between submissions, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder in which all is kept")
    parser.set_defaults(**defaults)
    given = vars(parser.parse_args())
    kill = tuple(name for name in given["kill"].split(",") if name)
    sqlite = given["database"] == "sqlite"
    if set(kill) - set(kinds) or (sqlite and ("postgresql" in kill or given["servers"] > 1)):
        parser.error(f"--kill names of {', '.join(kinds)}; a SQLite store has one server, none of PostgreSQL")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return {"duration_s": 60 * given.pop("minutes"), "every_s": given.pop("every"), **given, "kill": kill}


def told(faults: Sequence[str], figures: Mapping[str, object]) -> int:
    """Print what came of a soak; returns the exit code."""
    print(json.dumps(figures, indent=1))
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def main() -> int:
    options = options_of(
        "tests.control.soak",
        __doc__,
        KINDS,
        minutes=10.0,
        every=5.0,
        database="postgresql",
        servers=3,
        kill="postgresql",
    )
    try:
        return told(*soak(**options))
    except ScavengerError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
