"""Nodes of two recorded spot clusters come and go: which share of their time trains, elastically and by stopping.

A calculation over the recorded counts of nodes, with these costs as its inputs:

- A node that comes trains once its worker has started; meanwhile the others train on. The same time is what a job that
  stops needs to start again.
- Every change stands still for as long as the greatest stall that `switch` has measured.
- A node is taken without notice. The elastic job stands still until that is noticed, and loses no sample. The one that
  stops goes on from its last checkpoint, as it was written at the given interval while it trained.
- Throughput is proportional to the number of nodes: of the ideal job, too, which changes at once and for nothing.

References:
    Thorpe et al., "Bamboo: Making Preemptible Instances Resilient for Affordable Training of Large DNNs", NSDI 2023:
    the traces.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.figures import Benchmark, Result

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "spot_traces"
_FILES = (
    (
        "g4dn.xlarge, 24 h",
        "aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv",
        1.0,
    ),
    ("p2.xlarge, 89 h", "aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23.csv", 3600.0),
)
"""Name, file, and its unit of time in seconds."""
_AIM = 0.95

Counts = Sequence[tuple[float, int]]
"""Times in seconds, rising, and the number of nodes from then on; the last ends the trace."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What changes cost, seconds.

    Attributes:
        start_s: From a node that is there to a worker that trains.
        stall_s: Standstill of the elastic job at a change.
        notice_s: Until the loss of a node is noticed.
        checkpoint_s: Interval of checkpoints of the job that stops.
    """

    start_s: float
    stall_s: float = 0.0358
    notice_s: float = 5.0
    checkpoint_s: float = 600.0


def read_trace(path: Path, unit_s: float) -> list[tuple[float, int]]:
    """The counts of a trace; of rows at one time, the last holds."""
    found: dict[float, int] = {}
    with path.open(newline="") as file:
        for time, nodes in csv.reader(file):
            found[float(time) * unit_s] = int(nodes)
    return sorted(found.items())


def _pieces(counts: Counts) -> list[tuple[float, float, int]]:
    """Begin, end and nodes of each piece."""
    return [(at, end, nodes) for (at, nodes), (end, _) in pairwise(counts)]


def ideal_s(counts: Counts) -> float:
    """Node-seconds that there are."""
    return sum((end - at) * nodes for at, end, nodes in _pieces(counts))


def elastic_s(counts: Counts, costs: Costs) -> float:
    """Node-seconds that train when workers join and leave."""
    starting: list[float] = []  # when each node that has come will train
    working, before, found = 0, 0, 0.0
    for at, end, nodes in _pieces(counts):
        ready = [when for when in starting if when <= at]
        starting, working = starting[len(ready) :], working + len(ready)
        still_s = 0.0
        if nodes > before:
            starting += [at + costs.start_s] * (nodes - before)
        elif nodes < before:
            # nobody knows which are taken: those that train, which costs more
            taken = before - nodes
            working, starting = max(0, working - taken), starting[max(0, taken - working) :]
            still_s = costs.notice_s + costs.stall_s
        found += working * max(0.0, end - at - still_s)
        for when in (one for one in starting if one < end):
            found += max(0.0, end - when) - costs.stall_s * (working + 1)
        before = nodes
    return max(0.0, found)


def stopping_s(counts: Counts, costs: Costs) -> float:
    """Node-seconds that train and are kept when each change stops the job, and starts it again from a checkpoint."""
    found, since_s, before, ready_at = 0.0, 0.0, 0, 0.0
    for at, end, nodes in _pieces(counts):
        if nodes < before:
            found -= since_s * before  # what was trained since the last checkpoint
        if nodes != before:
            since_s, ready_at = 0.0, at + costs.start_s
        trained_s = max(0.0, end - max(at, ready_at))
        found += trained_s * nodes
        since_s = (since_s + trained_s) % costs.checkpoint_s
        before = nodes
    return max(0.0, found)


def run(repetitions: int, work_dir: Path) -> Result:
    """Replay both traces; a calculation, so once."""
    if missing := [file for _, file, _ in _FILES if not (_TRACES / file).exists()]:
        raise SystemExit(f"there is no {_TRACES / missing[0]}")
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    for name, file, unit_s in _FILES:
        counts = read_trace(_TRACES / file, unit_s)
        whole_s = ideal_s(counts)
        changes = sum(one != other for (_, one), (_, other) in pairwise(counts))
        for start_s in (4.3, 60.0, 300.0):
            costs = Costs(start_s)
            elastic, stopping = elastic_s(counts, costs) / whole_s, stopping_s(counts, costs) / whole_s
            figures[f"{name.split(',')[0]}_{start_s:g}_elastic"] = elastic
            figures[f"{name.split(',')[0]}_{start_s:g}_stopping"] = stopping
            rows.append(
                (
                    name,
                    str(changes),
                    f"{whole_s / 3600:.0f}",
                    f"{start_s:g}",
                    f"{100 * elastic:.1f} %",
                    f"{100 * stopping:.1f} %",
                )
            )
    measured = [value for key, value in figures.items() if key.endswith("_4.3_elastic")]
    return Result(
        headers=("trace", "changes", "node hours", "start of a worker, s", "elastic", "stop and resume"),
        rows=tuple(rows),
        verdict=f"aim: more than {100 * _AIM:.0f} % of the ideal with the measured start; "
        f"{100 * min(measured):.1f} % at least, {'met' if min(measured) > _AIM else 'missed'}",
        figures=figures,
        remarks=(
            "a calculation, not a run: throughput proportional to nodes, checkpoints every 10 minutes, losses noticed "
            "after 5 s, 35.8 ms of standstill at each change (the greatest of `switch`)",
            "4.3 s: two workers of digits until ready (`starting`); 60 and 300 s stand for larger models and images",
        ),
    )


BENCHMARK = Benchmark("spot_replay", 1, run)
