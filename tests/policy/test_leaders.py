"""Where a job is led, and who may reach its leader."""

from __future__ import annotations

from typing import Literal

import pytest

from scavenger.domain.configuration import Offer
from scavenger.domain.cost import VmExtras
from scavenger.policy.leaders import LeaderPlan, choose_leader, ingress_changes, what_is_lost


@pytest.mark.parametrize(
    ("asked", "provider", "address", "at"),
    [
        (None, "aws", "", "vm"),
        (None, "aws", "10.0.0.4", "here"),
        (None, "gcp", "", "vm"),
        (None, "gcp", "10.128.0.4", "here"),
        (None, "kubernetes", "", "vm"),
        (None, "kubernetes", "10.8.0.4", "here"),
        (None, "local", "", "here"),
        ("vm", "aws", "10.0.0.4", "vm"),
        ("here", "aws", "", "here"),
    ],
)
def test_a_job_is_led_by_a_vm_where_none_is_known_to_reach_this_machine(
    asked: Literal["here", "vm"] | None, provider: str, address: str, at: str
) -> None:
    choice = choose_leader(asked, provider, address=address, address_variable="SCAVENGER_ADDRESS")

    assert choice.at == at
    if asked is None and provider != "local":
        assert "SCAVENGER_ADDRESS" in choice.reason


def test_a_changed_address_replaces_the_rule_of_the_one_before() -> None:
    changes = ingress_changes({"203.0.113.7/32", "203.0.113.8/32"}, ("203.0.113.8/32", "198.51.100.1/32"))

    assert changes.add == ("198.51.100.1/32",)
    assert changes.remove == ("203.0.113.7/32",)
    assert ingress_changes(["a"], ["a"]).add == ingress_changes(["a"], ["a"]).remove == ()


def test_what_is_lost_depends_on_where_checkpoints_are() -> None:
    assert what_is_lost("s3://bucket/checkpoints", 120.0).endswith("at most 2 min")
    assert what_is_lost("", 120.0).startswith("everything")
    assert what_is_lost("./checkpoints", 120.0).startswith("everything")


def test_the_price_of_a_leader_has_its_disk() -> None:
    offer = Offer("aws", "us-east-1", "c6a.large", 0.0765, "test", cpus=2, memory_bytes=2**32)

    assert LeaderPlan("why", offer, VmExtras(0.002)).usd_per_hour == pytest.approx(0.0785)
