"""Autoscalers of a cluster's nodes: whether there is one, and what it does about a pod that no node has room for.

References:
    The FAQ of the cluster autoscaler (events, and the ConfigMap of its status); "Disruption" and "NodePools",
    documentation of Karpenter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

_STATUS, _NAMESPACE = "cluster-autoscaler-status", "kube-system"
_KARPENTER = "karpenter.sh"
_TIMEOUT_S = (5.0, 20.0)
_ADDS = {"TriggeredScaleUp", "Nominated"}
_ADDS_NONE = {"NotTriggerScaleUp"}


def has_autoscaler(core: Any) -> bool:
    """Whether the cluster has Karpenter's API, or the status of its cluster autoscaler can be read.

    Args:
        core: Client of the core API.

    Raises:
        ApiException: If the cluster does not answer.
    """
    groups = client.ApisApi(core.api_client).get_api_versions(_request_timeout=_TIMEOUT_S).groups
    if any(group.name == _KARPENTER for group in groups):
        return True
    try:
        core.read_namespaced_config_map(_STATUS, _NAMESPACE, _request_timeout=_TIMEOUT_S)
    except ApiException as error:
        if error.status not in (403, 404):
            raise
        return False
    return True


def is_growing(reasons: Collection[str]) -> bool | None:
    """Whether a node is being added for a pod, by the reasons of its events; None if no autoscaler has looked yet."""
    return True if _ADDS & set(reasons) else False if _ADDS_NONE & set(reasons) else None
