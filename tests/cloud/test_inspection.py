"""What the doctor finds in an account before a job is started there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_server import AwsServer
from aws_world import Session, make_provider, server, session, started
from made_intents import made_request

from scavenger.cloud.aws.inspection import AwsInspection
from scavenger.control.places import inspection as inspection_module
from scavenger.control.places.inspection import inspect_infra
from scavenger.domain.check import Check
from scavenger.domain.infra import Infra
from scavenger.domain.vm import VmRequest
from scavenger.errors import ConfigurationError, CredentialsError
from scavenger.testing.provider_conformance import token_of

pytestmark = pytest.mark.slow

__all__ = ["server", "session", "started"]

AWS, GCP = Infra("aws", "us-east-1"), Infra("gcp", "us-central1")


def request_of(vm: str, zone: str, **more: Any) -> VmRequest:
    return made_request(token=token_of("doctor"), job_id="doctor", vm=vm, zone=zone, **more)


# EC2


@pytest.fixture
def ec2(server: AwsServer, session: Session) -> AwsInspection:
    return AwsInspection(make_provider(server, session), session)


def test_an_account_with_everything_lacks_nothing(ec2: AwsInspection, server: AwsServer) -> None:
    request = request_of("c5.large", "us-east-1a")

    assert ec2.identity().startswith("arn:aws:")
    assert ec2.denied(request) == ()
    assert ec2.image(request) == "ami-1e749f67"
    assert "us-east-1a, us-east-1b" in ec2.network(request)
    assert server.instances() == {}
    assert server.grounds() == ()


def test_permissions_that_ec2_denies_are_named_and_nothing_is_done(
    ec2: AwsInspection, server: AwsServer
) -> None:
    server.denied = {"RunInstances", "CreateSecurityGroup", "GetConsoleOutput"}

    assert set(ec2.denied(request_of("c5.large", "us-east-1a"))) == {
        "ec2:RunInstances",
        "ec2:CreateSecurityGroup",
        "ec2:GetConsoleOutput",
    }


def test_an_image_that_there_is_not_is_named(ec2: AwsInspection) -> None:
    with pytest.raises(ConfigurationError, match="ami-0f00f00f"):
        ec2.image(request_of("c5.large", "us-east-1a", image="ami-0f00f00f"))


# Compute Engine


@pytest.fixture(scope="module")
def compute() -> Iterator[Any]:
    pytest.importorskip("google.cloud.compute_v1")
    pytest.importorskip("googleapiclient")
    from gcp_server import ComputeServer
    from gcp_state import Clock

    with ComputeServer(Clock()) as server:
        yield server


@pytest.fixture
def gce(compute: Any) -> Iterator[Any]:
    from gcp_world import world_on

    from scavenger.cloud.gcp.inspection import GcpInspection

    for world in world_on(compute):
        yield GcpInspection(world.provider)


def test_a_project_with_everything_lacks_nothing(gce: Any) -> None:
    request = request_of("e2-standard-4", "us-central1-a")

    assert gce.identity().endswith("project a-project")
    assert gce.denied(request) == ()
    assert gce.image(request) == "ubuntu-2404-lts-amd64-v20260201"
    assert gce.network(request) == "default, subnetwork default, with public addresses"


def test_permissions_that_the_project_does_not_give_are_named(gce: Any, compute: Any) -> None:
    compute.forbidden = {"compute.instances.create"}
    assert gce.denied(request_of("e2-standard-4", "us-central1-a")) == ("compute.instances.create",)

    compute.faults.denied = True
    with pytest.raises(CredentialsError, match="cannot be read"):
        gce.denied(request_of("e2-standard-4", "us-central1-a"))


def test_an_image_or_a_subnetwork_that_there_is_not_is_named(gce: Any, compute: Any) -> None:
    for image in ("projects/ubuntu-os-cloud/global/images/none", "an-image"):
        with pytest.raises(ConfigurationError, match=image):
            gce.image(request_of("e2-standard-4", "us-central1-a", image=image))
    compute.subnetworks = {"mine": "other"}
    with pytest.raises(ConfigurationError, match="'default' of project a-project has no subnetwork"):
        gce.network(request_of("e2-standard-4", "us-central1-a"))


# The whole


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pip says; it is not asked, since that takes an index."""
    told: list[str] = [""]

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1 if told[0] else 0, "", told[0])

    monkeypatch.setattr(inspection_module.subprocess, "run", run)
    return told


def checks(infra: Infra, **environment: str) -> dict[str, Check]:
    return {check.name: check for check in inspect_infra(infra, environment)}


@pytest.mark.usefixtures("pip")
def test_every_part_of_an_account_is_checked(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    found = checks(AWS, SCAVENGER_ADDRESS="127.0.0.1")

    assert {name: check.status for name, check in found.items()} == {
        **dict.fromkeys(("credentials", "VM type", "permissions", "image", "network", "quotas"), "ok"),
        "address": "warn",
        "package": "ok",
    }, found
    assert server.instances() == {}

    server.denied, server.vcpus_max = {"GetConsoleOutput"}, 4
    found = checks(AWS)
    assert found["permissions"] == Check(
        "permissions", "warn", "no ec2:GetConsoleOutput: jobs cannot tell why a VM failed", "allow it"
    )
    assert found["quotas"].status == "fail"
    assert "room for 1 VM " in found["quotas"].found
    assert found["address"].status == "fail"


def test_without_credentials_the_rest_of_an_account_is_not_asked(
    server: AwsServer, pip: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    pip[0] = "ERROR: Could not find a version\nERROR: No matching distribution found for scavenger-ml\n"

    found = checks(AWS, SCAVENGER_ADDRESS="127.0.0.1", SCAVENGER_PACKAGE="scavenger-ml")

    assert set(found) == {"credentials", "address", "package"}
    assert found["credentials"].status == "fail"
    assert "aws sts get-caller-identity" in found["credentials"].found
    assert found["package"].found.endswith("No matching distribution found for scavenger-ml")
    assert not server.calls["RunInstances"]


@pytest.mark.usefixtures("pip")
def test_a_project_that_is_not_named_is_said() -> None:
    pytest.importorskip("google.cloud.compute_v1")
    found = checks(GCP)

    assert "GOOGLE_CLOUD_PROJECT" in found["credentials"].found


@pytest.mark.usefixtures("pip")
def test_a_machine_whose_jobs_are_led_by_vms_needs_no_address(
    compute: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcp_server import ROLE
    from gcp_state import Clock

    compute.reset(Clock())
    settings = tmp_path / "config.toml"
    settings.write_text('[gcp]\nleader_service_account = "leader@a-project.iam.gserviceaccount.com"\n')
    prices = tmp_path / "prices.yaml"
    here = {"provider": "gcp", "region": "us-central1", "vm": "e2-standard-4"}
    prices.write_text(json.dumps({"version": 1, "prices": [{**here, "on_demand": 0.001, "spot": 0.001}]}))
    environment = {
        "SCAVENGER_PRICES": str(prices),
        "SCAVENGER_GCP_ENDPOINT": compute.endpoint,
        "GOOGLE_CLOUD_PROJECT": "a-project",
        "SCAVENGER_CONFIG": str(settings),
    }
    found = checks(GCP, **environment)

    assert found["permissions"].status == "ok"
    assert found["leader"].status == "ok"
    assert "address" not in found
    compute.forbidden = {one for one in ROLE if "firewalls" in one}
    assert "compute.firewalls.create" in checks(GCP, **environment)["permissions"].found
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks(GCP, **environment)["leader"].status == "fail"
