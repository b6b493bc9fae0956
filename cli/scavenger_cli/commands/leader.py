"""Jobs that are led by VMs of their own: started by `optimize`, followed and ended by `leader`, resumed by `resume`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from scavenger.api.values import plain
from scavenger.errors import CleanupError, ConfigurationError, NotFoundError
from scavenger.presentation.formatting import clean, when
from scavenger_cli.options import Output, OutputOption, StoreOption, YesOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.control.jobs.prepared import PreparedJob
    from scavenger.control.leading.following import LeaderSession
    from scavenger.control.leading.record import LeaderRecord, Leaders
    from scavenger.control.leading.start import LeaderStart
    from scavenger.store import Store
    from scavenger_cli.options import Detach, Invocation


LedJob = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, or the beginning of its id.")]


def lead_on_vm(prepared: PreparedJob, invocation: Invocation, *, detach: Detach | None, audit: bool) -> int:
    """Rent a VM that leads the job; follow it there to its end, unless it is detached. Returns the exit code.

    Raises:
        ScavengerError: The job cannot be led there.
    """
    from scavenger.control.leading.start import LeaderStart

    start = LeaderStart(prepared, audit=audit, priority=0 if detach is None else detach.priority)
    return _led(start, invocation, follow=detach is None or detach.follow)


def _led(
    start: LeaderStart, invocation: Invocation, *, follow: bool, lost: LeaderRecord | None = None
) -> int:
    """Start a leader, in place of a lost one."""
    from scavenger.control.leading.starting import start_leader
    from scavenger.store import Store

    with Store.open(invocation.store_url) as store:
        leaders = _leaders(store)
        record = start_leader(start, leaders, store, inform=console.note)
        if lost is not None:  # only now: its record is what the job could go on from, had this failed
            _ended(_session(leaders, lost), store)
        _session(leaders, record).book(store, there=True)
        if follow:
            return _followed(leaders, record, store, as_json=invocation.as_json)
    if invocation.as_json:
        console.emit_json({"schema_version": console.SCHEMA_VERSION, "leader": plain(record)})
    else:
        console.emit(Text(f"  scavenger leader follow {record.job_id[:8]}  shows it, and fetches its result"))
    return 0


def list_leaders(store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """List the leaders' VMs that this machine has rented."""
    with _opened(store_url) as (leaders, store):
        rows = []
        for one in leaders.all():
            session = _session(leaders, one)
            rows.append((one, session.state()))
            session.book(store, there=rows[-1][1] == "there")
    if output.is_json:
        shown = [{**plain(one), "state": state} for one, state in rows]
        console.emit_json({"schema_version": console.SCHEMA_VERSION, "leaders": shown})
    elif not rows:
        console.emit(Text("No job is led by a VM of its own."))
    else:
        names = ("job", "id", "where", "address", "its VM is")
        grid = render.table(*((name, "left") for name in names))
        for one, state in rows:
            job_id = one.job_id[:8] or "not submitted"
            shown_state = f"{state}, to be ended" if one.ending and state != "gone" else state
            where = f"{one.provider}/{one.region}"
            grid.add_row(clean(one.name), job_id, where, one.address or "-", shown_state)
        console.emit(grid)
    return 0


def follow(job: LedJob, store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show the job's events until it has ended, fetch its result, and end its leader's VM."""
    with _opened(store_url) as (leaders, store):
        return _followed(leaders, leaders.find(job), store, as_json=output.is_json)


def connect(job: LedJob, store_url: StoreOption = None) -> int:
    """Forward the leader's API to this machine until Ctrl-C, and print how other commands use it."""
    with _opened(store_url) as (leaders, _):
        record = leaders.find(job)
        token = leaders.token(record)
        file = shlex.quote(str(leaders.folder / record.id / "token"))

        def show(port: int) -> None:
            url = f"http://127.0.0.1:{port}"
            console.emit(Text(f"export SCAVENGER_SERVER={url}", no_wrap=True))
            console.emit(Text(f"export SCAVENGER_TOKEN=$(cat {file})", no_wrap=True))
            console.note("until Ctrl-C; with these two, other commands work there")
            console.write(sys.stderr, f"the dashboard: {url}/login?token={token}\n")

        try:
            _session(leaders, record).connect(show)
        except KeyboardInterrupt:
            console.note(f"the connection is closed; job {record.name} goes on")
            return 0


def end(job: LedJob, yes: YesOption = False, store_url: StoreOption = None) -> int:
    """End a leader's VM and the VMs of its job; what was not fetched is lost."""
    with _opened(store_url) as (leaders, store):
        record = leaders.find(job)
        if not yes and not console.is_interactive():
            raise ConfigurationError("there is no terminal to ask on: use --yes to end the VMs")
        if not yes and not console.ask(
            f"End the leader's VM of job {clean(record.name)}, and the job's VMs?"
        ):
            return 0
        return _ended(_session(leaders, record), store)


def is_led(key: str, store: Store) -> bool:
    """Whether a job is led by a VM that this machine has rented, or was until that was lost."""
    try:
        _leaders(store).find(key)
    except NotFoundError:
        return False
    return True


def resume_led(key: str, invocation: Invocation, *, follow: bool, audit: bool) -> int:
    """Rent a new leader for a job whose leader was lost, and follow the job there; returns the exit code.

    Raises:
        NotFoundError: There is no such job.
        ConfigurationError: The leader is there, or the job has no checkpoints in an object store.
    """
    from scavenger.control.jobs.prepared import prepare_job
    from scavenger.control.leading.start import LeaderStart
    from scavenger.control.leading.starting import restart_leader
    from scavenger.domain.job import JobSpec

    with _opened(invocation.store_url) as (leaders, store):
        record = leaders.find(key)
        if (state := _session(leaders, record).state()) != "gone":
            raise ConfigurationError(
                f"the leader's VM of job {record.name} is {state}: `scavenger leader follow {record.name}` shows it"
            )
        with leaders.open_store(record) as own:
            spec = own.job(record.id).spec
        prepared = prepare_job(JobSpec.model_validate(spec), Path(record.job_file))
        if record.claim and record.job_id:
            restart_leader(LeaderStart(prepared), leaders, record, inform=console.note)
            return _followed(leaders, record, store, as_json=invocation.as_json) if follow else 0
        if "://" not in record.checkpoints or not record.job_id:
            raise ConfigurationError(
                f"job {record.name} has left no checkpoints: name an object store as checkpoint.path, and run it again "
                "with `scavenger optimize`"
            )
        leader = prepared.place.leader
        if leader is None:
            raise ConfigurationError(
                "this machine leads the job now: unset SCAVENGER_ADDRESS, or write leader: vm"
            )
        price = f"{clean(leader.offer.vm)}, ${leader.usd_per_hour:.4f} an hour"
        if not invocation.yes and not console.ask(f"Rent another leader's VM ({price}), and the job's VMs?"):
            return 0
        _session(leaders, record).book(store, there=False)
        led_usd = store.entry(record.job_id, "leader").usd
    url = f"{record.checkpoints.rstrip('/')}/{record.job_id}"
    start = LeaderStart(prepared, audit=audit, recover=url, job_id=record.job_id, led_usd=led_usd)
    return _led(start, invocation, follow=follow, lost=record)


def _followed(leaders: Leaders, record: LeaderRecord, store: Store, *, as_json: bool) -> int:
    session = _session(leaders, record)
    outcome = session.outcome(session.follow(_note if as_json else _show), store)
    if as_json:
        folder = None if outcome.folder is None else str(outcome.folder)
        document = {"job_id": record.job_id, "state": outcome.state, "error": outcome.error, "folder": folder}
        console.emit_json({"schema_version": console.SCHEMA_VERSION, **document})
    else:
        error = f": {clean(outcome.error)}" if outcome.error else ""
        console.emit(Text(f"job {clean(record.name)} ({record.job_id[:8]}): {outcome.state}{error}"))
        if outcome.folder is not None:
            console.emit(Text(f"its result: {outcome.folder}", no_wrap=True))
    return _ended(session, store) or outcome.exit_code


def _ended(session: LeaderSession, store: Store) -> int:
    left = session.end(store)
    for line in left:
        console.note(f"left behind: {line}")
    if left:
        console.note("`scavenger gc` ends it; `scavenger leader list` shows whether it is there")
    return CleanupError.exit_code if left else 0


def _line(event: Mapping[str, Any]) -> str:
    return f"{when(datetime.fromisoformat(event['at']))[5:]}  {clean(event['message'])}"


def _show(event: Mapping[str, Any]) -> None:
    console.emit(Text(_line(event)))


def _note(event: Mapping[str, Any]) -> None:
    console.note(_line(event))


def _session(leaders: Leaders, record: LeaderRecord) -> LeaderSession:
    from scavenger.control.leading.following import LeaderSession
    from scavenger.control.leading.seats import seat_of

    return LeaderSession(seat_of(leaders, record, inform=console.note))


def _leaders(store: Store) -> Leaders:
    from scavenger.control.leading.record import Leaders

    return Leaders.beside(store)


@contextmanager
def _opened(store_url: str | None) -> Iterator[tuple[Leaders, Store]]:
    from scavenger.store import Store

    with Store.open(store_url) as store:
        yield _leaders(store), store
