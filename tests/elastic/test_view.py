"""Which samples a step takes, and who computes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.order import epoch_order, sample_seed
from scavenger.elastic.view import Member, Position, Share, View, plan_step, split


def view(workers: int, batch: int, *, first_step: int = 1, position: Position | None = None) -> View:
    members = tuple(Member(f"w{i}", i) for i in range(workers))
    return View(1, first_step, batch, members, position or Position())


@given(start=st.integers(0, 1000), samples=st.integers(0, 500), parts=st.integers(1, 40))
def test_shares_follow_each_other_and_differ_by_at_most_one_sample(
    start: int, samples: int, parts: int
) -> None:
    shares = split(start, samples, parts)
    sizes = [share.samples for share in shares]

    assert [position for s in shares for position in range(s.start, s.stop)] == list(
        range(start, start + samples)
    )
    assert len(shares) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(data=st.data())
def test_a_plan_is_what_counting_step_by_step_gives(data: st.DataObject) -> None:
    dataset_size = data.draw(st.integers(1, 60))
    workers = data.draw(st.integers(1, 5))
    batch = data.draw(st.integers(workers, 80))
    start = Position(data.draw(st.integers(0, 3)), data.draw(st.integers(0, dataset_size - 1)))
    first = data.draw(st.integers(1, 50))
    ahead = data.draw(st.integers(0, 80))

    epoch, consumed = start.epoch, start.consumed
    for _ in range(ahead):
        consumed += batch
        if consumed >= dataset_size:
            epoch, consumed = epoch + 1, 0
    plan = plan_step(view(workers, batch, first_step=first, position=start), first + ahead, dataset_size)

    assert (plan.epoch, plan.shares[0].start) == (epoch, consumed)
    assert plan.samples == min(batch, dataset_size - consumed)
    assert plan.ends_epoch == (consumed + batch >= dataset_size)
    assert plan.next_position == (
        Position(epoch + 1, 0) if plan.ends_epoch else Position(epoch, consumed + batch)
    )


def test_the_last_step_of_an_epoch_leaves_some_workers_without_a_sample() -> None:
    plan = plan_step(view(3, 8), 2, 9)

    assert plan.shares == (Share(8, 9), Share(9, 9), Share(9, 9))
    assert plan.ends_epoch


def test_a_step_before_the_view_has_no_plan() -> None:
    with pytest.raises(ValueError, match="before view"):
        plan_step(view(1, 4, first_step=5), 4, 10)


@pytest.mark.parametrize(("workers", "batch"), [(0, 4), (3, 2)])
def test_a_view_gives_every_one_of_its_members_a_sample(workers: int, batch: int) -> None:
    with pytest.raises(ValueError, match="a view"):
        view(workers, batch)


@given(seed=st.integers(), epoch=st.integers(0, 1000), dataset_size=st.integers(1, 300))
def test_an_epoch_visits_every_sample_once_and_always_in_the_same_order(
    seed: int, epoch: int, dataset_size: int
) -> None:
    order = epoch_order(seed, epoch, dataset_size)

    assert sorted(order) == list(range(dataset_size))
    np.testing.assert_array_equal(order, epoch_order(seed, epoch, dataset_size))


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(10) for epoch in range(10)}

    assert len(orders) == 100


def test_there_is_no_order_of_nothing() -> None:
    with pytest.raises(ValueError, match="no order"):
        epoch_order(0, 0, 0)
    with pytest.raises(ValueError, match="no order"):
        epoch_order(0, -1, 5)


def test_seeds_of_shares_differ_by_step_and_place_and_fit_into_32_bits() -> None:
    seeds = {sample_seed(7, step, start) for step in range(50) for start in range(0, 200, 10)}

    assert len(seeds) == 1000
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert sample_seed(7, 3, 10) == sample_seed(7, 3, 10)
    assert sample_seed(-1, 3, 10) != sample_seed(1, 3, 10)
