"""Arguments and options of `scavenger store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, StoreOption, finish

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Back up, restore and repair the database of jobs.",
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def recover(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Output folders of jobs, named by the jobs' ids; with --job, the folder or URL of checkpoints.",
        ),
    ],
    job_file: Annotated[
        Path | None,
        typer.Option(
            "--job", metavar="JOB.yaml", help="The job's file, where nothing but its checkpoints is left."
        ),
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restore the records of jobs from their folders or checkpoints, after the database was lost."""

    def command() -> int:
        from scavenger_cli.commands.recover import recover as recover_jobs

        return recover_jobs(folders, job_file, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]


@app.command()
def backup(file: FileArgument, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Write the whole database to a new file, which only you can read; jobs and servers go on."""

    def command() -> int:
        from scavenger_cli.commands.backing_up import backup_store

        return backup_store(file, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def restore(
    file: FileArgument,
    keep_tokens: Annotated[
        bool | None,
        typer.Option(
            "--keep-tokens/--revoke-tokens",
            help="Whether tokens are valid again, also those revoked since the backup. Default: asks.",
        ),
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restore a backup into an empty database, of either kind: --store names it.

    Jobs that ran when the backup was made are to be resumed. VMs that were rented since are not known: they are kept in
    quarantine, where `scavenger gc` shows them. Sessions in browsers end.
    """

    def command() -> int:
        from scavenger_cli.commands.backing_up import restore_store

        return restore_store(file, keep_tokens=keep_tokens, store_url=store, as_json=output is Output.JSON)

    finish(output, command)
