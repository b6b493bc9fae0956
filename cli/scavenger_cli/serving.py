"""Arguments and options of `scavenger serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import Output, StoreOption, finish

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(serve)


def serve(
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most jobs at once. Default: 16, or of the settings file."),
    ] = None,
    local_jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most jobs at once on this machine itself. Default: 1."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="$", help="Most that all jobs of a calendar month may cost.")
    ] = None,
    budget_per_user: Annotated[
        str | None, typer.Option(metavar="$", help="The same for the jobs of each user.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Run submitted jobs until Ctrl-C, each in a process of its own.

    Jobs go on when the server ends, and the next one adopts them. Without this, the first detached job starts a server
    in the background, which ends a minute after the last of them.
    """

    def command() -> int:
        from scavenger_cli.commands.serve import Given, serve_jobs

        return serve_jobs(Given(jobs, local_jobs, budget, budget_per_user), store_url=store)

    finish(Output.TEXT, command)
