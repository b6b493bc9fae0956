"""`scavenger cost`: its words and options."""

from __future__ import annotations

import typer

from scavenger_cli.options import JobKey, Output, OutputOption, StoreOption, finish

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(cost)


def cost(job: JobKey = None, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show what a job was predicted to cost and what it has cost; without JOB, the latest jobs and the last one."""

    def command() -> int:
        from scavenger_cli.commands.cost import show_cost

        return show_cost(job, store_url=store, as_json=output is Output.JSON)

    finish(output, command)
