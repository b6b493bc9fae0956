"""The pods of a worker group of a RayCluster as VMs: KubeRay starts and ends them, by what the RayCluster says.

The pods are the cluster's own: their image, size, nodes and command are those of the group's template. What is asked
for and given back is recorded in an annotation of the RayCluster (`ray_claims`), so a repeated launch finds the first.

References:
    "RayCluster Configuration" and "KubeRay Autoscaling", documentation of Ray; the API of `ray.io/v1`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from scavenger.cloud.kubernetes.errors import is_reason, translated_errors
from scavenger.cloud.kubernetes.nodes import KubernetesNode
from scavenger.cloud.kubernetes.pods import PodSettings, seen_of
from scavenger.cloud.kubernetes.provider import KubernetesProvider
from scavenger.cloud.kubernetes.ray_claims import (
    COMES_S,
    Claim,
    Claims,
    GroupSeen,
    PodSeen,
    begun,
    claimed,
    left,
    settled,
    wanted,
)
from scavenger.cloud.kubernetes.shapes import GPU_RESOURCE, PodShape, cpus_of, gib_of
from scavenger.domain.vm import DEFAULT_SETTINGS, Quota, VmRequest, VmSeen, VmSettings, VmTags
from scavenger.errors import CloudUnavailableError, ConfigurationError, GoneError, NotSupportedError

CLAIMS = "claims.scavenger.dev"
"""Annotation of a RayCluster, with a group's name after it: who has asked for which of its pods."""
API_GROUP, VERSION, PLURAL = "ray.io", "v1", "rayclusters"
_OF_CLUSTER, _OF_GROUP = "ray.io/cluster", "ray.io/group"
_TIMEOUT_S = (5.0, 20.0)
_TRIES = 12
_LOOK_S = 1.0


class _NoGroupError(ConfigurationError):
    """The RayCluster, or its group, is not there."""


@dataclass(frozen=True, slots=True)
class RayGroup:
    """A worker group.

    Attributes:
        namespace, cluster: Of its RayCluster.
        name: Its own.
        shape: The size of its pods.
        node_labels, tolerations: Which nodes its pods may be on, as the API has them.
    """

    namespace: str
    cluster: str
    name: str
    shape: PodShape
    node_labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()

    def __str__(self) -> str:
        return f"the group {self.name} of the RayCluster {self.cluster}"


class RayGroupProvider:
    """See `Provider`. A VM's id is the token of its launch, since its pod has a name only later.

    Args:
        region: `CONTEXT/NAMESPACE/CLUSTER/GROUP`.
        environment: Where the kubeconfig is named.

    Raises:
        ConfigurationError: The region is not written so.
    """

    name = "kuberay"
    visibility_s = 0.0
    remembers_s = 0.0

    def __init__(
        self,
        region: str,
        *,
        environment: Mapping[str, str],
    ) -> None:
        words = region.rsplit("/", 3)
        if len(words) != 4 or not all(words):
            raise ConfigurationError(
                f"{region!r} is no worker group: write CONTEXT/NAMESPACE/RAYCLUSTER/GROUP"
            )
        self.region = region
        context, self._namespace, self._cluster, self._group = words
        self._environment, self._context = environment, context
        self._rng = random.Random()  # noqa: S311 - jitter

    @classmethod
    def of_cluster(cls, region: str, group: str, *, environment: Mapping[str, str]) -> RayGroupProvider:
        """Open a group of a RayCluster.

        Args:
            region: Without the group.
            group: Its name; empty for the only one.
            environment: As of the class.

        Raises:
            ConfigurationError, NotSupportedError: See `find_group`.
            CloudError: The cluster does not answer.
        """
        any_group = cls(f"{region}/any", environment=environment)
        return cls(f"{region}/{find_group(any_group._read(), group).name}", environment=environment)

    @cached_property
    def _pods(self) -> KubernetesProvider:
        """The cluster's nodes and quotas, for pods as this group's."""
        settings = PodSettings(namespace=self._namespace)
        return KubernetesProvider(_context(self._context), settings=settings, environment=self._environment)

    @cached_property
    def _core(self) -> Any:
        return client.CoreV1Api(self._pods.api)

    @cached_property
    def _objects(self) -> Any:
        return client.CustomObjectsApi(self._pods.api)

    @cached_property
    def group(self) -> RayGroup:
        """The group as it is now.

        Raises:
            ConfigurationError, NotSupportedError: There is none, or it is none that Scavenger can size.
            CloudError: The cluster does not answer.
        """
        return find_group(self._read(), self._group)

    def nodes(self, *, spot: bool) -> tuple[KubernetesNode, ...]:
        """The nodes on which the group's pods may be; see `KubernetesProvider.nodes`."""
        group = self.group
        settings = PodSettings(
            namespace=self._namespace, node_labels=group.node_labels, tolerations=group.tolerations
        )
        provider = KubernetesProvider(
            _context(self._context), settings=settings, environment=self._environment
        )
        return provider.nodes(spot=spot)

    # ---- as of a provider ------------------------------------------------------------------------------------

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """See `Provider.zones`: the group stands for the one that its pods are in."""
        if PodShape.parse(vm) != self.group.shape:
            raise ConfigurationError(f"pods of {self.group} are of {self.group.shape}, not of {vm}")
        return (self._zone,)

    @property
    def _zone(self) -> str:
        return f"{self._cluster}/{self._group}"

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`: returns when KubeRay is asked for the pod."""
        tags = request.tags

        def ask(record: Claims) -> Claims:
            if tags.token in record.claims:
                return record
            claim = Claim(tags.owner, tags.job_id, tags.slot, tags.generation, request.vm, _now_s())
            return claimed(record, tags.token, claim)

        self.zones(request.vm)
        record, pods = self._written(f"asking for a pod of {self._zone}", ask)
        claim = record.claims[tags.token]
        if claim.state != "held":
            raise GoneError(f"a pod of {self._zone} was asked for by {tags.token}, and is given back")
        return self._seen(tags.token, claim, pods)

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        record, pods = self._looked(f"looking at {instance_id}")
        claim = record.claims.get(instance_id)
        if claim is None:
            raise GoneError(f"no pod of {self._zone} is claimed by {instance_id}")
        return self._seen(instance_id, claim, pods)

    def terminate(self, instance_id: str, zone: str) -> None:
        """See `Provider.terminate`: its pod is named for its end, and the group's number is one lower."""
        with contextlib.suppress(_NoGroupError):
            self._written(f"giving {instance_id} back", lambda record: left(record, instance_id, _now_s()))

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        record, pods = self._looked(f"listing pods of {self._zone}")
        return tuple(
            self._seen(token, claim, pods) for token, claim in record.claims.items() if claim.owner == owner
        )

    def console(self, instance_id: str, zone: str) -> str:
        """See `Provider.console`: what is to be read is in the job's logs, as Ray brings it."""
        return ""

    def quotas(self) -> tuple[Quota, ...]:
        """See `Provider.quotas`: the namespace's resource quotas."""
        return self._pods.quotas()

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        """See `Provider.impaired`: a node that fails takes its pods with it."""
        return {}

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        """See `Provider.spot_prices`: pods cost what the settings say."""
        return {}

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """See `Provider.remove_leftovers`: once no pod is claimed by anybody, the record, and limits as they were."""
        until = time.monotonic() + COMES_S + 5.0
        while True:
            record, _ = self._looked(f"looking at {self._zone}")
            if any(one.state != "gone" for one in record.claims.values()):
                return ()
            if not record.living:
                break
            if time.monotonic() > until:
                raise CloudUnavailableError(
                    f"KubeRay does not end the pods of {self._zone} that are given back"
                )
            time.sleep(_LOOK_S)
        if not record.claims:
            return ()
        self._written(
            f"ending the record of {self._zone}", lambda record: None if not record.living else record
        )
        return (f"record of {self._zone}",)

    def _looked(self, doing: str) -> tuple[Claims, Mapping[str, Any]]:
        """The record, brought up to date, and the pods; without the group, there are none."""
        try:
            return self._written(doing, lambda record: record)
        except _NoGroupError:
            return Claims(), {}

    # ---- the RayCluster --------------------------------------------------------------------------------------

    def _written(
        self, doing: str, change: Callable[[Claims], Claims | None]
    ) -> tuple[Claims, Mapping[str, Any]]:
        """Bring the record up to date, change it, and write what has changed; again where another was faster.

        Args:
            doing: For messages.
            change: Returns the new record; None for none.

        Returns:
            The record as it is then, and the group's pods by name.
        """
        for attempt in range(_TRIES):
            with translated_errors(doing, region=self.region):
                cluster = self._read()
                index, spec = _spec_of(cluster, self._group)
                seen, before = _numbers(spec), self._record(cluster)
                pods = self._found()
                known = begun(seen)
                if before is not None:
                    known = settled(before, seen, map(_pod_seen, pods.values()), _now_s())
                record = change(known)
                if (before is None and record is known) or self._is_written(before, record, spec):
                    return known if record is None else record, pods
                try:
                    self._objects.replace_namespaced_custom_object(
                        *(API_GROUP, VERSION, self._namespace, PLURAL, self._cluster),
                        self._changed(cluster, index, known, record),
                        _request_timeout=_TIMEOUT_S,
                    )
                except ApiException as error:
                    if not is_reason(error, "Conflict") or attempt == _TRIES - 1:
                        raise
                else:
                    return known if record is None else record, pods
            time.sleep(self._rng.uniform(0.01, 0.05) * (attempt + 1))
        raise CloudUnavailableError(f"{doing}: others write to the RayCluster all the time")

    def _is_written(self, before: Claims | None, record: Claims | None, spec: Mapping[str, Any]) -> bool:
        if record is None or before is None:
            return record is before
        due = wanted(record)
        named = tuple(sorted((spec.get("scaleStrategy") or {}).get("workersToDelete") or ()))
        numbers = _numbers(spec)
        return (
            msgspec.structs.replace(record, wrote=before.wrote) == before
            and (numbers.replicas, numbers.most, named) == (due.replicas, due.most, due.named)
            and before.wrote == due.replicas
        )

    def _changed(
        self, cluster: dict[str, Any], index: int, known: Claims, record: Claims | None
    ) -> dict[str, Any]:
        """The RayCluster as it is to be; of another version than was read, it is refused."""
        due, meta = wanted(known if record is None else record), cluster["metadata"]
        annotations = {
            key: one for key, one in (meta.get("annotations") or {}).items() if key != self._annotation
        }
        if record is not None:
            written = msgspec.structs.replace(record, wrote=due.replicas)
            annotations[self._annotation] = msgspec.json.encode(written).decode()
        groups = list(cluster["spec"]["workerGroupSpecs"])
        strategy = {**(groups[index].get("scaleStrategy") or {}), "workersToDelete": list(due.named)}
        groups[index] = {**groups[index], "replicas": due.replicas, "scaleStrategy": strategy}
        groups[index] |= {} if due.most is None else {"maxReplicas": due.most}
        return {
            **cluster,
            "metadata": {**meta, "annotations": annotations},
            "spec": {**cluster["spec"], "workerGroupSpecs": groups},
        }

    @property
    def _annotation(self) -> str:
        return f"{CLAIMS}/{self._group}"

    def _record(self, cluster: Mapping[str, Any]) -> Claims | None:
        text = (cluster["metadata"].get("annotations") or {}).get(self._annotation)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Claims)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"the annotation {self._annotation} of the RayCluster {self._cluster} is not Scavenger's: {error}"
            ) from error

    def _read(self) -> dict[str, Any]:
        with translated_errors(f"reading the RayCluster {self._cluster}", region=self.region):
            try:
                found = self._objects.get_namespaced_custom_object(
                    *(API_GROUP, VERSION, self._namespace, PLURAL, self._cluster),
                    _request_timeout=_TIMEOUT_S,
                )
            except ApiException as error:
                if error.status != 404:
                    raise
                raise _NoGroupError(
                    f"there is no RayCluster {self._cluster} in the namespace {self._namespace}; "
                    "`kubectl get rayclusters -A` lists them",
                    key="engine",
                ) from error
        return dict(found)

    def _found(self) -> dict[str, Any]:
        listed = self._core.list_namespaced_pod(
            self._namespace,
            label_selector=f"{_OF_CLUSTER}={self._cluster},{_OF_GROUP}={self._group}",
            _request_timeout=_TIMEOUT_S,
        )
        return {pod.metadata.name: pod for pod in listed.items}

    def _seen(self, token: str, claim: Claim, pods: Mapping[str, Any]) -> VmSeen:
        pod = pods.get(claim.pod)
        found = None if pod is None else seen_of(pod)
        state = "pending" if found is None else found.state
        if claim.state == "gone":
            state = "gone"
        elif claim.state == "leaving":
            state = "stopping"
        elif state == "gone":
            state = "stopping"  # until the record says so
        return VmSeen(
            instance_id=token,
            vm=claim.vm,
            zone=self._zone,
            spot=False,
            state=state,
            tags=VmTags(claim.owner, token, claim.job, claim.slot, claim.generation),
            address="" if found is None else found.address,
            launched_at=datetime.fromtimestamp(claim.asked_at, UTC),
            ended_at=datetime.fromtimestamp(claim.ended_at, UTC) if claim.state == "gone" else None,
            reason=claim.reason or ("" if found is None else found.reason),
        )


def find_group(cluster: Mapping[str, Any], name: str = "") -> RayGroup:
    """The worker group that a job means.

    Args:
        cluster: A RayCluster, as the API has it.
        name: Of the group; empty for the only one.

    Raises:
        ConfigurationError: There is none, or its pods have no size.
        NotSupportedError: It is none that Scavenger can size.
    """
    meta, spec = cluster["metadata"], cluster["spec"]
    groups = {one["groupName"]: one for one in spec.get("workerGroupSpecs") or ()}
    about = f"the RayCluster {meta['name']}"
    if not name and len(groups) == 1:
        (name,) = groups
    if name not in groups:
        which = (
            f"has no worker group {name}; it has"
            if name
            else "has several worker groups;"
            if groups
            else "has none:"
        )
        raise ConfigurationError(
            f"engine: {about} {which} {', '.join(groups)}; write ray/{meta['name']}/GROUP", key="engine"
        )
    if spec.get("enableInTreeAutoscaling"):
        raise NotSupportedError(
            f"engine: Ray's autoscaler sizes the groups of {about}, and two that decide on the same number undo each "
            "other; set enableInTreeAutoscaling: false, or use a RayCluster of its own",
            key="engine",
        )
    group = groups[name]
    if spec.get("suspend") or group.get("suspend"):
        raise ConfigurationError(f"engine: {about} or its group {name} is suspended; resume it", key="engine")
    if group.get("numOfHosts", 1) > 1:
        raise NotSupportedError(
            f"engine: a replica of the group {name} of {about} is several pods (numOfHosts), which are not sized one "
            "by one; use a group with numOfHosts: 1",
            key="engine",
        )
    pod = group["template"]["spec"]
    return RayGroup(
        meta["namespace"],
        meta["name"],
        name,
        _shape(pod["containers"][0].get("resources") or {}, f"the group {name} of {about}"),
        tuple(sorted((pod.get("nodeSelector") or {}).items())),
        tuple(pod.get("tolerations") or ()),
    )


def _shape(resources: Mapping[str, Any], about: str) -> PodShape:
    """The size of pods whose first container has these resources."""
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    cpus, memory_gib = cpus_of(str(asked.get("cpu", "0"))), gib_of(str(asked.get("memory", "0")))
    if cpus_of(str(asked.get(GPU_RESOURCE, "0"))):
        raise NotSupportedError(f"engine: {about} has GPUs, which was never tried", key="engine")
    if cpus < 1.0 or not memory_gib:
        raise ConfigurationError(
            f"engine: {about} asks for {cpus:g} CPUs and {memory_gib:g} GiB; its first container must request at "
            "least one CPU, and memory",
            key="engine",
        )
    return PodShape(int(cpus), round(memory_gib, 3))


def _spec_of(cluster: Mapping[str, Any], name: str) -> tuple[int, Mapping[str, Any]]:
    for index, one in enumerate(cluster["spec"].get("workerGroupSpecs") or ()):
        if one["groupName"] == name:
            return index, one
    raise _NoGroupError(f"the RayCluster {cluster['metadata']['name']} has no worker group {name} any more")


def _numbers(spec: Mapping[str, Any]) -> GroupSeen:
    least, most = spec.get("minReplicas"), spec.get("maxReplicas")
    replicas = spec.get("replicas")
    return GroupSeen((least or 0) if replicas is None else replicas, least, most)


def _pod_seen(pod: Any) -> PodSeen:
    meta, seen = pod.metadata, seen_of(pod)
    return PodSeen(
        meta.name,
        meta.creation_timestamp.timestamp(),
        ended=seen.state == "gone",
        leaves=meta.deletion_timestamp is not None,
        reason=seen.reason,
    )


def _context(region: str) -> str:
    from scavenger.domain.providers import CURRENT

    return "" if region == CURRENT else region


def _now_s() -> float:
    """Seconds of the epoch, as claims have them."""
    return datetime.now(UTC).timestamp()
