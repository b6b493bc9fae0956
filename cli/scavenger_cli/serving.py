"""Arguments and options of `scavenger serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger_cli.options import Output, StoreOption, finish


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
        str | None,
        typer.Option(
            metavar="$", help="Most that all jobs of a month may cost; kept in the store. none: no limit."
        ),
    ] = None,
    budget_per_user: Annotated[
        str | None, typer.Option(metavar="$", help="The same for the jobs of each user.")
    ] = None,
    api: Annotated[bool, typer.Option("--api/--no-api", help="Serve the REST API, too.")] = True,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the API listens; any but loopback needs TLS.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port of the API; 0: one that is free.")
    ] = 8765,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Another name by which clients address the API. Repeat for several."
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for TLS, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    store: StoreOption = None,
) -> None:
    """Run submitted jobs until Ctrl-C, each in a process of its own, and serve the REST API.

    Jobs go on when the server ends, and the next one adopts them. Without this, the first detached job starts a server
    in the background, which ends a minute after the last of them.
    """

    def command() -> int:
        from scavenger_cli.commands.serve import Given, Place, serve_jobs

        place = Place(host, port, tuple(allowed_host or ()), certificate, key) if api else None
        return serve_jobs(Given(jobs, local_jobs, budget, budget_per_user), place, store_url=store)

    finish(Output.TEXT, command)
