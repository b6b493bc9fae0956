"""Provisioning under chaos: every law holds on every schedule, and known ways to do it badly are caught."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from provisioning_cloud import ViolationError
from provisioning_mutants import MUTANTS
from provisioning_world import World
from schedules import kept

SEEDS = 500
_FOUND = kept(Path(__file__).parent / "seeds.txt")


def complaint(seed: int, mutant: str) -> str:
    """Of what the world complains, if of anything."""
    try:
        World(seed, **MUTANTS[mutant].world).run()
    except ViolationError as violation:
        return str(violation)
    return ""


@pytest.mark.slow
def test_no_vm_is_left_nor_doubled_and_no_stranger_touched_whatever_happens_when() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        counts += world.counts

    # a simulation in which nothing happens would prove nothing
    assert counts["made"] > 3 * SEEDS
    assert counts["crashes"] > SEEDS
    assert counts["stalls"] > SEEDS // 2
    assert counts["overtaken"] > SEEDS // 10
    assert counts["strays"] > SEEDS // 100
    assert counts["served"] > SEEDS // 2
    assert counts["alarm budget"] > SEEDS // 10
    assert counts["alarm unknown_vm"] > SEEDS // 10


def test_a_run_is_told_by_its_seed_alone() -> None:
    worlds = [World(11), World(11)]
    for world in worlds:
        world.run()

    assert worlds[0].now == worlds[1].now
    assert worlds[0].store.rows == worlds[1].store.rows


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_catches(name: str) -> None:
    """For the reason that it should, on a schedule that is known or on a few hundred."""
    known = [seed for seed, found in _FOUND if found == name]
    for seed in [*known, *range(300)]:
        if said := complaint(seed, name):
            assert re.search(MUTANTS[name].complaint, said), f"seed {seed}: {said}"
            return
    pytest.fail(f"nobody notices: {name}")


@pytest.mark.parametrize(("seed", "mutant"), _FOUND)
def test_a_schedule_that_once_broke_a_law_does_so_no_more(seed: int, mutant: str) -> None:
    World(seed).run()
    with pytest.raises(ViolationError, match=MUTANTS[mutant].complaint):
        World(seed, **MUTANTS[mutant].world).run()
