"""Pods of a Kubernetes cluster as places: those that Scavenger starts, and those of a worker group of a RayCluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.cloud.base import Provider
from scavenger.cloud.kubernetes.prices import NodesOf, PodCatalog
from scavenger.control.places.place import JobContext
from scavenger.control.places.room import admitted
from scavenger.control.places.vm_allocation import VmAllocation
from scavenger.control.places.vms import RentedVms
from scavenger.control.provisioning.providers import open_cluster
from scavenger.control.settings import settings_path
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.forms import worker_group_of
from scavenger.domain.job import ResourcesSpec
from scavenger.domain.vm import VmPackage
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError, NotSupportedError, ScavengerError
from scavenger.policy.leaders import LeaderPlan
from scavenger.train.engines.ray.engine import RayHome
from scavenger.train.engines.ray.pods import RayNodes
from scavenger.train.engines.vm.engine import HostSource

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider
    from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

log = logging.getLogger(__name__)

_LOOK_S = 1.0


class RentedPods(RentedVms):
    """A cluster, whose pods are its VMs; see `Place`."""

    settings: KubernetesSettings

    def _catalog(self) -> PodCatalog:
        return _catalog(self, lambda spot: self.provider.nodes(spot=spot))

    @cached_property
    def provider(self) -> KubernetesProvider:
        return open_cluster(self.job.infra, self.environment, self.settings)

    def _admitted(self, *, patient: bool) -> tuple[SearchSpace, tuple[str, ...]]:
        offers, notes = admitted(
            self.space.offers,
            "" if self.aggregators is None else self.aggregators.vm,
            lambda vm, spot: self.questions.ask(
                partial(self.provider.refusal, vm, spot=spot), patient=patient
            ),
            spot=self.job.spot,
        )
        return replace(self.space, offers=offers), notes


class RayPods(RentedVms):
    """A worker group of a RayCluster, which says what its pods are; all but workers is where the job is led."""

    settings: KubernetesSettings
    rents_aggregators = False

    def _catalog(self) -> PodCatalog:
        return _catalog(self, lambda spot: self.provider.nodes(spot=spot))

    @cached_property
    def provider(self) -> RayGroupProvider:
        """The group.

        Raises:
            ConfigurationError, NotSupportedError: There is none such, or it is none that Scavenger can size.
            CloudError: The cluster does not answer.
        """
        infra, named = self.job.infra, worker_group_of(self.job.engine)
        assert named is not None
        cluster, group = named
        open_cluster(infra, self.environment, self.settings)  # says which extra is missing
        from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

        region = "/".join((infra.region, self.settings.namespace, cluster))
        return RayGroupProvider.of_cluster(region, group, environment=self.environment)

    def _resources(self) -> ResourcesSpec:
        """The size of the group's pods; the group says also on which nodes they are.

        Raises:
            NotSupportedError: If the job asks for a size.
        """
        job, group = self.job, self.provider.group
        sized = ResourcesSpec(vm=str(group.shape))
        if job.resources not in (None, sized):
            raise NotSupportedError(
                f"resources: with engine: {job.engine}, pods are as {group} has them, {group.shape}; leave it out",
                key="resources",
            )
        return sized

    def _leader(self) -> LeaderPlan | None:
        return None

    def check(self) -> None:
        """See `Place.check`: Ray tells at which address this machine is."""
        self.check_leader()

    def package(self, folder: Path) -> VmPackage:
        return VmPackage(requirement="what the image of the Ray cluster has")

    def allocate(self, context: JobContext) -> VmAllocation:
        home = RayHome()
        try:
            self.reached_at = self.reached_at or home.address
            self.kept = None  # agents end with the engine that has started them
            allocation = super().allocate(context)
        except BaseException:
            home.close()
            raise
        allocation.at_end = home.close
        return allocation

    def _host_source(self, context: JobContext) -> HostSource:
        return RayNodes(PodAddresses(self.provider, context.store.installation()))


def _catalog(place: RentedPods | RayPods, nodes: NodesOf) -> PodCatalog:
    """What stands for the catalogue of VM types.

    Raises:
        ConfigurationError: If pods may be on spot nodes, and nothing says which these are.
    """
    if place.job.spot != "never" and not place.settings.spot_labels:
        raise ConfigurationError(
            f"spot: {place.job.spot} needs the labels of the nodes that the cloud may take back: set spot_labels "
            f"under [kubernetes] in {settings_path(place.environment)}, or write never",
            key="spot",
        )
    return PodCatalog(place.settings, place.job.infra.region, today=datetime.now(UTC).date(), nodes=nodes)


class PodAddresses:
    """Looks for the addresses of pods on a thread of its own; see `NodeAddresses`."""

    def __init__(self, provider: Provider, owner: str) -> None:
        self._provider, self._owner = provider, owner
        self._wanted: frozenset[str] = frozenset()
        self._found: dict[str, str] = {}
        self._over, self._asked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="scavenger-ray-pods", daemon=True)
        self._thread.start()

    def find(self, intents: frozenset[str]) -> Mapping[str, str]:
        self._wanted = intents
        if intents - self._found.keys():
            self._asked.set()
        return {intent: address for intent, address in self._found.copy().items() if intent in intents}

    def close(self) -> None:
        """See `NodeAddresses.close`; does not wait for a call that is made."""
        self._over.set()
        self._asked.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._asked.wait()
            self._asked.clear()
            try:
                for vm in self._provider.list_owned(self._owner):
                    if vm.address and vm.state == "running" and vm.tags.token in self._wanted:
                        self._found[vm.tags.token] = vm.address
            except ScavengerError as error:
                log.debug("the pods of %s are not known: %s", self._provider.region, error)
            self._over.wait(_LOOK_S)
