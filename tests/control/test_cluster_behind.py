"""Writes that nobody waits for are done in order, the newest in place of what waits, whatever fails."""

from __future__ import annotations

import random
import threading

import pytest

from scavenger.control.cluster.behind import WAITING_MAX, Behind
from scavenger.errors import CloudUnavailableError


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_of_each_key_is_written_and_nothing_after_it(seed: int) -> None:
    chance, behind = random.Random(seed), Behind()
    written: list[tuple[int, int]] = []
    newest: dict[int, int] = {}
    behind.start()
    for number in range(200):
        key = chance.randrange(10)
        newest[key] = number

        def write(key: int = key, number: int = number) -> None:
            written.append((key, number))
            if number % 7 == 0:
                raise CloudUnavailableError("busy")

        behind.put(key, write)
    behind.close()

    assert dict(written) == newest
    for key in newest:
        numbers = [number for one, number in written if one == key]
        assert numbers == sorted(set(numbers))


def test_what_waits_is_written_in_place_of_the_older_and_not_without_bound() -> None:
    behind, done = Behind(), threading.Event()
    written: list[int] = []
    for number in range(WAITING_MAX + 5):
        behind.put(number, lambda number=number: written.append(number))
    behind.put(WAITING_MAX, lambda: written.append(-1))
    behind.put("last", done.set)
    behind.start()

    assert done.wait(30.0)
    assert written[0] == 6
    assert -1 in written
    assert WAITING_MAX not in written
    behind.close()
