"""`aggregators`: the pool of aggregators that jobs share on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.control.documents.pool import cost_of, pool_document, share_of, state_of
from scavenger.domain.infra import Infra
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.presentation.formatting import clean, duration, money, plural, quantity, size, when
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType
    from rich.table import Table

    from scavenger.train.pool.protocol import NodeLoad, PoolLoad, RentalLoad
    from scavenger.train.pool.rental import NodeSource

_CHANGES_SHOWN = 5

_SHARES = {
    "cgroup": "by a cgroup each",
    "session": "by the kernel's groups of sessions",
    "thread": "by threads, as this system allows no group for each",
}


def show_pool(*, as_json: bool) -> int:
    """Print the nodes of this machine's pool, its jobs and their aggregators, and what each uses and costs.

    Raises:
        TransientError: The pool's manager does not answer.
        ConfigurationError: The price of a processor that the environment sets is none.
    """
    from scavenger.control.sources import open_source

    with open_source(None) as source:
        seen = source.pool()
    if as_json:
        console.emit_json(pool_document(seen))
    elif seen.load is None:
        console.emit(Text("No pool is served on this machine: a job with `aggregation: shared` starts one."))
    else:
        _show(seen.load, (seen.usd_per_cpu_hour, seen.price_source), datetime.now(UTC).timestamp())
    return 0


def drain_node(node: str, *, undo: bool, as_json: bool) -> int:
    """Have all aggregators moved off a node, or let it have some again.

    Raises:
        ConfigurationError: No pool is served, it has no such node, or the others have no room.
        TransientError: The pool's manager does not answer.
    """
    from scavenger.control.sources import open_source

    with open_source(None) as source:
        document = source.drain(node, undo=undo)
    if as_json:
        console.emit_json(document)
    elif undo:
        console.emit(Text(f"{clean(node)} gets aggregators again."))
    else:
        moved = plural(document["moved"], "aggregator")
        how = "to leave, as soon as what they hold has moved" if document["later"] else "moved"
        console.emit(Text(f"{clean(node)} is drained: {moved} {how}."))
    return 0


def expect_node(
    name: str, file: Path, *, place: str, usd_per_hour: float, tenants: int, as_json: bool
) -> int:
    """Write the file with which another machine joins the pool as a node.

    Raises:
        ConfigurationError: No pool is served that other machines can join, it has a node of this name, or the file or
            the place cannot be used.
        TransientError: The pool's manager does not answer.
    """
    from scavenger.private_files import private_opener
    from scavenger.train.pool.connection import add_node
    from scavenger.train.pool.protocol import AddNode, pool_folder

    infra = Infra.parse(place)
    place = f"{infra.provider}/{infra.region}" if infra.region else infra.provider
    if infra.capabilities.pods:
        raise ConfigurationError(
            f"--place {place}: jobs there cannot share aggregators; use local, aws/ or gcp/"
        )
    try:
        with open(file, "x", opener=private_opener) as opened:
            added = add_node(pool_folder(), AddNode(name, place, usd_per_hour, tenants))
            opened.write("" if added is None else added.ticket)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except ScavengerError:
        file.unlink()
        raise
    if added is None or added.error:
        file.unlink()
        raise ConfigurationError("no pool is served on this machine" if added is None else added.error)
    if as_json:
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


def serve_pool(
    *,
    nodes: int | None,
    cpus: int | None,
    memory_gib: float | None,
    tenants: int,
    listen: str = "",
    rent: RentOptions | None = None,
) -> int:
    """Serve the pool until Ctrl-C or SIGTERM.

    Raises:
        ConfigurationError: This machine is too small for these nodes or cannot listen there, or no such VM can be
            rented.
        CloudError: The cloud of rented nodes does not answer.
        TransientError: A pool is served already.
    """
    from scavenger.train.pool.machines import Listen, listen_at
    from scavenger.train.pool.protocol import pool_folder
    from scavenger.train.pool.serving import PoolSize, pool_nodes, serve

    memory_bytes = None if memory_gib is None else int(memory_gib * 2**30)
    size_ = PoolSize(nodes, cpus, memory_bytes, tenants)
    at = listen_at(listen) if listen else None
    if rent is not None and at is None:
        from scavenger.control.provisioning.cloud_resources import address_of

        at = Listen(*address_of(os.environ))
    if nodes == 0 and at is None:
        raise ConfigurationError(
            "--nodes 0: without --listen, no other machine can join, and there would be no node"
        )
    for node in pool_nodes(size_):
        console.note(f"{node.name}: {plural(node.cpus, 'processor')}, {size(node.memory_bytes)} of memory")
    if rent is None:
        serve(pool_folder(), size_, listen=at)
        return 0
    with _renting(rent, tenants) as source:
        serve(pool_folder(), size_, listen=at, source=source)
    return 0


@contextmanager
def _renting(rent: RentOptions, tenants: int) -> Iterator[NodeSource]:
    """What rents the nodes, with the store that has their record."""
    from scavenger.control.job_file.yaml_loader import read_scalar
    from scavenger.control.provisioning.pool_nodes import open_pool_nodes
    from scavenger.domain.forms import parse_duration
    from scavenger.store import Store
    from scavenger.train.pool.protocol import pool_folder

    infra = Infra.parse(rent.infra)
    if not infra.capabilities.zones:
        raise ConfigurationError(f"--infra {rent.infra}: nodes are rented at aws/REGION or gcp/REGION")
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
            f"{node.machine} at {money(node.usd_per_hour)} per hour with its disk ({clean(spec.price_source)}); "
            f"{money(limits.nodes_max * node.usd_per_hour)} per hour at most, and each ends after "
            f"{duration(limits.idle_s)} without aggregators"
        )
        yield source


def _show(load: PoolLoad, price: tuple[float, str], now_s: float) -> None:
    began = datetime.fromtimestamp(load.since, UTC)
    used = sum(node.tenants > 0 for node in load.nodes)
    console.emit(
        Text(f"Pool of process {load.pid} since {when(began)}"),
        Text(
            f"{used} of {plural(len(load.nodes), 'node')} in use, room for {plural(load.room, 'aggregator')} more"
        ),
        "",
        _nodes(load),
    )
    if machines := [node for node in load.nodes if node.node.place]:
        console.emit("", _machines(machines, load.rental, now_s))
    if load.rental is not None:
        console.emit("", *_rental(load.rental))
    if load.expected:
        console.emit(Text(f"expected: {clean(', '.join(load.expected))}"))
    if load.jobs:
        console.emit("", _jobs(load, price[0]))
    if load.tenants:
        console.emit("", _tenants(load, now_s))
    if load.changes:
        console.emit("", *_changes(load))
    note = f"share: of the node's processors, in the last 10 s; equal shares {_SHARES[load.shares]}"
    console.emit("", Text(note))
    if machines:
        console.emit(Text("cost on another machine: of processor time at the price of its node"))
    console.emit(Text(f"cost: of processor time at {money(price[0])} per hour ({clean(price[1])})"))


def _nodes(load: PoolLoad) -> Table:
    grid = render.table(
        ("node", "left"),
        ("state", "left"),
        ("processors", "right"),
        ("busy", "right"),
        ("planned", "right"),
        ("tenants", "right"),
        ("memory", "right"),
    )
    for node in load.nodes:
        grid.add_row(
            clean(node.node.name),
            state_of(node),
            str(node.node.cpus),
            _busy(node),
            f"{node.planned:.0%}",
            str(node.tenants),
            f"{size(node.memory_bytes)} of {size(node.node.memory_bytes)}",
        )
    return grid


def _jobs(load: PoolLoad, usd_per_cpu_hour: float) -> Table:
    grid = render.table(
        ("job", "left"),
        ("name", "left"),
        ("step alone", "right"),
        ("step", "right"),
        ("loss", "right"),
        ("cpu time", "right"),
        ("cost", "right"),
    )
    for job in load.jobs:
        grid.add_row(
            clean(job.id[:8]),
            clean(_short(job.name)),
            "-" if job.alone_s is None else duration(job.alone_s),
            "-" if job.step_s is None else duration(job.step_s),
            "-" if job.loss is None else f"{job.loss:.1%}",
            f"{quantity(job.cpu_s)} s",
            money(cost_of(job, usd_per_cpu_hour)),
        )
    return grid


def _rental(rental: RentalLoad) -> Iterator[RenderableType]:
    """What is rented, and what it costs."""
    there = plural(len(rental.since), "node")
    yield Text(
        f"rented at {clean(rental.place)}: {there} of at most {rental.nodes_max}, each a {clean(rental.machine)} at "
        f"{money(rental.usd_per_hour)} per hour; {money(rental.spent_usd)} so far, {money(rental.idle_usd)} of it idle"
    )
    if rental.shortage:
        yield Text(f"a node cannot be had: {clean(rental.shortage)}")


def _machines(nodes: list[NodeLoad], rental: RentalLoad | None, now_s: float) -> Table:
    since = {} if rental is None else rental.since
    grid = render.table(
        ("node", "left"),
        ("machine", "left"),
        ("for jobs with", "left"),
        *((("rented for", "right"),) if since else ()),
        ("per hour", "right"),
        ("idle so far", "right"),
    )
    for node in nodes:
        at = since.get(node.node.name)
        age = ("-" if at is None else duration(max(0.0, now_s - at)),) if since else ()
        grid.add_row(
            clean(node.node.name),
            clean(node.node.machine),
            clean(node.node.place),
            *age,
            money(node.node.usd_per_hour),
            money(node.idle_usd),
        )
    return grid


def _tenants(load: PoolLoad, now_s: float) -> Table:
    cpus = {node.node.name: node.node.cpus for node in load.nodes}
    grid = render.table(
        ("job", "left"),
        ("process", "left"),
        ("node", "left"),
        ("share", "right"),
        ("cpu time", "right"),
        ("memory", "right"),
        ("for", "right"),
    )
    for tenant in load.tenants:
        grid.add_row(
            clean(tenant.job_id[:8]),
            clean(tenant.name),
            clean(tenant.node),
            f"{share_of(tenant, cpus):.0%}",
            f"{quantity(tenant.cpu_s)} s",
            size(tenant.memory_bytes),
            duration(max(0.0, now_s - tenant.since)),
        )
    return grid


def _changes(load: PoolLoad) -> Iterator[RenderableType]:
    for change in load.changes[-_CHANGES_SHOWN:]:
        at = when(datetime.fromtimestamp(change.at, UTC))[11:19]
        yield Text(f"{at}  {clean(change.what)} ({clean(change.reason)})")


def _short(name: str, most: int = 10) -> str:
    """A job's name, cut so that the table fits 80 columns."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _busy(node: NodeLoad) -> str:
    return f"{node.load_cpus / node.node.cpus:.0%}"
