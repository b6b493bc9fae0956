"""Many schedules of provisioning under chaos: `python -m tests.provisioning.simulate [SEEDS] [FIRST]`.

Prints how far it is, and of every schedule that breaks a law its seed and what it broke; ends with 1 then. What it
finds belongs into `seeds.txt`, with a mutant that brings the fault back.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from provisioning_world import World

_SEEDS = 20_000
_CHUNK = 250
_PROCESSES_MAX = 2


def simulate(first: int, seeds: int) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Run a range of seeds; returns what went wrong, and what happened how often."""
    found: list[tuple[int, str]] = []
    counts: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - whatever a schedule leads to is told with its seed
            found.append((seed, f"{type(error).__name__}: {error}"))
        counts += world.counts
    return found, counts


def main(seeds: int = _SEEDS, first: int = 0) -> int:
    began, done, failures = time.monotonic(), 0, 0
    counts: Counter[str] = Counter()
    starts = range(first, first + seeds, _CHUNK)
    sizes = [min(_CHUNK, first + seeds - start) for start in starts]
    with ProcessPoolExecutor(min(_PROCESSES_MAX, os.cpu_count() or 1)) as pool:
        for size, (found, more) in zip(sizes, pool.map(simulate, starts, sizes), strict=True):
            done, failures = done + size, failures + len(found)
            counts += more
            for seed, what in found:
                print(f"seed {seed}: {what}", flush=True)
            if done % (20 * _CHUNK) == 0 or done == seeds:
                took = time.monotonic() - began
                told = ", ".join(f"{counts[name]} {name}" for name in ("made", "crashes", "stalls", "strays"))
                print(f"{done} of {seeds} in {took:.0f} s: {told}; {failures} broke a law", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
