"""Who reaches a VM of Google Cloud that may be logged in to, and what is left of that when the VM is gone."""

from __future__ import annotations

import pytest

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from gcp_server import ROLE
from gcp_world import GcpWorld

from scavenger.cloud.gcp.inspection import LEADER_PERMISSIONS, PERMISSIONS, GcpInspection
from scavenger.errors import ConfigurationError
from scavenger.testing.provider_conformance import OWNER, make_request

HERE, THERE, ELSEWHERE = "203.0.113.7", "198.51.100.1", "192.0.2.9"


def tags_of_vm(gcp: GcpWorld, instance_id: str) -> list[str]:
    body = gcp.server.project.machines[int(instance_id)].body
    return list(body.get("tags", {}).get("items", ()))


def test_ssh_is_let_in_from_the_present_address_alone_though_the_network_lets_everybody_in(
    gcp: GcpWorld,
) -> None:
    project = gcp.server.project
    first, second = (make_request(gcp, 1, logins_from=(f"{one}/32",)) for one in (HERE, THERE))
    seen = gcp.provider.launch(first)
    tags = tags_of_vm(gcp, seen.instance_id)

    assert project.lets_in(ELSEWHERE, []), "as the default network does"
    assert project.lets_in(HERE, tags)
    assert not project.lets_in(ELSEWHERE, tags)
    for _ in range(2):
        gcp.provider.let_in(second)
    assert [project.lets_in(one, tags) for one in (HERE, THERE)] == [False, True]
    assert gcp.server.calls["firewalls.patch"] == 1
    assert gcp.server.calls["firewalls.insert"] == 2


def test_the_rules_end_with_their_vm_and_not_before(gcp: GcpWorld) -> None:
    seen = gcp.provider.launch(make_request(gcp, 1, logins_from=(f"{HERE}/32",)))
    assert gcp.provider.remove_leftovers(OWNER) == ()
    gcp.provider.terminate(seen.instance_id, seen.zone)
    gcp.advance(200.0)

    removed = gcp.provider.remove_leftovers(OWNER)

    assert [one.partition(" scavenger")[0] for one in removed] == ["firewall rule"] * 2
    assert set(gcp.server.project.firewalls) == {"default-allow-ssh"}
    assert gcp.provider.remove_leftovers(OWNER) == ()


def test_keys_of_the_project_and_os_login_are_off_where_a_command_logs_in_and_nowhere_else(
    gcp: GcpWorld,
) -> None:
    gcp.provider.launch(make_request(gcp, 1, logins_from=(f"{HERE}/32",), firewalls=("training",)))
    gcp.provider.launch(make_request(gcp, 2))
    bodies = [body for method, body in gcp.server.requests if method == "instances.insert"]
    led, other = ({item["key"]: item["value"] for item in body["metadata"]["items"]} for body in bodies)

    assert (led["enable-oslogin"], led["block-project-ssh-keys"]) == ("FALSE", "TRUE")
    assert "training" in bodies[0]["tags"]["items"]
    assert set(other) == {"user-data"}
    assert "tags" not in bodies[1]


def test_a_vm_has_its_address_in_the_internet(gcp: GcpWorld) -> None:
    seen = gcp.provider.launch(make_request(gcp, 1))
    gcp.advance(60.0)
    seen = gcp.provider.describe(seen.instance_id, seen.zone)

    assert seen.public_address.startswith("203.0.113.")
    assert seen.public_address != seen.address


def test_rules_are_made_in_the_network_of_the_subnetwork(gcp: GcpWorld) -> None:
    gcp.server.subnetworks, gcp.server.project.networks = {"mine": "training"}, {"training"}
    gcp.provider.let_in(make_request(gcp, 1, subnets=("mine",), logins_from=(f"{HERE}/32",)))
    made = [rule for name, rule in gcp.server.project.firewalls.items() if name.startswith("scavenger-")]

    assert {rule["network"].rpartition("/")[2] for rule in made} == {"training"}
    with pytest.raises(ConfigurationError, match=r"no subnetwork 'other'"):
        gcp.provider.let_in(make_request(gcp, 1, subnets=("other",), logins_from=(f"{HERE}/32",)))


def test_a_network_of_another_project_is_refused_before_a_vm_is_rented(gcp: GcpWorld) -> None:
    shared = make_request(gcp, 1, network="projects/host-1/global/networks/a", logins_from=(f"{HERE}/32",))

    with pytest.raises(ConfigurationError, match="another project"):
        gcp.provider.launch(shared)
    assert gcp.server.calls["instances.insert"] == 0


def test_without_permissions_for_rules_a_leader_is_refused_and_other_jobs_end_as_ever(
    gcp: GcpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcp_server.ROLE", ROLE - set(LEADER_PERMISSIONS))
    inspection = GcpInspection(gcp.provider)
    gcp.server.forbidden = set(LEADER_PERMISSIONS)

    assert inspection.denied(make_request(gcp, 1)) == ()
    assert set(inspection.denied(make_request(gcp, 1, logins_from=(f"{HERE}/32",)))) == set(
        LEADER_PERMISSIONS
    )
    assert gcp.provider.remove_leftovers(OWNER) == ()


def test_the_role_has_every_permission_that_is_checked() -> None:
    assert {*PERMISSIONS, *LEADER_PERMISSIONS} <= ROLE
