"""A launch as a pod, and a pod as a VM: labels, bodies and states.

Beside each pod there is a secret of the same name. It holds what the pod runs, with the one-time key by which it joins
its leader, and is the owner of the pod: deleting it ends the pod, too. It stays when the pod is gone, so that a token
starts no second one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.domain.boot import NODE
from scavenger.domain.vm import VmRequest, VmSeen, VmState, VmTags
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError
from scavenger.policy.provisioning.slots import LEADER_SLOT, aggregator_index

CONTAINER = "scavenger"
"""Name of the container in each pod."""
LAUNCHED = "scavenger/launched"
"""Annotation of a secret whose pod there is, or was."""
ROLE_LABEL = "scavenger/role"
"""Label of each pod: whether it is of a worker, an aggregator or a leader."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of pods that Kueue admits, each for itself, with the name of its queue."""
ZONE_LABEL = "topology.kubernetes.io/zone"

_OWNER, _TOKEN, _JOB, _SLOT, _GENERATION = (
    f"scavenger/{name}" for name in ("owner", "token", "job", "slot", "generation")
)
_LEADER_OF = "scavenger/leader-of"
_SHAPE, _ZONE, _SPOT, _RUN_MAX = (f"scavenger/{name}" for name in ("size", "zone", "spot", "run-max"))
_BOOT_FOLDER, _BOOT = "/run/scavenger-boot", "boot.sh"
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_USER = 10001
_GRACE_S = 30
POD_SECURITY: Mapping[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Of pods: a user without rights."""
CONTAINER_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Of containers, which write only to their volumes."""
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of an installation share.

    Attributes:
        namespace: Where they are.
        image: Their container image.
        service_account: Theirs; empty for the namespace's default. No token of it is mounted.
        node_labels: Labels of the nodes that they may be on.
        spot_labels: Labels of the nodes that the cloud may take back, which hold pods that may be interrupted.
        tolerations: Taints that they tolerate, as the API has them.
        pull_secret: Secret by which the image is pulled; empty for none.
        queue: Local queue of Kueue that admits them; empty for none.
        queue_wait_s: How long each waits for that.
        owner: Reference to the object with whose end all pods end, as the API has it; None if there is none.
        autoscaled: Whether nodes are added for pods that no node has room for; None if nobody has said.
    """

    namespace: str = "default"
    image: str = ""
    service_account: str = ""
    node_labels: tuple[tuple[str, str], ...] = ()
    spot_labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()
    pull_secret: str = ""
    queue: str = ""
    queue_wait_s: float = 600.0
    owner: Mapping[str, str] | None = None
    autoscaled: bool | None = None

    @classmethod
    def of(cls, settings: KubernetesSettings, *, owner: Mapping[str, str] | None = None) -> PodSettings:
        """Those that a user has written."""
        return cls(
            namespace=settings.namespace,
            image=settings.image,
            service_account=settings.service_account,
            node_labels=tuple(settings.node_labels.items()),
            spot_labels=tuple(settings.spot_labels.items()),
            tolerations=tuple(
                {"key": key, "operator": "Equal", "value": value}
                if value
                else {"key": key, "operator": "Exists"}
                for key, value in settings.tolerated.items()
            ),
            pull_secret=settings.pull_secret,
            queue=settings.queue,
            queue_wait_s=settings.queue_wait,
            owner=owner,
            autoscaled=settings.autoscaled,
        )


def pod_name(token: str) -> str:
    """The name of the pod of a launch, and of its secret."""
    return f"scavenger-{token}"


def owner_selector(owner: str) -> str:
    """Selects what belongs to an installation."""
    return f"{_OWNER}={owner}"


def leader_selector(owner: str = "") -> str:
    """Selects leaders' pods and their secrets: of an installation, or of all."""
    return f"{_LEADER_OF}={owner}" if owner else _LEADER_OF


def leader_labels(owner: str, vm: str = "", run_max_s: float = 0.0) -> dict[str, str]:
    """The labels by which others tell a leader's pod: no installation takes it for one of its workers'."""
    told = {_SHAPE: vm, _RUN_MAX: str(int(run_max_s))} if vm else {}
    return {_LEADER_OF: owner, **told}


def leader_seen(pod: Any) -> VmSeen:
    """A leader's pod as a VM in the slot of leaders."""
    owner = (pod.metadata.labels or {}).get(_LEADER_OF, "")
    return replace(seen_of(pod), tags=VmTags(owner, slot=LEADER_SLOT))


def labels_of(request: VmRequest) -> dict[str, str]:
    """The labels of a launch.

    Raises:
        ConfigurationError: If one of the user's labels is none that Kubernetes takes.
    """
    tags, template = request.tags, request.template
    for key, value in template.labels:
        if not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
            raise ConfigurationError(
                f"{key}={value!r} is no label of Kubernetes: at most 63 letters, digits, . _ -"
            )
    return {
        **dict(template.labels),
        "app.kubernetes.io/managed-by": "scavenger",
        _OWNER: tags.owner,
        _TOKEN: tags.token,
        _JOB: tags.job_id,
        _SLOT: str(tags.slot),
        ROLE_LABEL: "worker" if aggregator_index(tags.slot) is None else "aggregator",
        _GENERATION: str(tags.generation),
        _SHAPE: request.vm,
        _SPOT: str(request.spot).lower(),
        _RUN_MAX: template.run_max_tag,
    }


def tags_of(labels: Mapping[str, str]) -> VmTags:
    """The tags that labels hold."""

    def number(key: str) -> int:
        text = labels.get(key, "")
        return int(text) if text.isdecimal() else -1

    return VmTags(
        labels.get(_OWNER, ""),
        labels.get(_TOKEN, ""),
        labels.get(_JOB, ""),
        number(_SLOT),
        number(_GENERATION),
    )


def secret_of(request: VmRequest, settings: PodSettings) -> dict[str, Any]:
    """The body of the secret that a pod runs and is owned by."""
    owners = {} if settings.owner is None else {"ownerReferences": [dict(settings.owner)]}
    return {
        "metadata": {"name": pod_name(request.tags.token), "labels": labels_of(request), **owners},
        "type": "Opaque",
        "stringData": {_BOOT: request.template.user_data},
    }


def pod_of(
    request: VmRequest,
    settings: PodSettings,
    *,
    secret_uid: str,
    in_zone: bool,
    avoided: Collection[str] = (),
) -> dict[str, Any]:
    """The body of a pod.

    Args:
        in_zone: Whether the cluster's nodes have zones, so that the pod has to be in one.
        avoided: Names of nodes that it must not be on.

    Raises:
        ConfigurationError: If the settings name no image.
    """
    image = request.template.image or settings.image
    if not image:
        raise ConfigurationError(
            "no container image is named: set SCAVENGER_IMAGE, or kubernetes.image in the settings"
        )
    name, shape = pod_name(request.tags.token), PodShape.parse(request.vm)
    selected = dict(settings.node_labels) | (dict(settings.spot_labels) if request.spot else {})
    selected |= {ZONE_LABEL: request.zone} if in_zone else {}
    owner = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret_uid}
    run_max_s = request.template.run_max_s
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **placed(settings, spot=request.spot, avoided=avoided),
        "nodeSelector": selected,
        "securityContext": dict(POD_SECURITY),
        "containers": [_container(image, shape)],
        "volumes": [
            {"name": "boot", "secret": {"secretName": name, "defaultMode": 0o440}},
            {"name": "work", "emptyDir": {"sizeLimit": f"{request.template.disk_gib}Gi"}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    spec |= {"activeDeadlineSeconds": math.ceil(run_max_s)} if math.isfinite(run_max_s) else {}
    return {
        "metadata": {
            "name": name,
            "labels": labels_of(request) | ({QUEUE_LABEL: settings.queue} if settings.queue else {}),
            "annotations": {_ZONE: request.zone},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def placed(settings: PodSettings, *, spot: bool = False, avoided: Collection[str] = ()) -> dict[str, Any]:
    """What settings say of where a pod may be, and as whom, as a part of its specification."""
    spec: dict[str, Any] = {
        "nodeSelector": dict(settings.node_labels),
        "tolerations": [dict(one) for one in settings.tolerations],
    }
    spec |= _affinity(settings, spot=spot, avoided=avoided)
    spec |= {"serviceAccountName": settings.service_account} if settings.service_account else {}
    spec |= {"imagePullSecrets": [{"name": settings.pull_secret}]} if settings.pull_secret else {}
    return spec


def _affinity(settings: PodSettings, *, spot: bool, avoided: Collection[str]) -> dict[str, Any]:
    """Keeps a pod off nodes by their names, and one that must not be interrupted from those that may be taken back."""
    others: list[dict[str, Any]] = [
        {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}
        for key, value in (() if spot else settings.spot_labels)
    ]
    # by the names of their objects: the label of a host name may be another one
    named = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(avoided)]
    terms = [{**other, "matchFields": named} for other in others or [{}]] if named else others
    if not terms:
        return {}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def _container(image: str, shape: PodShape) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": image,
        "command": ["/bin/sh", f"{_BOOT_FOLDER}/{_BOOT}"],
        "env": [
            {"name": "HOME", "value": "/work"},
            {"name": "TMPDIR", "value": "/work"},
            {"name": NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "workingDir": "/work",
        "resources": {"requests": shape.amounts, "limits": shape.amounts},
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "boot", "mountPath": _BOOT_FOLDER, "readOnly": True},
            {"name": "work", "mountPath": "/work"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - of the container
        ],
        # what a container that fails has said last is then in its status, when its node is gone
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def seen_of(pod: Any) -> VmSeen:
    """A pod, as the client library has it, as a VM."""
    meta, status = pod.metadata, pod.status
    labels: Mapping[str, str] = meta.labels or {}
    ended = [
        one.state.terminated for one in status.container_statuses or () if one.state.terminated is not None
    ]
    run_max = labels.get(_RUN_MAX, "")
    return VmSeen(
        instance_id=meta.name,
        vm=labels.get(_SHAPE, ""),
        zone=(meta.annotations or {}).get(_ZONE, ""),
        spot=labels.get(_SPOT) == "true",
        state=_state(status.phase, deleted=meta.deletion_timestamp is not None),
        tags=tags_of(labels),
        address=status.pod_ip or "",
        launched_at=status.start_time or meta.creation_timestamp,
        ended_at=max((one.finished_at for one in ended if one.finished_at is not None), default=None),
        reason=_reason(pod),
        run_max_s=int(run_max) if run_max.isdecimal() else 0,
        queued=is_gated(pod),
    )


def is_gated(pod: Any) -> bool:
    """Whether something holds a pod back from the scheduler, as Kueue does until it admits it."""
    return status_reason(pod, "PodScheduled") == "SchedulingGated" and not pod.metadata.deletion_timestamp


def status_reason(pod: Any, condition: str) -> str:
    """Why a condition of a pod does not hold; empty if it does, or nobody has looked."""
    found = [one for one in pod.status.conditions or () if one.type == condition and one.status == "False"]
    return str(found[0].reason or "") if found else ""


def _state(
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"], *, deleted: bool
) -> VmState:
    if phase in _ENDED:
        return "gone"
    if deleted:
        return "stopping"
    return "pending" if phase == "Pending" else "running"


def _reason(pod: Any) -> str:
    """Why it is ending or has ended, or what it waits for."""
    status = pod.status
    # Kueue takes its resources back for a workload of a higher priority
    if taken := [
        one for one in status.conditions or () if (one.type, one.status) == ("TerminationTarget", "True")
    ]:
        return ": ".join(str(one) for one in (taken[0].reason, taken[0].message) if one)
    if status.phase == "Pending":
        waits = [one.message for one in status.conditions or () if one.type == "PodScheduled" and one.message]
        return str(waits[0]) if waits else ""
    words = ": ".join(str(one) for one in (status.reason, status.message) if one)
    if words or status.phase not in _ENDED:
        return words or ("it was deleted" if pod.metadata.deletion_timestamp else "")
    codes = [
        one.state.terminated for one in status.container_statuses or () if one.state.terminated is not None
    ]
    return f"its container ended with {codes[0].exit_code}" if codes else "its containers ended"
