"""When workers are spot VMs: laws of the decision."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.models.cost import expected_time_s
from scavenger.policy.spot import RATE_UNKNOWN, SpotTerms, decide_spot, hourly_rate_bound

C5 = SpotTerms(
    vm="c5.xlarge",
    on_demand_usd_per_hour=0.17,
    spot_usd_per_hour=0.0748,
    interrupted_monthly=0.05,
    pause_s=2.0,
    replace_s=120.0,
)
RANGE = (1, 16)


def test_a_machine_that_costs_nothing_is_no_spot_vm() -> None:
    for mode in ("auto", "always"):
        decision = decide_spot(replace(C5, on_demand_usd_per_hour=0.0), mode=mode, workers=RANGE)
        assert not decision.spot
        assert decision.reason == "c5.xlarge: on demand, as it costs nothing"


terms = st.builds(
    SpotTerms,
    vm=st.just("vm"),
    on_demand_usd_per_hour=st.floats(0.01, 50),
    spot_usd_per_hour=st.floats(0.01, 50),
    interrupted_monthly=st.none() | st.floats(0, 0.99),
    pause_s=st.floats(0, 600),
    replace_s=st.floats(0, 3600),
    redo_s=st.floats(0, 600),
    fixed_usd_per_hour=st.floats(0, 5),
    workers_per_vm=st.integers(1, 8),
)
ranges = st.tuples(st.integers(1, 64), st.integers(0, 64)).map(lambda pair: (pair[0], pair[0] + pair[1]))
deadlines = st.none() | st.floats(60, 1e6)


def test_a_cheap_type_that_is_seldom_taken_is_rented_as_spot_and_the_numbers_are_told() -> None:
    decision = decide_spot(C5, mode="auto", workers=RANGE)

    assert decision.spot
    assert decision.price_factor == pytest.approx(0.44, abs=0.001)
    assert decision.risk is not None
    assert decision.risk.interruptions_per_hour == hourly_rate_bound(0.05)
    for number in ("$0.0748", "$0.17", "up to 5 % a month", "44 %"):
        assert number in decision.reason


def test_an_unknown_rate_is_bounded_by_the_worst_that_was_seen_and_said() -> None:
    unknown = replace(C5, interrupted_monthly=None)
    decision = decide_spot(unknown, mode="auto", workers=RANGE)

    assert decision.risk is not None
    assert decision.risk.interruptions_per_hour == RATE_UNKNOWN
    assert "unknown, taken as 0.5" in decision.reason
    assert not decide_spot(replace(unknown, replace_s=7200.0), mode="auto", workers=RANGE).spot


def test_the_bound_is_above_what_the_month_tells() -> None:
    assert -math.log1p(-0.2) / 730 < hourly_rate_bound(0.2) < RATE_UNKNOWN


def test_an_unknown_spot_price_is_never_taken_for_a_good_one() -> None:
    blind = replace(C5, spot_usd_per_hour=None)

    assert not decide_spot(blind, mode="auto", workers=RANGE).spot
    always = decide_spot(blind, mode="always", workers=RANGE)
    assert always.spot
    assert always.price_factor is not None
    assert always.price_factor >= 1.0
    assert f"planned with the price on demand, ${C5.on_demand_usd_per_hour:g} per hour" in always.reason


def test_what_is_on_demand_anyhow_takes_from_the_saving() -> None:
    """One small worker beside a dear aggregator: a quarter off the little is not worth the risk."""
    small = replace(C5, spot_usd_per_hour=0.13)

    assert decide_spot(small, mode="auto", workers=(1, 1)).spot
    assert not decide_spot(replace(small, fixed_usd_per_hour=1.0), mode="auto", workers=(1, 1)).spot


def test_a_deadline_that_interruptions_may_cost_keeps_the_job_on_demand() -> None:
    slow = replace(C5, interrupted_monthly=None, replace_s=600.0)  # some 9 % slower

    def decide(deadline_s: float | None, work_s: float | None) -> bool:
        return decide_spot(slow, mode="auto", workers=(1, 1), deadline_s=deadline_s, work_s=work_s).spot

    assert decide(None, None)
    assert not decide(4000.0, None)
    assert not decide(4000.0, 3900.0)
    assert decide(4000.0, 3000.0)


def test_always_and_never_do_not_decide() -> None:
    dear = replace(C5, spot_usd_per_hour=0.3)

    assert decide_spot(dear, mode="always", workers=RANGE).spot
    assert not decide_spot(C5, mode="never", workers=RANGE).spot


@given(terms, ranges, deadlines, st.floats(1, 3))
def test_a_dearer_spot_price_never_speaks_for_spot(
    one: SpotTerms, workers: tuple[int, int], deadline_s: float | None, times: float
) -> None:
    assert one.spot_usd_per_hour is not None
    dearer = replace(one, spot_usd_per_hour=one.spot_usd_per_hour * times)

    _no_better(one, dearer, workers, deadline_s)


@given(terms, ranges, deadlines, st.floats(0, 0.99))
def test_more_interruptions_never_speak_for_spot(
    one: SpotTerms, workers: tuple[int, int], deadline_s: float | None, rate: float
) -> None:
    known = [rate for rate in (one.interrupted_monthly, rate) if rate is not None]
    _no_better(
        replace(one, interrupted_monthly=min(known)),
        replace(one, interrupted_monthly=max(known)),
        workers,
        deadline_s,
    )


@given(terms, ranges, deadlines, st.floats(0, 3600), st.floats(0, 600))
def test_slower_replacement_never_speaks_for_spot(
    one: SpotTerms, workers: tuple[int, int], deadline_s: float | None, replace_s: float, pause_s: float
) -> None:
    slower = replace(one, replace_s=one.replace_s + replace_s, pause_s=one.pause_s + pause_s)

    _no_better(one, slower, workers, deadline_s)


def _no_better(
    better: SpotTerms, worse: SpotTerms, workers: tuple[int, int], deadline_s: float | None
) -> None:
    first = decide_spot(better, mode="auto", workers=workers, deadline_s=deadline_s)
    second = decide_spot(worse, mode="auto", workers=workers, deadline_s=deadline_s)
    assert first.price_factor is not None
    assert second.price_factor is not None
    assert first.price_factor <= second.price_factor * (1 + 1e-12)
    assert first.spot or not second.spot


@given(terms, st.integers(1, 64))
def test_the_factor_is_the_ratio_of_the_expected_costs_of_one_hour_of_work(
    one: SpotTerms, workers: int
) -> None:
    decision = decide_spot(one, mode="always", workers=(workers, workers))
    assert decision.risk is not None
    assert one.spot_usd_per_hour is not None
    vms = -(-workers // one.workers_per_vm)
    time_s = expected_time_s(3600.0, vms, decision.risk)
    spot = time_s / 3600.0 * (vms * one.spot_usd_per_hour + one.fixed_usd_per_hour)

    on_demand = vms * one.on_demand_usd_per_hour + one.fixed_usd_per_hour
    assert decision.price_factor == pytest.approx(spot / on_demand)
