"""The REST server over a store with 10,000 jobs and 2,000 VMs: latency of reads and submits, indicators, memory."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from benchmarks.figures import Benchmark, Result
from scavenger.domain.intent import Intent, VmCharges, VmTimes
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmTags
from scavenger.server.serving import first_token, serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.intent_rows import row_of
from scavenger.store.schema import EventRow, IntentRow, JobRow, ProcessRow, SubmissionRow

JOBS, LIVE, VMS = 10_000, 100, 2_000
CLIENTS = 16
READ_S, SUBMIT_S, INDICATOR_S = 15.0, 15.0, 10.0
SUBMITS_PER_S = 100.0
STEPS, COLUMNS = 1_000, 10
_JOB = """\
version: 1
name: digits-cnn
train: train:job
search: {workers: 1..2, batch_size: {min: 64, max: 256}}
goal: {metric: val_accuracy, target: 0.97, max_epochs: 60}
"""
_START = datetime(2026, 1, 1, tzinfo=UTC)


def _fill(store: Store, folder: Path) -> list[str]:
    """Fill the tables at once, as single calls would take minutes; return the ids of jobs, live ones first."""
    file, host, uid = str(folder / "job.yaml"), socket.gethostname(), os.getuid()
    ids = [str(uuid.UUID(int=number + 1)) for number in range(JOBS)]
    jobs, submissions, events, processes = [], [], [], []
    for number, job_id in enumerate(ids):
        live, at = number < LIVE, _START + timedelta(minutes=number)
        ended = None if live else at + timedelta(hours=1)
        jobs.append(
            {
                "id": job_id,
                "name": f"job-{number % 500}",
                "state": "running" if live else "succeeded",
                "phase": "running",
                "detail": "",
                "spec": {
                    "name": f"job-{number % 500}",
                    "train": "train:job",
                    "search": {"workers": [1, 2, 3]},
                },
                "job_file": file,
                "owner_pid": os.getpid(),
                "owner_host": host,
                "owner_started_at_s": psutil.Process().create_time(),
                "owner_user": "ann",
                "owner_uid": uid,
                "heartbeat_at": at,
                "created_at": at,
                "started_at": at,
                "ended_at": ended,
                "step": 1000,
                "cost_usd": 1.5,
                "error": "",
                "exit_code": None if live else 0,
                "attempts": 1,
            }
        )
        submissions.append(
            {
                "id": job_id,
                "name": f"job-{number % 500}",
                "spec": {},
                "job_file": file,
                "user": f"user-{number % 20}",
                "host": host,
                "uid": uid,
                "rents": live,
                "audit": False,
                "priority": 0,
                "state": "running" if live else "ended",
                "reason": "",
                "cancelling": False,
                "starts": 1,
                "fruitless": 0,
                "submitted_at": at,
                "started_at": at,
                "ended_at": ended,
            }
        )
        events += [
            {
                "job_id": job_id,
                "at": at,
                "level": "info",
                "kind": "view",
                "message": f"view {n}",
                "data": None,
            }
            for n in range(10)
        ]
        processes += [
            {
                "job_id": job_id,
                "process": f"w{n}",
                "role": "worker",
                "state": "training" if live else "gone",
                "detail": "",
                "updated_at": at,
            }
            for n in range(4)
        ]
    engine = create_engine(f"sqlite:///{store.path}")
    with engine.begin() as connection:
        rows: tuple[tuple[Any, list[dict[str, Any]]], ...] = (
            (JobRow, jobs),
            (SubmissionRow, submissions),
            (EventRow, events),
            (ProcessRow, processes),
        )
        for table, values in rows:
            connection.execute(insert(table), values)
    with Session(engine) as session:
        session.add_all(_vms(ids[:LIVE]))
        session.commit()
    engine.dispose()
    return ids


def _vms(live: Sequence[str]) -> list[IntentRow]:
    found = []
    for number in range(VMS):
        token = str(uuid.UUID(int=10**9 + number))
        tags = VmTags("scavenger-benchmark", token, live[number % len(live)], number // len(live), 0)
        intent = Intent(
            VmRequest(tags, "e2-standard-4", "us-central1-a", False, LaunchTemplate(600.0)),
            "gcp",
            "us-central1",
            VmCharges(0.134, 0.1, 3600.0, 0.134),
            state="UP",
            instance_id=f"vm-{number}",
            acks=3,
            times=VmTimes(launched_at=_START),
        )
        found.append(row_of(intent, _START))
    return found


class _Client:
    """One connection that is kept."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> float:
        """Send a request; return how long its answer took, seconds."""
        begin = time.perf_counter()
        self._connection.request(method, path, body, {**self._headers, **headers})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return time.perf_counter() - begin


def _together(clients: Sequence[_Client], work: Callable[[int, _Client], list[float]]) -> np.ndarray:
    """Run one thread for each client; return all their times."""
    found: list[list[float]] = [[] for _ in clients]
    faults: list[BaseException] = []

    def run(number: int, client: _Client) -> None:
        try:
            found[number] = work(number, client)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            faults.append(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return np.array([took for part in found for took in part])


def _reading(paths: Sequence[str]) -> Callable[[int, _Client], list[float]]:
    def work(number: int, client: _Client) -> list[float]:
        until, times = time.perf_counter() + READ_S, []
        for path in itertools.islice(itertools.cycle(paths), number, None):
            times.append(client.send("GET", path))
            if time.perf_counter() > until:
                break
        return times

    return work


def _submitting(job_file: Path) -> Callable[[int, _Client], list[float]]:
    """Submit at fixed times, whether or not earlier ones were answered; a late answer delays what it delays."""
    together = threading.Barrier(CLIENTS)
    body = json.dumps({"job_file": str(job_file)}).encode()

    def work(number: int, client: _Client) -> list[float]:
        together.wait()
        begin, times = time.perf_counter(), []
        for turn in range(number, int(SUBMIT_S * SUBMITS_PER_S), CLIENTS):
            due = begin + turn / SUBMITS_PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            client.send("POST", "/v1/jobs", body, **{"Idempotency-Key": str(uuid.uuid4())})
            times.append(time.perf_counter() - due)
        return times

    return work


def _reporting(live: Sequence[str]) -> Callable[[int, _Client], list[float]]:
    columns = {f"indicator_{n}": np.random.default_rng(n).random(STEPS).tolist() for n in range(COLUMNS)}

    def work(number: int, client: _Client) -> list[float]:
        until, times, first = time.perf_counter() + INDICATOR_S, [], 0
        while time.perf_counter() < until:
            batch = {"steps": list(range(first, first + STEPS)), "values": columns}
            times.append(
                client.send("POST", f"/v1/jobs/{live[number]}/indicators", json.dumps(batch).encode())
            )
            first += STEPS
        return times

    return work


@contextmanager
def _server(url: str) -> Iterator[tuple[int, psutil.Process]]:
    """A server process of its own, as `scavenger serve` has it; yields its port."""
    command = [sys.executable, "-m", "benchmarks.service", url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def _row(
    name: str, times: np.ndarray, over_s: float, each: int = 1
) -> tuple[tuple[str, ...], dict[str, float]]:
    p50, p99 = (float(np.percentile(times, share)) for share in (50, 99))
    rate = len(times) * each / over_s
    figures = {"per_s": rate, "p50_s": p50, "p99_s": p99, "max_s": float(times.max()), "requests": len(times)}
    row = (name, f"{rate:,.0f}", f"{p50 * 1e3:.1f}", f"{p99 * 1e3:.1f}", f"{times.max() * 1e3:.0f}")
    return row, figures


def run(repetitions: int, work_dir: Path) -> Result:
    """Measure reads, submits and indicators, one after another, with 16 clients in this process."""
    job_file = work_dir / "job.yaml"
    job_file.write_text(_JOB)
    (work_dir / "train.py").write_text("")
    url = f"sqlite:///{work_dir}/store.db"
    with Store.open(url) as store:
        ids = _fill(store, work_dir)
        token = first_token(store)
        assert token is not None
    one, renting = ids[-1], ids[0]
    reads = {
        "a page of 50 jobs": ["/v1/jobs", "/v1/jobs?state=running", "/v1/jobs?name=job-7*"],
        "one job": [f"/v1/jobs/{one}", f"/v1/jobs/{renting}"],
        "cost of a job with 20 VMs": [f"/v1/jobs/{renting}/cost"],
        "events, queue, operations": [f"/v1/jobs/{one}/events", "/v1/queue", f"/v1/jobs/{one}/operations"],
        "metrics": ["/metrics"],
    }
    rows, figures = [], {}
    with _server(url) as (port, process):
        clients = [_Client(port, token) for _ in range(CLIENTS)]
        begin = process.memory_info().rss
        every = [path for paths in reads.values() for path in paths]
        _together(clients[:2], lambda number, client: [client.send("GET", path) for path in every])
        mixed = [path for path in every if path != "/metrics"]
        parts = (
            ("no store (/healthz)", _reading(["/healthz"]), 1),
            ("reads, all kinds in turn", _reading(mixed), 1),
            ("submits, 100 a second asked for", _submitting(job_file), 1),
            (f"indicators, batches of {STEPS * COLUMNS:,}", _reporting(ids), STEPS * COLUMNS),
        )
        for name, work, each in parts:
            began = time.perf_counter()
            times = _together(clients[: 4 if each > 1 else CLIENTS], work)
            row, figures[name] = _row(name, times, time.perf_counter() - began, each)
            rows.append(row)
        for name, paths in reads.items():
            times = np.array([clients[0].send("GET", path) for path in paths * 20])
            row, figures[name] = _row(f"{name}, 1 client", times, float(times.sum()))
            rows.append(row)
        rss = process.memory_info().rss
    figures["rss"] = {"begin_bytes": begin, "end_bytes": rss}
    read, submit = figures["reads, all kinds in turn"], figures["submits, 100 a second asked for"]
    rate = figures[f"indicators, batches of {STEPS * COLUMNS:,}"]["per_s"]
    kept = (
        read["p99_s"] < 0.3 and read["per_s"] >= 150,
        submit["p99_s"] < 1.0 and submit["per_s"] >= 0.98 * SUBMITS_PER_S,
        rate >= 100_000,
        rss < 500e6,
    )
    verdict = (
        f"aims: reads p99 < 300 ms at 150/s {'kept' if kept[0] else 'missed'}, submits p99 < 1 s at 100/s "
        f"{'kept' if kept[1] else 'missed'}, 100,000 indicators/s {'kept' if kept[2] else 'missed'}, "
        f"RSS < 500 MB {'kept' if kept[3] else 'missed'} ({rss / 1e6:.0f} MB)"
    )
    return Result(
        ("what", "per second", "p50, ms", "p99, ms", "max, ms"),
        tuple(rows),
        verdict,
        figures,
        (
            f"store: SQLite, {JOBS:,} jobs of which {LIVE} live, {VMS:,} VMs; {CLIENTS} clients (4 for indicators) in "
            "another process on the same machine, each with one connection",
            "times of submits count from when they were due, so a stall delays those that follow it too",
        ),
    )


def _serve(url: str) -> None:
    """Serve until standard input ends."""
    with Store.open(url) as store, serving(store, ServerSettings(port=0)) as address:
        print(address.rsplit(":", 1)[1], flush=True)
        sys.stdin.read()


BENCHMARK = Benchmark("service", 1, run)

if __name__ == "__main__":
    _serve(sys.argv[1])
