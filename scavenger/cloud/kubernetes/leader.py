"""The pod that leads jobs from within a cluster: it rents the pods of their workers, and they join it at its address.

A leader's folder is a volume. What it holds (the store, the job, checkpoints) outlives the container, which the kubelet
starts again; if it is a persistent volume claim, it outlives the pod, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scavenger.cloud.kubernetes.pods import (
    CONTAINER,
    CONTAINER_SECURITY,
    POD_SECURITY,
    PodSettings,
    placed,
)
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.errors import ConfigurationError

LEADER_FOLDER = "/var/lib/scavenger"
"""Where the volume of a leader is mounted, which is its home."""
LEADER_SHAPE = PodShape(1, 2)
_GRACE_S = 120
"""For the job's last checkpoint, when the pod is asked to end."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """What is mounted into a leader, to be read only.

    Attributes:
        path: Where.
        kind: Of what is mounted.
        name: Its name in the namespace.
    """

    path: str
    kind: Literal["secret", "config map", "claim"]
    name: str

    @property
    def source(self) -> dict[str, Any]:
        """As a volume of a pod has it."""
        match self.kind:
            case "secret":
                return {"secret": {"secretName": self.name, "defaultMode": 0o440}}
            case "config map":
                return {"configMap": {"name": self.name}}
            case "claim":
                return {"persistentVolumeClaim": {"claimName": self.name, "readOnly": True}}


@dataclass(frozen=True, slots=True)
class LeaderPod:
    """A pod that leads jobs.

    Attributes:
        name: Of the pod. Kubernetes has at most one pod of a name, and so there is one leader.
        command: What its container runs.
        image: Its image, which has Scavenger; empty for that of the settings.
        service_account: As which it asks the API server for pods; empty for the namespace's default.
        labels: Of the pod.
        owner: Reference to the object with which it ends; None if there is none.
        variables: Environment of the container. `SCAVENGER_ADDRESS` is set to the pod's address beside them.
        secrets: Names of variables with the secret and the key that each comes from.
        mounted: Folders to read from.
        claim: Persistent volume claim for its folder; empty for one that ends with the pod.
        shape: What the pod asks for.
    """

    name: str
    command: tuple[str, ...]
    image: str = ""
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, Any] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    mounted: tuple[Mounted, ...] = ()
    claim: str = ""
    shape: PodShape = LEADER_SHAPE


def leader_pod(leader: LeaderPod, settings: PodSettings) -> dict[str, Any]:
    """The body of a leader's pod; equal values give an equal one.

    Args:
        leader: What it leads, and how.
        settings: What all pods of the installation share.

    Raises:
        ConfigurationError: If no image is named.
    """
    image = leader.image or settings.image
    if not image:
        raise ConfigurationError("no container image is named for the leader: set kubernetes.image")
    folder = {"persistentVolumeClaim": {"claimName": leader.claim}} if leader.claim else {"emptyDir": {}}
    account = {"serviceAccountName": leader.service_account} if leader.service_account else {}
    owners = {} if leader.owner is None else {"ownerReferences": [dict(leader.owner)]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": leader.name,
            "namespace": settings.namespace,
            "labels": {"app.kubernetes.io/managed-by": "scavenger", **leader.labels},
            **owners,
        },
        "spec": {
            **placed(settings),
            **account,
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": _GRACE_S,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "securityContext": dict(POD_SECURITY),
            "containers": [_container(leader, image)],
            "volumes": [
                {"name": "work", **folder},
                *({"name": f"mounted-{at}", **one.source} for at, one in enumerate(leader.mounted)),
            ],
        },
    }


def _container(leader: LeaderPod, image: str) -> dict[str, Any]:
    variables = {"HOME": LEADER_FOLDER, "TMPDIR": LEADER_FOLDER, **leader.variables}
    of_the_pod = {"SCAVENGER_ADDRESS": "status.podIP"}
    return {
        "name": CONTAINER,
        "image": image,
        "command": list(leader.command),
        "env": [
            *({"name": name, "value": value} for name, value in variables.items()),
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in of_the_pod.items()
                if name not in variables
            ),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
                for name, (secret, key) in leader.secrets.items()
            ),
        ],
        "workingDir": LEADER_FOLDER,
        "resources": {"requests": leader.shape.amounts, "limits": leader.shape.amounts},
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "work", "mountPath": LEADER_FOLDER},
            *(
                {"name": f"mounted-{at}", "mountPath": one.path, "readOnly": True}
                for at, one in enumerate(leader.mounted)
            ),
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
