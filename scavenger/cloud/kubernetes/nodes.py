"""Nodes of a cluster as far as pods of a job may be on them: by labels, taints, room and price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scavenger.cloud.kubernetes.pods import PodSettings
from scavenger.cloud.kubernetes.shapes import GPU_RESOURCE, PodShape, cpus_of, gib_of

_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Begins of taints that the cluster itself sets while something is the matter with a node."""
_KEEPING_OUT = ("NoSchedule", "NoExecute")


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
