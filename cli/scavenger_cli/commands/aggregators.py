"""`aggregators`: the pool of aggregators that jobs share on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from scavenger.api import pool
from scavenger.api.opening import open_source
from scavenger.api.values import plain
from scavenger.domain.infra import Infra
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.presentation.formatting import clean, duration, durations, money, moneys, plural, size, when
from scavenger_cli.leftovers import here_only
from scavenger_cli.options import Output, OutputOption, StoreOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from scavenger.train.pool.rental import NodeSource

_CHANGES_SHOWN = 5

_SHARES = {
    "cgroup": "by a cgroup each",
    "session": "by the kernel's groups of sessions",
    "thread": "by threads, as this system allows no group for each",
}


def show(context: typer.Context, output: OutputOption = Output.TEXT) -> int:
    """Show the nodes of the pool, the jobs and their aggregators, and what each uses and costs."""
    if context.invoked_subcommand is not None:
        return 0
    with open_source(None) as source:
        found = pool.show_pool(source)
    if output.is_json:
        console.emit_json(plain(found))
    elif found.pool is None:
        console.emit(Text("No pool is served on this machine: a job with `aggregation: shared` starts one."))
    else:
        _show(found.pool, datetime.now(UTC))
    return 0


def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node, as `node-0`.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the node have aggregators again.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Move all aggregators off a node while their jobs train; it then gets none until `--undo`."""
    with open_source(None) as source:
        done = pool.drain_node(source, node, undo=undo)
    if output.is_json:
        console.emit_json(plain(done))
    elif undo:
        console.emit(Text(f"{clean(node)} gets aggregators again."))
    else:
        moved = plural(done.moved, "aggregator")
        how = "to leave, as soon as what they hold has moved" if done.later else "moved"
        console.emit(Text(f"{clean(node)} is drained: {moved} {how}."))
    return 0


def add_node(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the node, up to 40 letters and digits.")
    ],
    file: Annotated[
        Path,
        typer.Option("--file", "-f", metavar="FILE", help="Where to write the join file; it must not exist."),
    ] = Path("join.json"),
    place: Annotated[
        str,
        typer.Option(
            metavar="INFRA",
            help="Which jobs use the node, by the infra of their job files, as `aws/us-east-1`. Default: jobs whose "
            "workers are on this machine.",
        ),
    ] = "local",
    price: Annotated[
        float,
        typer.Option(
            metavar="USD",
            min=0.0,
            help="Price of the machine per hour, of which each job pays for what it uses. Default: 0.",
        ),
    ] = 0.0,
    tenants: Annotated[
        int, typer.Option(metavar="N", min=1, help="Aggregators that share the node at most.")
    ] = 8,
    output: OutputOption = Output.TEXT,
) -> int:
    """Expect another machine as a node: `scavenger-vm FILE`, run there, joins the pool.

    The file has a key that is good once; whoever has it can join in place of the machine, so send it privately.
    """
    from scavenger.private_files import private_opener
    from scavenger.train.pool import connection
    from scavenger.train.pool.protocol import AddNode, pool_folder

    here_only("aggregators add-node")
    infra = Infra.parse(place)
    place = f"{infra.provider}/{infra.region}" if infra.region else infra.provider
    if infra.capabilities.pods:
        raise ConfigurationError(
            f"--place {place}: jobs there cannot share aggregators; name local, or VMs such as aws/REGION"
        )
    try:
        with open(file, "x", opener=private_opener) as opened:
            added = connection.add_node(pool_folder(), AddNode(name, place, price, tenants))
            opened.write("" if added is None else added.ticket)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except ScavengerError:
        file.unlink()
        raise
    if added is None or added.error:
        file.unlink()
        raise ConfigurationError("no pool is served on this machine" if added is None else added.error)
    if output.is_json:
        console.emit_json(
            {"schema_version": console.SCHEMA_VERSION, "node": name, "place": place, "file": str(file)}
        )
    else:
        console.emit(
            Text(
                f"{clean(name)} is expected: copy {clean(str(file))} to its machine, where `scavenger-vm FILE` joins."
            )
        )
        console.emit(Text("The file's key is good once; it is removed there."))
    return 0


@dataclass(frozen=True, slots=True)
class RentOptions:
    """What nodes are rented: the options of `serve`, as they are given."""

    infra: str
    vm: str
    nodes_max: int
    idle_duration: str
    budget_per_hour: float
    store_url: str | None


NodesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Nodes to cut out of this machine, at most in use at once; 0: none, all are other machines. "
        "Default: as many as half of its processors suffice for.",
    ),
]
NodeCpusOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processors of each node. Default: half of the machine's among all nodes, at most 4.",
    ),
]
NodeMemoryOption = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        min=0.1,
        help="Memory of each node. Default: half of the machine's among all nodes.",
    ),
]
TenantsOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Aggregators that share a node at most.")
]
ListenOption = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS[:PORT]",
        help="Let other machines join as nodes (`add-node`), at an address of this machine that they reach. "
        "Default: nothing listens.",
    ),
]
RentInfraOption = Annotated[
    str,
    typer.Option(
        metavar="CLOUD/REGION",
        help="Rent VMs there as nodes when jobs need them, and end them afterwards. They reach this machine at "
        "--listen, or else at $SCAVENGER_ADDRESS.",
    ),
]
RentVmOption = Annotated[
    str,
    typer.Option(metavar="TYPE", help="VM type of these. Default: the cheapest with 2 vCPUs and 4 GiB."),
]
RentMaxOption = Annotated[
    int, typer.Option("--nodes-max", metavar="N", min=1, help="Most rented nodes at a time.")
]
RentIdleOption = Annotated[
    str,
    typer.Option(
        "--idle-duration", metavar="TIME", help="How long a rented node without aggregators is kept."
    ),
]
RentBudgetOption = Annotated[
    float,
    typer.Option(
        "--budget-per-hour",
        metavar="USD",
        min=0.0,
        help="What all rented nodes together may cost in an hour; 0: what --nodes-max of them cost.",
    ),
]


def serve(
    nodes: NodesOption = None,
    cpus: NodeCpusOption = None,
    memory: NodeMemoryOption = None,
    tenants: TenantsOption = 8,
    listen: ListenOption = "",
    infra: RentInfraOption = "",
    vm: RentVmOption = "",
    nodes_max: RentMaxOption = 4,
    idle_duration: RentIdleOption = "5m",
    budget_per_hour: RentBudgetOption = 0.0,
    store_url: StoreOption = None,
) -> int:
    """Serve the pool until Ctrl-C.

    Without this, jobs start a pool themselves, which ends a minute after the last of them.
    """
    from scavenger.train.pool import serving
    from scavenger.train.pool.machines import Listen, listen_at
    from scavenger.train.pool.protocol import pool_folder

    if infra:
        here_only("aggregators serve --infra")
    rent = RentOptions(infra, vm, nodes_max, idle_duration, budget_per_hour, store_url) if infra else None
    memory_bytes = None if memory is None else int(memory * 2**30)
    size_ = serving.PoolSize(nodes, cpus, memory_bytes, tenants)
    at = listen_at(listen) if listen else None
    if rent is not None and at is None:
        from scavenger.control.places.launching import address_of

        at = Listen(*address_of(os.environ))
    if nodes == 0 and at is None:
        raise ConfigurationError(
            "--nodes 0: without --listen, no other machine can join, and there would be no node"
        )
    for node in serving.pool_nodes(size_):
        console.note(f"{node.name}: {plural(node.cpus, 'processor')}, {size(node.memory_bytes)} of memory")
    if rent is None:
        serving.serve(pool_folder(), size_, listen=at)
        return 0
    with _renting(rent, tenants) as source:
        serving.serve(pool_folder(), size_, listen=at, source=source)
    return 0


@contextmanager
def _renting(rent: RentOptions, tenants: int) -> Iterator[NodeSource]:
    """What rents the nodes, with the store that has their record."""
    from scavenger.control.job_file.yaml_loader import read_scalar
    from scavenger.control.places.pool_nodes import open_pool_nodes
    from scavenger.domain.forms import parse_duration
    from scavenger.store import Store
    from scavenger.train.pool.protocol import pool_folder

    infra = Infra.parse(rent.infra)
    if not infra.capabilities.zones:
        raise ConfigurationError(f"--infra {rent.infra}: nodes are VMs, of aws/REGION or gcp/REGION, say")
    try:
        idle_s = parse_duration(read_scalar(rent.idle_duration))
    except ValueError as error:
        raise ConfigurationError(f"--idle-duration {rent.idle_duration}: {error}") from None
    with Store.open(rent.store_url) as store:
        source, spec = open_pool_nodes(
            store,
            infra,
            record=pool_folder(),
            vm=rent.vm,
            tenants_max=tenants,
            nodes_max=rent.nodes_max,
            idle_s=idle_s,
            usd_per_hour_max=rent.budget_per_hour or math.inf,
        )
        node, limits = spec.node, spec.limits
        console.note(
            f"rented when jobs need them: up to {plural(limits.nodes_max, 'node')} at {node.place}, each a "
            f"{node.machine} at {money(node.usd_per_hour)} per hour {spec.options[0].extras} "
            f"({clean(spec.price_source)}); "
            f"{money(limits.nodes_max * node.usd_per_hour)} per hour at most, and each ends after "
            f"{duration(limits.idle_s)} without aggregators"
        )
        yield source


def _show(found: pool.Pool, now: datetime) -> None:
    used = sum(node.tenants > 0 for node in found.nodes)
    room = plural(found.room, "aggregator")
    console.emit(
        Text(f"Pool of process {found.pid} since {when(found.since)}"),
        Text(f"{used} of {plural(len(found.nodes), 'node')} in use, room for {room} more"),
        "",
        _nodes(found),
    )
    if machines := [node for node in found.nodes if node.place]:
        console.emit("", _machines(machines, found.rental, now))
    if found.rental is not None:
        console.emit("", *_rental(found.rental))
    if found.expected:
        console.emit(Text(f"expected: {clean(', '.join(found.expected))}"))
    if found.jobs:
        console.emit("", _jobs(found))
    if found.tenants:
        console.emit("", _tenants(found, now))
    if found.changes:
        console.emit("", *_changes(found))
    note = f"share: of the node's processors, in the last 10 s; equal shares {_SHARES[found.shares]}"
    console.emit("", Text(note))
    if machines:
        console.emit(Text("cost on another machine: of processor time at the price of its node"))
    price = f"{money(found.usd_per_cpu_hour)} per hour ({clean(found.price_source)})"
    console.emit(Text(f"cost: of processor time at {price}"))


def _nodes(found: pool.Pool) -> Table:
    grid = render.table(
        ("node", "left"),
        ("state", "left"),
        ("processors", "right"),
        ("busy", "right"),
        ("planned", "right"),
        ("tenants", "right"),
        ("memory", "right"),
    )
    for node in found.nodes:
        grid.add_row(
            clean(node.name),
            node.state.replace("_", " "),
            str(len(node.processors)),
            f"{node.busy:.0%}",
            f"{node.planned:.0%}",
            str(node.tenants),
            f"{size(node.used_bytes)} of {size(node.memory_bytes)}",
        )
    return grid


def _jobs(found: pool.Pool) -> Table:
    grid = render.table(
        ("job", "left"),
        ("name", "left"),
        ("step alone", "right"),
        ("step", "right"),
        ("loss", "right"),
        ("cpu time", "right"),
        ("cost", "right"),
    )
    columns = zip(
        durations([job.alone_s for job in found.jobs]),
        durations([job.step_s for job in found.jobs]),
        durations([job.cpu_s for job in found.jobs]),
        moneys([job.cost_usd for job in found.jobs]),
        strict=True,
    )
    for job, (alone, step, cpu, cost) in zip(found.jobs, columns, strict=True):
        grid.add_row(
            clean(job.id[:8]),
            clean(_short(job.name)),
            "-" if job.alone_s is None else alone,
            "-" if job.step_s is None else step,
            "-" if job.loss is None else f"{job.loss:.1%}",
            cpu,
            cost,
        )
    return grid


def _rental(rental: pool.PoolRental) -> Iterator[RenderableType]:
    """What is rented, and what it costs."""
    there = plural(len(rental.since), "node")
    yield Text(
        f"rented at {clean(rental.place)}: {there} of at most {rental.nodes_max}, each a {clean(rental.vm)} at "
        f"{money(rental.usd_per_hour)} per hour; {money(rental.cost_usd)} so far, {money(rental.idle_usd)} of it idle"
    )
    if rental.shortage:
        yield Text(f"a node cannot be had: {clean(rental.shortage)}")


def _machines(nodes: list[pool.PoolNode], rental: pool.PoolRental | None, now: datetime) -> Table:
    since = {} if rental is None else rental.since
    grid = render.table(
        ("node", "left"),
        ("machine", "left"),
        ("for jobs with", "left"),
        *((("rented for", "right"),) if since else ()),
        ("per hour", "right"),
        ("idle so far", "right"),
    )
    prices = moneys([node.usd_per_hour or 0.0 for node in nodes])
    idle = moneys([node.idle_usd or 0.0 for node in nodes])
    for node, price, unused in zip(nodes, prices, idle, strict=True):
        at = since.get(node.name)
        age = ("-" if at is None else _age(at, now),) if since else ()
        grid.add_row(
            clean(node.name),
            clean(node.machine or ""),
            clean(node.place or ""),
            *age,
            price,
            unused,
        )
    return grid


def _tenants(found: pool.Pool, now: datetime) -> Table:
    grid = render.table(
        ("job", "left"),
        ("process", "left"),
        ("node", "left"),
        ("share", "right"),
        ("cpu time", "right"),
        ("memory", "right"),
        ("for", "right"),
    )
    times = durations([tenant.cpu_s for tenant in found.tenants])
    for tenant, cpu in zip(found.tenants, times, strict=True):
        grid.add_row(
            clean(tenant.job.id[:8]),
            clean(tenant.process),
            clean(tenant.node),
            f"{tenant.share:.0%}",
            cpu,
            size(tenant.memory_bytes),
            _age(tenant.since, now),
        )
    return grid


def _changes(found: pool.Pool) -> Iterator[RenderableType]:
    for change in found.changes[-_CHANGES_SHOWN:]:
        yield Text(f"{when(change.at)[11:19]}  {clean(change.what)} ({clean(change.reason)})")


def _age(since: datetime, now: datetime) -> str:
    return duration(max(0.0, (now - since).total_seconds()))


def _short(name: str, most: int = 10) -> str:
    """A job's name, cut so that the table fits 80 columns."""
    return name if len(name) <= most else name[: most - 1] + "…"
