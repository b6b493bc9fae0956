"""Many schedules of the simulated protocol: `python -m tests.elastic.simulate [SEEDS] [FIRST]`.

Each seed is run three times: without and with migrations of buckets, and with optimizers in place, too. Prints how far
it is, and of every schedule that breaks a law its seed and what it broke; ends with 1 then. What it finds belongs into
`seeds.txt`, with a mutant that brings the fault back.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from simulation import World

_SEEDS = 20_000
_CHUNK = 250
_PROCESSES_MAX = 2


def simulate(first: int, seeds: int) -> tuple[list[tuple[str, str]], list[int]]:
    """Run a range of seeds; returns what went wrong, and how many steps, losses and changes of the map there were."""
    found: list[tuple[str, str]] = []
    counts = [0, 0, 0]
    for seed in range(first, first + seeds):
        for migrates, in_place in ((False, False), (True, False), (True, True)):
            world = World(seed, migrates=migrates, in_place=in_place)
            try:
                world.run()
            except Exception as error:  # noqa: BLE001 - whatever a schedule leads to is told with its seed
                which = f"{seed}{' with migrations' * migrates}{', in place' * in_place}"
                found.append((which, f"{type(error).__name__}: {error}"))
            for index, count in enumerate((world.steps, world.losses, world.maps)):
                counts[index] += count
    return found, counts


def main(seeds: int = _SEEDS, first: int = 0) -> int:
    began, done, failures, counts = time.monotonic(), 0, 0, [0, 0, 0]
    starts = range(first, first + seeds, _CHUNK)
    sizes = [min(_CHUNK, first + seeds - start) for start in starts]
    with ProcessPoolExecutor(min(_PROCESSES_MAX, os.cpu_count() or 1)) as pool:
        for size, (found, more) in zip(sizes, pool.map(simulate, starts, sizes), strict=True):
            done, counts = done + size, [count + new for count, new in zip(counts, more, strict=True)]
            failures += len(found)
            for seed, what in found:
                print(f"seed {seed}: {what}", flush=True)
            if done % (20 * _CHUNK) == 0 or done == seeds:
                took = time.monotonic() - began
                print(
                    f"{done} of {seeds} seeds in {took:.0f} s: {counts[0]} steps, {counts[1]} processes lost, "
                    f"{counts[2]} maps of buckets, {failures} schedules broke a law",
                    flush=True,
                )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
