"""`scavenger catalog ...`: its words and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, finish

__all__ = ["app"]


class Provider(StrEnum):
    """Whose machine types."""

    GCP = "gcp"
    AWS = "aws"


ProviderOption = Annotated[Provider | None, typer.Option(help="Of one cloud; of all, if left out.")]

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Machine types of the clouds, and what they cost.",
)


@app.callback(invoke_without_command=True)
def catalog(
    context: typer.Context,
    provider: ProviderOption = None,
    region: Annotated[
        str | None, typer.Option(metavar="R", help="Where; else us-central1 of gcp and us-east-1 of aws.")
    ] = None,
    vm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this type; may be given several times.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="With such GPUs, as T4 or A100.")] = None,
    cpus: Annotated[
        str | None, typer.Option(metavar="N", help="vCPUs: 4 for exactly, 4+ for at least.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="GIB", help="GiB of memory: 16 for exactly, 16+ for at least.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also what a job is offered only by name: burstable, arm64, ...")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Machine types of the clouds, and what they cost."""
    if context.invoked_subcommand is not None:
        return

    def command() -> int:
        from scavenger_cli.commands.catalog import Asked, show

        asked = Asked(
            None if provider is None else provider.value, region, tuple(vm or ()), gpu, cpus, memory, every
        )
        return show(asked, as_json=output is Output.JSON)

    finish(output, command)


@app.command("refresh")
def refresh(
    provider: ProviderOption = None,
    region: Annotated[
        list[str] | None,
        typer.Option(metavar="R", help="Of aws; may be given several times. gcp tells all at once."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask the clouds for prices; needs credentials."""

    def command() -> int:
        from scavenger_cli.commands.catalog import refresh as ask

        name = None if provider is None else provider.value
        return ask(name, tuple(region or ()), as_json=output is Output.JSON)

    finish(output, command)
