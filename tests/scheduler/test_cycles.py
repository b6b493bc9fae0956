"""The formulas of an execution cycle: the examples of the paper, and laws of the best cycle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.scheduler.cycles import (
    cyclic_step_time,
    execution_cycle,
    speed_loss,
    steps_in_cycle,
    worst_loss,
)

step_times = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6)


def test_the_papers_examples() -> None:
    assert execution_cycle([6.0, 12.0]) == 12.0
    assert steps_in_cycle(12.0, 6.0) == 2
    assert cyclic_step_time(12.0, 5.0) == 6.0
    assert speed_loss(6.0, 5.0) == pytest.approx(0.17, abs=0.005)


def test_three_tenths_have_three_steps_of_a_tenth() -> None:
    assert steps_in_cycle(0.3, 0.1) == 3


def test_a_cycle_of_the_least_common_multiple_costs_no_speed() -> None:
    assert worst_loss(execution_cycle([2.0, 3.0]), [2.0, 3.0]) == pytest.approx(1 / 3)
    assert execution_cycle([2.0, 3.0], cycle_max=2.0) == 6.0
    assert worst_loss(6.0, [2.0, 3.0]) == 0.0


def test_a_slightly_longer_cycle_can_serve_both() -> None:
    assert execution_cycle([5.0, 14.0], cycle_max=1.1) == 15.0
    assert worst_loss(15.0, [5.0, 14.0]) == pytest.approx(1 / 15)


@given(step_times, st.floats(1.0, 4.0))
def test_the_cycle_is_within_its_bounds_and_never_worse_than_the_longest_step(
    alone: list[float], cycle_max: float
) -> None:
    cycle = execution_cycle(alone, cycle_max=cycle_max)

    assert max(alone) <= cycle <= max(alone) * cycle_max * (1 + 1e-6)
    assert worst_loss(cycle, alone) <= worst_loss(max(alone), alone)


@given(step_times, st.floats(1.0, 4.0), st.floats(0.0, 1.0))
def test_no_cycle_within_the_bounds_is_better(alone: list[float], cycle_max: float, where: float) -> None:
    other = max(alone) * (1.0 + where * (cycle_max - 1.0))
    best = worst_loss(execution_cycle(alone, cycle_max=cycle_max, loss_limit=0.0), alone)

    assert best <= worst_loss(other, alone) + 1e-6
