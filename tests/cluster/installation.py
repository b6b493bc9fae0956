"""What `kubectl apply -k deploy/kubernetes` would apply, and the rules of pod security that it must keep.

`kubectl` is in no package that every machine of the tests has, so the few features of kustomizations that are used
here are read by these lines; where there is a `kubectl`, a test compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes import dynamic
from kubernetes.client.exceptions import ApiException
from machines import ROOT
from ruamel.yaml import YAML

from tests.cluster.control_plane import ControlPlane

DEPLOY = ROOT / "deploy" / "kubernetes"
_WHOLE_CLUSTER = ("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
_KEYS = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "images"}


def rendered(folder: Path = DEPLOY) -> list[dict[str, Any]]:
    """The objects of a kustomization, with those of the ones that it names."""
    read = YAML(typ="safe")
    said = read.load((folder / "kustomization.yaml").read_text())
    assert set(said) <= _KEYS, f"this renderer does not know {set(said) - _KEYS}"
    found: list[dict[str, Any]] = []
    for name in said["resources"]:
        path = folder / name
        found += rendered(path) if path.is_dir() else list(read.load_all(path.read_text()))
    for one in found:
        if "namespace" in said and one["kind"] not in _WHOLE_CLUSTER:
            one["metadata"].setdefault("namespace", said["namespace"])
    images = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in said.get("images", ())}
    for pod in pods_of(found):
        for container in pod["containers"]:
            container["image"] = images.get(container["image"], container["image"])
    for one in said.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in one["files"]}
        suffix = hashlib.sha256(repr(data).encode()).hexdigest()[:10]
        meta = {"name": f"{one['name']}-{suffix}", "namespace": one["namespace"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        for pod in pods_of(found):
            for volume in pod.get("volumes", ()):
                if volume.get("configMap", {}).get("name") == one["name"]:
                    volume["configMap"]["name"] = meta["name"]
    return found


def pods_of(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The specifications of pods in objects."""
    for one in objects:
        if one["kind"] == "Deployment":
            yield one["spec"]["template"]["spec"]


def apply(api: Any, objects: list[dict[str, Any]]) -> None:
    """Create objects, unless they are there; namespaces and definitions first.

    The API server of the tests is older than version 1 of disruption budgets, whose words are the same.
    """
    talking = dynamic.DynamicClient(api)
    first = ("Namespace", "CustomResourceDefinition")
    for one in sorted(objects, key=lambda one: one["kind"] not in first):
        version = one["apiVersion"].replace("policy/v1", "policy/v1beta1")
        resource = talking.resources.get(api_version=version, kind=one["kind"])
        body = {**one, "apiVersion": version}
        try:
            resource.create(body=body, namespace=one["metadata"].get("namespace"))
        except dynamic.exceptions.ConflictError:  # it is there
            continue
        except ApiException as error:
            raise AssertionError(f"{one['kind']} {one['metadata']['name']}: {error.body!r}") from error


def unrestricted(pod: Mapping[str, Any]) -> list[str]:
    """What a pod has that the profile `restricted` forbids; empty for a pod that it admits.

    References:
        "Pod Security Standards", Kubernetes documentation.
    """
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"}
    for volume in pod.get("volumes", ()):
        found += [f"volume {kind}" for kind in set(volume) - {"name"} - kinds - {"secret"}]
    whole = pod.get("securityContext", {})
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        own = {**whole, **container.get("securityContext", {})}
        dropped = own.get("capabilities", {}).get("drop", ())
        added = set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}
        wrong = {
            "privileged": own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities": "ALL" not in dropped or added,
            "runAsNonRoot": not own.get("runAsNonRoot"),
            "runAsUser": own.get("runAsUser") == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "hostPort": any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [f"{container['name']}: {name}" for name, bad in wrong.items() if bad]
    return found


def as_leader(plane: ControlPlane, namespace: str) -> Path:
    """A kubeconfig of the leaders' account in a namespace, with its rights by `deploy/kubernetes` alone."""
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "scavenger-leader", "namespace": namespace}

    def bound(kind: str, role: str, **place: str) -> dict[str, Any]:
        return {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {"name": f"{role}-{namespace}", **place},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }

    roles = [one for one in rendered() if one["kind"] == "ClusterRole"]
    bindings = [
        bound("RoleBinding", "scavenger-leader", namespace=namespace),
        bound("ClusterRoleBinding", "scavenger-nodes"),
    ]
    apply(plane.core().api_client, [*roles, *bindings])
    return plane.kubeconfig(f"system:serviceaccount:{namespace}:scavenger-leader", "system:serviceaccounts")
