"""`resume`: continue a job that ended before its goal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from scavenger.api.jobs import job_of
from scavenger.api.submissions import SubmissionAnswer
from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.errors import ConfigurationError, TransientError
from scavenger.presentation.formatting import clean
from scavenger_cli.commands.detaching import show_submission
from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody
from scavenger_cli.commands.leader import is_led, resume_led
from scavenger_cli.commands.remote import resume_remotely
from scavenger_cli.options import (
    AuditOption,
    BudgetOption,
    DeadlineOption,
    DetachOption,
    Invocation,
    Output,
    OutputOption,
    QuietOption,
    RunningJob,
    StoreOption,
    VerboseOption,
    YesOption,
)
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord


def resume(
    job: RunningJob,
    yes: YesOption = False,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    max_epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Most epochs, as goal.max_epochs of the job file.")
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Go on with its output here, as on another disk; what it wrote is copied."
        ),
    ] = None,
    audit: AuditOption = False,
    detach: DetachOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Continue a job that ended before its goal from its checkpoint.

    One that a limit ended, or that missed its target, goes on with a higher limit, which counts all its attempts.
    """
    from scavenger.api.opening import server_source

    invocation = Invocation(store_url, output.is_json, yes, verbose, quiet)
    folder = None if output_dir is None else os.path.abspath(output_dir)
    renewal = Renewal(budget, deadline, max_epochs, folder)
    if (server := server_source(store_url)) is not None:
        with server as source:
            found = job_of(source, job)
            refuse_to_ask_nobody(yes=yes)
            if not yes and not console.ask(f"Resume {clean(found.name)} ({found.id[:8]})?"):
                return 0
            return resume_remotely(source, found, invocation, detach=detach, audit=audit, renewal=renewal)
    return _resume_here(job, invocation, detach=detach, audit=audit, renewal=renewal)


def _resume_here(key: str, invocation: Invocation, *, detach: bool, audit: bool, renewal: Renewal) -> int:
    from scavenger.control.jobs.renewal import renewed
    from scavenger.store import Store

    with Store.open(invocation.store_url) as store:
        led = is_led(key, store)
    if led and renewal != UNCHANGED:
        raise ConfigurationError(
            "a leader of its own leads the job, with the limits and the output that it was started with; change them "
            "in the job file, and run `scavenger optimize` again"
        )
    if led:
        refuse_to_ask_nobody(yes=invocation.yes)
        return resume_led(key, invocation, follow=not detach, audit=audit)
    with Store.open(invocation.store_url) as store:
        store.reap_dead_jobs()
        job = store.job(key)
        others = not job.owner.is_same_account(store.me())
        if others and not job.id.startswith(key):
            raise ConfigurationError(
                f"{_whose(job)}; to resume it anyway, name it by its id: `scavenger resume {job.id[:8]}`"
            )
        submission = store.submission(job.id)
        if submission is not None and submission.id == job.id and submission.is_open:
            raise TransientError(
                f"job {clean(job.name)} ({job.id[:8]}) is {submission.state} as a detached job: a server resumes it if "
                "its process has ended; `scavenger jobs queue` shows it"
            )
        spec = renewed(job, renewal)
        store.check_resumable(job, spec=None if spec is None else spec.written())
    refuse_to_ask_nobody(yes=invocation.yes)
    if others and not _confirmed(job, yes=invocation.yes):
        return 0
    if detach:
        from scavenger.api.calls import Local
        from scavenger.api.submitting import resumed

        with Local(invocation.store_url) as source:
            made = SubmissionAnswer(submission=resumed(source, job, renewal, audit=audit))
            show_submission(made, as_json=invocation.as_json)
        return 0
    from scavenger.control.jobs.resume import resume_job

    return drive(
        lambda store, observer, confirm: resume_job(
            job.id, store=store, observer=observer, confirm=confirm, audit=audit, spec=spec
        ),
        invocation,
        ask=not invocation.yes,
    )


def _whose(job: JobRecord) -> str:
    """Say that a job is another user's, in the words of the messages."""
    begin = f"job {clean(job.name)} ({job.id[:8]})"
    if not job.owner.user:
        return f"{begin} does not have its owner on record"
    return f"{begin} belongs to {clean(job.owner.account)} (uid {job.owner.uid})"


def _confirmed(job: JobRecord, *, yes: bool) -> bool:
    """Say whose job would be resumed, and ask whether to do so, unless `--yes` was given."""
    console.note(
        f"scavenger: {_whose(job)}; resuming it runs, under your account, the training code next to "
        f"{clean(job.job_file)}"
    )
    return yes or console.ask("Resume it?")
