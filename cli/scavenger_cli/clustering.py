"""Arguments and options of `scavenger operator`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import Output, finish


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    group = typer.Typer(
        help="Runs in a Kubernetes cluster, and looks after its ElasticJobs.", no_args_is_help=True
    )
    group.command("run")(run)
    group.command("crd")(crd)
    app.add_typer(group, name="operator")


def run(
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Only the ElasticJobs of this namespace. Default: all.")
    ] = "",
    lease_namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where the lease is by which one of several operators acts. Default: its own.",
        ),
    ] = "",
    leader_account: Annotated[
        str, typer.Option(metavar="NAME", help="Service account of leaders that name none.")
    ] = "scavenger-leader",
    liveness: Annotated[
        str, typer.Option(metavar="URL", help="Where it tells that it lives, as http://0.0.0.0:8080/healthz.")
    ] = "",
) -> None:
    """Look after the cluster's ElasticJobs until SIGTERM.

    Several may run: one of them acts. Prices and images of pods are those of `[kubernetes]` in the settings file.
    """

    def command() -> int:
        from scavenger_cli.commands.operator import run_until_stopped

        return run_until_stopped(namespace, lease_namespace, leader_account, liveness)

    finish(Output.TEXT, command)


def crd() -> None:
    """Print the definition of the custom resource ElasticJob, for `kubectl apply -f -`."""

    def command() -> int:
        from scavenger_cli.commands.operator import print_crd

        return print_crd()

    finish(Output.TEXT, command)
