"""`operator`: looks after the ElasticJobs of a Kubernetes cluster."""

from __future__ import annotations

import sys

from scavenger.errors import NotSupportedError
from scavenger_cli.ui import console


def run_until_stopped(namespace: str, lease_namespace: str, leader_account: str, liveness: str) -> int:
    """Look after ElasticJobs until SIGTERM or SIGINT.

    Raises:
        NotSupportedError: Its libraries are not installed.
        ScavengerError: The cluster cannot be reached, or the settings file is invalid.
    """
    from scavenger import logs
    from scavenger.control.settings import load_settings

    try:
        from scavenger.control.cluster.operating import Installation
        from scavenger.control.cluster.running import Options, run_operator
    except ModuleNotFoundError as error:
        raise NotSupportedError(
            f"the operator needs {error.name}: pip install 'scavenger-ml[operator]'"
        ) from error
    logs.set_up("operator", logs.read_settings())
    installation = Installation(load_settings().kubernetes, leader_account)
    run_operator(
        Options(namespace=namespace, lease_namespace=lease_namespace, liveness=liveness), installation
    )
    return 0


def print_crd() -> int:
    """Print the definition of the custom resource."""
    from scavenger.control.cluster.crd import crd_yaml

    console.write(sys.stdout, crd_yaml())
    return 0
