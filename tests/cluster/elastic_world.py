"""Pods of ElasticJobs on this machine: leaders as processes of it, workers as machines (`pod_machines.py`).

A leader's container is a process namespace of its own, so that all of it ends with it, as a container does. What its
pod says of its environment, its files and its volumes holds; a persistent volume claim is a folder that stays.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from machines import ROOT, Machines
from pod_machines import MachineRunner
from ruamel.yaml import YAML
from waiting import eventually

from scavenger.cloud.kubernetes.leader import LEADER_FOLDER
from scavenger.domain.elastic_job import GROUP, JOB_LABEL, KIND, PLURAL, ROLE_LABEL, VERSION
from tests.cluster.control_plane import ControlPlane

DEPLOY = ROOT / "deploy" / "kubernetes"


def account(namespace: str, name: str) -> tuple[str, str]:
    """User and group of a service account."""
    return f"system:serviceaccount:{namespace}:{name}", "system:serviceaccounts"


_MOUNTED = (
    "sh",
    "-c",
    'while [ "$1" != -- ]; do mkdir -p "$2" && mount --bind "$1" "$2" || exit 1; shift 2; done; shift; exec "$@"',
    "sh",
)
"""Mounts folders, each followed by the path where it is to be, and runs what stands behind `--`."""


class PodRunner:
    """Runs leaders as processes and workers as machines; see `kubelet.Runner`.

    Args:
        machines: Where workers run.
        folder: For volumes.
        environment: Further variables of leaders.
    """

    def __init__(
        self, plane: ControlPlane, machines: Machines, folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._plane, self._address, self._folder = plane, machines.address, folder
        self._workers = MachineRunner(machines)
        self._environment = environment or {}
        self._core: client.CoreV1Api = plane.core()

    def start(self, pod: Any, read: Callable[[str], dict[str, str]]) -> Any:
        (container,) = pod.spec.containers
        if any(one.name == "boot" for one in container.volume_mounts):
            return self._workers.start(pod, read)
        namespace = pod.metadata.namespace
        folder = Path(tempfile.mkdtemp(prefix=f"{pod.metadata.name}-", dir=self._folder))
        places = {
            one.mount_path: self._volume(pod, one.name, folder, read) for one in container.volume_mounts
        }

        variables = {}
        for one in container.env:
            if one.value_from is None:
                variables[one.name] = one.value or ""
            elif one.value_from.field_ref is not None:
                variables[one.name] = self._address
            else:
                ref = one.value_from.secret_key_ref
                variables[one.name] = read(ref.name)[ref.key]
        user = account(namespace, pod.spec.service_account_name)
        variables["KUBECONFIG"] = str(self._plane.kubeconfig(*user))
        command = [sys.executable if word == "python3" else word for word in container.command]
        return _Leader(self._address, command, {**variables, **self._environment}, places, folder)

    def _volume(self, pod: Any, name: str, folder: Path, read: Callable[[str], dict[str, str]]) -> Path:
        (volume,) = (one for one in pod.spec.volumes if one.name == name)
        if volume.persistent_volume_claim is not None:
            kept = (
                self._folder / f"claim-{pod.metadata.namespace}-{volume.persistent_volume_claim.claim_name}"
            )
            kept.mkdir(exist_ok=True)
            return kept
        place = folder / name
        place.mkdir()
        files: dict[str, str] = {}
        if volume.config_map is not None:
            found = self._core.read_namespaced_config_map(volume.config_map.name, pod.metadata.namespace)
            files = dict(found.data or {}) | {
                key: base64.b64decode(text).decode() for key, text in (found.binary_data or {}).items()
            }
        elif volume.secret is not None:
            files = read(volume.secret.secret_name)
        for key, text in files.items():
            (place / key).write_text(text)
        return place


class _Leader:
    """See `kubelet.Running`."""

    def __init__(
        self,
        address: str,
        command: list[str],
        variables: dict[str, str],
        places: dict[str, Path],
        folder: Path,
    ) -> None:
        self.address, self._folder = address, folder
        self._log = folder / "log"
        work = places[LEADER_FOLDER]
        mounts = [text for path, place in places.items() for text in (str(place), path)]
        settings = {f"XDG_{kind}_HOME": str(work / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                    *_MOUNTED,
                    *mounts,
                    "--",
                    *command,
                ],
                cwd=work,
                env={
                    **os.environ,
                    **settings,
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
                    **variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> int | None:
        status = self._process.poll()
        return None if status is None else status & 0xFF

    def stop(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children():
                child.send_signal(signal.SIGTERM)

    def cut(self) -> None:
        """It is on the network of this machine."""

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder / "work", ignore_errors=True)

    def log(self) -> str:
        return self._log.read_text(errors="replace")


class ElasticWorld:
    """A namespace with the custom resource, its rights, and an operator that can be killed and started again.

    Args:
        plane: The control plane.
        folder: For files of the operator.
        namespace: Begin of the namespace's name.
        settings: Further ones of the operator.
    """

    def __init__(self, plane: ControlPlane, folder: Path, namespace: str, *, settings: str = "") -> None:
        self.plane, self.folder, self._settings = plane, folder, settings
        self.namespace = f"{namespace}-{uuid.uuid4().hex[:8]}"  # of this try of the test
        self.core: client.CoreV1Api = plane.core()
        self.objects = client.CustomObjectsApi(self.core.api_client)
        self._operators: list[subprocess.Popen[bytes]] = []
        self._install()

    def _install(self) -> None:
        api = self.core.api_client
        definition = YAML(typ="safe").load((DEPLOY / "crd.yaml").read_text())
        extensions = client.ApiextensionsV1Api(api)
        name = definition["metadata"]["name"]
        with contextlib.suppress(ApiException):
            extensions.create_custom_resource_definition(definition)

        def established() -> bool:
            found = extensions.read_custom_resource_definition(name).status.conditions or ()
            return any((one.type, one.status) == ("Established", "True") for one in found)

        until(established)
        self.core.create_namespace({"metadata": {"name": self.namespace}})
        rights = client.RbacAuthorizationV1Api(api)
        for role in YAML(typ="safe").load_all((DEPLOY / "rights.yaml").read_text()):
            with contextlib.suppress(ApiException):
                rights.create_cluster_role(role)
        until(lambda: self.core.read_namespaced_service_account("default", self.namespace))
        for one in ("scavenger-operator", "scavenger-leader"):
            self.core.create_namespaced_service_account(self.namespace, {"metadata": {"name": one}})
        subject = {"kind": "ServiceAccount", "name": "scavenger-leader", "namespace": self.namespace}
        self._bind(rights, "scavenger-nodes", subject, everywhere=True)
        self._bind(rights, "scavenger-leader", subject, everywhere=False)
        operator = {**subject, "name": "scavenger-operator"}
        self._bind(rights, "scavenger-operator", operator, everywhere=True)
        self._bind(rights, "scavenger-nodes", operator, everywhere=True, name="scavenger-operators-nodes")

    def _bind(
        self, rights: Any, role: str, subject: dict[str, str], *, everywhere: bool, name: str = ""
    ) -> None:
        body = {
            "metadata": {"name": f"{name or role}-{self.namespace}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
        if everywhere:
            rights.create_cluster_role_binding(body)
        else:
            rights.create_namespaced_role_binding(self.namespace, body)

    def add_viewer(self, name: str, *roles: str) -> Path:
        """A kubeconfig of an account with these roles of `deploy/kubernetes`, that may list pods besides."""
        self.core.create_namespaced_service_account(self.namespace, {"metadata": {"name": name}})
        files = ("rights.yaml", "bindings.yaml")
        given = [one for file in files for one in YAML(typ="safe").load_all((DEPLOY / file).read_text())]
        rules = [rule for one in given if one["metadata"]["name"] in roles for rule in one["rules"]]
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        rights = client.RbacAuthorizationV1Api(self.core.api_client)
        rights.create_namespaced_role(self.namespace, {"metadata": {"name": name}, "rules": rules})
        rights.create_namespaced_role_binding(
            self.namespace,
            {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
            },
        )
        return self.plane.kubeconfig(*account(self.namespace, name))

    # ---- the operator ---------------------------------------------------------------------------------------

    def start_operator(self) -> subprocess.Popen[bytes]:
        """One more operator, as its service account."""
        settings = self.folder / "config.toml"
        settings.write_text(
            '[kubernetes]\nimage = "scavenger:tests"\nusd_per_cpu_hour = 0.03\nusd_per_gib_hour = 0.004\n'
            + self._settings
        )
        file = self.plane.kubeconfig(*account(self.namespace, "scavenger-operator"))
        with (self.folder / f"operator-{len(self._operators)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "scavenger_cli", "operator", "run"),
                    *("--namespace", self.namespace),
                ],
                env={
                    **os.environ,
                    "KUBECONFIG": str(file),
                    "SCAVENGER_CONFIG": str(settings),
                    "SCAVENGER_LOG_LEVEL": "INFO",
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._operators.append(process)
        return process

    def acting_operator(self) -> subprocess.Popen[bytes] | None:
        """The operator that holds the lease, as it says itself; None while none does."""
        for number, process in enumerate(self._operators):
            said = (self.folder / f"operator-{number}.log").read_text()
            if process.poll() is None and "this operator acts" in said:
                return process
        return None

    def operator_log(self) -> str:
        """What all operators have written."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("operator-*.log")))

    def close(self) -> None:
        """End the operators and all pods."""
        for one in self._operators:
            one.kill()
            one.wait()
        self.core.delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)

    # ---- ElasticJobs ----------------------------------------------------------------------------------------

    _PLACE = (GROUP, VERSION)

    def add_code(self, name: str, *files: Path) -> None:
        """A config map with the training code."""
        body = {"metadata": {"name": name}, "data": {path.name: path.read_text() for path in files}}
        self.core.create_namespaced_config_map(self.namespace, body)

    def add_claim(self, name: str) -> None:
        """A persistent volume claim, bound to a volume: the tests' controllers bind none."""
        bound_claim(self.core, self.namespace, name)

    def add(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """An ElasticJob."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name},
            "spec": spec,
        }
        found: dict[str, Any] = self.objects.create_namespaced_custom_object(
            *self._PLACE, self.namespace, PLURAL, body
        )
        return found

    def job(self, name: str) -> dict[str, Any]:
        """An ElasticJob as it is."""
        found: dict[str, Any] = self.objects.get_namespaced_custom_object(
            *self._PLACE, self.namespace, PLURAL, name
        )
        return found

    def status(self, name: str) -> dict[str, Any]:
        """Its status."""
        return dict(self.job(name).get("status") or {})

    def shown(self) -> dict[str, dict[str, Any]]:
        """What `kubectl get ejob` shows of each, by the API server's own table."""
        api = self.objects.api_client
        answer: Any = api.call_api(
            "GET",
            f"{api.configuration.host}/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}",
            header_params={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
        )
        found = json.loads(answer.read())
        titles = [one["name"] for one in found["columnDefinitions"] if not one["priority"]]
        rows = [dict(zip(titles, row["cells"], strict=False)) for row in found["rows"]]
        return {row["Name"]: row for row in rows}

    def change(self, name: str, **spec: Any) -> None:
        """Change keys of `spec`."""
        self.objects.patch_namespaced_custom_object(
            *self._PLACE, self.namespace, PLURAL, name, {"spec": spec}
        )

    def scale(self, name: str, replicas: int) -> None:
        """As `kubectl scale` does."""
        self.objects.patch_namespaced_custom_object_scale(
            *self._PLACE, self.namespace, PLURAL, name, {"spec": {"replicas": replicas}}
        )

    def delete(self, name: str) -> None:
        """Delete an ElasticJob, and in the background what belongs to it."""
        self.objects.delete_namespaced_custom_object(*self._PLACE, self.namespace, PLURAL, name)

    def pods(self, role: str, *, name: str = "") -> list[Any]:
        """Pods of a role that have not ended."""
        labels = f"{ROLE_LABEL}={role}" + (f",{JOB_LABEL}={name}" if name else "")
        found = self.core.list_namespaced_pod(self.namespace, label_selector=labels).items
        return [pod for pod in found if pod.status.phase in ("Pending", "Running")]

    def kept_available(self) -> int | None:
        """How many workers evictions leave; None if nothing says so."""
        found = self.objects.list_namespaced_custom_object(
            "policy", "v1beta1", self.namespace, "poddisruptionbudgets"
        )["items"]
        return int(found[0]["spec"]["minAvailable"]) if found else None

    def events(self) -> list[tuple[str, str]]:
        """Reasons and messages of events of ElasticJobs, as they came."""
        all_of_them = self.core.list_namespaced_event(self.namespace).items
        found = [one for one in all_of_them if one.involved_object.kind == KIND and one.first_timestamp]
        found.sort(key=lambda one: one.first_timestamp)
        return [(one.reason, one.message) for one in found]


def bound_claim(core: client.CoreV1Api, namespace: str, name: str) -> None:
    """A persistent volume claim, bound to a volume: the tests' controllers bind none."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    volume = f"{namespace}-{name}"
    core.create_persistent_volume(
        {
            "metadata": {"name": volume},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "hostPath": {"path": "/nowhere"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        }
    )
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    core.create_namespaced_persistent_volume_claim(
        namespace,
        {
            "metadata": {"name": name, "annotations": bound},
            "spec": {"accessModes": modes, "resources": {"requests": size}, "volumeName": volume},
        },
    )


def until(ask: Callable[[], Any], within_s: float = 60.0, *, what: str = "") -> Any:
    """Wait for something true; what the API server refuses meanwhile does not count."""

    def told() -> Any:
        with contextlib.suppress(ApiException):
            return ask()
        return None

    found = eventually(told, within_s=within_s)
    assert found, f"it did not happen within {within_s:g} s: {what}"
    return found
