"""A job whose link to one of two aggregators is congested while it trains: its steps before and after buckets move."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.emulated_link import EmulatedLink, emulated_link
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.shapes import parameters

_NETWORK, _BATCH = "quarter", 2
_RATE_BITS_PER_S = 4e8
_CONGESTED = (0.25, 0.1)
_ROUND_TRIP_S = 0.005
_TIMEOUT_S = 600.0


def _links(stack: ExitStack) -> tuple[EmulatedLink, EmulatedLink]:
    """Two links from one namespace, which passes on what goes from one far end to the other."""
    first = stack.enter_context(emulated_link(rate_bits_per_s=_RATE_BITS_PER_S, round_trip_s=_ROUND_TRIP_S))
    second = stack.enter_context(
        emulated_link(rate_bits_per_s=_RATE_BITS_PER_S, round_trip_s=_ROUND_TRIP_S, at=first.spaces[0])
    )
    _run(*first.within(0), "sysctl", "-qw", "net.ipv4.ip_forward=1")
    for link in (first, second):
        _run("ip", "-n", link.spaces[1], "route", "add", "default", "via", link.addresses[0])
    return first, second


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _job(links: tuple[EmulatedLink, EmulatedLink], share: float, steps: int, folder: Path) -> dict[str, Any]:
    """What a job says whose second link carries that share of its rate for a while."""
    first, second = links
    command = (
        *first.within(0),
        *(sys.executable, "-m", "benchmarks.congested_link_job"),
        *(str(folder), first.addresses[0], first.spaces[1], second.spaces[1]),
        *(f"benchmarks.peers.keras_jobs:{_NETWORK}_sgd", str(_BATCH), str(steps)),
    )
    job = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert job.stdin is not None
    assert job.stdout is not None
    last = ""
    for line in job.stdout:
        last = line.strip()
        if last in ("congest", "clear"):
            second.throttle(_RATE_BITS_PER_S * (share if last == "congest" else 1.0))
            job.stdin.write("\n")
            job.stdin.flush()
    if job.wait(_TIMEOUT_S):
        raise RuntimeError(f"the job ended with {job.returncode}")
    found: dict[str, Any] = json.loads(last)
    return found


def run(repetitions: int, work_dir: Path) -> Result:
    """So many steps before the link is congested, after buckets have moved, and after it is clear again."""
    rows, figures = [], dict[str, object]()
    size = 4 * parameters(_NETWORK)
    best = 0.0
    for share in _CONGESTED:
        with ExitStack() as stack:
            found = _job(_links(stack), share, repetitions, work_dir / f"{share}")
        parts = {name: Spread.of(times) for name, times in found["parts"].items() if times}
        holders = found["congested_holders"]
        held = min(holders.count(0), holders.count(1)) / len(holders)
        first = found["moves"][0][0] if found["moves"] else None
        gained = parts["congested"].median / parts["after"].median
        best = max(best, gained)
        rows.append(
            (
                f"{_RATE_BITS_PER_S * share / 1e6:.0f} Mbit/s",
                *(parts[name].text(1, 2) for name in ("before", "congested", "after", "cleared")),
                f"{held:.0%}",
                str(len(found["moves"])),
            )
        )
        figures[f"{share}"] = {**parts, "held_share": held, "moves": found["moves"], "first_move_s": first}
    return Result(
        headers=(
            "link congested to",
            "step before, s",
            "congested",
            "after buckets moved",
            "link clear again",
            "of the buckets left there",
            "moves",
        ),
        rows=tuple(rows),
        verdict=f"steps on a congested link, over those after buckets have moved: {best:.1f} x",
        figures={"model_bytes": size, **figures},
        remarks=(
            "one worker, two aggregators, each on a VM behind a link of its own of "
            f"{_RATE_BITS_PER_S / 1e6:.0f} Mbit/s and {_ROUND_TRIP_S * 1e3:.0f} ms; a model of {size / 1e6:.0f} MB; "
            "the second link is congested and clear again while the job trains",
            "what moves is decided as in a job: `control/training/balancing.py` and `policy/bucket_balance.py`",
        ),
    )


BENCHMARK = Benchmark("congested_link", 8, run)
