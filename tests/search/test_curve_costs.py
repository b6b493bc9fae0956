"""Curves under the terms of a cloud: what is added, to what, and that it adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import arrays_of, built
from properties import examples
from spaces import CLOUD, SPACE, job_model

from scavenger.domain.configuration import SearchSpace
from scavenger.domain.cost import CostTerms, SharedCosts, SpotRisk
from scavenger.domain.curve import FloatArray, TradeoffCurve
from scavenger.models.cost import NEVER_COUNTED, estimate_of, expected_time_s
from scavenger.models.job_model import NOT_COUNTED
from scavenger.models.statistical import StatisticalModel
from scavenger.search.curve import build_curve, repriced

MODEL = job_model()
SPOT_SPACE = SearchSpace((replace(CLOUD, spot=True),), SPACE.workers, SPACE.global_batch_sizes)
RISK = SpotRisk(0.4, pause_s=30.0, replace_s=300.0)
TERMS = built(
    CostTerms,
    aggregators=1,
    usd_per_aggregator_hour=0.17,
    disk_gib=30.0,
    usd_per_gib_hour=1e-4,
    setup_s=200.0,
    risks={"vm": RISK},
)

some_terms = st.builds(
    CostTerms,
    shared=st.builds(
        SharedCosts,
        aggregators=st.integers(0, 3),
        usd_per_aggregator_hour=st.floats(0.01, 5),
        disk_gib=st.floats(0, 500),
        usd_per_gib_hour=st.none() | st.floats(1e-5, 1e-3),
        usd_per_address_hour=st.floats(0, 0.01),
        usd_per_spot_address_hour=st.floats(0, 0.01),
    ),
    setup_s=st.floats(0, 1000),
    risks=st.just({})
    | st.builds(
        lambda rate, pause_s, replace_s: {"vm": SpotRisk(rate, pause_s=pause_s, replace_s=replace_s)},
        st.floats(0, 0.5),
        st.floats(0, 60),
        st.floats(0, 600),
    ),
    ready=st.just({}) | st.integers(0, 9).map(lambda n: {"vm": n}),
    elsewhere=st.floats(0, 20),
    traffic_usd_per_step=st.floats(0, 0.1),
)


def same(one: TradeoffCurve, other: TradeoffCurve) -> bool:
    return all(map(np.array_equal, arrays_of(one), arrays_of(other)))


def test_epochs_are_predicted_once_for_each_batch_size_whatever_the_vm_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weighing the laws of epochs is most of the work of a curve."""
    asked: list[int] = []
    predict = StatisticalModel.predict

    def counted(self: StatisticalModel, batch: FloatArray, **more: float) -> tuple[FloatArray, FloatArray]:
        asked.append(len(batch))
        return predict(self, batch, **more)

    monkeypatch.setattr(StatisticalModel, "predict", counted)
    types = tuple(replace(CLOUD, vm=f"vm-{index}") for index in range(4))
    build_curve(MODEL, SearchSpace(types, SPACE.workers, SPACE.global_batch_sizes), costs=TERMS)

    assert asked == [len(SPACE.global_batch_sizes)]


def test_terms_that_hold_nothing_change_no_figure() -> None:
    assert same(build_curve(MODEL, SPACE), build_curve(MODEL, SPACE, costs=CostTerms()))


@examples(20)
@given(some_terms)
def test_the_estimate_of_every_point_adds_up_to_its_cost_and_its_time(terms: CostTerms) -> None:
    curve = build_curve(MODEL, SPOT_SPACE, costs=terms)

    for point in list(curve)[::3]:
        made = estimate_of(point, SPOT_SPACE.offers[0], terms)
        assert made.total_usd == pytest.approx(point.cost_usd)
        assert made.time_s == pytest.approx(point.time_s)


@examples(20)
@given(some_terms, st.floats(0.01, 1))
def test_nothing_that_is_counted_makes_a_configuration_faster_or_cheaper(
    terms: CostTerms, remaining: float
) -> None:
    bare, full = build_curve(MODEL, SPOT_SPACE), build_curve(MODEL, SPOT_SPACE, costs=terms)

    assert (full.time_s >= bare.time_s).all()
    assert (full.cost_usd >= bare.cost_usd).all()
    assert (full.time_interval_s.low <= full.time_s).all()
    assert (full.time_s <= full.time_interval_s.high).all()
    assert (full.rest_s(remaining) >= bare.rest_s(remaining) * (1 - 1e-12)).all()
    assert (full.rest_s(remaining) <= full.time_s * (1 + 1e-12)).all()
    assert (full.rest_usd(remaining) <= full.cost_usd * (1 + 1e-12)).all()


@given(some_terms, st.integers(1, 16))
def test_aggregator_vms_cost_their_number_times_price_times_time_and_nothing_else_changes(
    terms: CostTerms, vms: int
) -> None:
    none = build_curve(MODEL, SPOT_SPACE, costs=replace(terms, shared=replace(terms.shared, aggregators=0)))
    shared = replace(terms.shared, aggregators=vms)
    each_usd_per_hour = (shared.usd_per_aggregator_hour or 0.0) + shared.extras().usd_per_hour

    for before, after in zip(
        none, build_curve(MODEL, SPOT_SPACE, costs=replace(terms, shared=shared)), strict=True
    ):
        assert after.time_s == before.time_s
        added = vms * each_usd_per_hour * after.time_s / 3600.0
        assert after.cost_usd == pytest.approx(before.cost_usd + added)


def test_a_model_that_the_aggregators_do_not_hold_leaves_only_what_was_measured() -> None:
    why = "the model is too large for the memory of 1 aggregator VM c5.large of 4 GiB"
    curve = build_curve(MODEL, SPOT_SPACE, costs=TERMS, too_large_model=why)

    for point in curve:
        assert (point.excluded == why) == (not point.measured)
    assert {point.measured for point in curve} == {True, False}


def test_traffic_between_zones_is_paid_by_the_step_for_each_worker_elsewhere() -> None:
    bare = build_curve(MODEL, SPOT_SPACE, costs=CostTerms())
    terms = CostTerms(elsewhere=2, traffic_usd_per_step=0.001)
    for before, after in zip(bare, build_curve(MODEL, SPOT_SPACE, costs=terms), strict=True):
        steps = before.time_s / before.step_time_s
        added = min(2, before.configuration.workers) * 0.001 * steps
        assert after.cost_usd - before.cost_usd == pytest.approx(added)
        (item,) = (
            item
            for item in estimate_of(after, SPOT_SPACE.offers[0], terms).items
            if item.name == "traffic between zones"
        )
        assert item.usd == pytest.approx(added, rel=1e-6)
    assert any("traffic of 2 workers in another zone" in note for note in MODEL.all_notes(terms))


def test_a_point_costs_its_time_times_all_that_is_paid_by_the_hour() -> None:
    bare, curve = build_curve(MODEL, SPOT_SPACE), build_curve(MODEL, SPOT_SPACE, costs=TERMS)
    at = int(
        np.flatnonzero((curve.configurations.workers == 4) & (curve.configurations.global_batch_size == 256))[
            0
        ]
    )
    busy_s = expected_time_s(float(bare.time_s[at]), 4, RISK)

    assert curve.time_s[at] == pytest.approx(200.0 + busy_s)
    hourly = 4 * (0.4 + 30 * 1e-4) + 0.17 + 30 * 1e-4
    assert curve.cost_usd[at] == pytest.approx((200.0 + busy_s) / 3600 * hourly)
    items = {item.name: item.usd for item in estimate_of(curve[at], SPOT_SPACE.offers[0], TERMS).items}
    assert items["training"] == pytest.approx(float(bare.cost_usd[at]))
    assert set(items) == {"training", "interruptions", "set-up", "aggregators", "disks"}


def test_set_up_is_due_once_whatever_is_left_and_only_where_a_vm_is_missing() -> None:
    curve = build_curve(MODEL, SPOT_SPACE, costs=replace(TERMS, risks={}, ready={"vm": 2}))
    assert curve.setup_s is not None

    assert (curve.setup_s == np.where(curve.configurations.workers > 2, 200.0, 0.0)).all()
    assert curve.rest_s(0.0) == pytest.approx(curve.setup_s)
    assert curve[0].rest_s(0.25) == pytest.approx(0.25 * curve.time_s[0])
    last = len(curve) - 1
    assert curve[last].rest_s(0.25) == pytest.approx(200.0 + 0.25 * (curve.time_s[last] - 200.0))


def test_limits_are_held_against_the_set_up_that_is_still_due_in_full() -> None:
    """A tenth of the way left: the training would fit, the set-up does not."""
    bare = build_curve(MODEL, SPACE)
    limit = 0.1 * float(bare.time_s.max()) + 100.0
    terms = replace(TERMS, risks={})
    late = build_curve(MODEL, SPACE, costs=terms, deadline_s=limit, remaining=0.1)
    there = build_curve(MODEL, SPACE, costs=replace(terms, ready={"vm": 8}), deadline_s=limit, remaining=0.1)

    slowest = int(np.argmax(bare.time_s))
    assert late[slowest].excluded.startswith("past the deadline")
    assert not there[slowest].excluded


def test_interruptions_that_come_faster_than_work_gets_done_rule_a_configuration_out() -> None:
    storm = replace(TERMS, risks={"vm": SpotRisk(1.0, pause_s=600.0)})
    curve = build_curve(MODEL, SPOT_SPACE, costs=storm, deadline_s=1e9, budget_usd=1e9)

    assert {point.excluded for point in curve if point.configuration.workers == 8} == {
        "interrupted faster than work gets done"
    }
    assert all(not point.excluded for point in curve if point.configuration.workers < 4)
    assert np.isfinite(curve.rest_usd(0.5)[curve.marks.excluded == 0]).all()


def test_fixed_costs_make_more_workers_cheaper_beside_fewer() -> None:
    """What is paid by the hour beside the workers is shared by all: the cheapest cluster grows."""
    bare, dear = (
        build_curve(MODEL, SPACE, costs=costs)
        for costs in (None, built(CostTerms, aggregators=1, usd_per_aggregator_hour=4.0))
    )

    assert (
        bare.configurations.workers[bare.cost_usd.argmin()]
        < dear.configurations.workers[dear.cost_usd.argmin()]
    )


def test_the_notes_say_what_is_counted_and_what_is_not() -> None:
    bare, curve = build_curve(MODEL, SPOT_SPACE), build_curve(MODEL, SPOT_SPACE, costs=TERMS)

    assert NOT_COUNTED in bare.notes
    assert NOT_COUNTED not in curve.notes
    counted = next(note for note in curve.notes if note.startswith("counted"))
    omitted = next(note for note in curve.notes if note.startswith("not counted"))
    for words in ("set-up (200 s", "1 aggregator VM", "boot disks (30 GiB)", "vm 0.4"):
        assert words in counted
    assert omitted == "not counted: " + "; ".join(NEVER_COUNTED)

    blind = built(CostTerms, disk_gib=20.0)
    (words,) = (n for n in build_curve(MODEL, SPOT_SPACE, costs=blind).notes if n.startswith("not counted"))
    for unknown in ("interruptions of vm", "boot disks", "starting the workers", "aggregators"):
        assert unknown in words


def test_another_price_makes_another_front_and_lifts_what_the_budget_ruled_out() -> None:
    curve = build_curve(MODEL, SPACE, budget_usd=0.01)
    assert (curve.marks.excluded > 0).any()
    by_size = repriced(curve, curve.cost_usd * (1 + curve.configurations.global_batch_size / 256))

    assert (by_size.marks.excluded == 0).all()
    assert by_size.marks.on_front.any()
    ratio = by_size.cost_interval_usd.high / by_size.cost_usd
    assert ratio == pytest.approx(curve.cost_interval_usd.high / curve.cost_usd)


def test_what_is_kept_of_the_budget_for_the_end_of_the_vms_cannot_be_planned_with() -> None:
    whole = build_curve(MODEL, SPACE, costs=TERMS)
    dearest = int(np.argmax(whole.cost_usd))
    # what it costs, and what it costs for a quarter of an hour more
    rate = whole.cost_usd[dearest] / whole.time_s[dearest]
    for budget_usd, ruled_out in (
        (whole.cost_usd[dearest] + 910.0 * rate, False),
        (whole.cost_usd[dearest] + 890.0 * rate, True),
    ):
        curve = build_curve(MODEL, SPACE, costs=replace(TERMS, reserve_s=900.0), budget_usd=float(budget_usd))
        assert curve[dearest].excluded.startswith("over the budget") is ruled_out
        assert curve.cost_usd[dearest] == whole.cost_usd[dearest]


def test_a_share_of_a_pool_is_paid_by_the_step_whatever_the_number_of_workers() -> None:
    bare, terms = build_curve(MODEL, SPOT_SPACE, costs=CostTerms()), CostTerms(aggregation_usd_per_step=0.001)
    for before, after in zip(bare, build_curve(MODEL, SPOT_SPACE, costs=terms), strict=True):
        added = 0.001 * before.time_s / before.step_time_s
        assert after.cost_usd - before.cost_usd == pytest.approx(added)
    (words,) = (note for note in MODEL.all_notes(terms) if note.startswith("counted"))
    assert "share of the pool's processors ($0.001 per step)" in words
    assert not any("aggregators" in note for note in MODEL.all_notes(terms) if note.startswith("not counted"))


def test_an_old_price_of_a_gpu_comes_first_and_all_prices_come_with_their_sources() -> None:
    """The first note stands below the table by which a run is confirmed."""
    old, price = (
        "the price of vm, $0.5 an hour, is 120 days old (list)",
        "vm $0.5 per hour (list, 120 days old)",
    )
    curve = build_curve(MODEL, SPACE, costs=CostTerms(sources=(price,), old_prices=old))

    assert curve.notes[0] == old
    assert f"prices: {price}" in curve.notes
    assert not any(note.startswith("prices") for note in build_curve(MODEL, SPACE, costs=TERMS).notes)
