"""Arguments and options of `scavenger leader`: jobs that are led by VMs of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, StoreOption, YesOption, finish

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Follow and end jobs that are led by a VM of their own (`leader: vm`).",
)

LedJob = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, or the beginning of its id.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_leaders(store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the leaders' VMs that this machine has rented."""

    def command() -> int:
        from scavenger_cli.commands.leader import list_leaders

        return list_leaders(store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def follow(job: LedJob, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show the job's events until it has ended, fetch its result, and end its leader's VM."""

    def command() -> int:
        from scavenger_cli.commands.leader import follow_job

        return follow_job(job, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def connect(job: LedJob, store: StoreOption = None) -> None:
    """Forward the leader's API to this machine until Ctrl-C, and print how other commands use it."""

    def command() -> int:
        from scavenger_cli.commands.leader import connect_to

        return connect_to(job, store_url=store)

    finish(Output.TEXT, command)


@app.command()
def end(job: LedJob, yes: YesOption = False, store: StoreOption = None) -> None:
    """End a leader's VM and the VMs of its job; what was not fetched is lost."""

    def command() -> int:
        from scavenger_cli.commands.leader import end_leader

        return end_leader(job, yes=yes, store_url=store)

    finish(Output.TEXT, command)
