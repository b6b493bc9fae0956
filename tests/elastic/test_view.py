"""Which samples a step takes, and who computes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.order import epoch_order, random_streams
from scavenger.elastic.view import (
    Member,
    Position,
    Share,
    View,
    WorkerView,
    plan_step,
    share_of,
    split,
    step_range,
)


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


def test_no_two_random_streams_of_a_job_come_near_each_other() -> None:
    positions = [*range(300), *(10**10 + 7 * n for n in range(300))]
    begins = [state for at in positions for state in random_streams(7, at, 20)]
    room = {(int(first), int(second) >> 12) for first, second in begins}

    assert len(room) == len(begins) == 600 * 20
    assert all(second % 4096 == 0 for _, second in begins)
    # Keras takes both modulo 2^31 - 2
    assert all(0 <= first < 2**31 - 2 and second + 4095 < 2**31 - 2 for first, second in begins)


@pytest.mark.slow
def test_random_streams_are_a_permutation_and_not_a_hash() -> None:
    """In 2^17 draws of 30 bits, a hash would have 8 equal pairs; both numbers together must have none."""
    begins = np.concatenate([random_streams(3, at, 64) for at in range(2**11)])

    assert len(np.unique(begins[:, 0] * 2**18 + begins[:, 1] // 2**12)) == len(begins)
    assert 0.49 < begins[:, 0].mean() / 2**30 < 0.51
    assert abs(np.corrcoef(begins[1:, 0], begins[:-1, 0])[0, 1]) < 0.01


def test_random_streams_follow_from_seed_and_place_alone() -> None:
    state = random_streams(7, 30, 4)

    np.testing.assert_array_equal(state, random_streams(7, 30, 9)[:4])
    for other in (
        random_streams(8, 30, 4),
        random_streams(-7, 30, 4),
        random_streams(7, 30, 4, evaluation=1),
    ):
        assert not np.isin(state[:, 0], other[:, 0]).any()
    with pytest.raises(ValueError, match="4097 random generators"):
        random_streams(7, 30, 4097)
    with pytest.raises(ValueError, match="position -1"):
        random_streams(7, -1, 1)


@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 40), st.integers(0, 20))
def test_a_worker_finds_its_share_of_a_step_as_the_plan_of_all_gives_it(
    workers: int, more: int, dataset_size: int, ahead: int
) -> None:
    whole = view(workers, workers + more)
    for rank in range(workers):
        own = WorkerView(
            whole.number, whole.first_step, whole.global_batch_size, whole.position, workers, rank
        )
        plan = plan_step(whole, whole.first_step + ahead, dataset_size)
        place = step_range(own, whole.first_step + ahead, dataset_size)
        assert place.epoch == plan.epoch
        assert share_of(place.samples, workers, rank) == plan.shares[rank]
        assert own.local_batch_size == -(-(workers + more) // workers)


@pytest.mark.parametrize(("workers", "batch", "rank"), [(0, 4, None), (3, 2, 0), (3, 4, 3), (3, 4, -1)])
def test_a_view_of_a_worker_needs_members_samples_and_a_rank_among_them(
    workers: int, batch: int, rank: int | None
) -> None:
    with pytest.raises(ValueError, match="member"):
        WorkerView(1, 1, batch, Position(), workers, rank)
