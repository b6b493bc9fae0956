"""`resume`: continue a job that ended before its goal."""

from __future__ import annotations

from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody

__all__ = ["resume"]


def resume(
    key: str,
    *,
    yes: bool,
    store_url: str | None,
    as_json: bool,
    audit: bool = False,
    verbose: bool = False,
    quiet: bool = False,
) -> int:
    """Resume a job and run it to its end, with the display and report of `optimize`.

    Returns:
        The exit code: the report's own.

    Raises:
        ConfigurationError: There is no such job, or it has no checkpoint to continue from.
        TransientError: The job is running.
    """
    from scavenger.store import Store

    with Store.open(store_url) as store:
        store.reap_dead_jobs()
        job = store.job(key)
        store.check_resumable(job)
    refuse_to_ask_nobody(yes=yes)
    from scavenger.control.jobs.resume import resume_job

    return drive(
        lambda store, observer, confirm: resume_job(
            job.id, store=store, observer=observer, confirm=confirm, audit=audit
        ),
        ask=not yes,
        store_url=store_url,
        as_json=as_json,
        verbose=verbose,
        quiet=quiet,
    )
