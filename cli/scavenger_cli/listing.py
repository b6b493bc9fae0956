"""Arguments and options of `scavenger jobs`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import DryRunOption, Output, OutputOption, StoreOption, YesOption, finish

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Manage the records of jobs; `scavenger status` lists them.",
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
