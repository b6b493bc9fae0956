"""Arguments and options of `scavenger jobs`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import (
    AuditOption,
    DetachOption,
    DryRunOption,
    JobFile,
    Output,
    OutputOption,
    RunningJob,
    StoreOption,
    YesOption,
    finish,
)

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Submit jobs that run without the command; show, cancel and delete them.",
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def rm(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="Ids of jobs, starts of ids, or names (the latest job of a name)."
        ),
    ],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete the records of jobs that have ended; their files are kept."""

    def command() -> int:
        from scavenger_cli.commands.remove import remove_jobs

        as_json = output is Output.JSON
        return remove_jobs(jobs, yes=yes, dry_run=dry_run, store_url=store, as_json=as_json)

    finish(output, command)


@app.command()
def launch(
    job_file: JobFile,
    yes: YesOption = False,
    detach: DetachOption = False,
    priority: Annotated[int, typer.Option(metavar="N", help="Jobs of a higher priority begin first.")] = 0,
    audit: AuditOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Submit a job like `optimize --detach`, and show its log; Ctrl-C ends only the showing."""

    def command() -> int:
        from scavenger_cli.commands.run import Detach, Overrides, execute

        as_json = output is Output.JSON
        return execute(
            job_file,
            run=True,
            overrides=Overrides(),
            yes=yes,
            dry_run=False,
            store_url=store,
            as_json=as_json,
            audit=audit,
            detach=Detach(priority, follow=not (detach or as_json)),
        )

    finish(output, command)


@app.command()
def queue(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also show jobs that have ended.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show submitted jobs that wait or run."""

    def command() -> int:
        from scavenger_cli.commands.queue import show_queue

        return show_queue(everything=everything, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def logs(job: RunningJob, store: StoreOption = None) -> None:
    """Show the log of a submitted job until it has ended, also of one that still waits; as `scavenger logs -f`."""

    def command() -> int:
        from scavenger_cli.commands.queue import follow_logs

        return follow_logs(job, store_url=store)

    finish(Output.TEXT, command)


@app.command()
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
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Withdraw submitted jobs that wait, and stop those that run."""

    def command() -> int:
        from scavenger_cli.commands.queue import cancel_jobs

        as_json = output is Output.JSON
        return cancel_jobs(jobs or [], everything=everything, yes=yes, store_url=store, as_json=as_json)

    finish(output, command)
