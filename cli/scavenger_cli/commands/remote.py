"""`optimize`, `plan` and `resume` with a server: jobs are submitted to it, and followed from here."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scavenger.api.jobs import events_of, job_of
from scavenger.api.submissions import SubmissionAnswer
from scavenger.api.submitting import PreviewRequest, SubmitRequest, preview, resumed, submit
from scavenger.domain.document import report_from_document
from scavenger.errors import ConfigurationError, TransientError
from scavenger_cli.commands.detaching import show_submission
from scavenger_cli.commands.driving import refuse_to_ask_nobody, show_report
from scavenger_cli.commands.logs import show_lines
from scavenger_cli.commands.previewing import show_preview
from scavenger_cli.commands.queue import await_begin
from scavenger_cli.options import Detach
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.api.calls import Remote
    from scavenger.domain.overrides import Overrides, Renewal
    from scavenger.store.records import JobRecord
    from scavenger_cli.options import Invocation


class RemoteRun:
    """A job file that a server is to run.

    Args:
        job_file: Path of the job file on the server's machine; a relative one is taken from the folder here.
        overrides: Values that replace those of the job file.
        run: False: the job ends with the choice, as of `plan`.
    """

    def __init__(
        self, source: Remote, job_file: Path, overrides: Overrides, invocation: Invocation, *, run: bool
    ) -> None:
        self._source, self._invocation = source, invocation
        self._asked: dict[str, Any] = {
            **asdict(overrides),
            "job_file": os.path.abspath(job_file),
            "run": run,
            "environment": _asked_here(job_file),
        }

    def preview(self) -> int:
        """Show what would be done, and do nothing."""
        found = preview(self._source, PreviewRequest(**self._asked, yes=self._invocation.yes))
        show_preview(found, as_json=self._invocation.as_json)
        return 0

    def submit(self, detach: Detach | None, *, audit: bool) -> int:
        """Submit the job, after a question unless `--yes` was given; without `detach`, follow it to its end.

        Returns:
            The exit code: that of the job, if it was followed; 0 also if the answer was no.

        Raises:
            ConfigurationError: The server refuses the job file, or there is no terminal to ask on.
        """
        refuse_to_ask_nobody(yes=self._invocation.yes)
        if not self._invocation.yes:
            found = preview(self._source, PreviewRequest(**self._asked))
            show_preview(found, stream=sys.stderr)
            if found.refused is not None:
                raise ConfigurationError(found.refused)
            if not console.ask(f"Submit it to {self._source.client.address.url}?"):
                return 0
        priority = 0 if detach is None else detach.priority
        made = submit(self._source, SubmitRequest(**self._asked, audit=audit, priority=priority))
        return _followed(self._source, made, detach, self._invocation)


def _asked_here(job_file: Path) -> dict[str, str]:
    """The variables of this environment that a job file names; none of one that is on the server's machine alone."""
    from scavenger.control.job_file.load import load_job
    from scavenger.control.jobs.variables import asked_variables

    try:
        return asked_variables(load_job(job_file), os.environ)
    except ConfigurationError:  # which the server tells, of the file that it reads
        return {}


def resume_remotely(
    source: Remote,
    job: JobRecord,
    invocation: Invocation,
    *,
    detach: bool,
    audit: bool,
    renewal: Renewal,
) -> int:
    """Have a job that ended before its goal go on, and follow it to its end unless `detach`.

    Returns:
        The exit code, as of `RemoteRun.submit`.

    Raises:
        ConfigurationError, TransientError: It cannot be resumed.
    """
    made = resumed(source, job, renewal, audit=audit)
    return _followed(source, SubmissionAnswer(submission=made), Detach() if detach else None, invocation)


def _followed(source: Remote, made: SubmissionAnswer, detach: Detach | None, invocation: Invocation) -> int:
    if detach is not None and not detach.follow:
        show_submission(made, as_json=invocation.as_json)
        return 0
    try:
        _await_end(source, made.submission.id, quiet=invocation.quiet or invocation.as_json)
    except KeyboardInterrupt:
        key = made.submission.id[:8]
        console.note(
            f"the job goes on: `scavenger status {key}` shows it, `scavenger jobs cancel {key}` ends it"
        )
        raise
    if detach is not None:
        return 0
    job = job_of(source, made.submission.id)
    if job.report is None:
        raise TransientError(
            f"job {job.name} ({job.id[:8]}) has no report; `scavenger status {job.id[:8]}` shows it"
        )
    try:
        report = report_from_document(job.report)
    except ValueError as error:
        raise ConfigurationError(f"the report of another version cannot be read: {error}") from error
    show_report(report, invocation)
    return report.exit_code


def _await_end(source: Remote, job_id: str, *, quiet: bool) -> None:
    """Wait until the job has begun and ended, and print its log meanwhile."""
    await_begin(source, job_id)
    if quiet:
        for event in events_of(source, job_id):
            if event.level != "info":
                console.note(f"{event.level}: {event.message}")
        return
    show_lines(source, job_id)
