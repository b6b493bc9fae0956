"""What a job costs: laws of the estimates and of the ledger."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import built, changed

from scavenger.domain.configuration import Configuration
from scavenger.domain.cost import CostEstimate, Price, Rental, ResourceRates, SpotRisk
from scavenger.domain.vm import VmSeen
from scavenger.errors import ConfigurationError, NoFeasiblePlanError
from scavenger.models.cost import (
    BILLED_MIN_S,
    NEVER_COUNTED,
    estimate,
    expected_time_s,
    ledger,
    loss_per_interruption_s,
    pricing_curves,
    size_price,
)

PAPER_USD = 0.13402
"""Of an e2-standard-4, Scavenger section V."""
E2 = ResourceRates(0.02181159, 0.00292353)
"""Of us-central1, Google's list price."""
START = datetime(2026, 3, 1, tzinfo=UTC)

seconds = st.floats(0, 1e6, allow_nan=False)
positive = st.floats(1e-4, 1e3, allow_nan=False)


def items(made: CostEstimate) -> dict[str, float]:
    return {item.name: item.usd for item in made.items}


@pytest.mark.parametrize("usd", [-1.0, math.nan, math.inf])
def test_a_price_is_never_negative_or_no_number(usd: float) -> None:
    with pytest.raises(ValueError, match="a price must be"):
        Price(usd, "somebody", date(2026, 1, 1))


def test_the_papers_vm_price_is_the_sum_of_its_parts() -> None:
    assert size_price(4, 16, E2) == pytest.approx(PAPER_USD, rel=1e-4)


def test_a_plain_rental_costs_time_times_workers_times_price() -> None:
    made = estimate(built(Rental, workers=8, train_s=7200.0, usd_per_vm_hour=PAPER_USD))

    assert items(made) == {"training": pytest.approx(8 * 2 * PAPER_USD)}
    assert made.time_s == 7200.0
    assert made.not_counted == NEVER_COUNTED


def test_every_item_is_counted_once_and_says_how() -> None:
    rental = built(
        Rental,
        workers=4,
        train_s=3600.0,
        usd_per_vm_hour=2.0,
        workers_per_vm=2,
        spot=True,
        risk=SpotRisk(0.5, pause_s=60.0),
        setup_s=360.0,
        changes=3,
        change_s=120.0,
        aggregators=1,
        usd_per_aggregator_hour=1.0,
        disk_gib=20.0,
        usd_per_gib_hour=0.001,
        usd_per_address_hour=0.004,
        usd_per_spot_address_hour=0.001,
    )
    made = estimate(rental)
    work_s = 3600.0 + 360.0
    busy_s = work_s / (1 - 0.5 / 3600 * 2 * 60.0)

    assert made.time_s == pytest.approx(busy_s + 360.0)
    assert items(made) == pytest.approx(
        {
            "training": 2 * 2.0,
            "changes": 2 * 0.1 * 2.0,
            "interruptions": 2 * (busy_s - work_s) / 3600 * 2.0,
            "set-up": 2 * 0.1 * 2.0,
            "aggregators": made.time_s / 3600,
            "disks": 3 * 20 * 0.001 * made.time_s / 3600,
            "addresses": (2 * 0.001 + 0.004) * made.time_s / 3600,
        }
    )
    assert made.total_usd == pytest.approx(sum(items(made).values()))
    assert all(item.how for item in made.items)


def test_what_is_not_known_is_named_and_not_counted_as_nothing() -> None:
    made = estimate(built(Rental, workers=2, train_s=60.0, usd_per_vm_hour=1.0, spot=True, disk_gib=20.0))

    assert set(items(made)) == {"training"}
    assert any("interruptions" in words for words in made.not_counted)
    assert any("disks" in words for words in made.not_counted)
    with pytest.raises(ValueError, match="unknown is not 0"):
        built(Rental, workers=2, train_s=60.0, usd_per_vm_hour=1.0, aggregators=1)


@given(
    workers=st.integers(1, 64),
    train_s=seconds,
    usd=positive,
    more=st.fixed_dictionaries(
        {},
        optional={
            "setup_s": seconds,
            "disk_gib": positive,
            "usd_per_gib_hour": positive,
            "usd_per_address_hour": positive,
            "change_s": seconds,
        },
    ),
)
def test_no_addition_makes_a_job_cheaper_or_shorter(
    workers: int, train_s: float, usd: float, more: dict[str, Any]
) -> None:
    bare = built(Rental, workers=workers, train_s=train_s, usd_per_vm_hour=usd, changes=2)
    less, full = estimate(bare), estimate(changed(bare, **more))

    assert full.total_usd >= less.total_usd >= 0
    assert full.time_s >= less.time_s


@given(
    work_s=seconds,
    vms=st.integers(1, 32),
    rate=st.floats(0, 0.5),
    more=st.floats(0, 0.5),
    pause_s=st.floats(0, 60.0),
    replace_s=st.floats(0, 300.0),
)
def test_interruptions_only_ever_add_time_and_more_of_them_more(
    work_s: float, vms: int, rate: float, more: float, pause_s: float, replace_s: float
) -> None:
    rare = SpotRisk(rate, pause_s=pause_s, replace_s=replace_s)
    often = replace(rare, interruptions_per_hour=rate + more)

    assert work_s <= expected_time_s(work_s, vms, rare) <= expected_time_s(work_s, vms, often)


def test_the_expected_time_is_the_mean_of_a_simulation() -> None:
    risk, vms, work_s = SpotRisk(0.4, pause_s=30.0, redo_s=40.0, replace_s=400.0), 8, 7200.0
    rng = random.Random(7)
    loss_s = loss_per_interruption_s(vms, risk)

    def one_run() -> float:
        end, at = work_s, 0.0
        while (at := at + rng.expovariate(risk.interruptions_per_hour * vms / 3600.0)) < end:
            end += loss_s
        return end

    runs = [one_run() for _ in range(4000)]
    mean = sum(runs) / len(runs)
    error = math.sqrt(sum((run - mean) ** 2 for run in runs)) / len(runs)

    assert mean == pytest.approx(expected_time_s(work_s, vms, risk), abs=4 * error)
    assert error < 0.01 * mean


def test_a_job_that_is_interrupted_faster_than_it_recovers_is_refused() -> None:
    risk = SpotRisk(10.0, pause_s=120.0)

    assert expected_time_s(60.0, 4, risk) == math.inf
    with pytest.raises(NoFeasiblePlanError, match="never finish"):
        estimate(built(Rental, workers=4, train_s=60.0, usd_per_vm_hour=1.0, spot=True, risk=risk))


# The two ways of pricing: Scavenger, figures 10 and 12.

GRID = [
    (Configuration("e2-standard-4", k, b), 3600.0 * (2.0 + 60.0 / k + 0.1 * k))
    for b in (384, 512, 1024)
    for k in (8, 12, 16, 20)
]


def test_both_pricings_agree_where_memory_is_what_the_vm_has() -> None:
    curves = pricing_curves(
        GRID, usd_per_vm_hour=size_price(4, 16, E2), rates=E2, cpus=4, memory_gib=lambda _: 16.0
    )

    for by_vm, by_size in zip(curves.by_vm, curves.by_size, strict=True):
        assert by_size.cost_usd == pytest.approx(by_vm.cost_usd)
        assert by_size.time_s == by_vm.time_s
    first = curves.by_vm[0]
    assert first.cost_usd == pytest.approx(first.time_s / 3600 * 8 * size_price(4, 16, E2))  # eq. 5


def test_with_memory_by_the_batch_a_larger_batch_makes_the_same_hours_dearer() -> None:
    curves = pricing_curves(
        GRID, usd_per_vm_hour=PAPER_USD, rates=E2, cpus=4, memory_gib=lambda batch: 1.0 + 0.1 * batch
    )
    by_size = {point.configuration: point for point in curves.by_size}
    by_vm = {point.configuration: point for point in curves.by_vm}
    for k in (8, 12, 16, 20):
        small, large = (Configuration("e2-standard-4", k, b) for b in (384, 1024))
        assert by_size[large].time_s == by_size[small].time_s
        assert by_size[large].cost_usd > by_size[small].cost_usd
        assert by_vm[large].cost_usd == by_vm[small].cost_usd


def test_the_cheapest_configuration_moves_with_the_way_of_pricing() -> None:
    """As between figures 10 and 12: a large batch saves time, and is paid for in memory."""
    times = [(c, time_s * (1 + 100 / c.global_batch_size)) for c, time_s in GRID]
    curves = pricing_curves(
        times, usd_per_vm_hour=PAPER_USD, rates=E2, cpus=4, memory_gib=lambda batch: 0.5 * batch
    )
    by_vm, by_size = (
        min(points, key=lambda point: point.cost_usd).configuration
        for points in (curves.by_vm, curves.by_size)
    )

    assert (by_vm.global_batch_size, by_size.global_batch_size) == (1024, 384)
    assert by_size.workers >= by_vm.workers


@given(k=st.integers(1, 32), batch=st.integers(32, 4096), slope=st.floats(0, 1), time_s=seconds)
def test_memory_alone_costs_by_the_global_batch_and_the_time(
    k: int, batch: int, slope: float, time_s: float
) -> None:
    rates = ResourceRates(0.0, 0.003)
    (point,) = pricing_curves(
        [(Configuration("x", k, batch), time_s)],
        usd_per_vm_hour=1.0,
        rates=rates,
        cpus=4,
        memory_gib=lambda local: slope * local,
    ).by_size

    assert point.cost_usd == pytest.approx(slope * batch * 0.003 * time_s / 3600)


def test_a_time_that_is_no_number_has_no_price() -> None:
    with pytest.raises(ValueError, match="no time or memory"):
        pricing_curves(
            [(GRID[0][0], math.nan)], usd_per_vm_hour=1.0, rates=E2, cpus=4, memory_gib=lambda _: 1.0
        )


# The ledger.

KEYS = [("e2-standard-4", "us-central1-a", False), ("e2-standard-4", "us-central1-a", True)]
PRICES = {KEYS[0]: 0.36, KEYS[1]: 0.036}


def seen(number: int, *, spot: bool, start: float | None, lived: float | None) -> VmSeen:
    launched = None if start is None else START + timedelta(seconds=start)
    ended = None if lived is None or launched is None else launched + timedelta(seconds=lived)
    return VmSeen(
        instance_id=f"i-{number}",
        vm="e2-standard-4",
        zone="us-central1-a",
        spot=spot,
        state="running" if ended is None else "gone",
        launched_at=launched,
        ended_at=ended,
    )


fleet = st.lists(
    st.tuples(st.booleans(), st.floats(0, 1e5), st.none() | st.floats(-1e4, 1e5)), max_size=8
).map(lambda rows: [seen(i, spot=s, start=a, lived=d) for i, (s, a, d) in enumerate(rows)])


def test_the_ledger_bills_by_the_second_from_a_minute_on() -> None:
    at = START + timedelta(hours=1)
    vms = [
        seen(0, spot=False, start=0, lived=100),
        seen(1, spot=False, start=0, lived=5),
        seen(2, spot=True, start=0, lived=None),
    ]
    made = ledger(vms, PRICES, at=at)

    assert [vm.billed_s for vm in made.vms] == [100.0, BILLED_MIN_S, 3600.0]
    assert [vm.usd for vm in made.vms] == pytest.approx([0.01, 0.006, 0.036])
    assert [vm.ended for vm in made.vms] == [True, True, False]
    assert made.total_usd == pytest.approx(0.052)


@given(vms=fleet, at=st.floats(-1e4, 2e5), later=st.floats(0, 1e5))
def test_what_was_paid_is_never_negative_and_never_shrinks(
    vms: list[VmSeen], at: float, later: float
) -> None:
    now = START + timedelta(seconds=at)
    first = ledger(vms, PRICES, at=now)
    second = ledger(vms, PRICES, at=now + timedelta(seconds=later))

    assert 0 <= first.total_usd <= second.total_usd
    assert all(a.usd <= b.usd for a, b in zip(first.vms, second.vms, strict=True))


@given(vms=fleet, at=st.floats(0, 2e5), cut=st.integers(0, 8))
def test_the_ledger_of_two_groups_is_the_sum_of_theirs(vms: list[VmSeen], at: float, cut: int) -> None:
    now = START + timedelta(seconds=at)
    whole, *parts = (ledger(group, PRICES, at=now) for group in (vms, vms[:cut], vms[cut:]))

    assert whole.total_usd == pytest.approx(sum(part.total_usd for part in parts))
    assert {vm for part in parts for vm in part.vms} == set(whole.vms)


@given(vms=fleet, at=st.floats(0, 2e5))
def test_seeing_a_vm_twice_does_not_bill_it_twice(vms: list[VmSeen], at: float) -> None:
    now = START + timedelta(seconds=at)

    assert ledger([*vms, *vms], PRICES, at=now) == ledger(vms, PRICES, at=now)


def test_a_machine_that_costs_nothing_more_has_a_bill_of_nothing() -> None:
    made = ledger([seen(0, spot=True, start=0, lived=60)], {KEYS[1]: 0.0}, at=START + timedelta(hours=1))

    assert [vm.usd for vm in made.vms] == [0.0]


def test_a_vm_without_a_launch_time_is_named_not_free() -> None:
    made = ledger([seen(3, spot=False, start=None, lived=None)], PRICES, at=START)

    assert (made.vms, made.unknown) == ((), ("i-3",))


@pytest.mark.parametrize(("price", "complaint"), [(None, "not known"), (-1.0, "-1"), (math.nan, "nan")])
def test_a_vm_without_a_sound_price_is_an_error(price: float | None, complaint: str) -> None:
    prices = {} if price is None else {KEYS[1]: price}
    with pytest.raises(ConfigurationError, match=f"e2-standard-4 in us-central1-a is {complaint}: VM i-0"):
        ledger([seen(0, spot=True, start=0, lived=60)], prices, at=START)


def test_one_vm_is_told_as_one() -> None:
    rental = built(
        Rental,
        workers=1,
        train_s=60.0,
        usd_per_vm_hour=1.0,
        aggregators=1,
        usd_per_aggregator_hour=0.1,
        disk_gib=20.0,
        usd_per_gib_hour=0.0001,
    )
    told = {item.name: item.how for item in estimate(rental).items}

    assert told["training"].startswith("1 VM x 60 s")
    assert told["aggregators"].startswith("1 VM on demand x")
    assert told["disks"].startswith("2 disks of 20 GiB x")
