"""How fast the workers of an ElasticJob change before a real API server: more, fewer, and a node that is lost.

It plays `make demo-kubernetes` without the job's end; root, and `make test-kubernetes` once, are needed.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import Benchmark, Result, Spread

_PODS_S, _STALL_MS, _LOST_S = 0.3, 100.0, 5.0


def _once(folder: Path) -> Any:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    demo = importlib.import_module("tests.cluster.demo")
    if reason := demo.cannot():
        raise RuntimeError(reason)
    folder.mkdir()
    return demo.play(folder, lambda line: print(line, file=sys.stderr), whole=False)


def run(repetitions: int, folder: Path) -> Result:
    found = [_once(folder / str(number)) for number in range(repetitions)]
    figures = {
        "more_pods_s": Spread.of(one.pods_s[3] for one in found),
        "more_workers_s": Spread.of(one.workers_s[3] for one in found),
        "more_stall_ms": Spread.of(one.stall_ms[3] for one in found),
        "fewer_pods_s": Spread.of(one.pods_s[1] for one in found),
        "fewer_workers_s": Spread.of(one.workers_s[1] for one in found),
        "fewer_stall_ms": Spread.of(one.stall_ms[1] for one in found),
        "lost_s": Spread.of(one.lost_s for one in found),
        "replaced_s": Spread.of(one.replaced_s for one in found),
    }
    aims = (("more_pods_s", _PODS_S), ("more_stall_ms", _STALL_MS), ("lost_s", _LOST_S))
    outcome = ", ".join("met" if figures[name].high < aim else "missed" for name, aim in aims)

    def row(name: str, kind: str, stalls: str) -> tuple[str, ...]:
        return (
            name,
            figures[f"{kind}_pods_s"].text(digits=2),
            figures[f"{kind}_workers_s"].text(digits=1),
            stalls,
        )

    return Result(
        headers=("change", "pods asked for or ended, s", "in status, s", "workers that stay stand still, s"),
        rows=(
            row("2 to 3 workers", "more", figures["more_stall_ms"].text(1e-3, digits=3)),
            row("3 to 1 workers", "fewer", figures["fewer_stall_ms"].text(1e-3, digits=3)),
            (
                "node of 1 of 3 lost",
                "",
                figures["replaced_s"].text(digits=1),
                figures["lost_s"].text(digits=2),
            ),
        ),
        verdict=f"Aims at the slowest: a pod is asked for within {_PODS_S:g} s, workers stand still for less than "
        f"{_STALL_MS:g} ms when one joins, and for less than {_LOST_S:g} s when a node is lost: {outcome}.",
        figures=figures,
        remarks=(
            "The lost node is off the network at once, so that no connection is closed. Until `status` tells of three "
            "workers again, another pod has started and joined.",
            "Control plane, nodes and workers are processes of one machine: what starts slows down what trains.",
        ),
    )


BENCHMARK = Benchmark("elastic_job", 3, run)
