"""`simulate`: the jobs of a trace on a pool, of nodes or of VMs that it rents, in virtual time, by several policies."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import duration, moneys, plural, quantity
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.renting import Rental
from scavenger.scheduler.jobs.simulation import Run, Workload, simulate
from scavenger.scheduler.jobs.values import Nodes
from scavenger_cli.options import Output, OutputOption, StoreOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scavenger.api.history import HistoryAnswer
    from scavenger.cloud.catalog.catalog import Catalog
    from scavenger.control.pools.traces import Trace
    from scavenger.domain.curve import FloatArray

SLOTS_MAX = 1_000_000
START_S = 120.0
"""Start of a VM where `--start` says nothing: its boot and the installation of the package."""
IDLE_S = 180.0
"""As studies keep theirs."""
OWN = "own VMs"
"""Row of a set of VMs for each job, in place of a pool."""
_RANGE = re.compile(r"(\d{1,7})\.\.([1-9]\d{0,6})")
_NODES = re.compile(r"([1-9]\d{0,6})x([1-9]\d{0,6})")


TraceArgument = Annotated[
    Path | None,
    typer.Argument(metavar="TRACE", help="CSV, one row a job: submitted_s, duration_s, slots."),
]
HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="TIME",
        help="In place of a trace: jobs of a pool of the last time, such as 30d.",
    ),
]
PoolOption = Annotated[str, typer.Option("--pool", metavar="POOL", help="With --history: whose jobs.")]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="NxSLOTS",
        help="Nodes and slots of each, such as 64x8 or 4x8,2x4; with --vm the fewest and the most VMs, such as 0..64. "
        "Default with --history: the pool's slots.",
    ),
]
VmOption = Annotated[
    str | None,
    typer.Option(
        "--vm", metavar="TYPE", help="The pool rents VMs of this type, each one slot, and says dollars."
    ),
]
SpotOption = Annotated[
    bool, typer.Option("--spot", help="With --vm: at the price of spot VMs, none of which is taken back.")
]
InOption = Annotated[
    str | None,
    typer.Option("--in", metavar="CLOUD/REGION", help="With --vm: where. Default: its cloud's first region."),
]
StartOption = Annotated[
    float,
    typer.Option(
        "--start", metavar="SECONDS", min=0.0, help="With --vm: from the request of a VM to its first step."
    ),
]
IdleOption = Annotated[
    float,
    typer.Option("--idle", metavar="SECONDS", min=0.0, help="With --vm: so long one without a job is kept."),
]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget", metavar="USD", min=0.0, help="With --vm: in 30 days. Never crossed."),
]
HourOption = Annotated[
    float | None,
    typer.Option(
        "--hour",
        metavar="USD",
        min=0.0,
        help="With --vm: what it is worth that a job ends an hour sooner. Default: what it asked for, in an hour.",
    ),
]
PoliciesOption = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help=f"One or more of {', '.join(POLICIES)}. Default: all."),
]
RatesOption = Annotated[
    Path | None,
    typer.Option(
        "--rates",
        metavar="FILE",
        help="CSV: model, slots, rate. Jobs are elastic then; else they are not.",
    ),
]
ChangeOption = Annotated[
    float,
    typer.Option(
        "--change", metavar="SECONDS", min=0.0, help="Without progress after each change of a share."
    ),
]
ErrorOption = Annotated[
    float,
    typer.Option(
        "--error",
        metavar="LOG-SD",
        min=0.0,
        max=5.0,
        help="Of the work left that policies are told, as ln.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw slots in use and ends: .svg, .png, .pdf."),
]


def simulate_trace(
    trace: TraceArgument = None,
    history: HistoryOption = None,
    pool_name: PoolOption = "local",
    nodes: NodesOption = None,
    policies: PoliciesOption = None,
    rates: RatesOption = None,
    change_s: ChangeOption = 0.0,
    error: ErrorOption = 0.0,
    seed: SeedOption = 0,
    plot: PlotOption = None,
    vm: VmOption = None,
    spot: SpotOption = False,
    region: InOption = None,
    start_s: StartOption = START_S,
    idle_s: IdleOption = IDLE_S,
    budget_usd: BudgetOption = None,
    hour_usd: HourOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Run the jobs of a trace, or those of a pool's past, on a pool in virtual time, by the policies of pools."""
    names = list(dict.fromkeys(policies or POLICIES))
    _check(names, plot)
    how = {"change_s": change_s, "error_log_sd": error, "seed": seed}
    if (trace is None) == (history is None):
        raise ConfigurationError("name a trace, or give --history")
    if vm is None and (spot or region or budget_usd is not None or hour_usd is not None):
        raise ConfigurationError("--spot, --in, --budget and --hour belong to --vm")
    if vm is not None:
        if trace is None:
            raise ConfigurationError("--vm: give a trace; jobs of --history had the slots of their pool")
        rental = _rental(vm, nodes, region, spot=spot, start_s=start_s, idle_s=idle_s, budget_usd=budget_usd)
        rental = replace(rental, job_usd_per_s=None if hour_usd is None else hour_usd / 3600.0)
        case = _of_rented(trace, rental, rates, how)
    elif trace is not None:
        case = _of_trace(trace, nodes, rates, how)
    elif rates is not None:
        raise ConfigurationError("--rates: with --history, curves are those that were measured")
    else:
        case = _of_past(_days(history or ""), pool_name, nodes, store_url, how)
    slots = case.slots
    if (asks := int(case.trace.slots.max())) > slots:
        raise ConfigurationError(f"a job of {case.origin} asks for {asks} slots, and the pool has {slots}")
    runs = {name: _run(name, case.jobs, case.nodes) for name in names}
    if plot is not None:
        _draw(plot, runs, slots)
    rows = [figures(name, run, slots) for name, run in runs.items()]
    if isinstance(case.nodes, Rental):
        rows = [_own_vms(case.trace, case.nodes), *rows]
    if case.past is not None:
        rows = [_as_it_was(case.past, slots), *rows]
        rows = [{**row, "usd": row["slot_hours"] * case.past.usd_per_slot_hour} for row in rows]
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "jobs": len(case.trace),
                "dropped": case.trace.dropped,
                "nodes": slots if isinstance(case.nodes, Rental) else len(case.nodes.slots),
                "slots": slots,
                "elastic": case.elastic,
                "policies": rows,
            }
        )
    else:
        _show(case, rows)
    return 0


@dataclass(frozen=True, slots=True)
class _Case:
    """What is simulated.

    Attributes:
        origin: Where the jobs are from, in words.
        elastic: Whether any job may have other numbers of slots than it had.
        past: None for a trace.
    """

    origin: str
    trace: Trace
    jobs: Workload
    nodes: Nodes | Rental
    elastic: bool
    past: HistoryAnswer | None = None

    @property
    def slots(self) -> int:
        """Most slots of all jobs."""
        return self.nodes.most if isinstance(self.nodes, Rental) else int(self.nodes.slots.sum())


def _of_trace(path: Path, nodes: str | None, rates: Path | None, how: Mapping[str, Any]) -> _Case:
    from scavenger.control.pools.traces import read_rates, read_trace, workload

    if nodes is None:
        raise ConfigurationError("--nodes: give nodes and the slots of each, such as 64x8 or 4x8,2x4")
    pool, found = _nodes(nodes), read_trace(path)
    jobs = workload(found, None if rates is None else read_rates(rates), **how)
    return _Case(str(path), found, jobs, pool, rates is not None)


def _of_rented(path: Path, rental: Rental, rates: Path | None, how: Mapping[str, Any]) -> _Case:
    from scavenger.control.pools.traces import read_rates, read_trace, workload

    found = read_trace(path)
    jobs = workload(found, None if rates is None else read_rates(rates), **how)
    return _Case(str(path), found, jobs, rental, rates is not None)


def _rental(
    vm: str, nodes: str | None, where: str | None, *, spot: bool, budget_usd: float | None, **how: float
) -> Rental:
    """What is rented, at the price of the catalogue."""
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS
    from scavenger.control.provisioning.prices import open_catalog
    from scavenger.control.sweep import region_of

    match = _RANGE.fullmatch(nodes or "")
    if match is None or not int(match[1]) <= int(match[2]) <= SLOTS_MAX:
        raise ConfigurationError("--nodes: with --vm, give the fewest and the most VMs, such as 0..64")
    catalog = open_catalog()
    try:
        places = [region_of(where)] if where else list(DEFAULT_REGIONS.items())
        place = next((one for one in places if _sells(catalog, one, vm)), places[0])
        usd_per_hour = catalog.price(*place, vm, spot=spot).usd_per_hour
    except ConfigurationError as error:
        raise ConfigurationError(f"--vm {vm}: {error}") from None
    budget = math.inf if budget_usd is None else budget_usd
    rental = Rental(usd_per_hour / 3600.0, most=int(match[2]), least=int(match[1]), budget_usd=budget, **how)
    if not rental.affordable(budget):
        raise ConfigurationError(f"--budget {budget_usd:g}: it pays for no VM, at ${usd_per_hour:g} an hour")
    return rental


def _sells(catalog: Catalog, place: tuple[str, str], vm: str) -> bool:
    try:
        return bool(catalog.listing(*place, vm))
    except ConfigurationError:
        return False


def _own_vms(trace: Trace, rental: Rental) -> dict[str, Any]:
    """The figures of a set of VMs for each job, on demand and at once, with the slots that it asked for."""
    done = trace.lasts_s + rental.start_s
    vm_s = float((done * trace.slots).sum())
    changes = np.r_[trace.submitted_s, trace.submitted_s + done], np.r_[trace.slots, -trace.slots]
    at_once = int(np.cumsum(changes[1][np.lexsort((changes[1], changes[0]))]).max())
    return {
        "policy": OWN,
        **_times(done),
        "waited_s": rental.start_s,
        "makespan_s": float((trace.submitted_s + done).max()),
        "slot_hours": float((trace.lasts_s * trace.slots).sum()) / 3600.0,
        "used": None,
        "changes": 1.0,
        "stopped": 0.0,
        "decisions": None,
        "usd": vm_s * rental.usd_per_s,
        "vm_hours": vm_s / 3600.0,
        "vms_started": int(trace.slots.sum()),
        "vms_at_once": at_once,
    }


def _of_past(days: int, name: str, nodes: str | None, store_url: str | None, how: Mapping[str, Any]) -> _Case:
    from scavenger.api.history import list_past_jobs
    from scavenger.api.opening import open_source
    from scavenger.control.pools.past import past_trace, past_workload

    with open_source(store_url) as source:
        found = list_past_jobs(source, name, days)
    if not found.jobs:
        raise ConfigurationError(
            f"no job of pool {name} was submitted in the last {days} days, and has ended"
        )
    pool = Nodes.of(found.slots) if nodes is None else _nodes(nodes)
    trace = replace(past_trace(found.jobs), dropped=found.left_out)
    elastic = any(job.curve and job.least < job.most for job in found.jobs)
    jobs = past_workload(found.jobs, int(pool.slots.max()), **how)
    return _Case(f"pool {name}", trace, jobs, pool, elastic, found)


def _days(text: str) -> int:
    """A duration such as `30d` as days, at least one."""
    from scavenger.control.job_file.yaml_loader import read_scalar
    from scavenger.domain.forms import parse_duration

    try:
        days = math.ceil(parse_duration(read_scalar(text)) / 86400.0)
    except ValueError as error:
        raise ConfigurationError(f"--history {text}: {error}") from None
    if not 1 <= days <= 3650:
        raise ConfigurationError(f"--history {text}: give from a day to ten years, such as 30d")
    return days


def _as_it_was(past: HistoryAnswer, slots: int) -> dict[str, Any]:
    """The figures of what has been."""
    done = np.array([job.waited_s + job.lasts_s for job in past.jobs])
    ends = [job.submitted_s + took for job, took in zip(past.jobs, done.tolist(), strict=True)]
    slot_s = sum(job.slot_s for job in past.jobs)
    return {
        "policy": "as it was",
        **_times(done),
        "waited_s": float(np.mean([job.waited_s for job in past.jobs])),
        "makespan_s": max(ends),
        "slot_hours": slot_s / 3600.0,
        "used": slot_s / (slots * max(ends)),
        "changes": None,
        "stopped": None,
        "decisions": None,
    }


def _check(names: list[str], plot: Path | None) -> None:
    if unknown := [name for name in names if name not in POLICIES]:
        raise ConfigurationError(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    if plot is not None and plot.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigurationError(f"--plot {plot}: name a file that ends in .svg, .png or .pdf")


def _run(name: str, jobs: Workload, pool: Nodes | Rental) -> Run:
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
    done, vms = run.completion_s, run.vms
    rented = (
        {}
        if vms is None
        else {
            "usd": vms.usd,
            "vm_hours": vms.vm_s / 3600.0,
            "vms_started": vms.started,
            "vms_at_once": vms.at_once,
        }
    )
    return {
        "policy": name,
        **_times(done),
        "waited_s": float(run.waited_s.mean()),
        "makespan_s": run.makespan_s,
        "slot_hours": float(run.slot_s.sum()) / 3600.0,
        "used": float(run.slot_s.sum()) / (slots * run.makespan_s),
        "changes": float(run.changes.mean()),
        "stopped": float(run.stopped_s.sum() / done.sum()),
        "decisions": run.events,
        **rented,
    }


def _times(done: FloatArray) -> dict[str, float]:
    """Figures of the times from submission to end."""
    return {
        "mean_s": float(done.mean()),
        "median_s": float(np.median(done)),
        "p95_s": float(np.quantile(done, 0.95)),
        "p99_s": float(np.quantile(done, 0.99)),
    }


def _show(case: _Case, rows: list[dict[str, Any]]) -> None:
    found, pool, past = case.trace, case.nodes, case.past
    if isinstance(pool, Rental):
        where = f"up to {plural(pool.most, 'VM')} at ${3600.0 * pool.usd_per_s:.4g} an hour"
    else:
        where = f"{plural(len(pool.slots), 'node')} with {plural(case.slots, 'slot')}"
    console.note(f"{plural(len(found), 'job')} on {where}")
    if found.dropped:
        dropped = plural(found.dropped, "row" if past is None else "job")
        console.note(f"{dropped} left out: without a duration or slots")
    if past is not None and (rigid := sum(not job.curve for job in past.jobs)):
        console.note(f"{plural(rigid, 'job')} with as many slots as it had, since no curve of it is known")
    if past is not None:
        _show_past(rows)
        return
    rents = isinstance(pool, Rental)
    shown = render.table(
        ("policy", "left"),
        *((title, "right") for title in ("mean", "median", "95 %")),
        *((title, "right") for title in (("VM hours", "dollars") if rents else ("all", "slot hours"))),
        ("changes", "right"),
    )
    dollars = moneys([row["usd"] for row in rows]) if rents else ()
    for at, row in enumerate(rows):
        times = (duration(row[key]) for key in ("mean_s", "median_s", "p95_s"))
        hours = (
            (quantity(row["vm_hours"]), dollars[at])
            if rents
            else (duration(row["makespan_s"]), f"{row['slot_hours']:,.0f}")
        )
        shown.add_row(row["policy"], *times, *hours, f"{row['changes']:.1f}")
    console.emit(shown, stream=None)
    if rents:
        console.note(
            f"{OWN}: a set for each job as soon as it comes, with what it asked for, in place of a pool"
        )
    console.note("mean, median, 95 %: from submission to end; changes: of the share of a job")


def _show_past(rows: list[dict[str, Any]]) -> None:
    """Hours and dollars of what was, and of what would have been."""
    shown = render.table(
        ("policy", "left"),
        *((title, "right") for title in ("mean", "95 %", "all", "slot hours", "dollars")),
    )
    for row, usd in zip(rows, moneys([row["usd"] for row in rows]), strict=True):
        times = (duration(row[key]) for key in ("mean_s", "p95_s", "makespan_s"))
        shown.add_row(row["policy"], *times, quantity(row["slot_hours"]), usd)
    console.emit(shown, stream=None)
    console.note("mean, 95 %: from submission to end; dollars: of slots")


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
