"""`operator`: looks after the ElasticJobs of a Kubernetes cluster."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from scavenger.errors import NotSupportedError
from scavenger_cli.ui import console


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
) -> int:
    """Look after the cluster's ElasticJobs until SIGTERM.

    Several may run: one of them acts. Prices and images of pods are those of `[kubernetes]` in the settings file, and
    `[pool.NAME]` there are pools of ElasticJobs.
    """
    from scavenger import logs
    from scavenger.control.places.launching import UNPROVEN_VARIABLE
    from scavenger.control.settings import cloud_settings, load_settings
    from scavenger.domain.vm_settings import KubernetesSettings

    try:
        from scavenger.control.cluster.operating import Installation
        from scavenger.control.cluster.running import OperatorOptions, run_operator
    except ModuleNotFoundError as error:
        raise NotSupportedError(
            f"the operator needs {error.name}: pip install 'scavenger-ml[operator]'"
        ) from error
    logs.set_up("operator", logs.read_settings())
    settings = cloud_settings("kubernetes")
    assert isinstance(settings, KubernetesSettings)
    unproven = os.environ.get(UNPROVEN_VARIABLE, "")
    installation = Installation(settings, leader_account, load_settings().pool, unproven)
    run_operator(
        OperatorOptions(namespace=namespace, lease_namespace=lease_namespace, liveness=liveness), installation
    )
    return 0


def crd() -> int:
    """Print the definition of the custom resource ElasticJob, for `kubectl apply -f -`."""
    from scavenger.control.cluster.crd import crd_yaml

    console.write(sys.stdout, crd_yaml())
    return 0
