"""How many workers each of several trials has, of those that all may have together.

Workers that an ended trial had are given to the others, and a trial that begins takes its own from them. What one has
counts as its own until it has given it back, so there are never more than the limit, however long that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharer:
    """A trial that runs or waits.

    Attributes:
        fewest, most: The workers that it can run with.
        has: The most that it may have at this time; 0 while it waits.

    Raises:
        ValueError: Unless 1 <= fewest <= most.
    """

    fewest: int
    most: int
    has: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise ValueError(f"needs 1 <= fewest <= most, not {self.fewest}, {self.most}")


def shares(sharers: Sequence[Sharer], limit: int) -> tuple[int, ...]:
    """The workers that each is to have in the end: as even as can be, earlier ones before later ones.

    Args:
        sharers: In the order in which they came. One for whose fewest workers there is no room waits, and so do those
            that came after it: otherwise small ones could keep a large one waiting for ever.
        limit: Workers of all together.
    """
    left, goal = limit, [0] * len(sharers)
    for place, sharer in enumerate(sharers):
        if sharer.fewest > left:
            break
        goal[place], left = sharer.fewest, left - sharer.fewest
    while left > 0:
        able = [place for place, one in enumerate(sharers) if 0 < goal[place] < one.most]
        if not able:
            break
        goal[min(able, key=lambda place: goal[place])] += 1  # of equals the first
        left -= 1
    return tuple(goal)


def next_shares(sharers: Sequence[Sharer], limit: int) -> tuple[int, ...]:
    """The workers that each is to have next: less where others wait for them, more as far as there are free ones.

    One that is to have less keeps what it has in `Sharer.has` until it is known to have given it back.

    Args:
        sharers, limit: As of `shares`.
    """
    goal = shares(sharers, limit)
    free = limit - sum(one.has for one in sharers)
    following = []
    for one, wanted in zip(sharers, goal, strict=True):
        size = wanted
        if wanted > one.has:
            size = min(wanted, one.has + max(0, free))
            if size < one.fewest:  # what is free stays free for it
                size, free = one.has, 0
            free -= size - one.has
        following.append(size)
    return tuple(following)
