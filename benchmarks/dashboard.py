"""The dashboard with 10,000 jobs on record: its pages over HTTP, and when a browser first paints the list.

The peer of each page is the answer of the API with the same rows from the same store, without markup. The first paint
is Chromium's own `first-contentful-paint`, each time with an empty cache; it needs `chromium` and the package
`playwright`, and without them it is left out.
"""

from __future__ import annotations

import http.client
import importlib
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.domain.configuration import Configuration
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.server.app import create_app
from scavenger.store import Store

JOBS = 10_000
LIVE = 200
"""Jobs of those that run, with progress; the others have ended."""
_AIM_S = 1.0
_FIRST_PAINT = """new Promise((done) => new PerformanceObserver((list) => {
  for (const one of list.getEntriesByName("first-contentful-paint")) done(one.startTime);
}).observe({ type: "paint", buffered: true }))"""
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def _fill(store: Store, database: Path) -> None:
    """Jobs with a budget and the progress that a run leaves: one of each kind by the store, and copies of its rows."""
    spec = {
        "name": "digits",
        "constraints": {"budget": 2.0},
        "goal": {"metric": "val_accuracy", "max_epochs": 9},
    }
    at = Configuration("local-1", 2, 64)
    progress = Progress(9, 1, at, 0.4, "val_accuracy", 0.8, 0.99, (9.0, 40.0), 600.0, (300.0, 900.0)).data()
    ended, live = (store.create_job("digits", spec=spec, job_file=database).id for _ in range(2))
    for job in (ended, live):
        store.update_job(job, state="running", step=9, cost_usd=0.5, chosen=at)
        store.add_event(job, PROGRESS, "", data=progress)
    store.finish_job(ended, state="succeeded", report=None, exit_code=0)
    with sqlite3.connect(database) as connection:
        for number in range(2, JOBS):
            of, new = (ended if number < JOBS - LIVE else live), str(uuid.uuid4())
            for table, own in (("jobs", "id"), ("events", "job_id")):
                names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                kept = ", ".join(name for name in names if name not in ("id", own))
                connection.execute(
                    f"INSERT INTO {table} ({own}, {kept}) SELECT ?, {kept} FROM {table} WHERE {own} = ?",
                    (new, of),
                )
    connection.close()


@contextmanager
def _serving(store: Store) -> Iterator[int]:
    config = uvicorn.Config(create_app(store), port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def _fetch(port: int, token: str, path: str) -> tuple[float, int]:
    """Seconds until the whole answer has come, and its bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begin = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    content = answer.read()
    took_s = time.perf_counter() - begin
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return took_s, len(content)


def _paints(port: int, token: str, repetitions: int) -> list[float]:
    """Seconds until the first paint of the list, each with an empty cache; none without a browser."""
    found = shutil.which("chromium")
    try:
        start: Callable[[], Any] = importlib.import_module("playwright.sync_api").sync_playwright
    except ImportError:
        return []
    if found is None:
        return []
    address, paints = f"http://127.0.0.1:{port}", []
    with start() as started:
        browser = started.chromium.launch(executable_path=found, args=_FLAGS)
        for _ in range(repetitions):
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{address}/login?token={token}")
            page.goto("about:blank")
            page.goto(f"{address}/")
            at_ms = page.evaluate(_FIRST_PAINT)
            paints.append(float(at_ms) / 1e3)
            context.close()
        browser.close()
    return paints


def run(repetitions: int, work_dir: Path) -> Result:
    """One server and its client on this machine; nothing is trained."""
    with Store.open(f"sqlite:///{work_dir}/store.db") as store:
        _fill(store, work_dir / "store.db")
        store.set_user("ann", "admin")
        _, token = store.new_token("ann", "benchmark")
        job = store.jobs(1)[0].id
        pairs = {
            "list of jobs": ("/", "/v1/jobs?limit=50"),
            "one live job": (f"/jobs/{job}", f"/v1/jobs/{job}"),
            "figures of a job": (f"/jobs/{job}/figures", f"/v1/jobs/{job}/events?limit=200"),
            "models": ("/models", "/v1/models"),
        }
        rows: list[tuple[str, ...]] = []
        figures: dict[str, Any] = {}
        with _serving(store) as port:
            for name, (path, peer) in pairs.items():
                for one in (path, peer):
                    _fetch(port, token, one)
                mine = [_fetch(port, token, path) for _ in range(repetitions)]
                others = [_fetch(port, token, peer) for _ in range(repetitions)]
                page_s, peer_s = (Spread.of([took_s for took_s, _ in times]) for times in (mine, others))
                rows.append((name, peer_s.text(1e3), page_s.text(1e3), f"{mine[0][1] / 1024:.0f}"))
                figures[name] = {"page_s": page_s, "api_s": peer_s}
            paints = _paints(port, token, repetitions)
    verdict = "no browser: the first paint was not measured"
    if paints:
        paint = Spread.of(paints)
        rows.append(("first paint of the list, empty cache", "-", paint.text(1e3), "-"))
        figures["first paint"] = {"page_s": paint}
        met = "met" if paint.high < _AIM_S else "missed"
        verdict = (
            f"first paint of the list of {JOBS:,} jobs within {paint.high:.2f} s; aim {_AIM_S:g} s: {met}"
        )
    return Result(
        headers=("", "API, the same rows, ms", "page, ms", "page, KiB"),
        rows=tuple(rows),
        verdict=verdict,
        remarks=(
            f"{JOBS:,} jobs on record, {LIVE} of them live; a page of the list has 50",
            "server and client share the processors",
        ),
        figures=figures,
    )


BENCHMARK = Benchmark("dashboard", 10, run)
