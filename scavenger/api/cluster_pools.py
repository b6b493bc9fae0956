"""Pools that ElasticJobs share, read of their cluster with the rights of who asks: no store and no server has them."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from scavenger.api.calls import Local
from scavenger.api.pools import PoolMove, PoolsAnswer, ShareAnswer, share_of, shared
from scavenger.domain.infra import Infra
from scavenger.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from scavenger.control.pools.standing import PoolStanding

LEASES = "scavenger-system"
"""Namespace of the operator, and of the leases of its pools, where `deploy/kubernetes` puts it."""


def show_cluster_pools(place: str, namespace: str) -> PoolsAnswer:
    """See `show_pools`.

    Args:
        place: As `kubernetes/CONTEXT`.
        namespace: Of the pools' leases.

    Raises:
        ConfigurationError: `place` is no cluster.
        NotFoundError: There is no pool.
        ScavengerError: The cluster does not answer, or refuses.
    """
    return PoolsAnswer(
        pools=tuple(
            shared(Local(), one, {}, tuple(PoolMove(last.at, move) for move in last.moves), ())
            for one in _pools(place, namespace).values()
            if (last := one.allotment) is not None
        )
    )


def explain_cluster_share(place: str, namespace: str, job: str) -> ShareAnswer:
    """See `explain_share`.

    Args:
        place, namespace: As of `show_cluster_pools`.
        job: Name of an ElasticJob, or the start of its uid.

    Raises:
        NotFoundError: No pool has it.
        ConfigurationError, ScavengerError: As of `show_cluster_pools`; several jobs are meant.
    """
    pools = _pools(place, namespace)
    found = [
        (one, row)
        for one in pools.values()
        for row, known in enumerate(one.decision.jobs)
        if one.names[known.id] == job or known.id.startswith(job)
    ]
    if not found:
        raise NotFoundError(
            f"no ElasticJob {job!r} has or awaits a share of {', '.join(pools)}; `kubectl get ejob` lists them"
        )
    if len(found) > 1:
        ids = ", ".join(one.decision.jobs[row].id for one, row in found)
        raise ConfigurationError(f"several ElasticJobs are called {job!r}; name one by its uid: {ids}")
    return share_of(Local(), *found[0])


def _pools(place: str, namespace: str) -> dict[str, PoolStanding]:
    from scavenger.control.provisioning.providers import open_api_server

    try:
        infra = Infra.parse(place)
    except PydanticCustomError as error:
        raise ConfigurationError(f"--in {error}") from None
    if not infra.capabilities.pods:
        raise ConfigurationError(f"--in must be a cluster, as kubernetes or kubernetes/CONTEXT, not {infra}")
    try:
        api = open_api_server(infra)
    except ConfigurationError as error:
        raise ConfigurationError(f"--in {infra}: {str(error).removeprefix('infra: ')}") from None
    from scavenger.cloud.kubernetes.elastic_jobs import Cluster
    from scavenger.control.cluster.pooling import standing_pools

    found = standing_pools(partial(Cluster, api), namespace, datetime.now(UTC))
    if not found:
        raise NotFoundError(
            f"no ElasticJobs share a pool: no lease in namespace {namespace} of {infra} has one; --lease-namespace "
            "names that of their operator"
        )
    return found
