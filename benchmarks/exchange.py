"""Gradients and weights among VMs behind links of their own: by one aggregator, beside the workers, and by gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.emulated_link import EmulatedLink, star
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.running import installed
from benchmarks.peers.shapes import parameters

_NETWORK, _LOCAL_BATCH = "quarter", 2
_RATE, _SLOW_RATE = 125.0, 25.0
"""Of a link, Mbit/s: an eighth of what a small VM has, since two processors do not carry nine links of 1 Gbit/s, packet
by packet; and so little that a step's bytes take 14 s of a link, beside which these processors count little."""
_ROUND_TRIP_S = 0.01
"""Of one link; the way from one VM to another is by two."""
_CASES = ((2, _RATE), (4, _RATE), (8, _RATE), (8, _SLOW_RATE))
"""Workers, and the rate of links; with one aggregator only at the first rate, since that takes minutes a step."""
_TIMEOUT_S = 900.0
_PORT = 29511
_AIM = 1.0


def _transfers(links: Sequence[EmulatedLink], place: str, steps: int, folder: Path) -> list[float]:
    """Seconds of each step without computing and update: all weights to each worker, and all gradients back."""
    workers = len(links) - 1
    done = subprocess.run(
        (
            *links[0].within(0),
            *(sys.executable, "-m", "benchmarks.aggregator_vms_job"),
            *(str(folder), links[0].addresses[0]),
            f"benchmarks.peers.keras_jobs:{_NETWORK}_sgd",
            *map(str, (workers, workers * _LOCAL_BATCH, steps)),
            place,
            *(link.spaces[1] for link in links),
        ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    found = json.loads(done.stdout.splitlines()[-1])["steps"]
    return [step - compute - update for step, compute, update in found]


def _device(link: EmulatedLink) -> str:
    """The network device at a link's far end, which gloo has to be told."""
    listed = subprocess.run(
        ["ip", "-n", link.spaces[1], "-o", "-4", "addr"], check=True, capture_output=True, text=True
    )
    return next(line.split()[1] for line in listed.stdout.splitlines() if link.addresses[1] in line)


def _gloo(links: Sequence[EmulatedLink], size: int, rounds: int) -> list[float]:
    """Seconds of each all-reduce of as many numbers among the far ends."""
    addresses = ",".join(f"{link.addresses[1]}:{_PORT}" for link in links)
    processes = [
        subprocess.Popen(
            [
                *link.within(1),
                *(sys.executable, "-m", "benchmarks.peers.torch_allreduce"),
                *("--addresses", addresses, "--rank", str(rank)),
                *("--parameters", str(size), "--rounds", str(rounds)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": _device(link)},
        )
        for rank, link in enumerate(links)
    ]
    outputs = [process.communicate(timeout=_TIMEOUT_S)[0] for process in processes]
    times: list[float] = json.loads(outputs[0].splitlines()[-1])["round_times_s"]
    return times


def of_parts(parts: Sequence[str]) -> Benchmark:
    """Some numbers of workers, as `exchange:2,8@25` (eight at links of 25 Mbit/s), without the slow one aggregator."""
    cases = [
        (int(workers), float(rate or _RATE)) for workers, _, rate in (part.partition("@") for part in parts)
    ]
    return Benchmark(f"exchange:{','.join(parts)}", 4, partial(measure, cases, with_one=False))


def run(repetitions: int, work_dir: Path) -> Result:
    """See `measure`."""
    return measure(_CASES, repetitions, work_dir)


def measure(
    cases: Sequence[tuple[int, float]], repetitions: int, work_dir: Path, *, with_one: bool = True
) -> Result:
    """Each number of workers: so many steps with one aggregator, beside the workers, and rounds of gloo, in turn.

    Args:
        cases: Workers, and the rate of links, Mbit/s.
    """
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    size, has_gloo = parameters(_NETWORK), installed("torch")
    over: dict[str, list[float]] = {"one aggregator": [], "gloo": []}
    for workers, rate in cases:
        name_of_case = f"{workers}-{rate:g}"
        with ExitStack() as stack:
            links = star(stack, workers + 1, rate_bits_per_s=rate * 1e6, round_trip_s=_ROUND_TRIP_S)
            half = max(1, repetitions // 2)
            gloo_s = _gloo(links[1:], size, half) if has_gloo else []
            beside_s = _transfers(links, "beside", repetitions, work_dir / f"beside-{name_of_case}")
            if with_one and rate == _RATE:
                one_s = _transfers(links, "apart", repetitions, work_dir / f"one-{name_of_case}")
            else:
                one_s = []
            gloo_s += _gloo(links[1:], size, half) if has_gloo else []
        beside, others = Spread.of(beside_s), dict[str, Spread | None]()
        row = [str(workers), f"{rate:g}", beside.text(1, 2)]
        for name, times in zip(over, (one_s, gloo_s), strict=True):
            other = others[name] = Spread.of(times) if times else None
            if other is not None:
                over[name].append(beside.median / other.median)
            row += ("", "") if other is None else (other.text(1, 2), f"{over[name][-1]:.2f}")
        rows.append(tuple(row))
        figures[name_of_case] = {"one": others["one aggregator"], "beside": beside, "gloo": others["gloo"]}
    last = [f"{name} {ratios[-1]:.2f}" for name, ratios in over.items() if ratios]
    most = f"; over gloo at most {max(over['gloo']):.2f} (aim: {_AIM:g})" if over["gloo"] else ""
    return Result(
        headers=(
            "workers",
            "links, Mbit/s",
            "beside the workers, s",
            "one aggregator, s",
            "over one",
            "gloo, s",
            "over gloo",
        ),
        rows=tuple(rows),
        verdict=f"beside the workers, with {cases[-1][0]}, over {' and '.join(last) or 'nothing'}{most}",
        figures={"model_bytes": 4 * size, **figures},
        remarks=(
            f"a model of {4 * size / 1e6:.0f} MB; each worker, and the VM of the first aggregator, behind a link; "
            f"{2e3 * _ROUND_TRIP_S:.0f} ms from one to another and back",
            "a step without computing and update: all weights to each worker and all gradients back, sealed, with what "
            "starts and ends the step; gloo: an all-reduce of as many numbers by PyTorch, not encrypted, half of the "
            "rounds before the job, half after it",
            "all processes, and those that carry the links' packets, share the processors of this machine",
        ),
    )


BENCHMARK = Benchmark("exchange", 4, run)
