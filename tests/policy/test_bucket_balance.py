"""Buckets leave an aggregator that is slower than the others: when, how many, and not again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from properties import examples

from scavenger.policy.bucket_balance import (
    DEFAULT_RULES,
    Balance,
    BalanceMove,
    BalanceRules,
    Measured,
    balanced,
    observe,
)

RULES = DEFAULT_RULES
MB = 1_000_000
SIZES = (4 * MB,) * 24

Rates = Callable[[float], Sequence[float]]
"""Bytes per second of each aggregator at a time."""


@dataclass
class Job:
    """A job whose aggregators each have a link of their own; a measurement each second, and moves take two seconds."""

    rates: Rates
    holders: tuple[int, ...]
    sizes: Sequence[int] = SIZES
    compute_s: float = 0.2
    delay_s: Sequence[float] = (0.0, 0.0, 0.0)
    noise: float = 0.0
    rules: BalanceRules = RULES
    view: int = 1
    at_s: float = 0.0
    balance: Balance = field(default_factory=Balance)
    moves: list[tuple[float, BalanceMove]] = field(default_factory=list)
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def waits(self) -> dict[int, float]:
        rates = self.rates(self.at_s)
        return {
            index: self.delay_s[index]
            + sum(size for holder, size in zip(self.holders, self.sizes, strict=True) if holder == index)
            / rates[index]
            for index in sorted({*self.holders})
        }

    @property
    def step_time_s(self) -> float:
        return self.compute_s + max(self.waits().values())

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.at_s += 1.0
            waits = {
                index: wait * self._random.uniform(1 - self.noise, 1 + self.noise)
                for index, wait in self.waits().items()
            }
            seen = Measured(self.at_s, self.view, self.compute_s + max(waits.values()), waits)
            self.balance, move = observe(self.balance, seen, self.holders, self.sizes, self.rules)
            if move is not None:
                self.moves.append((self.at_s, move))
                self.holders, self.at_s = move.holders, self.at_s + 2.0


def even(aggregators: int, buckets: int = len(SIZES)) -> tuple[int, ...]:
    return tuple(bucket % aggregators for bucket in range(buckets))


@given(
    rates=st.lists(st.floats(1e8, 1.1e8), min_size=2, max_size=3),
    seed=st.integers(0, 100),
    noise=st.floats(0.0, 0.15),
)
@examples(8)
def test_nothing_moves_while_steps_wait_about_equally_for_all(
    rates: list[float], seed: int, noise: float
) -> None:
    job = Job(lambda at: rates, even(len(rates)), noise=noise, _random=np.random.default_rng(seed))
    job.run(100)
    assert not job.moves


@given(
    slow=st.integers(0, 2),
    factor=st.floats(2.5, 50.0),
    aggregators=st.integers(2, 3),
    compute_s=st.floats(0.01, 0.1),
    seed=st.integers(0, 100),
)
@examples(10)
def test_steps_take_about_as_long_as_they_can_soon_after_a_link_is_congested(
    slow: int, factor: float, aggregators: int, compute_s: float, seed: int
) -> None:
    slow %= aggregators
    rates = [1e8 / factor if index == slow else 1e8 for index in range(aggregators)]
    job = Job(
        lambda at: [1e8] * aggregators if at < 30.0 else rates,
        even(aggregators),
        compute_s=compute_s,
        noise=0.05,
        _random=np.random.default_rng(seed),
    )
    job.run(30)
    assert not job.moves
    job.run(150)
    best = compute_s + sum(SIZES) / sum(rates)
    assert job.step_time_s <= 1.35 * best
    assert 1 <= len(job.moves) <= 3
    assert not any(move.undoes for _, move in job.moves)
    assert f"for aggregator-{slow} " in job.moves[0][1].reason


def test_an_aggregator_that_is_slow_whatever_it_holds_gives_up_everything() -> None:
    job = Job(lambda at: [1e8, 1e8], even(2), delay_s=(0.0, 3.0))
    job.run(400)
    assert {*job.holders} == {0}
    assert "all moves to them" in job.moves[-1][1].reason


def test_a_link_that_recovers_gets_its_part_again() -> None:
    job = Job(lambda at: [1e8, 1e8 if not 20 < at < 120 else 2e7], even(2))
    job.run(100)
    congested = job.step_time_s
    assert job.holders.count(1) < 8
    job.run(300)
    assert abs(job.holders.count(1) - 12) <= 2
    assert job.step_time_s < congested


@given(
    st.lists(
        st.tuples(st.floats(1e6, 1e9), st.floats(1e6, 1e9), st.floats(1e6, 1e9)), min_size=5, max_size=40
    )
)
@examples(8)
def test_however_links_change_few_moves_follow_and_none_soon_after_another(
    course: list[tuple[float, float, float]],
) -> None:
    job = Job(lambda at: course[int(at / 47) % len(course)], even(3), compute_s=0.001)
    job.run(3000)
    begun = [at for at, move in job.moves if not move.undoes]
    for first, later in pairwise(begun):
        assert later - first >= RULES.pause_s
    for at in begun:
        assert sum(at <= other < at + RULES.window_s for other in begun) <= RULES.moves_max
    assert sum(move.undoes for _, move in job.moves) <= len(begun)
    for (_, before), (_, after) in pairwise(job.moves):
        assert not (before.undoes and after.undoes)


def test_a_move_after_which_steps_take_longer_is_undone_and_the_next_waits_longer() -> None:
    job = Job(lambda at: [1e8, 1e8, 1e8], even(3), delay_s=(0.0, 0.0, 1.0))

    def run(seconds: int) -> None:
        """Whatever holds more than at the beginning is slow, which no wait told before."""
        for _ in range(seconds):
            crowded = any(job.holders.count(index) > 8 for index in (0, 1))
            job.compute_s = 2.0 if crowded else 0.2
            job.run(1)

    before = job.holders
    run(60)
    (first, moved), (_, undone) = job.moves[:2]
    assert not moved.undoes
    assert undone.undoes
    assert undone.holders == before
    assert "they move back" in undone.reason
    run(400)
    later = [at for at, move in job.moves if not move.undoes][1:]
    assert later
    assert later[0] - first > 2 * RULES.pause_s


@pytest.mark.parametrize("change", ["view", "map"])
def test_a_move_is_not_judged_by_steps_of_another_view_or_another_map(change: str) -> None:
    job = Job(lambda at: [1e8, 1e7], even(2))
    job.run(RULES.measurements)
    assert len(job.moves) == 1
    job.compute_s = 5.0
    if change == "view":
        job.view = 2
    else:
        job.holders = (1, *job.holders[1:])
    job.run(RULES.measurements + 2)
    assert not any(move.undoes for _, move in job.moves)


def test_nothing_moves_where_little_would_be_saved_or_one_bucket_is_all() -> None:
    short = Job(lambda at: [1e8, 2e7], even(2), compute_s=300.0)
    short.run(100)
    assert not short.moves
    whole = Job(lambda at: [1e8, 6e7], (0, 1), sizes=(90 * MB, 90 * MB))
    whole.run(100)
    assert not whole.moves


@given(
    sizes=st.lists(st.integers(1, 10 * MB), min_size=1, max_size=60),
    rates=st.lists(st.floats(0.0, 1e9), min_size=1, max_size=5),
    data=st.data(),
)
def test_the_slowest_takes_no_longer_than_before_and_what_is_to_hold_nothing_holds_nothing(
    sizes: list[int], rates: list[float], data: st.DataObject
) -> None:
    assume(max(rates) >= 1.0)
    rates = [rate if rate >= 1.0 else 0.0 for rate in rates]
    holders = [data.draw(st.integers(0, len(rates) - 1)) for _ in sizes]
    by = dict(enumerate(rates))
    found = balanced(holders, sizes, by)

    def longest(some: Sequence[int]) -> float:
        return max(
            sum(size for holder, size in zip(some, sizes, strict=True) if holder == index) / rate
            for index, rate in by.items()
            if rate
        )

    assert all(rates[holder] for holder in found)
    if all(rates[holder] for holder in holders):
        assert longest(found) <= longest(holders)
    # no aggregator that is done first could take a bucket of the slowest and both be done earlier
    assert longest(found) <= sum(sizes) / max(rates) * (1 + 1e-9) or len([r for r in rates if r]) > 1
    assert balanced(found, sizes, by) == found
