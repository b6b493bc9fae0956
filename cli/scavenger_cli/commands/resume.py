"""`resume`: continue a job that ended before its goal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scavenger.domain.overrides import UNCHANGED, Renewal
from scavenger.errors import ConfigurationError, TransientError
from scavenger.presentation.formatting import clean
from scavenger_cli.commands.detaching import show_submission
from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody
from scavenger_cli.commands.leader import is_led, resume_led
from scavenger_cli.commands.remote import resume_remotely
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord


def resume(
    key: str,
    *,
    yes: bool,
    store_url: str | None,
    as_json: bool,
    audit: bool = False,
    detach: bool = False,
    verbose: bool = False,
    quiet: bool = False,
    renewal: Renewal = UNCHANGED,
) -> int:
    """Resume a job and run it to its end, with the display and report of `optimize`; or submit it to be resumed.

    Returns:
        The exit code: the report's own.

    Raises:
        ConfigurationError: There is no such job, it has no checkpoint to continue from, or `key` is only its name
            and the job is another user's.
        TransientError: The job is running.
    """
    from scavenger.api.opening import server_source

    if (server := server_source(store_url)) is not None:
        with server as source:
            job = source.job(key)
            refuse_to_ask_nobody(yes=yes)
            if not yes and not console.ask(f"Resume {clean(job.name)} ({job.id[:8]})?"):
                return 0
            return resume_remotely(
                source,
                job,
                detach=detach,
                audit=audit,
                as_json=as_json,
                verbose=verbose,
                quiet=quiet,
                renewal=renewal,
            )
    return _resume_here(
        key,
        yes=yes,
        store_url=store_url,
        as_json=as_json,
        audit=audit,
        detach=detach,
        verbose=verbose,
        quiet=quiet,
        renewal=renewal,
    )


def _resume_here(
    key: str,
    *,
    yes: bool,
    store_url: str | None,
    as_json: bool,
    audit: bool,
    detach: bool,
    verbose: bool,
    quiet: bool,
    renewal: Renewal,
) -> int:
    from scavenger.control.jobs.renewal import renewed
    from scavenger.store import Store

    with Store.open(store_url) as store:
        led = is_led(key, store)
    if led and renewal != UNCHANGED:
        raise ConfigurationError(
            "a leader of its own leads the job, with the limits and the output that it was started with; change them "
            "in the job file, and run `scavenger optimize` again"
        )
    if led:
        refuse_to_ask_nobody(yes=yes)
        return resume_led(key, yes=yes, follow=not detach, audit=audit, store_url=store_url, as_json=as_json)
    with Store.open(store_url) as store:
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
    refuse_to_ask_nobody(yes=yes)
    if others and not _confirmed(job, yes=yes):
        return 0
    if detach:
        from scavenger.api.of_store import StoreSource

        with StoreSource(store_url) as source:
            show_submission(source.resume(job, audit=audit, renewal=renewal), as_json=as_json)
        return 0
    from scavenger.control.jobs.resume import resume_job

    return drive(
        lambda store, observer, confirm: resume_job(
            job.id, store=store, observer=observer, confirm=confirm, audit=audit, spec=spec
        ),
        ask=not yes,
        store_url=store_url,
        as_json=as_json,
        verbose=verbose,
        quiet=quiet,
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
