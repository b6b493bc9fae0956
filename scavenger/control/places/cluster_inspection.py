"""Checks everything that a job on pods needs of a cluster, one line each; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scavenger import errors
from scavenger.cloud.base import Provider
from scavenger.cloud.kubernetes.prices import DEFAULT_SIZE, PodCatalog
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.cloud.quotas import vms_left
from scavenger.control.places.launching import IMAGE_VARIABLE
from scavenger.control.provisioning.providers import cluster_settings, open_cluster
from scavenger.control.settings import settings_path
from scavenger.domain.check import Check
from scavenger.domain.infra import Infra
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.presentation.formatting import plural

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider
    from scavenger.cloud.kubernetes.rights import Right

_RIGHTS = "kubectl apply -k deploy/kubernetes makes accounts that have them (docs/kubernetes.md)"


def inspect_cluster(infra: Infra, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check context, version, rights, namespace, prices, nodes, quotas and image; ends where nothing more can be asked.

    Args:
        infra: `kubernetes` or `kubernetes/CONTEXT`.
        environment: Environment variables, which may name the kubeconfig, the settings file and the image.
    """
    try:
        settings = cluster_settings(infra, environment)
        provider = open_cluster(infra, environment, settings)
    except errors.JobFileError as error:
        yield Check("settings", "fail", str(error))
        return
    except errors.ScavengerError as error:
        yield Check("cluster", "fail", str(error))
        return
    reached = _reached(provider)
    yield reached
    if reached.status != "ok":
        return
    inspection = _Inspection(infra, provider, settings, settings_path(environment))
    yield from (inspection.rights(), inspection.namespace())
    yield from inspection.of_sizes()
    yield _image(environment, settings)


def inspect_leader(infra: Infra, environment: Mapping[str, str] = os.environ) -> Check | None:
    """Check that a pod can lead jobs; None if the settings name no account for that.

    Args:
        infra, environment: As of `inspect_cluster`.
    """
    from scavenger.cloud.kubernetes.rights import FOLLOW_RIGHTS

    try:
        settings = cluster_settings(infra, environment)
        if not settings.leader_identity:
            return None
        provider = open_cluster(infra, environment, settings)
        lacking = provider.lacks(FOLLOW_RIGHTS)
        if lacking:
            return Check("leader", "fail", f"no right to {', '.join(map(str, lacking))}", _RIGHTS)
        missing = provider.missing_of_leader(settings.leader_service_account, settings.leader_claim)
    except errors.ScavengerError as error:
        return Check("leader", "fail", str(error))
    if missing:
        fix = f"make it in the namespace {settings.namespace}, or name another in the settings"
        return Check("leader", "fail", f"there is no {missing}", fix)
    kept = f"its folder is on {settings.leader_claim}" if settings.leader_claim else "its folder ends with it"
    return Check("leader", "ok", f"jobs are led by a pod, as {settings.leader_service_account}; {kept}")


def checked(name: str, find: Callable[[], str], fix: str = "") -> Check:
    """A check that is well if something is found."""
    try:
        return Check(name, "ok", find())
    except errors.ScavengerError as error:
        return failure(name, error, fix)


def failure(name: str, error: errors.ScavengerError, fix: str = "") -> Check:
    """A check that failed, or is not known because the cloud did not answer."""
    if isinstance(error, errors.ThrottledError | errors.CloudUnavailableError):
        return Check(name, "warn", str(error), "try again later")
    return Check(name, "fail", str(error), fix)


def check_quotas(
    provider: Provider, vm: str, cpus: int, room: Callable[[int], str], *, unknown: Check, fix: str
) -> Check:
    """Whether quotas have room for the aggregators' machine and one worker.

    Args:
        room: Words for room for so many.
        unknown: The answer where no quota is known to apply.
        fix: What else to do.
    """
    try:
        quotas = provider.quotas()
    except errors.ScavengerError as error:
        return Check("quotas", "warn", f"not known: {error}")
    found = vms_left(provider.name, quotas, vm, cpus, spot=False)
    if found is None:
        return unknown
    count, quota = found
    about = f"{room(count)} ({quota.name}: {quota.used:g} of {quota.limit:g} used)"
    return Check("quotas", "fail", about, fix) if count < 2 else Check("quotas", "ok", about)


def _reached(provider: KubernetesProvider) -> Check:
    try:
        return Check("cluster", "ok", provider.identity())
    except errors.ConfigurationError as error:
        return Check("cluster", "fail", str(error))
    except errors.CredentialsError as error:
        return Check("cluster", "fail", str(error), "log in again, as the kubeconfig's cluster wants it")
    except errors.CloudError as error:
        return Check(
            "cluster", "fail", str(error), "see whether `kubectl version` answers; a VPN may be down"
        )


def _image(environment: Mapping[str, str], settings: KubernetesSettings) -> Check:
    image = environment.get(IMAGE_VARIABLE) or settings.image
    if not image:
        fix = f"name one as kubernetes.image in the settings, or in {IMAGE_VARIABLE}"
        return Check("image", "fail", "no container image is named", fix)
    return Check("image", "ok", f"{image}; whether nodes can pull it shows with the first pod")


class _Inspection:
    """The checks of a cluster that answers."""

    def __init__(
        self, infra: Infra, provider: KubernetesProvider, settings: KubernetesSettings, path: object
    ) -> None:
        self._infra, self._provider, self._settings, self._path = infra, provider, settings, path

    def rights(self) -> Check:
        from scavenger.cloud.kubernetes.rights import RENT_RIGHTS

        lacking: tuple[Right, ...] = ()

        def ask() -> str:
            nonlocal lacking
            lacking = self._provider.lacks(RENT_RIGHTS)
            return "all that jobs need"

        found = checked("permissions", ask)
        if lacking:
            return Check("permissions", "fail", f"no right to {', '.join(map(str, lacking))}", _RIGHTS)
        return found

    def namespace(self) -> Check:
        """Whether a pod of the smallest size would be admitted, which tells of the namespace, too."""
        name = self._settings.namespace

        def ask() -> str:
            why = self._provider.refusal("1cpu-1gib", spot=False)
            if "namespaces" in why:
                raise errors.ConfigurationError(why)
            return f"{name}, admits pods" if not why else f"{name}, refuses pods of 1cpu-1gib: {why}"

        return checked("namespace", ask, f"kubectl create namespace {name}")

    def of_sizes(self) -> Iterator[Check]:
        """Prices, nodes and quotas, for the size that a job has by default."""
        provider, region, vm = self._provider, self._infra.region, DEFAULT_SIZE
        catalog = PodCatalog(
            self._settings,
            region,
            today=datetime.now(UTC).date(),
            nodes=lambda spot: provider.nodes(spot=spot),
        )
        priced = checked(
            "prices",
            lambda: (
                f"${catalog.price(provider.name, region, vm).usd_per_hour:.4f} an hour for {vm} "
                f"({catalog.price(provider.name, region, vm)})"
            ),
            f"see Prices in docs/kubernetes.md; the settings are {self._path}",
        )
        yield priced
        yield checked(
            "nodes", lambda: self._nodes(vm), "add a node, or name other ones by kubernetes.node_labels"
        )
        yield check_quotas(
            provider,
            vm,
            PodShape.parse(vm).cpus,
            lambda count: f"room for {plural(count, 'pod')} of {vm}",
            unknown=Check("quotas", "ok", f"no quota limits pods in {self._settings.namespace}"),
            fix="a job needs two pods: end others, or have the ResourceQuota raised",
        )

    def _nodes(self, vm: str) -> str:
        nodes, shape = self._provider.nodes(spot=False), PodShape.parse(vm)
        able = [node for node in nodes if shape.fits(node.allocatable)]
        if not able and not self._provider.autoscaled():
            raise errors.ConfigurationError(
                f"none of {plural(len(nodes), 'node')} that pods may be on has room for {vm}, even if it were empty"
            )
        added = "" if able else "; nodes are added for pods, of a size that is not known"
        return f"{len(able)} of {plural(len(nodes), 'node')} that pods may be on could hold {vm}{added}"
