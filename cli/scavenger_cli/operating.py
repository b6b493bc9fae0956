"""Arguments and options of the commands for a job that another process runs."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from scavenger.errors import ConfigurationError
from scavenger_cli.options import (
    AuditOption,
    BudgetOption,
    DeadlineOption,
    DetachOption,
    Output,
    OutputOption,
    QuietOption,
    RunningJob,
    StoreOption,
    TimeoutOption,
    VerboseOption,
    WaitOption,
    YesOption,
    finish,
)

TIMEOUT = "15m"
"""Default of `--timeout`: on a cloud, starting and warming up a new worker takes minutes."""
LINES = 20
"""Default of `--lines`, for each log: they leave room for others on a screen."""


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (logs, hosts, scale, migrate, stop, resume):
        app.command()(command)


def hosts(job: RunningJob, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Print where the workers of a running job are, as HOST:SLOTS lines; none for a job that does not run."""

    def command() -> int:
        from scavenger_cli.commands.hosts import show_hosts

        return show_hosts(job, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


def scale(
    job: RunningJob,
    workers: Annotated[
        int | None, typer.Option("--workers", "-k", metavar="N", min=1, help="Train with N workers.")
    ] = None,
    add: Annotated[int | None, typer.Option(metavar="N", min=1, help="Add N workers.")] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Remove this worker. Repeat for several, or separate them by commas."
        ),
    ] = None,
    aggregators: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Have the first N of its aggregators hold the model."),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change how many workers a running job has, or how many aggregators hold its model."""

    def command() -> int:
        from scavenger.api.operations import scaling
        from scavenger_cli.commands.operate import operate

        operation = scaling(workers, add, _split(remove), aggregators)
        return operate(
            job, operation, wait=wait, timeout=timeout, store_url=store, as_json=output is Output.JSON
        )

    finish(output, command)


def migrate(
    job: RunningJob,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Replace only this worker. Repeat for several, or separate them by commas."
        ),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Replace the workers of a running job by new ones."""

    def command() -> int:
        from scavenger.api.operations import migration
        from scavenger_cli.commands.operate import operate

        operation = migration(_split(worker))
        return operate(
            job, operation, wait=wait, timeout=timeout, store_url=store, as_json=output is Output.JSON
        )

    finish(output, command)


def stop(
    job: RunningJob,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Save the model as trained so far.")] = True,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop a running job, and save its model."""

    def command() -> int:
        from scavenger.domain.operation import StopJob
        from scavenger_cli.commands.operate import operate

        as_json = output is Output.JSON
        return operate(job, StopJob(save), wait=wait, timeout=timeout, store_url=store, as_json=as_json)

    finish(output, command)


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
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Continue a job that ended before its goal from its checkpoint.

    One that a limit ended, or that missed its target, goes on with a higher limit, which counts all its attempts.
    """

    def command() -> int:
        from scavenger.domain.overrides import Renewal
        from scavenger_cli.commands.resume import resume as resume_job

        as_json = output is Output.JSON
        return resume_job(
            job,
            yes=yes,
            audit=audit,
            detach=detach,
            verbose=verbose,
            quiet=quiet,
            store_url=store,
            as_json=as_json,
            renewal=Renewal(
                budget, deadline, max_epochs, None if output_dir is None else os.path.abspath(output_dir)
            ),
        )

    finish(output, command)


def logs(
    job: RunningJob,
    events: Annotated[bool, typer.Option("--events", help="Show only the events of the job.")] = False,
    process: Annotated[
        str | None, typer.Option(metavar="ID", help="Show only the output of this process.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the job has ended.")
    ] = False,
    lines: Annotated[
        int,
        typer.Option(
            "--lines",
            "-n",
            metavar="N",
            min=0,
            max=100_000,
            help="Show at most N events, and N lines of each process.",
        ),
    ] = LINES,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the events of a job and the output of its processes."""

    def command() -> int:
        if events and process is not None:
            raise ConfigurationError("give --events or --process, not both; without either both are shown")
        if follow and output is Output.JSON:
            raise ConfigurationError(
                "-f prints without end, and -o json prints one document: give one of them"
            )
        from scavenger.api.logs import Wanted
        from scavenger_cli.commands.logs import show_logs

        wanted = Wanted(process is None, not events, process)
        as_json = output is Output.JSON
        return show_logs(job, wanted, follow=follow, lines=lines, store_url=store, as_json=as_json)

    finish(output, command)


def _split(names: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for name in names or () for part in name.split(","))
