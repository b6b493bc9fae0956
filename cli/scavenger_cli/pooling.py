"""Arguments and options of `scavenger aggregators`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, finish

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show the pool of aggregators that jobs with `aggregation: shared` use on this machine.",
)


@app.callback(invoke_without_command=True)
def show(context: typer.Context, output: OutputOption = Output.TEXT) -> None:
    """Show the nodes of the pool, the aggregators on them, and what each uses."""
    if context.invoked_subcommand is not None:
        return

    def command() -> int:
        from scavenger_cli.commands.aggregators import show_pool

        return show_pool(as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def serve(
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Nodes to cut out of this machine.")] = 1,
    cpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Processors of each node. Default: half of the machine's among all nodes.",
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="GIB",
            min=0.1,
            help="Memory of each node. Default: half of the machine's among all nodes.",
        ),
    ] = None,
    tenants: Annotated[
        int, typer.Option(metavar="N", min=1, help="Aggregators that share a node at most.")
    ] = 8,
) -> None:
    """Serve the pool until Ctrl-C.

    Without this, jobs start a pool of one node themselves, which ends a minute after the last of them.
    """

    def command() -> int:
        from scavenger_cli.commands.aggregators import serve_pool

        return serve_pool(nodes=nodes, cpus=cpus, memory_gib=memory, tenants=tenants)

    finish(Output.TEXT, command)
