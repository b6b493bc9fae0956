"""Spot VMs are metered at what they cost now, as it is read each hour, and never at more than they may cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain.intent import Intent, VmCharges
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmTags
from scavenger.policy.provisioning.spot_prices import metered_usd_per_hour, price_changes, spot_types

usd = st.floats(0.01, 10.0)
zones = st.sampled_from(["a", "b"])
read = st.dictionaries(st.tuples(st.sampled_from(["small", "large"]), zones), usd)
vms = st.builds(
    lambda vm, zone, spot, price, most, up: Intent(
        VmRequest(VmTags("me", "t", "job", 1, 0), vm, zone, spot, LaunchTemplate(1.0), usd_per_hour_max=most),
        "aws",
        "us-east-1",
        VmCharges(price, 0.0),
        state="UP" if up else "DELETING",
    ),
    st.sampled_from(["small", "large"]),
    zones,
    st.booleans(),
    usd,
    st.none() | usd,
    st.booleans(),
)


@given(vms, usd, read)
def test_a_vm_is_metered_at_what_was_read_and_at_no_more_than_it_may_cost(
    one: Intent, named_usd: float, prices: dict[tuple[str, str], float]
) -> None:
    metered, most = metered_usd_per_hour(one, named_usd, prices), one.request.usd_per_hour_max
    place = (one.request.vm, one.request.zone)

    if not one.request.spot:
        assert metered == named_usd
        return
    assert most is None or metered <= most
    if most is None or prices.get(place, named_usd) <= most:
        assert metered == prices.get(place, named_usd)


@given(st.lists(vms, max_size=6), read, read)
def test_a_change_is_told_once_for_each_type_and_zone_of_spot_vms_that_run_and_none_for_none(
    intents: list[Intent], before: dict[tuple[str, str], float], now: dict[tuple[str, str], float]
) -> None:
    told = price_changes(intents, before, now)

    assert len({alarm.about for alarm in told}) == len(told)
    assert {alarm.about.split()[0] for alarm in told} <= spot_types(intents)
    assert price_changes(intents, now, now) == []
    assert price_changes([replace(one, state="GONE") for one in intents], before, now) == []


def test_a_change_is_told_with_both_prices() -> None:
    request = VmRequest(VmTags("me", "t", "job", 1, 0), "small", "a", True, LaunchTemplate(1.0))
    one = Intent(request, "aws", "us-east-1", VmCharges(0.3, 0.0), state="UP")

    (alarm,) = price_changes([one, one], {}, {("small", "a"): 0.9})

    assert alarm.kind == "spot_price"
    assert "small in a is $0.9000 an hour now, not $0.3000" in alarm.message
    assert metered_usd_per_hour(one, 0.3, {("small", "a"): 0.9}) == pytest.approx(0.9)
