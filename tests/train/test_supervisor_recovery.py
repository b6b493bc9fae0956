"""What a supervisor keeps of its recoveries: no process, no sleep; the clock is a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.errors import ScavengerError, WorkersLostError
from scavenger.train.supervisor.events import Recovered, RolledBack
from scavenger.train.supervisor.recoveries import Recoveries

A, B = "aggregator-0", "aggregator-1"
LOG = Path("a.log")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recoveries(clock: Clock) -> Recoveries:
    return Recoveries((A, B), clock)


def test_one_that_dies_again_and_again_within_a_minute_ends_the_job(recoveries: Recoveries) -> None:
    for _ in range(5):
        recoveries.count(A, A, "was killed by SIGSEGV", LOG)
    recoveries.count(B, B, "was killed by SIGSEGV", LOG)

    with pytest.raises(WorkersLostError, match=rf"{A} was killed by SIGSEGV, for the 6th time .* a\.log"):
        recoveries.count(A, A, "was killed by SIGSEGV", LOG)


def test_deaths_that_lie_further_apart_end_nothing(recoveries: Recoveries, clock: Clock) -> None:
    for _ in range(20):
        recoveries.count(A, A, "was killed by SIGKILL", LOG)
        clock.now_s += 13.0


def test_those_that_are_ended_for_a_roll_back_count_as_no_death(recoveries: Recoveries) -> None:
    for _ in range(20):
        for name in recoveries.rewind((A, B), "a part was lost"):
            recoveries.count(name, name, "was started anew", LOG)


def test_a_recovery_takes_until_the_part_is_held_and_is_told_once(
    recoveries: Recoveries, clock: Clock
) -> None:
    recoveries.begin(A, "was killed by SIGKILL", clock.now_s)
    clock.now_s += 2.0

    assert recoveries.initialised(A, 7) == [Recovered(A, "was killed by SIGKILL", 2.0)]
    assert recoveries.initialised(A, 7) == []
    assert recoveries.begun


def test_a_roll_back_is_over_once_every_aggregator_has_begun_anew(
    recoveries: Recoveries, clock: Clock
) -> None:
    recoveries.begin(B, "was lost with its memory", clock.now_s)
    assert recoveries.rewind((A,), "a part was lost") == (A,)
    assert recoveries.rewinding == (0, 1)

    # what was said before it began anew counts no more
    assert recoveries.initialised(B, 9) == []
    for name in (A, B):
        recoveries.begin(name, "was started anew", clock.now_s)
    clock.now_s += 3.0
    assert recoveries.initialised(B, 4) == [Recovered(B, "was started anew", 3.0)]
    assert recoveries.initialised(A, 4) == [
        Recovered(A, "was started anew", 3.0),
        RolledBack(4, "a part was lost", 3.0),
    ]
    assert recoveries.rewinding == ()


def test_parts_that_begin_after_different_steps_are_no_model(recoveries: Recoveries, clock: Clock) -> None:
    for name in recoveries.rewind((A, B), "a part was lost"):
        recoveries.begin(name, "was started anew", clock.now_s)
    recoveries.initialised(A, 4)

    with pytest.raises(ScavengerError, match=r"different steps: \[4, 5\]"):
        recoveries.initialised(B, 5)
