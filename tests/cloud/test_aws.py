"""EC2 through the real client library, before a server of our own."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_server import IMAGE_GIB, REGION, AwsServer
from aws_world import AwsWorld, Session, aws, make_provider, server, session, started
from waiting import wait_for

from scavenger.cloud.aws.provider import AwsProvider
from scavenger.cloud.aws.values import vm_seen
from scavenger.cloud.metadata import http_transport
from scavenger.cloud.notices import watch
from scavenger.domain.vm import Notice
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    GoneError,
    StockOutError,
    ThrottledError,
)
from scavenger.testing.provider_conformance import OWNER, ProviderConformance, World, alive, make_request

pytestmark = pytest.mark.slow

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDu5UiG38rx9aC62wMm1qBJDkD18frO/HruuFg10U8Bk test"

__all__ = ["aws", "server", "session", "started"]  # fixtures


class TestAwsProvider(ProviderConformance):
    @pytest.fixture
    def world(self, aws: AwsWorld) -> World:
        return aws


# What a launch asks for


def test_a_vm_is_launched_to_leave_nothing_behind(aws: AwsWorld) -> None:
    request = make_request(aws, disk_gib=33, spot=True)
    seen = aws.provider.launch(request)
    (form,) = aws.server.launches
    (volume,) = aws.server.volumes()
    instance = aws.server.instances()[seen.instance_id]

    assert form["ClientToken"] == request.tags.token
    assert (form["MinCount"], form["MaxCount"]) == ("1", "1")
    assert instance.instance_initiated_shutdown_behavior == "terminate"
    assert instance.metadata_options.http_tokens == "required"
    assert form["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert form["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    assert (volume.size, volume.volume_type) == (33, "gp3")
    for thing in (instance, volume):
        tags = {tag["key"]: tag["value"] for tag in thing.get_tags()}
        assert tags["scavenger-owner"] == OWNER
        assert tags["scavenger-token"] == request.tags.token
        assert tags["team"] == "blue"

    aws.provider.terminate(seen.instance_id, seen.zone)
    assert aws.server.volumes() == []


def test_a_vm_whose_status_check_fails_while_it_runs_is_named(aws: AwsWorld) -> None:
    ids = [aws.provider.launch(make_request(aws, number)).instance_id for number in range(2)]
    aws.advance(120.0)
    assert aws.provider.impaired(ids) == {}

    aws.server.impaired.add(ids[1])
    assert aws.provider.impaired(ids) == {ids[1]: "EC2's instance status check has failed"}
    with pytest.raises(GoneError):
        aws.provider.impaired([aws.instance_unknown])


def test_a_spot_vm_costs_at_most_what_is_metered(aws: AwsWorld) -> None:
    request = replace(make_request(aws, spot=True), usd_per_hour_max=0.3)
    assert aws.provider.parameters(request)["InstanceMarketOptions"]["SpotOptions"]["MaxPrice"] == "0.300000"
    on_demand = replace(make_request(aws), usd_per_hour_max=None)
    assert "InstanceMarketOptions" not in aws.provider.parameters(on_demand)


def test_labels_do_not_replace_our_tags(aws: AwsWorld) -> None:
    request = make_request(aws, labels=(("scavenger-owner", "somebody"), ("scavenger-token", "x")))

    seen = aws.provider.launch(request)

    assert (seen.tags.owner, seen.tags.token) == (OWNER, request.tags.token)


def test_a_refused_launch_is_not_repeated_behind_the_callers_back(aws: AwsWorld) -> None:
    aws.provider.launch(make_request(aws, "first"))
    aws.server.calls.clear()
    aws.server.empty_zones.add(f"{REGION}a")

    with pytest.raises(StockOutError):
        aws.provider.launch(make_request(aws))

    assert aws.server.calls["RunInstances"] == 1


@pytest.mark.parametrize(
    ("vm", "kind"),
    [
        ("c5.large", "/amd64/"),
        ("c6g.large", "/arm64/"),
        ("g4dn.xlarge", "/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/"),
    ],
)
def test_the_default_image_fits_the_processor_and_the_gpu_and_is_looked_up_once(
    aws: AwsWorld, vm: str, kind: str
) -> None:
    for name in range(3):
        aws.provider.launch(make_request(aws, name, vm=vm))

    (alias,) = aws.server.aliases
    assert kind in alias
    assert aws.server.calls["GetParameter"] == aws.server.calls["DescribeImages"] == 1


def test_a_disk_that_does_not_hold_the_image_is_refused_before_a_vm_is_asked_for(aws: AwsWorld) -> None:
    request = make_request(aws, disk_gib=IMAGE_GIB - 1)

    with pytest.raises(ConfigurationError, match=r"resources\.disk: 14 GiB do not hold .* write disk: 15"):
        aws.provider.launch(request)
    assert aws.server.calls["RunInstances"] == 0
    aws.provider.launch(make_request(aws, "next", disk_gib=IMAGE_GIB))

    (volume,) = aws.server.volumes()
    assert volume.size == IMAGE_GIB


def test_a_named_image_is_taken(aws: AwsWorld) -> None:
    aws.provider.launch(make_request(aws, image="ami-785db401"))

    assert aws.server.launches[0]["ImageId"] == "ami-785db401"
    with pytest.raises(ConfigurationError, match="ami-0f00f00f"):
        aws.provider.launch(make_request(aws, "next", image="ami-0f00f00f"))


# Tokens


@pytest.mark.parametrize("replays", ["current", "original"])
def test_a_repeat_tells_the_truth_however_ec2_shows_it(aws: AwsWorld, replays: Any) -> None:
    aws.server.replays = replays
    request = make_request(aws)
    first = aws.provider.launch(request)
    aws.advance(200.0)

    assert aws.provider.launch(request).state == "running"
    aws.provider.terminate(first.instance_id, first.zone)
    for after_s in (0.0, 200.0, 4_000.0, 40_000.0):
        aws.advance(after_s)
        with pytest.raises(GoneError, match=first.instance_id):
            aws.provider.launch(request)
    assert alive(aws) == []


def test_a_repeat_after_the_default_image_moved_on_finds_the_first_vm(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    request = make_request(aws)
    first = aws.provider.launch(request)
    server.image = "ami-785db401"
    restarted = make_provider(server, session)

    assert restarted.launch(request).instance_id == first.instance_id
    assert len(alive(aws)) == 1

    restarted.terminate(first.instance_id, first.zone)
    with pytest.raises(GoneError, match=first.instance_id):
        restarted.launch(request)


def test_a_mismatched_repeat_is_not_called_gone_before_its_vm_must_be_listed(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    request = make_request(aws)
    server.hidden_s = 100.0
    first = aws.provider.launch(request)
    server.image = "ami-785db401"
    restarted = make_provider(server, session)

    with pytest.raises(CloudUnavailableError, match="not listed yet"):
        restarted.launch(request)
    aws.advance(101.0)
    assert restarted.launch(request).instance_id == first.instance_id

    restarted.terminate(first.instance_id, first.zone)
    aws.advance(5_000.0)
    with pytest.raises(CloudUnavailableError, match="not listed yet"):
        restarted.launch(request)
    aws.advance(restarted.visibility_s + 1)
    with pytest.raises(GoneError, match="new token"):
        restarted.launch(request)


def test_a_mismatched_repeat_finds_the_vm_of_its_own_zone(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    zones = aws.provider.zones(aws.vm)[:2]
    requests = [make_request(aws, zone=zone) for zone in zones]
    ids = [aws.provider.launch(request).instance_id for request in requests]
    server.image = "ami-785db401"
    restarted = make_provider(server, session)

    assert [restarted.launch(request).instance_id for request in requests] == ids


@pytest.mark.parametrize("mismatched", [False, True])
def test_a_repeat_that_cannot_look_at_its_vm_is_not_called_refused(
    aws: AwsWorld, server: AwsServer, session: Session, mismatched: bool
) -> None:
    request = make_request(aws)
    aws.provider.launch(request)
    aws.advance(100.0)
    server.replays = "original"
    server.image = "ami-785db401" if mismatched else server.image
    server.denied = {"DescribeInstances"}

    with pytest.raises(CloudUnavailableError, match="not authorized"):
        make_provider(server, session).launch(request)
    assert aws.faults_fired == 1


def test_what_another_process_launched_is_gone_when_ec2_says_so(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    seen = aws.provider.launch(make_request(aws))
    server.hidden_s = 1_000.0
    other = make_provider(server, session)

    assert aws.provider.describe(seen.instance_id, seen.zone).state == "pending"
    with pytest.raises(CloudUnavailableError):
        aws.provider.terminate(seen.instance_id, seen.zone)
    with pytest.raises(GoneError):
        other.describe(seen.instance_id, seen.zone)
    aws.advance(aws.provider.visibility_s + 1)
    with pytest.raises(GoneError):
        aws.provider.describe(seen.instance_id, seen.zone)


# Calls


def test_a_read_is_repeated_with_growing_jittered_pauses(server: AwsServer, session: Session) -> None:
    pauses: list[float] = []
    provider = make_provider(server, session, sleep=pauses.append)
    server.throttled = 3

    assert provider.list_owned(OWNER) == ()
    assert all(0 <= pause <= 0.5 * 2**attempt for attempt, pause in enumerate(pauses))
    assert len(set(pauses)) == 3

    server.throttled = 4
    with pytest.raises(ThrottledError):
        provider.list_owned(OWNER)
    assert len(pauses) == 6


def test_a_call_that_is_never_answered_ends_and_its_vm_is_found(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    hasty = make_provider(server, session, answer_max_s=0.3)
    request = make_request(aws)
    hasty.list_owned(OWNER)
    hasty.launch(make_request(aws, "first"))
    server.hung = hung = threading.Event()

    with pytest.raises(CloudUnavailableError):
        hasty.launch(request)

    assert aws.faults_fired == 1
    hung.set()
    # the launch that was not answered is carried out all the same
    wait_for(lambda: request.tags.token in {fact.token for fact in aws.truth()})
    assert hasty.launch(request).tags.token == request.tags.token
    assert len(alive(aws)) == 2


def test_without_credentials_the_fix_is_told(
    server: AwsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    with pytest.raises(CredentialsError, match="aws sts get-caller-identity"):
        AwsProvider(REGION, boto3.Session()).list_owned(OWNER)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CredentialsError, match="nobody"):
        AwsProvider(REGION)


@pytest.mark.parametrize("region", ["", "us-east", "us-east-1a", "US-EAST-1", "moon"])
def test_what_is_no_region_is_refused(region: str, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="us-east-1"):
        AwsProvider(region, session)


# What is seen


def test_a_vm_tells_when_and_why_it_ended(aws: AwsWorld) -> None:
    seen = aws.provider.launch(make_request(aws, spot=True))
    aws.advance(600.0)
    aws.preempt(seen.instance_id)
    aws.advance(600.0)

    ended = aws.provider.describe(seen.instance_id, seen.zone)

    assert "SpotInstanceTermination" in ended.reason
    assert ended.launched_at == aws.server.began
    assert ended.ended_at == aws.server.began + timedelta(seconds=600)


@pytest.mark.parametrize("slot", ["", "-1", "1.5", "x", "٣"])
def test_a_tag_changed_by_hand_counts_as_none(slot: str) -> None:
    seen = vm_seen(
        {
            "InstanceId": "i-1",
            "InstanceType": "c5.large",
            "State": {"Name": "stopped"},
            "Tags": [{"Key": "scavenger-slot", "Value": slot}],
        }
    )

    assert seen.tags.slot == seen.tags.generation == -1
    assert seen.state == "stopping"


def test_a_spot_vm_hears_of_its_interruption_two_minutes_ahead(aws: AwsWorld) -> None:
    seen = aws.provider.launch(make_request(aws, spot=True))
    aws.advance(300.0)
    with closing(aws.server.imds(seen.instance_id)) as imds:
        aws.server.recommend_rebalance(seen.instance_id)
        notices = watch(
            "aws",
            stopped=lambda: False,
            transport=http_transport("127.0.0.1", imds.port),
            clock=lambda: aws.server.now_s,
            sleep=aws.server.advance,
        )
        assert next(notices) == Notice("rebalance")
        aws.server.interrupt(seen.instance_id)
        at = aws.server.began + timedelta(seconds=aws.server.now_s + 120)
        assert next(notices) == Notice("preemption", at)
    assert aws.provider.describe(seen.instance_id, seen.zone).state == "running"
    aws.advance(121.0)
    assert aws.provider.describe(seen.instance_id, seen.zone).state == "stopping"


def test_the_stored_console_is_read_where_there_is_no_other(aws: AwsWorld) -> None:
    seen = aws.provider.launch(make_request(aws))
    aws.write_console(seen.instance_id, "Kernel panic")
    aws.server.is_nitro = False

    assert aws.provider.console(seen.instance_id, seen.zone) == "Kernel panic"


def test_why_ec2_ended_a_vm_that_it_had_accepted_is_told_in_its_words(aws: AwsWorld) -> None:
    aws.server.late_failures = [("Client.VolumeLimitExceeded", "Volume limit exceeded")]
    seen = aws.provider.launch(make_request(aws))
    aws.advance(60.0)
    now = aws.provider.describe(seen.instance_id, seen.zone)

    assert (now.state, now.reason) == ("gone", "Client.VolumeLimitExceeded: Volume limit exceeded")
