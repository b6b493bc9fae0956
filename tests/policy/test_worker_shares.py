"""Workers that trials share: never more than the limit, and all of them in use once everybody has answered."""

from __future__ import annotations

import random

import pytest

from scavenger.policy.worker_shares import Sharer, next_shares, shares


@pytest.mark.parametrize(
    ("limit", "ranges", "expected"),
    [
        (4, [(1, 4)], (4,)),
        (4, [(1, 4), (1, 4)], (2, 2)),
        (4, [(1, 4), (1, 4), (1, 4)], (2, 1, 1)),
        (4, [(1, 1), (1, 4)], (1, 3)),
        (2, [(1, 2), (1, 2), (1, 2)], (1, 1, 0)),
        (4, [(1, 4), (4, 4), (1, 4)], (4, 0, 0)),  # the last does not overtake the one that waits
        (8, [(1, 2), (1, 2)], (2, 2)),
        (4, [], ()),
    ],
)
def test_shares_are_even_and_earlier_ones_come_first(
    limit: int, ranges: list[tuple[int, int]], expected: tuple[int, ...]
) -> None:
    assert shares([Sharer(*each) for each in ranges], limit) == expected


@pytest.mark.parametrize("seed", range(200))
def test_there_are_never_more_workers_than_the_limit_and_none_is_idle_in_the_end(seed: int) -> None:
    """Trials come, end, and give workers back at any time and in any order."""
    rng = random.Random(seed)
    limit = rng.randint(1, 12)
    sharers: dict[int, Sharer] = {}
    leaving: dict[int, int] = {}  # asked to have fewer, and not there yet

    def ask() -> None:
        for key, size in zip(tuple(sharers), next_shares([*sharers.values()], limit), strict=True):
            one = sharers[key]
            if size < one.has:
                leaving[key] = size
            elif size > one.has:
                leaving.pop(key, None)
                sharers[key] = Sharer(one.fewest, one.most, size)
        assert sum(one.has for one in sharers.values()) <= limit
        assert all(one.has == 0 or one.fewest <= one.has <= one.most for one in sharers.values())

    for number in range(60):
        match rng.choice(["come", "end", "give back"]):
            case "come":
                fewest = rng.randint(1, limit)
                sharers[number] = Sharer(fewest, rng.randint(fewest, limit + 2))
            case "end" if sharers:
                gone = rng.choice([*sharers])
                leaving.pop(gone, None)
                del sharers[gone]
            case "give back" if leaving:
                key = rng.choice([*leaving])
                one = sharers[key]
                sharers[key] = Sharer(one.fewest, one.most, min(one.has, leaving.pop(key)))
        ask()
    while leaving:
        key, size = leaving.popitem()
        sharers[key] = Sharer(sharers[key].fewest, sharers[key].most, min(sharers[key].has, size))
        ask()
    everyone = [*sharers.values()]
    assert tuple(one.has for one in everyone) == shares(everyone, limit)
    idle = limit - sum(one.has for one in everyone)
    waiting = [one for one in everyone if not one.has]
    assert not idle or all(one.has == one.most for one in everyone if one.has)
    assert not waiting or waiting[0].fewest > limit - sum(one.fewest for one in everyone if one.has)
