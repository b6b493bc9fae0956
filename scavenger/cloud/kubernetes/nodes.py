"""Nodes of a cluster as far as pods of a job may be on them: by labels, taints, room and price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scavenger.cloud.kubernetes.pods import PodSettings
from scavenger.cloud.kubernetes.shapes import GPU_RESOURCE, PodShape, cpus_of, gib_of

_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Begins of taints that the cluster itself sets while something is the matter with a node."""
_KEEPING_OUT = ("NoSchedule", "NoExecute")
_CORDONED = "node.kubernetes.io/unschedulable"
_LEAVING = (_CORDONED, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of nodes that are drained or silent."""


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """A node.

    Attributes:
        labels, annotations: Of it.
        taints: Key, value and effect of each.
        allocatable: What it has for pods, as the API writes quantities.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)


def node_of(node: Any) -> KubernetesNode:
    """A node as the client library has it."""
    meta = node.metadata
    taints = tuple((one.key, one.value or "", one.effect) for one in node.spec.taints or ())
    return KubernetesNode(
        meta.name, meta.labels or {}, meta.annotations or {}, taints, dict(node.status.allocatable or {})
    )


def node_from(document: Mapping[str, Any]) -> KubernetesNode:
    """A node as JSON has it; one that is cordoned has the taint of it."""
    meta, spec = document["metadata"], document.get("spec") or {}
    taints = [(one["key"], one.get("value") or "", one["effect"]) for one in spec.get("taints") or ()]
    if spec.get("unschedulable"):
        taints.append((_CORDONED, "", "NoSchedule"))
    return KubernetesNode(
        meta["name"],
        meta.get("labels") or {},
        meta.get("annotations") or {},
        tuple(taints),
        dict((document.get("status") or {}).get("allocatable") or {}),
    )


def is_open(node: KubernetesNode, settings: PodSettings, *, spot: bool) -> bool:
    """Whether pods with these settings may be on a node, by its labels and lasting taints.

    A pod that must not be interrupted is on none of the nodes that the cloud may take back.
    """
    labels = node.labels.items()
    takes_back = bool(settings.spot_labels) and set(settings.spot_labels) <= labels
    if not set(settings.node_labels) <= labels or takes_back != spot:
        return False
    return all(
        effect not in _KEEPING_OUT or key.startswith(_CONDITIONS) or _tolerates(settings, key, value)
        for key, value, effect in node.taints
    )


def _tolerates(settings: PodSettings, key: str, value: str) -> bool:
    return any(
        one["key"] == key and (one.get("operator") == "Exists" or one.get("value", "") == value)
        for one in settings.tolerations
    )


def nodes_open(
    nodes: Iterable[KubernetesNode], settings: PodSettings, *, spot: bool
) -> tuple[KubernetesNode, ...]:
    """The nodes on which pods with these settings may be."""
    return tuple(node for node in nodes if is_open(node, settings, spot=spot))


def slots_of(
    nodes: Iterable[KubernetesNode],
    settings: PodSettings,
    shape: PodShape,
    others: Mapping[str, Sequence[Mapping[str, str]]],
) -> int:
    """How many pods of a shape the open nodes have room for; those that are drained or silent have none.

    Args:
        others: What other pods on each node request, by its name.
    """
    return sum(
        _room(node, shape, others.get(node.name, ()))
        for node in nodes_open(nodes, settings, spot=False)
        if not any(key in _LEAVING for key, _, _ in node.taints)
    )


def _room(node: KubernetesNode, shape: PodShape, others: Sequence[Mapping[str, str]]) -> int:
    each = (
        (shape.cpus, "cpu", cpus_of),
        (shape.memory_gib, "memory", gib_of),
        (shape.gpus, GPU_RESOURCE, cpus_of),
    )
    free = [
        (amount_of(node.allocatable.get(name, "0")) - sum(amount_of(one.get(name, "0")) for one in others))
        / amount
        for amount, name, amount_of in each
        if amount
    ]
    return max(0, math.floor(min(free) + 1e-9))


def requests_of(pod: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    """What the containers of a pod, as JSON has it, request."""
    return tuple((one.get("resources") or {}).get("requests") or {} for one in pod["spec"]["containers"])


def share_of(shape: PodShape, allocatable: Mapping[str, str]) -> float:
    """What part of a node a pod takes: of what it takes most of, `max(cpus, memory, GPUs over the node's)`.

    It is the dominant share [1]_. What a pod leaves of the rest is of no use without it, so a pod that takes all CPUs
    of a node takes the node. It is above 1 for a pod that the node has no room for.

    References:
        .. [1] Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
    """
    asked = (
        (shape.cpus, cpus_of(allocatable.get("cpu", "0"))),
        (shape.memory_gib, gib_of(allocatable.get("memory", "0"))),
        (shape.gpus, cpus_of(allocatable.get(GPU_RESOURCE, "0"))),
    )
    return max(amount / has if has else float("inf") for amount, has in asked if amount)
