"""`jobs queue`, `jobs logs` and `jobs cancel`: submitted jobs, as they wait, run and end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from scavenger.api import submissions as api
from scavenger.api.jobs import job_of
from scavenger.api.opening import open_source
from scavenger.api.pools import show_pools
from scavenger.api.submissions import (
    SubmissionsPage,
    SubmittedJob,
    list_submissions,
    open_submissions_of,
    submission_of,
)
from scavenger.domain.submission import OPEN_SUBMISSIONS, not_submitted
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, moneys, plural, when
from scavenger_cli.commands.logs import show_lines
from scavenger_cli.commands.pool import apart, coming
from scavenger_cli.options import Output, OutputOption, RunningJob, StoreOption, YesOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scavenger.api.calls import Source
    from scavenger.domain.submission import ServerRecord

SHOWN = 50
_LOOK_S = 0.5


def queue(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also show jobs that have ended.")] = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show submitted jobs that wait or run."""
    with open_source(store_url) as source:
        page = list_submissions(source, None if everything else list(OPEN_SUBMISSIONS), SHOWN)
        shared = () if output.is_json or not page.submissions else show_pools(source).pools
    if output.is_json:
        console.emit_answer(page)
        return 0
    found, servers = page.submissions, page.servers
    if found:
        _emit(found)
        for pool in shared:
            if pool.jobs and not pool.whole:
                head = Text(f"pool {pool.name}, if no other job comes (90 %):")
                console.emit("", head, *coming(pool), *apart(pool))
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
    for one, usd in zip(found, moneys([one.cost_usd for one in found]), strict=True):
        state = (
            one.state if one.job_state is None or one.state == "queued" else one.job_state.replace("_", " ")
        )
        spent = "-" if one.cost_usd is None else usd
        user = (clean(one.user),) if users else ()
        restarts = f"runner {one.starts}" if one.starts > 1 else ""
        place = (clean(one.host),) if places else ()
        words = "; ".join(part for part in (clean(one.reason), restarts) if part)
        grid.add_row(
            one.id[:8], clean(one.name), *user, state, spent, when(one.submitted_at)[5:16], *place, words
        )
    console.emit(grid)


def logs(job: RunningJob, store_url: StoreOption = None) -> int:
    """Show the log of a submitted job until it has ended, also of one that still waits; as `scavenger logs -f`."""
    with open_source(store_url) as source:
        show_lines(source, await_begin(source, job))
    return 0


def await_begin(source: Source, key: str) -> str:
    """Wait until a submitted job is on record, and say why it waits; returns its id, or the key of another job.

    Raises:
        ConfigurationError: It ended before it began.
    """
    told: str | None = None
    while (one := submission_of(source, key)) is not None and one.job_state is None:
        key, begin = one.id, f"job {one.name} ({one.id[:8]})"
        if not one.is_open:
            raise ConfigurationError(f"{begin} did not begin: {one.reason}")
        words = one.reason or ("it begins" if one.state == "running" else "it waits for its turn")
        if words != told:
            console.note(f"{begin} is {one.state}: {words}")
            told = words
        time.sleep(_LOOK_S)
    return key if one is None else one.id


def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB...", help="Ids of jobs, starts of ids, or names (the latest job of a name)."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Cancel all of your submitted jobs.")
    ] = False,
    yes: YesOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Withdraw submitted jobs that wait, and stop those that run."""
    if everything == bool(jobs):
        raise ConfigurationError("name jobs, or give --all for all of yours")
    with open_source(store_url) as source:
        if everything:
            found = list(open_submissions_of(source, source.user))
        else:
            found = [_submission(source, key) for key in jobs or ()]
        if not yes and not console.is_interactive():
            raise ConfigurationError("there is no terminal to ask on: use --yes to cancel the jobs")
        names = ", ".join(f"{clean(one.name)} {one.id[:8]}" for one in found)
        if found and not yes and not console.ask(f"Cancel {plural(len(found), 'job')} ({names})?"):
            console.note("nothing was cancelled")
            return 0
        done = [api.cancel(source, one.id).submission for one in found]
    if output.is_json:
        console.emit_answer(SubmissionsPage(submissions=tuple(done), servers=(), next=None), "servers")
        return 0
    for one in done:
        words = "is being stopped" if one.cancelling and one.is_open else f"is {one.state}"
        console.emit(Text(f"job {clean(one.name)} ({one.id[:8]}) {words}"))
    return 0


def _submission(source: Source, key: str) -> SubmittedJob:
    found = submission_of(source, key)
    if found is None:
        job = job_of(source, key)
        raise ConfigurationError(not_submitted(job.id, job.name))
    return found
