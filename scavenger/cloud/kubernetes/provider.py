"""Pods of a Kubernetes cluster as VMs, through the official client library.

A launch is a secret and a pod, both named by the token, so a repeat finds the first one: by the pod while it is there,
and by the secret after that. Whether a node has room is the scheduler's to say, after the pod was taken. A pod that no
node has room for, and for which no autoscaler has begun to add one, is taken back and told as a zone without stock.

References:
    "Pods", "Owners and Dependents" and "Resource Quotas", Kubernetes documentation; the events of the cluster
    autoscaler are in its FAQ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import uuid4

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from scavenger.cloud.base import CONSOLE_CHARACTERS
from scavenger.cloud.kubernetes.autoscaling import has_autoscaler, is_growing
from scavenger.cloud.kubernetes.errors import translated_errors
from scavenger.cloud.kubernetes.nodes import KubernetesNode, node_of, nodes_open
from scavenger.cloud.kubernetes.objects import TIMEOUT_S, NamespaceObjects
from scavenger.cloud.kubernetes.pods import (
    CONTAINER,
    LAUNCHED,
    ZONE_LABEL,
    PodSettings,
    leader_labels,
    leader_seen,
    leader_selector,
    owner_selector,
    pod_name,
    pod_of,
    secret_of,
    seen_of,
    status_reason,
)
from scavenger.cloud.kubernetes.rights import RENT_RIGHTS, Right, missing_rights
from scavenger.cloud.kubernetes.shapes import PodShape, cpus_of
from scavenger.domain.vm import (
    DEFAULT_SETTINGS,
    LaunchTemplate,
    Quota,
    VmRequest,
    VmSeen,
    VmSettings,
    VmTags,
)
from scavenger.errors import (
    CloudError,
    CloudUnavailableError,
    ConfigurationError,
    GoneError,
    QuotaError,
    StockOutError,
)

ROOM_WITHIN_S = 30.0
"""How long a pod may be without a node before its zone counts as full; an autoscaler looks every ten seconds."""
_LOOK_S = 0.2
_ADMITTED_WITHIN_S = 2.0
"""How long a launch waits itself for a queue with room; it is repeated for one without."""
_CONSOLE_LINES = 2_000
_QUOTAS = ("pods", "requests.cpu", "limits.cpu", "cpu", "requests.memory", "limits.memory", "memory")
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_NO_TRIAL = "does not support dry run"
"""What the API server says of an admission webhook that can only be asked for real."""


def no_room(vm: str) -> str:
    """What is said of a size that no node could hold."""
    return (
        f"no node of the cluster that such pods may be on has room for {vm!r}, even if it were empty; if nodes are "
        "added for pods, say so as kubernetes.autoscaled in the settings"
    )


class KubernetesProvider:
    """See `Provider`.

    Args:
        context: Of the kubeconfig; empty for its current one, or for the cluster that this process runs in.
        settings: What all pods share.
        environment: Where the kubeconfig is named, as `KUBECONFIG`.
        room_within_s: See `ROOM_WITHIN_S`.

    Raises:
        ConfigurationError: If there is no such context.
    """

    name = "kubernetes"
    remembers_s = 0.0
    visibility_s = 0.0  # lists are read from the cluster's store, not from a copy of it

    def __init__(
        self,
        context: str = "",
        *,
        settings: PodSettings | None = None,
        environment: Mapping[str, str] = os.environ,
        room_within_s: float = ROOM_WITHIN_S,
    ) -> None:
        self.settings = settings or PodSettings()
        self._environment, self._context = environment, context
        self._room_within_s = room_within_s
        self.region = context or "cluster"

    @cached_property
    def api(self) -> Any:
        """The client of the cluster's API.

        Raises:
            ConfigException: If there is no such context.
        """
        file = self._environment.get("KUBECONFIG") or None
        if not self._context and file is None and self._environment.get(_IN_CLUSTER):
            inside = client.Configuration()
            config.load_incluster_config(client_configuration=inside)
            return client.ApiClient(inside)
        return config.new_client_from_config(file, context=self._context or None)

    @cached_property
    def _core(self) -> Any:
        return client.CoreV1Api(self.api)

    @cached_property
    def _objects(self) -> NamespaceObjects:
        return NamespaceObjects(self._core, self.settings.namespace)

    def identity(self) -> str:
        """The cluster's address and version, if it knows who asks.

        Raises:
            ConfigurationError: If there is no such context.
            CredentialsError, CloudUnavailableError: If it does not know who asks, or does not answer.
        """
        with translated_errors("asking the cluster", region=self.region):
            version = client.VersionApi(self.api).get_code(_request_timeout=TIMEOUT_S).git_version
            missing_rights(self.api, RENT_RIGHTS[:1], namespace=self.settings.namespace)
            return f"{self.region} at {self.api.configuration.host}, {version}"

    def lacks(self, rights: Iterable[Right]) -> tuple[Right, ...]:
        """The rights that are missing.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: As all calls.
        """
        with translated_errors("asking for rights", region=self.region):
            return missing_rights(self.api, rights, namespace=self.settings.namespace)

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """See `Provider.zones`: those of the nodes that could hold such a pod; the context, where nodes have none."""
        shape = PodShape.parse(vm)
        nodes = [node for spot in (False, True) for node in self.nodes(spot=spot)]
        if not nodes and not self.autoscaled():
            labels = ", ".join("=".join(pair) for pair in self.settings.node_labels) or "none"
            raise ConfigurationError(
                f"the cluster has no node for such pods (labels that are asked for: {labels})"
            )
        able = [node for node in nodes if shape.fits(node.allocatable)]
        if not able and not self.autoscaled():
            raise ConfigurationError(no_room(vm))
        return tuple(sorted({self._zone_of(node) for node in able})) or (self.region,)

    def _zone_of(self, node: KubernetesNode) -> str:
        return node.labels.get(ZONE_LABEL) or self.region

    def _avoided(self, request: VmRequest) -> frozenset[str]:
        """The nodes that a pod must not be on; none, if no other could hold it."""
        if not request.template.avoided:
            return frozenset()
        shape, found = PodShape.parse(request.vm), self.nodes(spot=request.spot)
        names = frozenset(
            node.name
            for node in found
            if shape.fits(dict(node.allocatable)) and request.zone in (self.region, self._zone_of(node))
        )
        avoided = names & frozenset(request.template.avoided)
        return avoided if avoided < names or self.autoscaled() else frozenset()

    def nodes(self, *, spot: bool) -> tuple[KubernetesNode, ...]:
        """The nodes on which the job's pods may be, by labels and taints.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: As all calls.
        """
        wanted = ",".join(f"{key}={value}" for key, value in self.settings.node_labels)
        with translated_errors("looking for nodes", region=self.region):
            listed = list(
                self._objects.pages(self._core.list_node, **({"label_selector": wanted} if wanted else {}))
            )
        return nodes_open((node_of(node) for node in listed), self.settings, spot=spot)

    def autoscaled(self) -> bool:
        """Whether nodes are added for pods that no node has room for, by the settings or as the cluster tells."""
        if self.settings.autoscaled is None:
            with translated_errors("looking for an autoscaler", region=self.region):
                return has_autoscaler(self._core)
        return self.settings.autoscaled

    def refusal(self, vm: str, *, spot: bool) -> str:
        """Why no pod of a size can be started, whatever else runs; empty if one can, or that is not known.

        The API server is asked to admit one without keeping it, so limits of the namespace, rules of security and the
        cluster's own admission are asked in one. Quotas are not counted here.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: As all calls.
        """
        shape, trial = PodShape.parse(vm), LaunchTemplate(3600.0, image=self.settings.image or "none")
        tags = VmTags("scavenger-trial", str(uuid4()), "trial", 0, 0)
        request = VmRequest(tags, vm, self.region, spot, trial)
        try:
            with translated_errors(f"a pod of {vm}", region=self.region):
                self._core.create_namespaced_pod(
                    self.settings.namespace,
                    pod_of(request, self.settings, secret_uid=str(uuid4()), in_zone=False),
                    dry_run="All",
                    _request_timeout=TIMEOUT_S,
                )
        except QuotaError:
            pass
        except ConfigurationError as error:
            return "" if _NO_TRIAL in str(error) else str(error)
        fitting = [node for node in self.nodes(spot=spot) if shape.fits(dict(node.allocatable))]
        return "" if fitting or self.autoscaled() else no_room(vm)

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`: returns when a node has room for the pod, or is being added for it."""
        name, doing = pod_name(request.tags.token), f"starting a pod of {request.vm}"
        body = secret_of(request, self.settings)
        if request.zone not in (self.region, *self.zones(request.vm)):
            raise ConfigurationError(f"no node that could hold {request.vm} is in the zone {request.zone!r}")
        in_zone = request.zone != self.region
        with translated_errors(doing, region=self.region):
            pod = self._objects.found(name)
            if pod is None:
                secret = self._objects.secret(name, body)
                if LAUNCHED in (secret.metadata.annotations or {}):
                    raise GoneError(f"{doing}: {name} was there, and is gone")
                try:
                    pod = self._objects.created(
                        pod_of(
                            request,
                            self.settings,
                            secret_uid=secret.metadata.uid,
                            in_zone=in_zone,
                            avoided=self._avoided(request),
                        )
                    )
                except ApiException as error:
                    if error.status is not None and 400 <= error.status < 500 and error.status != 429:
                        self._objects.forget(name)  # there is no pod, and the token may be used again
                    raise
                self._objects.mark(name)
        return self._with_room(pod, request, doing)

    def _with_room(self, pod: Any, request: VmRequest, doing: str) -> VmSeen:
        """Wait for the scheduler's verdict on a pod.

        Raises:
            StockOutError: There is no room for it, or its queue has not admitted it in time; it is gone.
            CloudUnavailableError: It waits in its queue.
            GoneError: It has ended.
        """
        name, until = pod.metadata.name, time.monotonic() + self._room_within_s
        admitted_by = time.monotonic() + _ADMITTED_WITHIN_S
        with translated_errors(doing, region=self.region):
            while True:
                seen = seen_of(pod)
                if seen.state == "gone":
                    raise GoneError(f"{doing}: {name} has ended: {seen.reason}")
                if pod.spec.node_name or seen.state == "stopping":
                    return seen
                if seen.queued:
                    if time.monotonic() >= admitted_by:
                        raise self._not_admitted(pod, doing)
                    until = time.monotonic() + self._room_within_s
                grows = self._grows(pod) if _is_unschedulable(pod) else None
                if grows:
                    return seen
                if (_is_unschedulable(pod) and grows is False) or time.monotonic() >= until:
                    if not _is_unschedulable(pod):
                        return seen  # the scheduler has not looked yet
                    if self._taken_back(pod):
                        raise StockOutError(f"{doing} in {request.zone}: {seen.reason or 'no node has room'}")
                time.sleep(_LOOK_S)
                pod = self._objects.found(name)
                if pod is None:
                    raise GoneError(f"{doing}: {name} was deleted")

    def _not_admitted(self, pod: Any, doing: str) -> CloudError:
        """What a launch raises whose pod is held back; the pod is taken back once it has waited long enough."""
        by = f"the queue {self.settings.queue!r}" if self.settings.queue else "a scheduling gate"
        wait_s, waited_s = self.settings.queue_wait_s, datetime.now(UTC) - pod.metadata.creation_timestamp
        if waited_s.total_seconds() >= wait_s and self._taken_back(pod):
            return StockOutError(f"{doing}: it was not admitted by {by} within {wait_s:g} s")
        return CloudUnavailableError(f"{doing}: it waits for {by}")

    def _grows(self, pod: Any) -> bool | None:
        events = self._core.list_namespaced_event(
            self.settings.namespace,
            field_selector=f"involvedObject.uid={pod.metadata.uid}",
            _request_timeout=TIMEOUT_S,
        )
        return is_growing({event.reason for event in events.items})

    def _taken_back(self, pod: Any) -> bool:
        """Delete a pod that has no node; returns False if it has one by now."""
        meta = pod.metadata
        asked = {
            "preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "gracePeriodSeconds": 0,
        }
        try:
            self._core.delete_namespaced_pod(
                meta.name, self.settings.namespace, body=asked, _request_timeout=TIMEOUT_S
            )
        except ApiException as error:
            if error.status not in (404, 409):
                raise
            return bool(error.status == 404)
        self._objects.forget(meta.name)
        return True

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        with translated_errors(f"looking at {instance_id}", region=self.region):
            return seen_of(
                self._core.read_namespaced_pod(
                    instance_id, self.settings.namespace, _request_timeout=TIMEOUT_S
                )
            )

    def terminate(self, instance_id: str, zone: str) -> None:
        """See `Provider.terminate`: the pod has its grace period, and its token starts no other one."""
        with translated_errors(f"ending {instance_id}", region=self.region):
            self._objects.mark(instance_id)
            self._objects.delete(instance_id)

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        with translated_errors("listing pods", region=self.region):
            return tuple(seen_of(pod) for pod in self._objects.selected(owner_selector(owner)))

    def list_leaders(self) -> tuple[VmSeen, ...]:
        """The pods of the namespace that lead jobs for some command, of every installation.

        Those of ElasticJobs are their operator's.
        """
        with translated_errors("listing leaders' pods", region=self.region):
            return tuple(leader_seen(pod) for pod in self._objects.selected(leader_selector()))

    def console(self, instance_id: str, zone: str) -> str:
        """See `Provider.console`: what its container has written; gone with the pod."""
        with translated_errors(f"reading the log of {instance_id}", region=self.region):
            try:
                text = self._core.read_namespaced_pod_log(
                    instance_id,
                    self.settings.namespace,
                    container=CONTAINER,
                    tail_lines=_CONSOLE_LINES,
                    _request_timeout=TIMEOUT_S,
                )
            except ApiException as error:
                if error.status == 400:  # its container has not begun
                    return ""
                raise
        return str(text or "")[-CONSOLE_CHARACTERS:]

    def quotas(self) -> tuple[Quota, ...]:
        """See `Provider.quotas`: the namespace's resource quotas."""
        with translated_errors("reading the quotas", region=self.region):
            found = self._core.list_namespaced_resource_quota(
                self.settings.namespace, _request_timeout=TIMEOUT_S
            )
        return tuple(
            Quota(
                f"{quota.metadata.name}/{name}",
                self.region,
                cpus_of(limit),
                min(cpus_of((quota.status.used or {}).get(name, "0")), cpus_of(limit)),
            )
            for quota in found.items
            for name, limit in sorted((quota.status.hard or {}).items())
            if name in _QUOTAS or name.startswith("requests.nvidia.com/")
        )

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        """See `Provider.impaired`: a node that fails takes its pods with it."""
        return {}

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        """See `Provider.spot_prices`: pods cost what the settings say."""
        return {}

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """See `Provider.remove_leftovers`: once no pod lives, the pods that have ended, and the secrets of all."""
        with translated_errors("removing what pods have left", region=self.region):
            pods = list(self._objects.selected(owner_selector(owner)))
            if any(seen_of(pod).state != "gone" for pod in pods):
                return ()
            selectors = [owner_selector(owner)]
            if all(
                leader_seen(pod).state == "gone" for pod in self._objects.selected(leader_selector(owner))
            ):
                selectors.append(leader_selector(owner))
            secrets = [
                secret.metadata.name
                for selector in selectors
                for secret in self._objects.pages(
                    self._core.list_namespaced_secret, self.settings.namespace, label_selector=selector
                )
            ]
            for name in secrets:
                self._objects.forget(name)  # and with it its pod, which it owns
        return tuple(f"secret {name}" for name in secrets)

    # ---- a leader's pod --------------------------------------------------------------------------------------

    def keep_secret(self, name: str, files: dict[str, str], *, owner: str) -> str:
        """Make the secret of an owner's leader, or find the one of this name, whose content stays; returns its uid."""
        labels = {"app.kubernetes.io/managed-by": "scavenger", **leader_labels(owner)}
        meta = {"name": name, "labels": labels}
        with translated_errors(f"making the secret {name}", region=self.region):
            return str(self._objects.secret(name, {"metadata": meta, "stringData": files}).metadata.uid)

    def keep_pod(self, body: Mapping[str, Any]) -> None:
        """Make a pod in the namespace, in place of one of its name that has ended."""
        name = body["metadata"]["name"]
        with translated_errors(f"starting the pod {name}", region=self.region):
            found = self._objects.found(name)
            if found is not None and found.status.phase in ("Succeeded", "Failed"):
                self._objects.delete(name, grace_period_seconds=0)
            self._objects.created(body)

    def phase_of(self, name: str) -> tuple[str, str]:
        """What a pod does, by the API's word, and why.

        Raises:
            GoneError: There is no such pod, or it is being deleted.
        """
        with translated_errors(f"looking at the pod {name}", region=self.region):
            pod = self._objects.found(name)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            raise GoneError(f"the pod {name} is gone")
        return str(pod.status.phase), seen_of(pod).reason

    def end_pod(self, name: str) -> None:
        """End a pod that is no VM; nothing if it is gone."""
        with translated_errors(f"ending the pod {name}", region=self.region):
            self._objects.delete(name)

    def drop_secret(self, name: str) -> None:
        """Delete a secret, and with it all that it owns; nothing if it is gone."""
        with translated_errors(f"deleting the secret {name}", region=self.region):
            self._objects.forget(name)

    def missing_of_leader(self, account: str, claim: str) -> str:
        """What a leader's pod would lack: its service account, or its claim if it is to have one; empty for nothing.

        Who may not look is told of nothing.
        """
        asked = [("service account", account, self._core.read_namespaced_service_account)]
        asked += (
            [("persistent volume claim", claim, self._core.read_namespaced_persistent_volume_claim)]
            if claim
            else []
        )
        with translated_errors("looking for what a leader's pod needs", region=self.region):
            for kind, name, read in asked:
                try:
                    read(name, self.settings.namespace, _request_timeout=TIMEOUT_S)
                except ApiException as error:
                    if error.status == 404:
                        return f"{kind} {name}"
                    if error.status != 403:
                        raise
        return ""


def _is_unschedulable(pod: Any) -> bool:
    return status_reason(pod, "PodScheduled") == "Unschedulable"
