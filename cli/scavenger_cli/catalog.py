"""Arguments and options of `scavenger catalog ...`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from scavenger_cli.leftovers import here_only
from scavenger_cli.options import Output, OutputOption, finish


class Provider(StrEnum):
    """A cloud of the catalogue."""

    GCP = "gcp"
    AWS = "aws"


ProviderOption = Annotated[Provider | None, typer.Option(help="Only this cloud. Default: all clouds.")]

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show machine types of the clouds and their prices.",
)


@app.callback(invoke_without_command=True)
def catalog(
    context: typer.Context,
    provider: ProviderOption = None,
    region: Annotated[
        str | None, typer.Option(metavar="R", help="Region. Default: us-central1 for gcp, us-east-1 for aws.")
    ] = None,
    vm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this type. Repeat for several.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only types with this GPU, such as T4 or A100.")
    ] = None,
    cpus: Annotated[
        str | None, typer.Option(metavar="N", help="vCPUs: 4 means exactly 4, 4+ at least 4.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="GIB", help="Memory, GiB: 16 means exactly 16, 16+ at least 16.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include types that a job gets only by name: burstable, arm64, ...")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show machine types of the clouds and their prices."""
    if context.invoked_subcommand is not None:
        return

    def command() -> int:
        from scavenger_cli.commands.catalog import show

        cloud = None if provider is None else provider.value
        asked = {"provider": cloud, "region": region, "vm": vm, "gpu": gpu, "cpus": cpus, "memory": memory}
        return show(asked, every=every, as_json=output is Output.JSON)

    finish(output, command)


@app.command("refresh")
def refresh(
    provider: ProviderOption = None,
    region: Annotated[
        list[str] | None,
        typer.Option(metavar="R", help="Region of aws. Repeat for several. gcp always sends all regions."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fetch current prices from the clouds; needs credentials."""

    def command() -> int:
        from scavenger_cli.commands.catalog import refresh as ask

        here_only("catalog refresh")
        name = None if provider is None else provider.value
        return ask(name, tuple(region or ()), as_json=output is Output.JSON)

    finish(output, command)
