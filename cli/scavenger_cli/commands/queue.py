"""`jobs queue`, `jobs logs` and `jobs cancel`: submitted jobs, as they wait, run and end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.control.documents.logs import Wanted
from scavenger.control.documents.plain import SCHEMA_VERSION, plain
from scavenger.control.documents.submissions import submission_document, submissions_document
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, money, plural, when
from scavenger_cli.commands.logs import show_logs
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.domain.submission import Submission
    from scavenger.store import Store

__all__ = ["cancel_jobs", "follow_logs", "show_queue"]

SHOWN = 50
LINES = 20
_LOOK_S = 0.5


def show_queue(*, everything: bool, store_url: str | None, as_json: bool) -> int:
    """Print submissions that wait or run, or with `everything` also those that have ended."""
    from scavenger.store import Store

    with Store.open(store_url) as store:
        states = () if everything else ("queued", "running")
        found = store.submissions(SHOWN, states=states)
        servers = store.servers()
        if as_json:
            document = submissions_document(found)
            console.emit_json({**document, "servers": [plain(server) for server in servers]})
            return 0
        if found:
            _emit(store, found)
        else:
            console.emit(Text("No job is queued: `scavenger optimize JOB.yaml --detach` submits one."))
        if any(one.is_open for one in found) and not servers:
            console.note(
                "no server is running: `scavenger serve` starts one, and so does the next `--detach`"
            )
    return 0


def _emit(store: Store, found: tuple[Submission, ...]) -> None:
    users = len({one.job.user for one in found}) > 1
    grid = render.table(
        ("id", "left"),
        ("name", "left"),
        *((("user", "left"),) if users else ()),
        ("state", "left"),
        ("spent", "right"),
        ("submitted", "left"),
        ("", "left"),
    )
    for one in found:
        job = store.job(one.id) if store.has_job(one.id) else None
        state = one.state if job is None or one.state == "queued" else job.state.replace("_", " ")
        spent = "-" if job is None or job.cost_usd is None else money(job.cost_usd)
        user = (clean(one.job.user),) if users else ()
        restarts = f"runner {one.starts}" if one.starts > 1 else ""
        words = "; ".join(part for part in (clean(one.reason), restarts) if part)
        grid.add_row(
            one.id[:8], clean(one.job.name), *user, state, spent, when(one.submitted_at)[5:16], words
        )
    console.emit(grid)


def follow_logs(key: str, *, store_url: str | None) -> int:
    """Wait until a submitted job begins, and show its log until it has ended; Ctrl-C ends only the showing.

    Raises:
        ConfigurationError: There is no such job, or it ended before it began.
    """
    from scavenger.store import Store

    with Store.open(store_url) as store:
        submission = store.submission(key)
        told: str | None = None
        while submission is not None and not store.has_job(submission.id):
            if not submission.is_open:
                raise ConfigurationError(
                    f"job {submission.job.name} ({submission.id[:8]}) did not begin: {submission.reason}"
                )
            words = submission.reason or (
                "it begins" if submission.state == "running" else "it waits for its turn"
            )
            if words != told:
                console.note(
                    f"job {submission.job.name} ({submission.id[:8]}) is {submission.state}: {words}"
                )
                told = words
            time.sleep(_LOOK_S)
            submission = store.submission(submission.id)
        job_id = key if submission is None else submission.id
    return show_logs(
        job_id, Wanted(True, True, None), follow=True, lines=LINES, store_url=store_url, as_json=False
    )


def cancel_jobs(keys: list[str], *, everything: bool, yes: bool, store_url: str | None, as_json: bool) -> int:
    """Withdraw jobs that wait, and stop those that run; their models are saved.

    Raises:
        ConfigurationError: There is no such submitted job, or there is no terminal to ask on.
    """
    from scavenger.store import Store
    from scavenger.store.owner import this_process

    if everything == bool(keys):
        raise ConfigurationError("name jobs, or give --all for all of yours")
    with Store.open(store_url) as store:
        user = this_process().user
        if everything:
            found = list(store.submissions(10_000, states=("queued", "running"), user=user))
        else:
            found = [_submission(store, key) for key in keys]
        if not yes and not console.is_interactive():
            raise ConfigurationError("there is no terminal to ask on: use --yes to cancel the jobs")
        names = ", ".join(f"{clean(one.job.name)} {one.id[:8]}" for one in found)
        if found and not yes and not console.ask(f"Cancel {plural(len(found), 'job')} ({names})?"):
            console.note("nothing was cancelled")
            return 0
        now = [store.cancel(one.id, f"cancelled by {user}") for one in found]
    done = [one for one in now if one is not None]
    if as_json:
        rows = [submission_document(one) for one in done]
        console.emit_json({"schema_version": SCHEMA_VERSION, "submissions": rows})
        return 0
    for one in done:
        words = "is being stopped" if one.cancelling and one.is_open else f"is {one.state}"
        console.emit(Text(f"job {clean(one.job.name)} ({one.id[:8]}) {words}"))
    return 0


def _submission(store: Store, key: str) -> Submission:
    found = store.submission(key)
    if found is None:
        job = store.job(key)
        raise ConfigurationError(
            f"job {job.name} ({job.id[:8]}) was not submitted; `scavenger stop {job.id[:8]}` stops it"
        )
    return found
