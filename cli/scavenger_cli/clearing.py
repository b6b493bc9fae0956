"""Arguments and options of `scavenger gc`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import DryRunOption, Output, OutputOption, StoreOption, YesOption, finish


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(gc)


def gc(
    regions: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="CLOUD/REGION", help="Look in this region too. Repeat for several."),
    ] = None,
    quarantined: Annotated[
        bool,
        typer.Option(
            "--quarantined",
            help="End VMs, too, that the store does not know since it was restored from a backup.",
        ),
    ] = False,
    kept: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="ID", help="Keep this VM in quarantine for good. Repeat for several."),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--leader",
            metavar="VM",
            help="End this live leader's VM of another machine, too, with its job's VMs. Repeat for several.",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """End VMs that no running job uses, but that cost money."""

    def command() -> int:
        from scavenger_cli.commands.gc import collect, keep

        if kept:
            return keep(kept, store_url=store)
        as_json = output is Output.JSON
        return collect(
            regions or [],
            yes=yes,
            dry_run=dry_run,
            quarantined=quarantined,
            other=other or (),
            store_url=store,
            as_json=as_json,
        )

    finish(output, command)
