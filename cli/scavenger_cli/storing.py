"""Arguments and options of `scavenger store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, StoreOption, finish

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Repair the database of jobs.",
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def recover(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Output folders of jobs, named by the jobs' ids."),
    ],
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restore the records of jobs from their folders, after the database was lost."""

    def command() -> int:
        from scavenger_cli.commands.recover import recover as recover_jobs

        return recover_jobs(folders, store_url=store, as_json=output is Output.JSON)

    finish(output, command)
