"""`simulate`: the jobs of a trace on a pool, in virtual time, under several policies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import duration, plural
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Run, Workload, simulate
from scavenger.scheduler.jobs.values import Nodes
from scavenger_cli.options import Output, OutputOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scavenger.control.pools.traces import Trace

SLOTS_MAX = 1_000_000
_NODES = re.compile(r"([1-9]\d{0,6})x([1-9]\d{0,6})")


def simulate_trace(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="CSV, one row a job: submitted_s, duration_s, slots."),
    ],
    nodes: Annotated[
        str,
        typer.Option("--nodes", metavar="NxSLOTS", help="Nodes and slots of each, such as 64x8 or 4x8,2x4."),
    ],
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help=f"One or more of {', '.join(POLICIES)}. Default: all."),
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(
            "--rates",
            metavar="FILE",
            help="CSV: model, slots, rate. Jobs are elastic then; else they are not.",
        ),
    ] = None,
    change_s: Annotated[
        float,
        typer.Option(
            "--change", metavar="SECONDS", min=0.0, help="Without progress after each change of a share."
        ),
    ] = 0.0,
    error: Annotated[
        float,
        typer.Option(
            "--error",
            metavar="LOG-SD",
            min=0.0,
            max=5.0,
            help="Of the work left that policies are told, as ln.",
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw slots in use and ends: .svg, .png, .pdf."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Run the jobs of a trace on a pool in virtual time, by the policies that pools decide by."""
    from scavenger.control.pools.traces import read_rates, read_trace, workload

    pool = _nodes(nodes)
    names = list(dict.fromkeys(policies or POLICIES))
    _check(names, plot)
    found = read_trace(trace)
    jobs = workload(
        found,
        None if rates is None else read_rates(rates),
        change_s=change_s,
        error_log_sd=error,
        seed=seed,
    )
    slots = int(pool.slots.sum())
    if (asks := int(found.slots.max())) > slots:
        raise ConfigurationError(f"a job of {trace} asks for {asks} slots, and the pool has {slots}")
    runs = {name: _run(name, jobs, pool) for name in names}
    if plot is not None:
        _draw(plot, runs, slots)
    rows = [figures(name, run, slots) for name, run in runs.items()]
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "jobs": len(found),
                "dropped": found.dropped,
                "nodes": len(pool.slots),
                "slots": slots,
                "elastic": rates is not None,
                "policies": rows,
            }
        )
    else:
        _show(found, pool, rows)
    return 0


def _check(names: list[str], plot: Path | None) -> None:
    if unknown := [name for name in names if name not in POLICIES]:
        raise ConfigurationError(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    if plot is not None and plot.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigurationError(f"--plot {plot}: name a file that ends in .svg, .png or .pdf")


def _run(name: str, jobs: Workload, pool: Nodes) -> Run:
    try:
        return simulate(jobs, pool, Rules(POLICIES[name]))
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _nodes(text: str) -> Nodes:
    """The nodes of `64x8` or `4x8,2x4`."""
    slots: list[int] = []
    for part in text.split(","):
        match = _NODES.fullmatch(part.strip())
        if match is None or len(slots) + int(match[1]) > SLOTS_MAX:
            raise ConfigurationError(
                f"--nodes {text}: give nodes and the slots of each, such as 64x8 or 4x8,2x4"
            )
        slots += [int(match[2])] * int(match[1])
    if sum(slots) > SLOTS_MAX:
        raise ConfigurationError(f"--nodes {text}: at most {SLOTS_MAX:,} slots")
    return Nodes.of(*slots)


def figures(name: str, run: Run, slots: int) -> dict[str, Any]:
    """What a document says of one policy."""
    done = run.completion_s
    return {
        "policy": name,
        "mean_s": run.mean_s,
        "median_s": float(np.median(done)),
        "p95_s": float(np.quantile(done, 0.95)),
        "p99_s": float(np.quantile(done, 0.99)),
        "waited_s": float(run.waited_s.mean()),
        "makespan_s": run.makespan_s,
        "slot_hours": float(run.slot_s.sum()) / 3600.0,
        "used": float(run.slot_s.sum()) / (slots * run.makespan_s),
        "changes": float(run.changes.mean()),
        "stopped": float(run.stopped_s.sum() / done.sum()),
        "decisions": run.events,
    }


def _show(found: Trace, pool: Nodes, rows: list[dict[str, Any]]) -> None:
    jobs, nodes = plural(len(found), "job"), plural(len(pool.slots), "node")
    console.note(f"{jobs} on {nodes} with {plural(int(pool.slots.sum()), 'slot')}")
    if found.dropped:
        console.note(f"{plural(found.dropped, 'row')} left out: without a duration or slots")
    shown = render.table(
        ("policy", "left"),
        *((title, "right") for title in ("mean", "median", "95 %", "all", "slot hours", "changes")),
    )
    for row in rows:
        times = (duration(row[key]) for key in ("mean_s", "median_s", "p95_s", "makespan_s"))
        shown.add_row(row["policy"], *times, f"{row['slot_hours']:,.0f}", f"{row['changes']:.1f}")
    console.emit(shown, stream=None)
    console.note("mean, median, 95 %: from submission to end; changes: of the share of a job")


def _draw(path: Path, runs: Mapping[str, Run], slots: int) -> None:
    """Slots in use over time, and the share of jobs that have ended after so long."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    above, below = figure.subplots(2)
    for name, run in runs.items():
        times, used = run.used
        above.step(times / 3600.0, used, where="post", linewidth=1.0, label=name)
        ends = np.sort(run.completion_s)
        below.step(ends / 3600.0, np.arange(1, len(ends) + 1) / len(ends), where="post", label=name)
    above.set(xlabel="hours", ylabel=f"slots in use of {slots}", ylim=(0, slots * 1.05))
    below.set(xlabel="hours from submission to end", ylabel="share of jobs", xscale="log", ylim=(0, 1))
    above.legend(loc="best", fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigurationError(f"--plot {path}: {error.strerror or error}") from error
