"""What a launch at AWS brings with it and leaves: groups, keys, disks, quotas, user data; and the server's own ways."""

from __future__ import annotations

from typing import Any

import pytest
from aws_server import ON_DEMAND_PRICES, REGION, AwsServer
from aws_world import AwsWorld, Session, aws, make_provider, server, session, started

from scavenger.cloud.aws.values import quota_name
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
)
from scavenger.testing.provider_conformance import OWNER, alive, make_request, token_of

pytestmark = pytest.mark.slow

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDu5UiG38rx9aC62wMm1qBJDkD18frO/HruuFg10U8Bk test"

__all__ = ["aws", "server", "session", "started"]  # fixtures


# What is beside VMs


def test_an_owners_vms_reach_each_other_and_nobody_else_reaches_them(aws: AwsWorld) -> None:
    aws.provider.launch(make_request(aws, 1))
    aws.provider.launch(make_request(aws, 2))
    aws.provider.launch(make_request(aws, 3, owner="other"))
    used = {seen["SecurityGroupId.1"] for seen in aws.server.launches}

    groups = aws.client.describe_security_groups(GroupIds=sorted(used))["SecurityGroups"]

    assert sorted(group["GroupName"] for group in groups) == ["scavenger-conformance", "scavenger-other"]
    for group in groups:
        (rule,) = group["IpPermissions"]
        assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group["GroupId"]]
        assert rule["IpRanges"] == []


def test_ssh_is_let_in_from_the_present_address_alone_and_nowhere_else_but_for_a_leader(
    aws: AwsWorld,
) -> None:
    first, second = (make_request(aws, 1, logins_from=(f"203.0.113.{n}/32",)) for n in (7, 8))
    seen = aws.provider.launch(first)
    (group,) = {form["SecurityGroupId.1"] for form in aws.server.launches}

    def let_in() -> list[tuple[int, list[str]]]:
        rules = aws.client.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
        return [
            (rule["FromPort"], [one["CidrIp"] for one in rule["IpRanges"]])
            for rule in rules
            if rule["IpRanges"]
        ]

    assert let_in() == [(22, ["203.0.113.7/32"])]
    aws.provider.let_in(second)
    aws.provider.let_in(second)
    assert let_in() == [(22, ["203.0.113.8/32"])]
    aws.provider.terminate(seen.instance_id, seen.zone)
    aws.advance(200.0)
    assert f"security group {group}" in aws.provider.remove_leftovers(OWNER)


def test_a_leader_is_in_the_users_groups_and_in_one_that_lets_its_command_in(aws: AwsWorld) -> None:
    own = aws.client.create_security_group(GroupName="mine", Description="mine")["GroupId"]

    aws.provider.launch(make_request(aws, 1, firewalls=(own,), logins_from=("203.0.113.7/32",)))

    (form,) = aws.server.launches
    assert form["SecurityGroupId.1"] == own
    assert form["SecurityGroupId.2"] != own


def test_a_group_that_another_service_made_or_removed_is_no_hindrance(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    other = make_provider(server, session)
    first = aws.provider.launch(make_request(aws, 1))
    second = other.launch(make_request(aws, 2))
    for seen in (first, second):
        aws.provider.terminate(seen.instance_id, seen.zone)
    aws.advance(200.0)

    (group,) = {form["SecurityGroupId.1"] for form in server.launches}
    assert other.remove_leftovers(OWNER) == (f"security group {group}",)
    assert aws.provider.launch(make_request(aws, 3)).state == "pending"


def test_a_group_that_is_there_but_not_listed_yet_is_waited_for(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    aws.provider.launch(make_request(aws, 1))
    server.groups_unlisted = 2
    other = make_provider(server, session)

    with pytest.raises(CloudUnavailableError, match="scavenger-conformance"):
        other.launch(make_request(aws, 2))
    server.groups_unlisted = 1
    other.launch(make_request(aws, 2))

    assert len({form["SecurityGroupId.1"] for form in server.launches}) == 1
    assert len(alive(aws)) == 2


def test_a_public_key_opens_the_vms_and_is_removed_with_the_last(
    aws: AwsWorld, server: AwsServer, session: Session
) -> None:
    provider = make_provider(server, session, public_key=PUBLIC_KEY)
    seen = provider.launch(make_request(aws, 1))
    make_provider(server, session, public_key=PUBLIC_KEY).launch(make_request(aws, 2, owner=OWNER))

    assert [form["KeyName"] for form in server.launches] == ["scavenger-conformance"] * 2
    for fact in alive(aws):
        provider.terminate(fact.instance_id, seen.zone)
    aws.advance(200.0)
    assert "key pair scavenger-conformance" in make_provider(server, session).remove_leftovers(OWNER)
    provider.launch(make_request(aws, 3))
    assert [key["KeyName"] for key in aws.client.describe_key_pairs()["KeyPairs"]] == [
        "scavenger-conformance"
    ]


def test_a_disk_without_a_vm_is_a_leftover_if_it_is_ours(aws: AwsWorld) -> None:
    def make_disk(owner: str) -> str:
        tags = [{"ResourceType": "volume", "Tags": [{"Key": "scavenger-owner", "Value": owner}]}]
        made = aws.client.create_volume(AvailabilityZone=f"{REGION}a", Size=1, TagSpecifications=tags)
        return str(made["VolumeId"])

    ours, theirs = make_disk(OWNER), make_disk("conformance-2")

    assert aws.provider.remove_leftovers("conf*") == ()
    assert aws.provider.remove_leftovers(OWNER) == (f"disk {ours}",)
    assert [volume.id for volume in aws.server.volumes()] == [theirs]


def test_an_owners_name_is_no_pattern(aws: AwsWorld) -> None:
    aws.provider.launch(make_request(aws))

    assert aws.provider.list_owned("conf*") == aws.provider.list_owned("conformanc?") == ()


# Quotas


def test_quotas_count_vcpus_by_family_and_market(aws: AwsWorld) -> None:
    aws.provider.launch(make_request(aws, 1))
    aws.provider.launch(make_request(aws, 2, vm="c5.xlarge", spot=True))
    aws.provider.launch(make_request(aws, 3, vm="g4dn.xlarge"))

    used = {quota.name: (quota.used, quota.limit) for quota in aws.provider.quotas()}

    assert used == {
        quota_name("c5.large", spot=False): (2.0, 128.0),
        quota_name("c5.large", spot=True): (4.0, 128.0),
        quota_name("g4dn.xlarge", spot=False): (4.0, 128.0),
        quota_name("p6-b200.48xlarge", spot=False): (0.0, 128.0),
        quota_name("p3.2xlarge", spot=True): (0.0, 128.0),
        quota_name("p5en.48xlarge", spot=True): (0.0, 128.0),
    }


def test_quotas_that_may_not_be_read_are_empty(aws: AwsWorld) -> None:
    aws.server.denied = {"ListServiceQuotas"}

    assert aws.provider.quotas() == ()
    assert aws.faults_fired == 1


# User data


def test_a_vm_that_nobody_renews_ends_after_its_life_and_not_after_the_longest_run(aws: AwsWorld) -> None:
    aws.provider.launch(make_request(aws, life_s=900.0, run_max_s=7_200.0))
    aws.advance(900.0)
    assert len(alive(aws)) == 1

    aws.advance(120.0)

    assert alive(aws) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user_data": "echo no first line"}, "#!"),
        ({"user_data": "#!/bin/sh\n" + "x" * 20_000}, "16384"),
        ({"run_max_s": 0.0}, "time limit"),
        ({"run_max_s": float("inf")}, "time limit"),
        ({"run_max_s": float("nan")}, "time limit"),
    ],
)
def test_user_data_that_would_not_do_is_refused_before_any_launch(
    aws: AwsWorld, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        aws.provider.launch(make_request(aws, **changes))

    assert aws.server.calls["RunInstances"] == 0


# The server itself, where a test of the provider would not notice


def test_the_servers_spot_prices_differ_by_type_and_bound_bids(aws: AwsWorld) -> None:
    history = aws.client.describe_spot_price_history(InstanceTypes=["c5.large", "c5.xlarge"])[
        "SpotPriceHistory"
    ]
    prices = {
        (entry["InstanceType"], entry["AvailabilityZone"]): float(entry["SpotPrice"]) for entry in history
    }

    assert len(prices) == 12
    assert aws.provider.spot_prices(["c5.large", "c5.xlarge"]) == prices
    assert all(0 < price < ON_DEMAND_PRICES[vm] for (vm, _), price in prices.items())
    assert prices["c5.large", f"{REGION}a"] < prices["c5.xlarge", f"{REGION}a"]

    def bid(price: float) -> None:
        aws.client.run_instances(
            ImageId="ami-1e749f67",
            InstanceType="c5.large",
            MinCount=1,
            MaxCount=1,
            InstanceMarketOptions={"MarketType": "spot", "SpotOptions": {"MaxPrice": str(price)}},
        )

    with pytest.raises(aws.client.exceptions.ClientError, match="SpotMaxPriceTooLow"):
        bid(prices["c5.large", f"{REGION}a"] / 2)
    bid(prices["c5.large", f"{REGION}a"])
    assert len(aws.truth()) == 1


def test_the_server_gives_as_many_as_it_can_up_to_the_count(aws: AwsWorld) -> None:
    aws.limit(3)
    answer = aws.client.run_instances(ImageId="ami-1e749f67", InstanceType="c5.large", MinCount=1, MaxCount=5)

    assert len(answer["Instances"]) == len(aws.truth()) == 3


def test_the_server_keeps_tokens_by_zone(aws: AwsWorld) -> None:
    first, second, *_ = aws.provider.zones(aws.vm)
    aws.provider.launch(make_request(aws, zone=first))

    assert aws.provider.launch(make_request(aws, zone=second)).zone == second
    assert {fact.token for fact in alive(aws)} == {token_of(0)}
    assert len(alive(aws)) == 2
