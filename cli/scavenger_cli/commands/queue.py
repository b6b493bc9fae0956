"""`jobs queue`, `jobs logs` and `jobs cancel`: submitted jobs, as they wait, run and end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.api.logs import Wanted
from scavenger.api.submissions import (
    SubmittedJob,
    submission_document,
    submissions_document,
)
from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.domain.submission import OPEN_SUBMISSIONS, not_submitted
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, money, plural, when
from scavenger_cli.commands.logs import show_logs
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scavenger.api.opening import Source
    from scavenger.domain.submission import ServerRecord

SHOWN = 50
LINES = 20
_LOOK_S = 0.5


def show_queue(*, everything: bool, store_url: str | None, as_json: bool) -> int:
    """Print submissions that wait or run, or with `everything` also those that have ended."""
    from scavenger.api.opening import open_source

    with open_source(store_url) as source:
        found = source.submissions(SHOWN, states=() if everything else OPEN_SUBMISSIONS)
        servers = source.servers()
    if as_json:
        document = submissions_document(found)
        console.emit_json({**document, "servers": [plain(server) for server in servers]})
        return 0
    if found:
        _emit(found)
    else:
        console.emit(Text("No job is queued: `scavenger optimize JOB.yaml --detach` submits one."))
    if any(one.is_open for one in found) and not servers:
        console.note("no server is running: `scavenger serve` starts one, and so does the next `--detach`")
    for note in _elsewhere(found, servers):
        console.note(note)
    return 0


def _elsewhere(found: tuple[SubmittedJob, ...], servers: tuple[ServerRecord, ...]) -> Iterator[str]:
    """Say which open jobs no server runs, although there are servers: those of other installations."""
    if not servers:
        return
    here = {server.installation for server in servers}
    left: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.is_open and not any(server.serves(one.installation, one.host) for server in servers):
            left.setdefault((one.installation, one.host), []).append(one.id[:8])
    for (installation, host), ids in left.items():
        name = f" (installation {installation})" if installation and installation not in here else ""
        fix = f", or here with SCAVENGER_INSTALLATION={installation}" if name else ""
        yield (
            f"{', '.join(ids)}: submitted on {clean(host)}{name}, which no server serves; "
            f"run `scavenger serve` there{fix}"
        )


def _emit(found: tuple[SubmittedJob, ...]) -> None:
    users = len({one.user for one in found}) > 1
    places = len({one.installation or one.host for one in found}) > 1
    grid = render.table(
        ("id", "left"),
        ("name", "left"),
        *((("user", "left"),) if users else ()),
        ("state", "left"),
        ("spent", "right"),
        ("submitted", "left"),
        *((("on", "left"),) if places else ()),
        ("", "left"),
    )
    for one in found:
        state = (
            one.state if one.job_state is None or one.state == "queued" else one.job_state.replace("_", " ")
        )
        spent = "-" if one.cost_usd is None else money(one.cost_usd)
        user = (clean(one.user),) if users else ()
        restarts = f"runner {one.starts}" if one.starts > 1 else ""
        place = (clean(one.host),) if places else ()
        words = "; ".join(part for part in (clean(one.reason), restarts) if part)
        grid.add_row(
            one.id[:8], clean(one.name), *user, state, spent, when(one.submitted_at)[5:16], *place, words
        )
    console.emit(grid)


def follow_logs(key: str, *, store_url: str | None) -> int:
    """Wait until a submitted job begins, and show its log until it has ended; Ctrl-C ends only the showing.

    Raises:
        ConfigurationError: There is no such job, or it ended before it began.
    """
    from scavenger.api.opening import open_source

    with open_source(store_url) as source:
        job_id = await_begin(source, key)
    return show_logs(
        job_id, Wanted(True, True, None), follow=True, lines=LINES, store_url=store_url, as_json=False
    )


def await_begin(source: Source, key: str) -> str:
    """Wait until a submitted job is on record, and say why it waits; returns its id, or the key of another job.

    Raises:
        ConfigurationError: It ended before it began.
    """
    told: str | None = None
    while (one := source.submission(key)) is not None and one.job_state is None:
        key, begin = one.id, f"job {one.name} ({one.id[:8]})"
        if not one.is_open:
            raise ConfigurationError(f"{begin} did not begin: {one.reason}")
        words = one.reason or ("it begins" if one.state == "running" else "it waits for its turn")
        if words != told:
            console.note(f"{begin} is {one.state}: {words}")
            told = words
        time.sleep(_LOOK_S)
    return key if one is None else one.id


def cancel_jobs(keys: list[str], *, everything: bool, yes: bool, store_url: str | None, as_json: bool) -> int:
    """Withdraw jobs that wait, and stop those that run; their models are saved.

    Raises:
        ConfigurationError: There is no such submitted job, or there is no terminal to ask on.
    """
    from scavenger.api.opening import open_source

    if everything == bool(keys):
        raise ConfigurationError("name jobs, or give --all for all of yours")
    with open_source(store_url) as source:
        if everything:
            found = list(source.submissions(10_000, states=OPEN_SUBMISSIONS, user=source.user))
        else:
            found = [_submission(source, key) for key in keys]
        if not yes and not console.is_interactive():
            raise ConfigurationError("there is no terminal to ask on: use --yes to cancel the jobs")
        names = ", ".join(f"{clean(one.name)} {one.id[:8]}" for one in found)
        if found and not yes and not console.ask(f"Cancel {plural(len(found), 'job')} ({names})?"):
            console.note("nothing was cancelled")
            return 0
        done = [source.cancel(one.id) for one in found]
    if as_json:
        rows = [submission_document(one) for one in done]
        console.emit_json({"schema_version": SCHEMA_VERSION, "submissions": rows})
        return 0
    for one in done:
        words = "is being stopped" if one.cancelling and one.is_open else f"is {one.state}"
        console.emit(Text(f"job {clean(one.name)} ({one.id[:8]}) {words}"))
    return 0


def _submission(source: Source, key: str) -> SubmittedJob:
    found = source.submission(key)
    if found is None:
        job = source.job(key)
        raise ConfigurationError(not_submitted(job.id, job.name))
    return found
