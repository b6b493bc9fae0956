"""Arguments and options of `scavenger cost`."""

from __future__ import annotations

import typer

from scavenger_cli.options import ListedJobKey, Output, OutputOption, StoreOption, finish


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(cost)


def cost(job: ListedJobKey = None, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show the predicted and actual cost of one job or of recent jobs."""

    def command() -> int:
        from scavenger_cli.commands.cost import show_cost

        return show_cost(job, store_url=store, as_json=output is Output.JSON)

    finish(output, command)
