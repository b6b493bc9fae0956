"""Runs the operator: kopf watches, this process's lease says whether it acts, and `operating` does it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kopf

from scavenger.cloud.kubernetes.elastic_jobs import LEADERS, Cluster, api_client
from scavenger.control.cluster.lease import LeaseKeeper
from scavenger.control.cluster.operating import Installation, Looked, Operator
from scavenger.control.cluster.pooling import ClusterPools
from scavenger.domain.elastic_job import GROUP, PLURAL, VERSION
from scavenger.errors import ScavengerError

log = logging.getLogger(__name__)

LIST_S = 60.0
"""Interval between two readings of everything, in case an event was lost."""
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True)
class OperatorOptions:
    """Of the command.

    Attributes:
        namespace: The only one whose ElasticJobs are looked after; empty for all.
        lease_namespace: Where the lease is; empty for that of this process's pod, or `default`.
        lease: Its name.
        liveness: URL at which the operator tells that it is alive; empty for none.
    """

    namespace: str = ""
    lease_namespace: str = ""
    lease: str = "scavenger-operator"
    liveness: str = ""

    @property
    def lease_place(self) -> tuple[str, str]:
        """Namespace and name of the lease."""
        place = self.lease_namespace or self.namespace
        if not place:
            with contextlib.suppress(OSError), open(NAMESPACE_FILE) as file:
                place = file.read().strip()
        return place or "default", self.lease


def run_operator(
    options: OperatorOptions, installation: Installation, *, looked: Callable[[Looked], None] = lambda _: None
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        options: Of the command.
        installation: What all jobs share.
        looked: See `Operator`.

    Raises:
        ScavengerError: The cluster cannot be reached.
    """
    cluster = Cluster(api_client(), options.namespace)
    over = threading.Event()

    def began() -> None:
        try:
            operator.list_again()
        except ScavengerError as error:
            log.warning("%s", error)

    me = f"{socket.gethostname()}_{uuid.uuid4()}"
    keeper = LeaseKeeper(cluster, *options.lease_place, me, began)
    operator = Operator(cluster, installation, acts=lambda: keeper.held, looked=looked)
    pools = ClusterPools(cluster, installation, operator, options.lease_place[0])
    registry = _handlers(operator)
    keeper.start()
    operator.start()
    for target, arguments in (
        (_list_at_times, (operator, keeper, over)),
        (pools.keep, (lambda: keeper.held, over)),
    ):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    where: dict[str, Any] = (
        {"namespaces": [options.namespace]} if options.namespace else {"clusterwide": True}
    )
    try:
        asyncio.run(
            kopf.operator(
                registry=registry, standalone=True, liveness_endpoint=options.liveness or None, **where
            )
        )
    finally:
        over.set()
        operator.close()
        keeper.close()


def _handlers(operator: Operator) -> Any:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        found = api_client().configuration  # read again: tokens of service accounts are replaced
        told = [one["value"] for one in found.auth_settings().values() if one["value"]]
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=told[0].partition(" ")[0] if told else None,
            token=told[0].partition(" ")[2] if told else None,
        )

    @kopf.on.startup(registry=registry)
    def settled(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # its events are those of `operating`
        settings.watching.server_timeout = 300
        settings.watching.reconnect_backoff = 0.5
        settings.networking.request_timeout = 30
        # of all pods of the cluster, only leaders are sent: a job has one of them and many workers
        settings.watching.label_selectors["", "v1", "pods"] = LEADERS

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def job(event: Any, **_: Any) -> None:
        operator.note_job(dict(event["object"]), deleted=event["type"] == "DELETED")

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def leader(event: Any, **_: Any) -> None:
        operator.note_leader(dict(event["object"]), deleted=event["type"] == "DELETED")

    return registry


def _list_at_times(operator: Operator, keeper: LeaseKeeper, over: threading.Event) -> None:
    while not over.wait(LIST_S):
        if keeper.held:
            try:
                operator.list_again()
            except ScavengerError as error:
                log.warning("%s", error)
