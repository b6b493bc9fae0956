"""Arguments and options of `scavenger aggregators`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger_cli.leftovers import here_only
from scavenger_cli.options import Output, OutputOption, StoreOption, finish

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
            min=0,
            help="Nodes to cut out of this machine, at most in use at once; 0: none, all are other machines. "
            "Default: as many as half of its processors suffice for.",
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
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Let other machines join as nodes (`add-node`), at an address of this machine that they reach. "
            "Default: nothing listens.",
        ),
    ] = "",
    infra: Annotated[
        str,
        typer.Option(
            metavar="CLOUD/REGION",
            help="Rent VMs there as nodes when jobs need them, and end them afterwards. They reach this machine at "
            "--listen, or else at $SCAVENGER_ADDRESS.",
        ),
    ] = "",
    vm: Annotated[
        str,
        typer.Option(metavar="TYPE", help="VM type of these. Default: the cheapest with 2 vCPUs and 4 GiB."),
    ] = "",
    nodes_max: Annotated[
        int, typer.Option("--nodes-max", metavar="N", min=1, help="Most rented nodes at a time.")
    ] = 4,
    idle_duration: Annotated[
        str,
        typer.Option(
            "--idle-duration", metavar="TIME", help="How long a rented node without aggregators is kept."
        ),
    ] = "5m",
    budget_per_hour: Annotated[
        float,
        typer.Option(
            "--budget-per-hour",
            metavar="USD",
            min=0.0,
            help="What all rented nodes together may cost in an hour; 0: what --nodes-max of them cost.",
        ),
    ] = 0.0,
    store: StoreOption = None,
) -> None:
    """Serve the pool until Ctrl-C.

    Without this, jobs start a pool themselves, which ends a minute after the last of them.
    """

    def command() -> int:
        from scavenger_cli.commands.aggregators import RentOptions, serve_pool

        if infra:
            here_only("aggregators serve --infra")
        rent = RentOptions(infra, vm, nodes_max, idle_duration, budget_per_hour, store) if infra else None
        return serve_pool(
            nodes=nodes, cpus=cpus, memory_gib=memory, tenants=tenants, listen=listen, rent=rent
        )

    finish(Output.TEXT, command)


@app.command("add-node")
def add_node(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the node, up to 40 letters and digits.")
    ],
    file: Annotated[
        Path,
        typer.Option("--file", "-f", metavar="FILE", help="Where to write the join file; it must not exist."),
    ] = Path("join.json"),
    place: Annotated[
        str,
        typer.Option(
            metavar="INFRA",
            help="Which jobs use the node, by the infra of their job files, as `aws/us-east-1`. Default: jobs whose "
            "workers are on this machine.",
        ),
    ] = "local",
    price: Annotated[
        float,
        typer.Option(
            metavar="USD",
            min=0.0,
            help="Price of the machine per hour, of which each job pays for what it uses. Default: 0.",
        ),
    ] = 0.0,
    tenants: Annotated[
        int, typer.Option(metavar="N", min=1, help="Aggregators that share the node at most.")
    ] = 8,
    output: OutputOption = Output.TEXT,
) -> None:
    """Expect another machine as a node: `scavenger-vm FILE`, run there, joins the pool.

    The file has a key that is good once; whoever has it can join in place of the machine, so send it privately.
    """

    def command() -> int:
        from scavenger_cli.commands.aggregators import expect_node

        here_only("aggregators add-node")
        return expect_node(
            name, file, place=place, usd_per_hour=price, tenants=tenants, as_json=output is Output.JSON
        )

    finish(output, command)
