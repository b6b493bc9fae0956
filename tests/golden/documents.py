"""Every document that a command prints with `-o json`: from a store, and from a server over the same store.

What differs from run to run and from machine to machine has a name in angle brackets in its place: times, ids,
folders, addresses, processes.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import io
import json
import re
import socket
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from scavenger_cli.main import main
from typer.main import get_command

from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.domain.configuration import Configuration
from scavenger.domain.document import report_document
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.operation import ScaleTo
from scavenger.domain.pool import JobStanding, Pool, PoolAllotment, PoolShare, RatePoint, WorkLeft
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.domain.report import Actual, Predicted, ReportedJob, RunReport
from scavenger.domain.submission import runner_lease
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.train.pool import protocol
from scavenger.train.pool.placement import Node
from tests.cli.cli_samples import make_report
from tests.golden.texts import written
from tests.server.dashboard_samples import curve_of
from tests.server.server_world import World, build, submission

PROGRESSED = Progress(
    40,
    4,
    Configuration("local-1", 2, 64),
    float("nan"),
    "val_accuracy",
    0.82,
    0.99,
    (9.0, 40.0),
    60.0,
    (30.0, 120.0),
)
PREDICTED = Predicted(100.0, (80.0, 120.0), 0.5, (0.4, 0.6), 0.05, 20.0)
POOL = protocol.PoolLoad(
    pid=7,
    since=1.75e9,
    shares="session",
    tenant_memory_bytes=1 << 30,
    free=5,
    nodes=(
        protocol.NodeUsage(Node("node-0", (0, 1), 1 << 32, 8), 0.5, 1 << 20, 1, 0.25),
        protocol.NodeUsage(Node("node-1", (2, 3), 1 << 32, 8), 0.0, 0, 0, 0.0, drained=True),
    ),
    tenants=(
        protocol.TenantLoad("abcdefgh-1", "digits", "aggregator-0", "node-0", 11, 1.75e9, 3.0, 0.5, 1 << 20),
    ),
    jobs=(protocol.JobUse("abcdefgh-1", "digits", 3.0, 0.05, 0.06, 0.1),),
    changes=(protocol.Change(1.75e9, "aggregator-0 of digits to node-0", "least loaded", 1),),
    rental=protocol.RentalLoad("aws/us-east-1", "c5.large", 0.085, 2, 600.0, {"node-2": 1.75e9}, 3, 0.4, 0.1),
)
STEP_TIMES = "\n".join(
    (
        "workload,cluster,workers,local_batch_size,step_time_s",
        *(f"a,local-1,{k},{b},{0.02 + 0.001 * b + 0.002 * (k - 1)}" for k in (1, 2, 4) for b in (8, 32, 64)),
    )
)


@dataclass(frozen=True)
class Command:
    """A command whose document is kept.

    Attributes:
        name: Of the golden file.
        words: With names of jobs and files in braces.
        by_server: Whether it goes by a server, too, and prints the same there.
        computed: Whether its numbers are of an optimizer, which ends elsewhere on another processor.
    """

    name: str
    words: str
    by_server: bool = True
    computed: bool = False


COMMANDS = (
    Command("status", "status"),
    Command("status-of-some", "status --state succeeded --name tr*"),
    Command("status-running", "status {running}"),
    Command("status-ended", "status trained"),
    Command("status-waiting", "status {waiting}"),
    Command("status-unknown", "status unknown"),
    Command("jobs-queue", "jobs queue"),
    Command("pool", "pool"),
    Command("pool-explain", "pool explain {running}"),
    Command("pool-what-if", "pool what-if {job_file}"),
    Command("hosts", "hosts {running}"),
    Command("logs-running", "logs {running} -n 1"),
    Command("logs-ended", "logs trained"),
    Command("curves", "curves trained"),
    Command("cost", "cost"),
    Command("cost-ended", "cost trained"),
    Command("models-list", "models list"),
    Command("models-show", "models show {model}"),
    Command("models-rm-dry-run", "models rm {model} --dry-run"),
    Command("models-export", "models export"),
    Command("models-import", "models import {models}"),
    Command("models-fit", "models fit --step-times {steps} --price 1 --dataset-size 100", computed=True),
    Command("models-rm", "models rm {model} --yes"),
    Command("catalog", "catalog --provider aws --vm c5.large --region us-east-1"),
    Command("aggregators", "aggregators"),
    Command("aggregators-drain", "aggregators drain node-0"),
    Command(
        "aggregators-add-node", "aggregators add-node node-3 --place local --file {ticket}", by_server=False
    ),
    Command("jobs-rm-dry-run", "jobs rm trained --dry-run"),
    Command("jobs-rm-running", "jobs rm {running} --yes"),
    Command("gc", "gc --dry-run"),
    Command("api-info", "api info"),
    Command("api-token", "api token zoe --role viewer"),
    Command("api-revoke", "api revoke --sessions bob"),
    Command("optimize-dry-run", "optimize {job_file} --dry-run --workers 1,2"),
    Command("plan-dry-run", "plan {job_file} --dry-run"),
    Command("optimize-invalid", "optimize {job_file} --dry-run --workers 0"),
    Command("optimize-detach", "optimize {job_file} --detach --yes"),
    Command("optimize", "optimize {job_file} --yes", by_server=False),
    Command("plan", "plan {job_file} --yes", by_server=False),
    Command("jobs-launch", "jobs launch {job_file} -d --yes --priority 5"),
    Command("jobs-cancel", "jobs cancel {waiting} --yes"),
    Command("scale", "scale {running} --workers 2 --no-wait"),
    Command("stop", "stop {running} --no-wait"),
    Command("pool-pause", "pool pause {running} --no-wait"),
    Command("pool-drain", "pool drain local"),
    Command("migrate", "migrate {running} --no-wait"),
    Command("jobs-rm", "jobs rm trained --yes"),
    Command("schema-job", "schema job", by_server=False),
    Command("init", "init {new}", by_server=False),
    Command("image", "image {image}", by_server=False),
    Command("store-backup", "store backup {backup}", by_server=False),
    Command("store-restore", "store restore {backup} --revoke-tokens --store {empty}", by_server=False),
    Command("leader-list", "leader list", by_server=False),
    Command("simulate", "simulate {trace} --nodes 1x4 --policy tiresias", by_server=False),
)
ELSEWHERE = {
    "demo": "it answers as `optimize`",
    "doctor": "its checks are of the machine",
    "catalog refresh": "it asks clouds",
    "models backtest": "it computes for seconds; benchmarks tell its figures",
    "store recover": "it reads a folder that a job has left",
    "leader follow": "it follows a VM of a cloud",
    "api login": "it asks for a token",
    "resume": "it answers as `optimize --detach`, or as `optimize`",
}
"""Commands that print a document of which no golden file is kept, and why."""


REST = "rest/openapi.json"


def documents(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Each document, and the description of the REST interface, with the name of its golden file and its origin."""
    for place in ("store", "server"):
        below = folder / place
        below.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            yield from ((name, place, text) for name, text in _printed(below, patch, place == "server"))


def _printed(folder: Path, patch: pytest.MonkeyPatch, by_server: bool) -> Iterator[tuple[str, str]]:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HOME"):
        patch.setenv(name, str(folder / "home"))
    for name in ("SCAVENGER_SERVER", "SCAVENGER_TOKEN", "SCAVENGER_CONFIG", "SCAVENGER_DEBUG"):
        patch.delenv(name, raising=False)
    patch.setattr("scavenger.train.pool.connection.load_of", lambda _: POOL)
    patch.setattr("scavenger.train.pool.connection.drain", lambda *_, undo: protocol.Drained(1))
    patch.setattr("scavenger.train.pool.connection.add_node", lambda *_: protocol.NodeAdded("ticket"))
    patch.setattr("scavenger.control.service.submitting.ensure_server", lambda _: None)  # starts no process
    patch.setattr("typer.main.get_command", functools.cache(get_command))  # a third of a second each time
    _without_training(patch)
    patch.chdir(folder)
    with Store.open(f"sqlite:///{folder}/store.db") as store, contextlib.ExitStack() as stack:
        world = build(store, folder)
        names = filled(store, world) | files_in(folder, store)
        patch.setenv("SCAVENGER_STORE", store.url)
        address = ""
        if by_server:
            address = stack.enter_context(serving(store, ServerSettings(port=0)))
            patch.setenv("SCAVENGER_SERVER", address)
            patch.setenv("SCAVENGER_TOKEN", world.tokens["root"])
            patch.setenv("SCAVENGER_STORE", f"sqlite:///{folder}/none.db")
            yield REST, openapi(address, world.headers("root"))
        for command in COMMANDS:
            if by_server and not command.by_server:
                continue
            if "{running} --" in command.words:
                settle(store, names["running"])
            _, text = run(*command.words.format(**names).split(), "-o", "json")
            document = steady(json.loads(text), folder, address, names, computed=command.computed)
            yield f"documents/{command.name}.json", written(document)


def openapi(address: str, headers: dict[str, str]) -> str:
    """The description of the REST interface, as a server gives it."""
    document = requests.get(f"{address}/openapi.json", headers=headers, timeout=60).json()
    document["info"]["version"] = "<version>"
    return written(document)


def run(*words: str) -> tuple[int, str]:
    """Run a command in this process: its exit code, and what it prints."""
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        code = main(list(words))
    assert out.getvalue(), (words, told.getvalue())
    return code, out.getvalue()


def settle(store: Store, job_id: str) -> None:
    """Withdraw what a job was asked for, as it carries out one thing at a time."""
    if (waiting := store.open_operation(job_id)) is not None:
        store.withdraw_operation(waiting.id, "withdrawn")


def files_in(folder: Path, store: Store) -> dict[str, str]:
    """Write the files that commands are given, and name those that they write."""
    files = {name: folder / name for name in ("models", "steps", "ticket", "new", "image", "backup", "trace")}
    files["steps"].write_text(STEP_TIMES)
    files["trace"].write_text("submitted_s,duration_s,slots\n0,10,3\n1,5,2\n")
    files["models"].write_text(json.dumps(store.export_models()))
    return {**{name: str(path) for name, path in files.items()}, "empty": f"sqlite:///{folder}/empty.db"}


def filled(store: Store, world: World) -> dict[str, str]:
    """Fill a store; ids of a running job, one that has succeeded with a curve, one that waits, and a model."""
    running = world.jobs["ann"]
    logs = world.job_file.parent / ".scavenger" / running / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    store.add_event(running, PROGRESS, str(PROGRESSED), data=PROGRESSED.data(), replacing=True)
    store.submit_operation(running, ScaleTo(3), "ann")
    store.set_process(running, "w0", role="worker", state="training", host="10.0.0.1")
    (logs / "w0.log").write_text("one\n\x1b[31mtwo\nhalf")
    (logs / "w1.log").write_text("three\n")

    curve, choice = curve_of()
    done = store.create_job("trained", spec={"constraints": {"budget": 3.0}}, job_file=world.job_file)
    report = RunReport(
        ReportedJob(done.id, "trained", "succeeded"), NOTHING_SEARCHED, curve, choice, PREDICTED
    )
    store.finish_job(
        done.id,
        state="succeeded",
        report=report_document(report),
        exit_code=0,
        predicted=PREDICTED,
        actual=Actual(90.0, 0.45, 0.05, 18.0),
        cost_usd=0.45,
        chosen=choice.point.configuration,
    )
    fingerprint = Fingerprint("a" * 64, 1000, "Adam:1", 50_000, 784, "val_accuracy>=0.97", "local-1", "cpu")
    model = store.save_model(
        fingerprint, {"law": [1.0, 0.1 + 0.2]}, schema_version=1, measurements=4, runs=1, job_id=done.id
    )
    waiting = store.submit(submission("ann", world.job_file, "later"))
    store.explain_waiting({waiting.id: "4 jobs at once"})
    shared(store, running, waiting.id)
    return {
        "running": running,
        "done": done.id,
        "waiting": waiting.id,
        "model": model.id,
        "job_file": str(world.job_file),
    }


def shared(store: Store, running: str, waiting: str) -> None:
    """Have one job hold slots of the pool of this machine, and another one wait for them."""
    share = PoolShare(3, 3, 3, 1, at=datetime(2026, 1, 2, tzinfo=UTC))
    pool = Pool("local", 4, "even")
    shares = {running: share, waiting: replace(share, slots=1, told=0, counts=0)}
    store.put_allotment(
        PoolAllotment(pool, 1, shares, ("digits begins with 3 slots",), share.at or datetime.now(UTC))
    )
    standing = JobStanding(
        1, "training", 3, 1, rate=300.0, left=WorkLeft(36_000.0, 0.2), curve=(RatePoint(1, 100.0, True),)
    )
    name = runner_lease(running)
    lease = store.take_lease(name, "runner", store.lease(name))
    assert lease is not None
    assert store.stand(lease.fence, running, replace(standing, token=lease.token))
    store.release_lease(lease.fence)


class _Driver:
    """Stands in for what trains: it has trained, and reports a fixed report."""

    processes, vms, job_id = 2, 0, "0123456789abcdef"

    def __init__(self, *_: object, run: bool, **__: object) -> None:
        self._run = run

    def run(self) -> RunReport:
        return make_report(planned=not self._run)

    def request_stop(self, reason: str) -> None:
        raise AssertionError(reason)


def _without_training(patch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("scavenger.control.jobs.job_run")
    module.JobRun = _Driver  # type: ignore[attr-defined]
    patch.setitem(sys.modules, module.__name__, module)


ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")
OF_THE_RUN = frozenset(
    ["pid", "uid", "started_at_s", "age_days", "today", "version", "installation", "birth", "sha256", "wheel"]
)
"""Fields whose values are of a process, a machine, a day or a version."""
OF_THE_ACCOUNT = {
    "parent": None,
    "requested_by": None,
    "user": getpass.getuser(),
    "host": socket.gethostname(),
}
"""Fields with the value of this account or machine; None: whatever it is."""


def steady(document: Any, folder: Path, address: str, names: dict[str, str], *, computed: bool) -> Any:
    """A document without what another run of the same command would tell otherwise."""
    ids = {whole: f"<{name}>" for name, whole in names.items() if ID.fullmatch(whole)}

    def text(value: str) -> str:
        for word, name in ((address, "<server>"), (str(folder), "<folder>")):
            value = value.replace(word, name) if word else value
        value = TIME.sub("<time>", ID.sub(lambda found: ids.setdefault(found[0], f"<id {len(ids)}>"), value))
        for whole, name in ids.items():
            value = value.replace(whole[:8], name)
        value = re.sub(r"\bprocess \d+ on [^\s;,)]+", "process <pid> on <host>", value)
        return re.sub(r"\bscv_[\w-]+", "<token>", value)

    def value(found: Any, name: str) -> Any:
        if isinstance(found, dict):
            return {key: value(one, key) for key, one in found.items()}
        if isinstance(found, list):
            return [value(one, name) for one in found]
        own = OF_THE_ACCOUNT.get(name, "")
        if (name in OF_THE_RUN and found is not None) or own is None or (own and found in (own, "root")):
            return f"<{name}>"
        if isinstance(found, float):
            # no two machines agree on the last digits
            return "<number>" if computed else float(f"{found:.6g}")
        return text(found) if isinstance(found, str) else found

    return value(document, "")
