"""What Scavenger may have to do in a cluster, right by right; `deploy/kubernetes` grants these and no others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kubernetes import client

_TIMEOUT_S = (5.0, 20.0)


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one kind of object.

    Attributes:
        resource: With its subresource, as `pods/log`.
        whole_cluster: Whether it is for objects that are in no namespace.
        group: Of the API; empty for the core's.
    """

    verb: str
    resource: str
    whole_cluster: bool = False
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def rights_of(
    verbs: str, resource: str, *, whole_cluster: bool = False, group: str = ""
) -> tuple[Right, ...]:
    """One right for each verb, as `"get list"`."""
    return tuple(Right(verb, resource, whole_cluster, group) for verb in verbs.split())


RENT_RIGHTS = (
    *rights_of("create get list delete", "pods"),
    *rights_of("get", "pods/log"),
    *rights_of("create get list patch delete", "secrets"),
    *rights_of("list", "resourcequotas"),
    *rights_of("list", "events"),
    *rights_of("list", "nodes", whole_cluster=True),
)
"""Of who leads jobs: of the command, or of a leader's pod."""
FOLLOW_RIGHTS = (
    *rights_of("create get list delete", "pods"),
    *rights_of("get", "pods/log"),
    *rights_of("get create update delete", "pods/proxy"),
    *rights_of("create get delete", "persistentvolumeclaims"),
)
"""Of who has jobs led by a pod, besides `RENT_RIGHTS`."""


def missing_rights(api: Any, rights: Iterable[Right], *, namespace: str) -> tuple[Right, ...]:
    """The rights that the client does not have in a namespace, as the cluster's own authorisation tells.

    Args:
        api: A client of the cluster's API.

    Raises:
        ApiException: If the cluster does not tell.
    """
    asking = client.AuthorizationV1Api(api)
    lacking = []
    for right in rights:
        resource, _, subresource = right.resource.partition("/")
        asked = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": "" if right.whole_cluster else namespace,
        }
        review = {"spec": {"resourceAttributes": asked}}
        answer = asking.create_self_subject_access_review(review, _request_timeout=_TIMEOUT_S)
        if not answer.status.allowed:
            lacking.append(right)
    return tuple(lacking)
