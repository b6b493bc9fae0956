"""The protocol under chaos: every law holds on every schedule, and known ways to break it are caught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutants import MUTANTS
from schedules import kept
from simulation import RULES, ViolationError, World

SEEDS = 500
_FOUND = kept(Path(__file__).parent / "seeds.txt")


def complains(seed: int, mutant: str) -> str:
    """Of what, if of anything."""
    try:
        World(seed, **MUTANTS[mutant].world).run()
    except ViolationError as violation:
        return str(violation)
    return ""


@pytest.mark.slow
def test_every_sample_is_applied_once_and_nothing_hangs_whatever_happens_when() -> None:
    losses = recoveries = views = steps = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        losses += world.losses
        recoveries += world.recoveries
        views += world.views
        steps += world.steps

    # a simulation in which nothing happens would prove nothing
    assert losses > 5 * SEEDS
    assert recoveries > 3 * SEEDS
    assert views > 2 * SEEDS
    assert steps > 8 * SEEDS


def test_a_run_is_told_by_its_seed_alone() -> None:
    worlds = [World(7), World(7)]
    for world in worlds:
        world.run()

    assert worlds[0].now == worlds[1].now
    assert worlds[0].reference == worlds[1].reference


@pytest.mark.slow
def test_in_order_nothing_that_is_old_ever_comes() -> None:
    for seed in range(SEEDS // 5):
        World(seed, disorder=False, without="refuses the old").run()


@pytest.mark.slow
def test_the_same_holds_where_every_step_waits_for_a_verdict() -> None:
    steps = 0
    for seed in range(SEEDS // 5):
        world = World(seed, asks_each=True)
        world.run()
        steps += world.steps

    assert steps > 8 * SEEDS // 5


@pytest.mark.slow
def test_optimizers_in_place_are_updated_once_whatever_happens_to_workers_and_however_buckets_move() -> None:
    steps = losses = maps = 0
    for seed in range(SEEDS // 5):
        world = World(seed, in_place=True, migrates=seed % 2 == 0)
        world.run()
        steps += world.steps
        losses += world.losses
        maps += world.maps

    assert steps > 8 * SEEDS // 5
    assert losses > SEEDS // 5
    assert maps > SEEDS // 10


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_catches_a_broken_protocol(name: str) -> None:
    """For the reason that it should, on a few hundred schedules or on one that is known."""
    known = [seed for seed, found in _FOUND if found == name]
    for seed in [*known, *range(200)]:
        if complaint := complains(seed, name):
            assert re.search(MUTANTS[name].complaint, complaint), f"seed {seed}: {complaint}"
            return
    pytest.fail(f"nobody notices that {name}")


@pytest.mark.parametrize(("seed", "mutant"), _FOUND)
def test_a_schedule_that_once_broke_a_law_does_so_no_more(seed: int, mutant: str) -> None:
    World(seed, migrates=MUTANTS[mutant].world.get("migrates", False)).run()
    with pytest.raises(ViolationError, match=MUTANTS[mutant].complaint):
        World(seed, **MUTANTS[mutant].world).run()


def test_every_rule_is_left_out_once() -> None:
    assert {mutant.world.get("without", "") for mutant in MUTANTS.values()} == {"", *RULES}
