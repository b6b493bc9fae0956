"""What `scavenger doctor --infra kubernetes` says before a real cluster, as users with all rights, few and none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import NODES
from kubernetes import client

from scavenger.control.places.cluster_inspection import inspect_cluster
from scavenger.control.places.inspection import inspect_infra
from scavenger.domain.check import Check
from scavenger.domain.infra import Infra
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import nodes_of

pytestmark = pytest.mark.slow

SETTINGS = """\
[kubernetes]
namespace = "default"
image = "scavenger:tests"
usd_per_cpu_hour = 0.03
usd_per_gib_hour = 0.004
"""
INFRA = Infra("kubernetes", "tests")


@pytest.fixture(scope="module", autouse=True)
def nodes(plane: ControlPlane) -> Iterator[None]:
    with nodes_of(plane, *NODES):
        yield


def checks(
    plane: ControlPlane, tmp_path: Path, settings: str = SETTINGS, *, user: str = "admin", group: str = ""
) -> dict[str, Check]:
    file = tmp_path / "config.toml"
    file.write_text(settings)
    config = plane.kubeconfig(user, "system:masters" if user == "admin" else group)
    found = inspect_cluster(INFRA, {"KUBECONFIG": str(config), "SCAVENGER_CONFIG": str(file)})
    return {check.name: check for check in found}


def test_a_cluster_with_everything_is_said_in_a_line_each(plane: ControlPlane, tmp_path: Path) -> None:
    found = checks(plane, tmp_path)

    assert {name: check.status for name, check in found.items()} == dict.fromkeys(
        ("cluster", "permissions", "namespace", "prices", "nodes", "quotas", "image"), "ok"
    )
    assert plane.url in found["cluster"].found
    assert ", v" in found["cluster"].found
    assert found["prices"].found.startswith("$0.1520 an hour for 4cpu-8gib")
    assert "2 of 2 nodes" in found["nodes"].found
    assert plane.core().list_namespaced_pod("default").items == []


def test_each_thing_that_is_missing_has_a_fix(plane: ControlPlane, tmp_path: Path) -> None:
    found = checks(plane, tmp_path, '[kubernetes]\nnamespace = "nowhere"\nnode_labels = {pool = "none"}\n')
    bad = {name: check for name, check in found.items() if check.status == "fail"}

    assert set(bad) == {"namespace", "prices", "nodes", "image"}
    assert all(check.fix for check in bad.values())
    assert bad["namespace"].fix == "kubectl create namespace nowhere"
    assert "none of 0 nodes" in bad["nodes"].found


def test_who_may_do_less_is_told_which_rights_are_missing(plane: ControlPlane, tmp_path: Path) -> None:
    plane.core()
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list"]}]
    api = client.RbacAuthorizationV1Api(plane.api())
    few = f"few-{uuid.uuid4().hex[:8]}"  # of this try of the test
    api.create_cluster_role({"metadata": {"name": few}, "rules": rules})
    subject = {"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": few, "apiGroup": "rbac.authorization.k8s.io"}
    api.create_cluster_role_binding({"metadata": {"name": few}, "roleRef": role, "subjects": [subject]})

    said = checks(plane, tmp_path, user="somebody")["permissions"]
    assert (said.status, "deploy/kubernetes" in said.fix) == ("fail", True)
    assert said.found.startswith("no right to delete pods, get pods/log, create secrets")


def test_a_cluster_that_does_not_answer_or_is_not_there_ends_the_checks(
    plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(SETTINGS)
    dead = plane.kubeconfig("dead", url="https://127.0.0.1:9")
    (silent,) = inspect_cluster(INFRA, {"KUBECONFIG": str(dead), "SCAVENGER_CONFIG": str(file)})
    assert (silent.status, "no answer" in silent.found) == ("fail", True)

    other = Infra("kubernetes", "elsewhere")
    (unknown,) = inspect_cluster(
        other, {"KUBECONFIG": str(plane.kubeconfig()), "SCAVENGER_CONFIG": str(file)}
    )
    assert (unknown.status, "get-contexts" in unknown.found) == ("fail", True)


def test_where_a_pod_would_lead_no_address_is_missing(plane: ControlPlane, tmp_path: Path) -> None:
    def said(more: str, **environment: str) -> dict[str, Check]:
        file = tmp_path / "config.toml"
        file.write_text(SETTINGS + more)
        named = {"KUBECONFIG": str(plane.kubeconfig()), "SCAVENGER_CONFIG": str(file), **environment}
        return {check.name: check for check in inspect_infra(INFRA, named)}

    alone = said("")
    assert ("leader" in alone, alone["address"].status) == (False, "fail")
    assert "leader_service_account" in alone["address"].fix
    account = 'leader_service_account = "leads"\n'
    assert said(account)["leader"].found == "there is no service account leads"
    plane.core().create_namespaced_service_account("default", {"metadata": {"name": "leads"}})
    led = said(account)
    assert (led["leader"].status, "address" in led) == ("ok", False)
    assert led["leader"].found == "jobs are led by a pod, as leads; its folder ends with it"
    claimed = said(account + 'leader_claim = "kept"\n')["leader"]
    assert (claimed.status, claimed.found) == ("fail", "there is no persistent volume claim kept")
    plane.core().delete_namespaced_service_account("leads", "default")
    assert "leader" not in said(account, SCAVENGER_ADDRESS="127.0.0.1")
