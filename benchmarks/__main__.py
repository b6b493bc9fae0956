"""`python -m benchmarks [NAME...]`: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import Benchmark, Result, markdown_table, replace_section
from benchmarks.machine import conditions, describe

_HERE = Path(__file__).resolve().parent
_MODULES = (
    "backtest",
    "aims",
    "curves",
    "final_values",
    "planning",
    "startup",
    "starting",
    "switch",
    "dashboard",
    "vm_types",
    "step",
    "aggregation",
    "sequencing",
    "assignment",
    "shared",
    "tenant_order",
    "elastic_joining",
    "elastic_step",
    "elastic_round",
    "elastic_faults",
    "elastic_watching",
    "prediction",
    "priors",
    "search_overhead",
    "real_runs",
    "script_runs",
    "kept_rate",
    "agents",
    "aggregator_memory",
    "reading",
    "service",
    "runner",
    "reconcile",
    "operator",
    "elastic_job",
    "loop_step",
    "divided_step",
    "loop_joining",
    "many_workers",
    "two_hosts",
    "congested_link",
    "exchange",
    "rounding",
    "aggregator_vms",
    "gpu",
    "migration",
    "philly",
    "study",
    "sampler",
    "pruners",
    "spot_replay",
    "scheduling",
    "allotment",
    "sixteen",
    "hand_over",
    "transient",
)
_OTHERS = {
    "hard_cases": ("step", "HARD_CASES"),
    "assignment_speed": ("assignment", "SPEED"),
    "job_models": ("scheduling", "MODELS"),
}
"""Further benchmarks of a module, beside its `BENCHMARK`."""
BENCHMARKS = (*_MODULES, *_OTHERS)


def benchmark_of(name: str) -> Benchmark:
    """A benchmark, or what `of_parts` of its module makes of the parts behind a colon.

    Only now is its module imported, and with it, for some, TensorFlow.
    """
    name, _, parts = name.partition(":")
    module, attribute = _OTHERS.get(name, (name, "BENCHMARK"))
    imported = importlib.import_module(f"benchmarks.{module}")
    found: Benchmark = imported.of_parts(parts.split(",")) if parts else getattr(imported, attribute)
    return found


def main() -> None:
    if sys.argv[1:2] in (
        ["house"],
        ["against"],
    ):  # no benchmarks: one counts the source, one runs two sources
        importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--repetitions", type=int, help="of each, instead of its own number")
    parser.add_argument(
        "--output", type=Path, default=_HERE / "results", help="folder for NAME.json (default: %(default)s)"
    )
    parser.add_argument(
        "--update-readme", action="store_true", help="put the tables into benchmarks/README.md"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.names if name.partition(":")[0] not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.repetitions is not None and options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.names or BENCHMARKS:
        benchmark = benchmark_of(name)
        if options.repetitions is not None:
            benchmark = replace(benchmark, repetitions=options.repetitions)
        _measure(benchmark, options.output, update_readme=options.update_readme)


def _measure(benchmark: Benchmark, output: Path, *, update_readme: bool) -> None:
    before = conditions()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scavenger-benchmark-") as folder:
        result = benchmark.run(benchmark.repetitions, Path(folder))
    took_s = time.monotonic() - begin
    text = _text(benchmark, result, before, took_s)
    print(f"## {benchmark.name}\n\n{text}\n", flush=True)
    document: dict[str, Any] = {
        "schema_version": 1,
        "name": benchmark.name,
        "conditions": before,
        "repetitions": benchmark.repetitions,
        "took_s": took_s,
        "verdict": result.verdict,
        "remarks": result.remarks,
        "figures": result.figures,
    }
    path = output / f"{benchmark.name}.json"
    path.write_text(json.dumps(document, indent=1, default=asdict, ensure_ascii=False) + "\n")
    if update_readme:
        readme = _HERE / "README.md"
        readme.write_text(replace_section(readme.read_text(), benchmark.name, text))


def _text(benchmark: Benchmark, result: Result, before: dict[str, Any], took_s: float) -> str:
    remarks = "\n".join(f"- {remark}" for remark in result.remarks)
    return (
        f"{describe(before)}; {benchmark.repetitions} repetitions, {took_s:.0f} s in all. "
        "Figures are medians (least – greatest).\n\n"
        f"{markdown_table(result.headers, result.rows)}\n\n**{result.verdict}**\n\n{remarks}"
    )


if __name__ == "__main__":
    main()
