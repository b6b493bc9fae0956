"""Google Cloud: the contract, before a server held to Google's own description, and what is asked and shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from nested import changed

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from gcp_server import ComputeServer
from gcp_state import REGION
from gcp_world import DAY_S, ZONE, GcpWorld, provider_of, world_on

from scavenger.cloud.gcp.provider import ENDPOINT_VARIABLE, GcpProvider
from scavenger.cloud.gcp.vm import GcpInstallation, instance_of
from scavenger.domain.vm import VmSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError
from scavenger.testing.provider_conformance import OWNER, ProviderConformance, make_request

pytestmark = pytest.mark.slow


@pytest.fixture
def world(compute: ComputeServer) -> Iterator[GcpWorld]:
    yield from world_on(compute)


def body_of(world: GcpWorld, **changes: object) -> dict[str, Any]:
    world.provider.launch(changed(make_request(world), **changes))  # type: ignore[arg-type]
    body: dict[str, Any] = world.server.requests[-1][1]
    return body


class TestGcp(ProviderConformance):
    """The contract."""

    @pytest.fixture
    def world(self, compute: ComputeServer) -> Iterator[GcpWorld]:
        yield from world_on(compute)


# What is asked for


def test_a_spot_vm_is_deleted_at_its_end_and_told_of_it_before(world: GcpWorld) -> None:
    body = body_of(world, spot=True, run_max_s=7_200.5)

    assert body["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "7201"},
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "preemptionNoticeDuration": {"seconds": "120"},
    }


def test_a_vm_lives_at_least_as_long_as_google_allows(world: GcpWorld) -> None:
    assert body_of(world, run_max_s=0.5)["scheduling"]["maxRunDuration"] == {"seconds": "30"}


def test_a_vm_keeps_nothing_and_may_do_nothing(world: GcpWorld) -> None:
    body = body_of(world, user_data="#cloud-config\n")

    (disk,) = body["disks"]
    assert disk["autoDelete"] is True
    assert disk["initializeParams"]["diskSizeGb"] == "20"
    assert "serviceAccounts" not in body
    (item,) = body["metadata"]["items"]
    assert item["key"] == "user-data"
    assert "OnActiveSec" in item["value"]
    assert "#cloud-config\n" in item["value"]
    assert body["shieldedInstanceConfig"] == {
        "enableSecureBoot": True,
        "enableVtpm": True,
        "enableIntegrityMonitoring": True,
    }


def test_settings_reach_the_vm(compute: ComputeServer, world: GcpWorld) -> None:
    provider = provider_of(
        compute,
        world.clock,
        settings=GcpInstallation(image="projects/a/global/images/mine", preemption_notice_s=0),
    )
    settings = VmSettings(
        network="projects/p/global/networks/n",
        subnets=("s",),
        firewalls=("training",),
        public_address=False,
        identity="robot@example.com",
        kms_key="projects/p/locations/us/keyRings/r/cryptoKeys/k",
    )
    asked = make_request(world, spot=True)
    provider.launch(replace(asked, template=replace(asked.template, settings=settings)))
    body = compute.requests[-1][1]

    assert body["networkInterfaces"] == [
        {"network": "projects/p/global/networks/n", "subnetwork": "regions/us-central1/subnetworks/s"}
    ]
    assert body["serviceAccounts"][0]["email"] == "robot@example.com"
    assert body["tags"]["items"] == ["training"]
    assert body["disks"][0]["diskEncryptionKey"]["kmsKeyName"] == settings.kms_key
    assert body["disks"][0]["initializeParams"]["sourceImage"] == "projects/a/global/images/mine"
    assert "preemptionNoticeDuration" not in body["scheduling"]
    assert "shieldedInstanceConfig" not in body


@pytest.mark.parametrize(
    ("vm", "image"),
    [
        ("e2-standard-2", "ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"),
        ("t2a-standard-1", "ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64"),
        (
            "g2-standard-4",
            "ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580",
        ),
    ],
)
def test_the_default_image_fits_the_processor_and_the_gpu(world: GcpWorld, vm: str, image: str) -> None:
    body = instance_of(replace(make_request(world), vm=vm), GcpInstallation())

    assert body.disks[0].initialize_params.source_image == f"projects/{image}"
    assert body.shielded_instance_config.enable_secure_boot is (vm != "g2-standard-4")


@pytest.mark.parametrize("run_max_s", [0.0, -1.0, float("nan"), float("inf"), 121 * DAY_S])
def test_a_vm_without_an_end_is_refused_before_google_is_asked(world: GcpWorld, run_max_s: float) -> None:
    request = make_request(world)
    world.server.calls.clear()

    with pytest.raises(ConfigurationError):
        world.provider.launch(changed(request, run_max_s=run_max_s))

    assert world.server.calls.total() == 0


def test_a_custom_type_is_found_where_it_can_be_had_and_launched(world: GcpWorld) -> None:
    kind = "e2-custom-4-8192"
    zones = world.provider.zones(kind)

    seen = world.provider.launch(replace(make_request(world), vm=kind, zone=zones[1]))

    assert zones == ("us-central1-a", "us-central1-b", "us-central1-f")
    assert (seen.vm, seen.zone) == (kind, "us-central1-b")


def test_zones_are_those_that_have_the_type_and_are_up(world: GcpWorld) -> None:
    assert world.provider.zones("n2-standard-8") == ("us-central1-a", "us-central1-b")
    world.server.unreachable.add("us-central1-a")
    assert world.provider.zones("n2-standard-8") == ("us-central1-b",)


@pytest.mark.parametrize(("project", "region"), [("a-project", "mars-north1"), ("no-project", REGION)])
def test_a_wrong_project_or_region_is_named(world: GcpWorld, project: str, region: str) -> None:
    provider = GcpProvider(project, region, environment={ENDPOINT_VARIABLE: world.server.endpoint})

    with pytest.raises(ConfigurationError, match=r"no-project|mars-north1"):
        provider.zones("e2-standard-4")


def test_a_wrong_project_never_makes_a_vm_gone(world: GcpWorld) -> None:
    provider = GcpProvider("no-project", REGION, environment={ENDPOINT_VARIABLE: world.server.endpoint})

    for call in (provider.describe, provider.terminate):
        with pytest.raises(CloudUnavailableError):
            call("123", ZONE)


def test_a_proxy_that_does_not_know_the_address_never_makes_a_vm_gone(world: GcpWorld) -> None:
    seen = world.provider.launch(make_request(world))
    world.server.faults.plan("proxy", 1_000)

    with pytest.raises(CloudUnavailableError):
        world.provider.describe(seen.instance_id, seen.zone)
    with pytest.raises(CloudUnavailableError):
        world.provider.terminate(seen.instance_id, seen.zone)


# Looking


def test_a_list_is_unknown_where_a_zone_cannot_be_reached(world: GcpWorld) -> None:
    world.provider.launch(make_request(world))
    world.server.unreachable.add("us-central1-b")
    with pytest.raises(CloudUnavailableError, match="us-central1-b"):
        world.provider.list_owned(OWNER)
    world.server.unreachable = {"europe-west4-a"}

    assert len(world.provider.list_owned(OWNER)) == 1


def test_times_are_in_utc_and_states_are_those_of_the_vm(world: GcpWorld) -> None:
    seen = world.provider.launch(make_request(world))
    launched_at = seen.launched_at
    world.preempt(seen.instance_id)
    going = world.provider.describe(seen.instance_id, seen.zone)

    assert launched_at == datetime.fromisoformat("2026-01-01T00:16:40+00:00")
    assert launched_at.utcoffset() == timedelta(0)
    assert (going.state, going.reason) == ("stopping", "Instance was preempted.")


@pytest.mark.parametrize("odd", ["Ana Conda", "ünï_çøde", "a_b__c", "UPPER", ""])
def test_owners_and_jobs_of_any_letters_come_back_as_they_were(world: GcpWorld, odd: str) -> None:
    world.provider.launch(changed(make_request(world), owner=odd, job_id=odd))
    world.provider.launch(make_request(world, "other"))

    (seen,) = world.provider.list_owned(odd)

    assert (seen.tags.owner, seen.tags.job_id) == (odd, odd)


# Disks that were left


def test_a_disk_whose_vm_never_came_is_removed(world: GcpWorld) -> None:
    world.server.project.leaves_disk = True
    world.server.project.breaks.append(("INTERNAL_ERROR", 500))
    request = make_request(world)
    with pytest.raises(CloudUnavailableError):
        world.provider.launch(request)

    removed = world.provider.remove_leftovers(OWNER)

    assert removed == (f"disk scavenger-{request.tags.token} in {ZONE}",)
    assert world.server.project.disks == {}


def test_the_disk_of_a_vm_that_is_on_its_way_stays(world: GcpWorld) -> None:
    world.server.faults.plan("lose", 1, "instances.insert")
    with pytest.raises(CloudUnavailableError):
        world.provider.launch(make_request(world))
    assert len(world.server.project.disks) == 1

    assert world.provider.remove_leftovers(OWNER) == ()
    assert world.server.calls["disks.delete"] == 0
