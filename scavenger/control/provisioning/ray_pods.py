"""Jobs on a worker group of a RayCluster: the group that the job file means, and the addresses of its pods."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scavenger.cloud.base import Provider
from scavenger.control.provisioning.providers import open_provider
from scavenger.domain.forms import worker_group_of
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import NotSupportedError, ScavengerError

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

log = logging.getLogger(__name__)

_LOOK_S = 1.0


def on_group(job: JobSpec) -> bool:
    """Whether a job's workers are pods of a worker group of a RayCluster."""
    return worker_group_of(job.engine) is not None


def group_of(job: JobSpec, settings: KubernetesSettings, environment: Mapping[str, str]) -> RayGroupProvider:
    """Open the worker group of a job.

    Raises:
        ConfigurationError, NotSupportedError: There is none such, or it is none that Scavenger can size.
        CloudError: The cluster does not answer.
    """
    named = worker_group_of(job.engine)
    assert named is not None
    cluster, group = named
    open_provider("kubernetes", job.infra.region, environment, settings)  # says which extra is missing
    from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

    region = "/".join((job.infra.region, settings.namespace, cluster))
    return RayGroupProvider.of_cluster(region, group, environment=environment)


def sized_as(job: JobSpec, provider: RayGroupProvider) -> JobSpec:
    """The job with the size of the group's pods; the group says also on which nodes they are.

    Raises:
        NotSupportedError: If the job asks for a size.
    """
    group = provider.group
    if job.resources is not None and job.resources != ResourcesSpec(vm=str(group.shape)):
        raise NotSupportedError(
            f"resources: with engine: {job.engine}, pods are as {group} has them, {group.shape}; leave it out",
            key="resources",
        )
    return job.model_copy(update={"resources": ResourcesSpec(vm=str(group.shape))})


class PodAddresses:
    """Looks for the addresses of pods on a thread of its own; see `NodeAddresses`.

    Args:
        provider: The group.
        owner: Of the pods.
    """

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
