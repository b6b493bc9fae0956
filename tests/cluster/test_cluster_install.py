"""`deploy/kubernetes` before a real API server: all of it is taken, and nobody may do more than they must."""

from __future__ import annotations

import copy
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from machines import ROOT
from ruamel.yaml import YAML

from scavenger.cloud.kubernetes.leader import LeaderPod, leader_pod
from scavenger.cloud.kubernetes.pods import PodSettings, pod_of
from scavenger.cloud.kubernetes.rights import RENT_RIGHTS, Right, missing_rights
from scavenger.control.settings import parse_settings
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmTags
from tests.cluster.control_plane import ControlPlane
from tests.cluster.installation import DEPLOY, apply, pods_of, rendered, unrestricted

SYSTEM, JOBS = "scavenger-system", "scavenger"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
CORE = (
    *("pods", "pods/log", "pods/exec", "pods/proxy", "pods/status", "pods/eviction", "secrets", "configmaps"),
    *("events", "resourcequotas", "limitranges", "services", "endpoints", "serviceaccounts"),
    *("serviceaccounts/token", "persistentvolumeclaims"),
)
GROUPS = {
    "apps": ("deployments", "daemonsets"),
    "batch": ("jobs",),
    "coordination.k8s.io": ("leases",),
    "policy": ("poddisruptionbudgets",),
    "rbac.authorization.k8s.io": ("roles", "rolebindings"),
    "scavenger.dev": ("elasticjobs", "elasticjobs/status"),
    "networking.k8s.io": ("networkpolicies",),
}
WHOLE = {
    "": ("nodes", "namespaces", "persistentvolumes"),
    "rbac.authorization.k8s.io": ("clusterroles", "clusterrolebindings"),
    "apiextensions.k8s.io": ("customresourcedefinitions",),
}


def all_rights() -> Iterator[Right]:
    """What there is to be allowed, as far as it matters."""
    for verb in VERBS:
        yield from (Right(verb, resource) for resource in CORE)
        yield from (Right(verb, one, False, group) for group, found in GROUPS.items() for one in found)
        yield from (Right(verb, one, True, group) for group, found in WHOLE.items() for one in found)


def rights(text: str, *, group: str = "", whole_cluster: bool = False) -> set[Right]:
    resource, _, verbs = text.partition(": ")
    return {Right(verb, resource, whole_cluster, group) for verb in verbs.split()}


ELASTIC = {
    *rights("elasticjobs: get list watch", group="scavenger.dev"),
    *rights("elasticjobs/status: patch", group="scavenger.dev"),
}
LEADER = {*RENT_RIGHTS, *ELASTIC, *rights("elasticjobs: patch", group="scavenger.dev")}
OPERATOR = {
    *ELASTIC,
    *rights("pods: get list watch create delete"),
    *rights("events: create"),
    *rights("poddisruptionbudgets: create patch", group="policy"),
    *rights("leases: get create update", group="coordination.k8s.io"),
    *rights("customresourcedefinitions: list watch", group="apiextensions.k8s.io", whole_cluster=True),
    *rights("nodes: list", whole_cluster=True),
}
OPERATORS_OWN = {
    *rights("nodes: list", whole_cluster=True),
    *rights("leases: get create update", group="coordination.k8s.io"),
    *rights("customresourcedefinitions: list watch", group="apiextensions.k8s.io", whole_cluster=True),
}


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> Iterator[ControlPlane]:
    apply(plane.core().api_client, rendered())
    yield plane
    apps = client.AppsV1Api(plane.core().api_client)  # nodes of other tests do not run an operator
    apps.delete_namespaced_deployment("scavenger-operator", SYSTEM, propagation_policy="Foreground")
    while plane.core().list_namespaced_pod(SYSTEM).items:
        # those on nodes that a test has left behind are ended by nobody else
        plane.core().delete_collection_namespaced_pod(SYSTEM, grace_period_seconds=0)
        time.sleep(0.1)


def as_account(plane: ControlPlane, namespace: str, name: str) -> client.ApiClient:
    """A client with a real token of a service account."""
    asked = {"spec": {"audiences": None, "expirationSeconds": 3600}}
    answer = plane.core().create_namespaced_service_account_token(name, namespace, asked)
    settings = client.Configuration()
    settings.host, settings.ssl_ca_cert = plane.url, str(plane.certificates.where / "ca.crt")
    settings.api_key = {"authorization": f"Bearer {answer.status.token}"}
    return client.ApiClient(settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("account", "namespace", "allowed"),
    [
        ((JOBS, "scavenger-leader"), JOBS, LEADER),
        ((JOBS, "scavenger-leader"), "default", set(rights("nodes: list", whole_cluster=True))),
        ((SYSTEM, "scavenger-operator"), JOBS, OPERATOR),
        ((SYSTEM, "scavenger-operator"), SYSTEM, OPERATORS_OWN),
        ((JOBS, "default"), JOBS, set()),
    ],
    ids=["leader", "leader elsewhere", "operator", "operator at home", "anybody"],
)
def test_an_account_may_do_exactly_what_it_must(
    installed: ControlPlane, account: tuple[str, str], namespace: str, allowed: set[Right]
) -> None:
    api, every = as_account(installed, *account), set(all_rights())
    found = every - set(missing_rights(api, sorted(every), namespace=namespace))
    assert sorted(found) == sorted(allowed)


@pytest.mark.slow
def test_what_is_not_allowed_is_refused(installed: ControlPlane) -> None:
    core = client.CoreV1Api(as_account(installed, JOBS, "scavenger-leader"))
    core.list_namespaced_pod(JOBS)
    for call in (
        lambda: core.list_namespaced_secret(SYSTEM),
        lambda: core.list_namespaced_config_map(JOBS),
        lambda: core.read_node("somewhere"),
    ):
        with pytest.raises(client.exceptions.ApiException) as refused:
            call()
        assert refused.value.status == 403


@pytest.mark.slow
def test_the_deployment_is_rolled_out_and_its_settings_are_there(installed: ControlPlane) -> None:
    apps = client.AppsV1Api(installed.core().api_client)
    found: Any = apps.read_namespaced_deployment("scavenger-operator", SYSTEM)
    (volume,) = (one for one in found.spec.template.spec.volumes if one.name == "settings")
    installed.core().read_namespaced_config_map(volume.config_map.name, SYSTEM)


def request() -> VmRequest:
    tags = VmTags("me", "0" * 36, "job", 0, 0)
    return VmRequest(tags, "2cpu-4gib", "z", False, LaunchTemplate(60.0, image="scavenger"))


def test_every_pod_of_ours_is_one_that_restricted_admits() -> None:
    pods = [
        *pods_of(rendered()),
        pod_of(request(), PodSettings(), secret_uid="u", in_zone=True)["spec"],
        leader_pod(LeaderPod("leader", ("scavenger",), "scavenger", claim="kept"), PodSettings())["spec"],
    ]
    assert len(pods) == 3
    for pod in pods:
        assert unrestricted(pod) == []
        assert all(one["securityContext"]["readOnlyRootFilesystem"] for one in pod["containers"])
        assert all(one["resources"]["limits"] for one in pod["containers"])


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("hostNetwork",), True, "hostNetwork"),
        (("securityContext", "runAsNonRoot"), False, "runAsNonRoot"),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}, "seccompProfile"),
        (("volumes", 0), {"name": "host", "hostPath": {"path": "/"}}, "volume hostPath"),
        (("containers", 0, "securityContext", "capabilities"), {"drop": []}, "capabilities"),
    ],
)
def test_the_rules_find_each_fault(place: tuple[Any, ...], value: object, named: str) -> None:
    pod: Any = copy.deepcopy(next(pods_of(rendered())))
    at = pod
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert any(named in one for one in unrestricted(pod))


def test_policies_of_the_network_select_pods_by_labels_that_pods_have() -> None:
    objects = rendered()
    leader = leader_pod(LeaderPod("leader", ("x",), "i", labels={"scavenger/role": "leader"}), PodSettings())
    worker = pod_of(request(), PodSettings(), secret_uid="u", in_zone=True)
    policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
    for one in policies:
        wanted = one["spec"]["podSelector"].get("matchLabels", {}).items()
        selects = [wanted <= pod["metadata"]["labels"].items() for pod in (leader, worker)]
        assert selects == [True, one["metadata"]["name"] != "scavenger-leader"]
    denied = [one for one in policies if not {"ingress", "egress"} & set(one["spec"])]
    assert [one["metadata"]["namespace"] for one in denied] == [JOBS]


def test_the_settings_are_valid_and_name_the_image_and_the_namespace() -> None:
    text = (DEPLOY / "config.toml").read_text()
    settings = parse_settings(text, path="config.toml").kubernetes
    (operator,) = pods_of(rendered())
    assert (settings.image, settings.namespace) == (operator["containers"][0]["image"], JOBS)
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines()[6:])
    assert tomllib.loads(uncommented)["kubernetes"]["pools"]["training"]["usd_per_hour"] == 0.38
    parse_settings(uncommented, path="config.toml")


def test_kubectl_renders_the_same_objects() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl")
    made = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "deploy" / "kubernetes")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    def keys(objects: Any) -> list[tuple[str, str, str]]:
        found = ((one["kind"], one["metadata"].get("namespace", ""), one) for one in objects)
        return sorted(
            (kind, place, one["metadata"]["name"][:17] if kind == "ConfigMap" else one["metadata"]["name"])
            for kind, place, one in found
        )

    assert keys(YAML(typ="safe").load_all(made.stdout)) == keys(rendered())
