"""All VMs of a job are in one zone if that can be had."""

from __future__ import annotations

from scavenger.policy.provisioning.zones import common_first


def test_zones_that_have_all_types_come_first_each_types_order_besides() -> None:
    zones = {"small": ("a", "b", "c"), "large": ("b", "c"), "gpu": ("c",)}

    assert common_first(zones) == {"small": ("c", "b", "a"), "large": ("c", "b"), "gpu": ("c",)}
    assert common_first({"small": ("b", "a")}) == {"small": ("b", "a")}
