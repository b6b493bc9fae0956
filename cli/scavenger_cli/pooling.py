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
    """Show the nodes of the pool, the jobs and their aggregators, and what each uses and costs."""
    if context.invoked_subcommand is not None:
        return

    def command() -> int:
        from scavenger_cli.commands.aggregators import show_pool

        return show_pool(as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node, as `node-0`.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the node have aggregators again.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move all aggregators off a node while their jobs train; it then gets none until `--undo`."""

    def command() -> int:
        from scavenger_cli.commands.aggregators import drain_node

        return drain_node(node, undo=undo, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def serve(
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Nodes to cut out of this machine, at most in use at once. Default: as many as half of its "
            "processors suffice for.",
        ),
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Processors of each node. Default: half of the machine's among all nodes, at most 4.",
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

    Without this, jobs start a pool themselves, which ends a minute after the last of them.
    """

    def command() -> int:
        from scavenger_cli.commands.aggregators import serve_pool

        return serve_pool(nodes=nodes, cpus=cpus, memory_gib=memory, tenants=tenants)

    finish(Output.TEXT, command)
