"""All VMs of a job are in one zone if that can be had."""

from __future__ import annotations

from typing import Any

import pytest
from made_intents import made_intent

from scavenger.domain.intent import Intent
from scavenger.policy.provisioning.slots import aggregator_slot
from scavenger.policy.provisioning.zones import common_first, workers_elsewhere


def test_zones_that_have_all_types_come_first_each_types_order_besides() -> None:
    zones = {"small": ("a", "b", "c"), "large": ("b", "c"), "gpu": ("c",)}

    assert common_first(zones) == {"small": ("c", "b", "a"), "large": ("c", "b"), "gpu": ("c",)}
    assert common_first({"small": ("b", "a")}) == {"small": ("b", "a")}


def intent(slot: int, zone: str, state: Any = "UP") -> Intent:
    return made_intent(
        {"token": f"{slot}{zone}", "slot": slot, "zone": zone, "run_max_s": 60.0},
        state=state,
        price_usd_per_hour=1.0,
    )


def test_workers_elsewhere_are_those_whose_data_leaves_the_aggregators_zone() -> None:
    here, there, gone = intent(1, "a"), intent(2, "b"), intent(3, "b", "GONE")
    processes = {here.id: 4, there.id: 2, gone.id: 1}

    assert workers_elsewhere([intent(0, "a"), here, there, gone], processes) == 2
    assert workers_elsewhere([intent(0, "a", "GONE"), intent(0, "b"), here, there], processes) == 4
    assert workers_elsewhere([here, there], processes) == 0
    assert workers_elsewhere([here, there], processes, met_in="b") == 4
    assert workers_elsewhere([intent(0, "a"), here, there], processes, met_in="b") == 2


def test_where_aggregators_are_in_several_zones_each_worker_is_elsewhere_in_part() -> None:
    aggregators = [intent(aggregator_slot(index), zone) for index, zone in enumerate("aab")]
    here, there, nowhere = intent(1, "a"), intent(2, "b"), intent(3, "c")
    found = workers_elsewhere(
        [*aggregators, here, there, nowhere], dict.fromkeys((here.id, there.id, nowhere.id), 3)
    )

    assert found == pytest.approx(3 * 1 / 3 + 3 * 2 / 3 + 3)
