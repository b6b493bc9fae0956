"""Gradients and weights between two hosts, by a link of 1 Gbit/s and 20 ms, compared with plain TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.emulated_link import EmulatedLink, emulated_link
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.shapes import parameters

_RATE_BITS_PER_S = 1e9
_ROUND_TRIP_S = 0.02
_CASES = (("quarter", 1), ("mlp", 1), ("mlp", 2), ("quarter", 8))
_SAMPLES_PER_WORKER = 2
_AIM = 0.8
_TIMEOUT_S = 600.0


def _lines(link: EmulatedLink, end: int, module: str, *words: object) -> subprocess.Popen[str]:
    command = [*link.within(end), sys.executable, "-m", module, *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    )


def _output(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=_TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    return out


def _peer(link: EmulatedLink, workers: int, size: int, rounds: int) -> list[float]:
    """Seconds in which as many bytes go to and fro by plain TCP, without the first round, which finds the rate."""
    said = link.addresses[0], workers, size, rounds + 1
    server = _lines(link, 0, "benchmarks.peers.tcp_round", "serve", *said)
    assert server.stdout is not None
    server.stdout.readline()
    client = _lines(link, 1, "benchmarks.peers.tcp_round", "join", *said)
    times: list[float] = json.loads(_output(server))
    _output(client)
    return times[1:]


def _job(
    link: EmulatedLink, network: str, workers: int, steps: int, folder: Path
) -> list[tuple[float, float, float]]:
    """Step, computing and updating time of so many steps, seconds."""
    job = _lines(
        link,
        0,
        "benchmarks.two_hosts_job",
        *(folder, link.addresses[0], link.spaces[1], f"benchmarks.peers.keras_jobs:{network}_sgd"),
        *(workers, workers * _SAMPLES_PER_WORKER, steps),
    )
    return [(step, computing, updating) for step, computing, updating in json.loads(_output(job))]


def run(repetitions: int, work_dir: Path) -> Result:
    """Each case: half of the rounds by plain TCP, so many steps of the job, the other half."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    shares = []
    with emulated_link(rate_bits_per_s=_RATE_BITS_PER_S, round_trip_s=_ROUND_TRIP_S) as link:
        for network, workers in _CASES:
            size = 4 * parameters(network)
            rounds = max(1, repetitions // 2)
            peer = _peer(link, workers, size, rounds)
            seen = _job(link, f"{network}", workers, repetitions, work_dir / f"{network}-{workers}")
            peer += _peer(link, workers, size, rounds)
            step = Spread.of(step for step, _, _ in seen)
            moved = Spread.of(step - computing - updating for step, computing, updating in seen)
            plain = Spread.of(peer)
            share = plain.median / moved.median
            shares.append(share)
            rate = 2 * workers * size / moved.median
            name = f"{size / 1e6:.0f} MB, K = {workers}"
            rows.append(
                (
                    name,
                    str(moved.count),
                    step.text(1, 2),
                    moved.text(1, 2),
                    f"{rate / 1e6:.0f}",
                    plain.text(1, 2),
                    f"{share:.0%}",
                )
            )
            figures[name] = {
                "model_bytes": size,
                "step_s": step,
                "transfer_s": moved,
                "tcp_s": plain,
                "bytes_per_s": rate,
                "share": share,
            }
    return Result(
        headers=(
            "model",
            "n",
            "step, s",
            "of it transfers, s",
            "MB/s",
            "plain TCP, s",
            "of what TCP carries",
        ),
        rows=tuple(rows),
        verdict=f"aim: at least {_AIM:.0%} of what the link carries: {min(shares):.0%}",
        figures=figures,
        remarks=(
            "leader and aggregator in one network namespace, workers and their VM's agent in the other; a process "
            f"between them carries {_RATE_BITS_PER_S / 1e9:.0f} Gbit/s with all headers in each direction, with "
            f"{_ROUND_TRIP_S * 1e3:.0f} ms there and back; TCP with cubic",
            "transfers: the step without computing and update, as the job reports them: all weights to each worker and "
            "all gradients back, sealed, with what starts and ends the step, which takes three times the way",
            "plain TCP: as many bytes, to the workers and then back, by a connection for each that is idle in between, "
            "with nothing encrypted, added or copied; half of the rounds before the job, half after it",
        ),
    )


BENCHMARK = Benchmark("two_hosts", 8, run)
