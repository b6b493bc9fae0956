"""`pool`: the slots that jobs share, what comes of the jobs, and why each has what it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from scavenger.api import pools
from scavenger.api.cluster_pools import LEASES, explain_cluster_share, show_cluster_pools
from scavenger.api.opening import open_source
from scavenger.api.pool_words import ANOTHERS, NOW, changing, gained, ranged, title, within
from scavenger.api.submissions import submission_of
from scavenger.api.submitting import JobRequest
from scavenger.domain.operation import StopJob
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.presentation.formatting import (
    clean,
    duration,
    duration_range,
    duration_within,
    money,
    money_range,
    money_within,
    plural,
    when,
)
from scavenger_cli.commands.operate import TIMEOUT, Waiting, operate
from scavenger_cli.options import (
    ClusterOption,
    JobFile,
    LeasesOption,
    Output,
    OutputOption,
    PoolOption,
    PriorityOption,
    RunningJob,
    StoreOption,
    TimeoutOption,
    WaitOption,
)
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

_PAUSED = "paused"


def show(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="POOL", help="Only this pool; as pool POOL.")
    ] = None,
    cluster: ClusterOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show the pools of slots that jobs share: who has how many, what comes, and why."""
    if context.invoked_subcommand is not None:
        return 0
    if (at := _asked(cluster, leases)) is not None:
        answer = show_cluster_pools(*at)
    else:
        with open_source(None) as source:
            answer = pools.show_pools(source)
    found = [one for one in answer.pools if name in (None, one.name)]
    if not found:
        raise NotFoundError(
            f"there is no pool {name!r}; there are {', '.join(one.name for one in answer.pools)}"
        )
    if output.is_json:
        console.emit_answer(pools.PoolsAnswer(pools=tuple(found)))
        return 0
    for number, one in enumerate(found):
        console.emit(*(("",) if number else ()), *pool_text(one))
    return 0


def _asked(cluster: str | None, leases: str | None) -> tuple[str, str] | None:
    """The cluster whose pools are asked for, and the namespace of their leases; None for those of a store or server."""
    if cluster is None and leases is not None:
        raise ConfigurationError("--lease-namespace is of a cluster: give --in kubernetes/CONTEXT, too")
    return None if cluster is None else (cluster, leases or LEASES)


def pool_text(one: pools.SharedPool) -> Iterator[RenderableType]:
    """A pool for people."""
    each = ", one job at a time has all of them" if one.whole else f", shared out by {one.policy}"
    slots, vms = plural(one.slots, "slot"), one.vms
    if vms is not None and not vms.vm:
        slots = f"{plural(one.slots, 'host')} of {vms.infra}"
    elif vms is not None:
        kind = "spot VM" if vms.spot else "VM"
        slots = f"up to {plural(one.slots, kind)} {vms.vm} of {vms.infra}"
    yield Text(f"Pool {one.name}: {slots}{each}; {one.free} free")
    if vms is not None and vms.budget_usd is not None:
        left_usd = max(0.0, vms.left_usd or 0.0)
        yield Text(f"{money(left_usd)} of {money(vms.budget_usd)} are left of its budget of this month")
    if vms is not None and (vms.idle or vms.idle_usd):
        waiting = f"{plural(vms.idle, 'VM')} without a job, which {'waits' if vms.idle == 1 else 'wait'} for the next"
        yield Text(f"{waiting}; {money(vms.idle_usd)} were paid for that in this month")
    if vms is not None or any(node.state != "open" for node in one.nodes):
        yield from nodes(one)
    if not one.jobs:
        yield Text("No job waits or runs.")
        return
    yield from coming(one)
    for job in one.jobs:
        if job.why:
            yield Text(f"{title(job.id, job.name)} {clean(job.why)}")
    if not one.whole:
        gains = ", ".join(gained(gain) for gain in one.further)
        yield Text(f"one slot more would bring: {gains or 'nothing, no job would have it'}")
    for move in one.moves:
        yield Text(f"{when(move.at)[11:19]}  {clean(move.what)}")
    price = "; the price of a slot is not known"
    if one.usd_per_slot_hour is not None:
        price = f"; dollars from now on, at {money(one.usd_per_slot_hour)} per slot and hour"
    yield Text(f"90 % intervals, if no other job comes{price}")


def nodes(one: pools.SharedPool) -> Iterator[RenderableType]:
    """The machines of a pool, as a table."""
    if not one.nodes:
        return
    several = any(node.per_slot > 1 for node in one.nodes)
    grid = render.table(
        ("node", "left"),
        ("type", "left"),
        ("slots", "right"),
        *((("workers", "right"),) if several else ()),
        ("per hour", "right"),
        ("state", "left"),
        ("since", "left"),
        ("job", "left"),
    )
    for node in one.nodes:
        grid.add_row(
            clean(node.name),
            f"{node.type}{' spot' if node.spot else ''}" or "-",
            str(node.slots),
            *((str(node.slots * node.per_slot),) if several else ()),
            money(node.usd_per_hour),
            node.state,
            when(node.since)[:19],
            "-" if node.job is None else title(node.job, node.job_name),
        )
    yield grid


def coming(one: pools.SharedPool) -> Iterator[RenderableType]:
    """What comes of the jobs of a pool, as a table, and which of them do not do what they were told."""
    aggregators = any(job.aggregators for job in one.jobs)
    several = any(job.per_slot > 1 for job in one.jobs)
    grid = render.table(
        ("job", "left"),
        ("name", "left"),
        ("state", "left"),
        *((("slots", "right"),) if several else ()),
        ("workers", "right"),
        *((("aggregators", "right"),) if aggregators else ()),
        ("starts in", "right"),
        ("ends in", "right"),
        ("dollars", "right"),
    )
    for job in one.jobs:
        grid.add_row(
            "-" if job.id is None else job.id[:8],
            ANOTHERS if job.name is None else clean(job.name),
            job.state,
            *((changing(job.slots, job.next),) if several else ()),
            changing(job.workers, job.next_workers),
            *((str(job.aggregators),) if aggregators else ()),
            "-"
            if job.slots
            else "now"
            if job.start_s == NOW
            else ranged(job.start_s, duration, duration_range),
            ranged(job.end_s, duration, duration_range),
            ranged(job.usd, money, money_range),
        )
    yield grid
    for job in one.jobs:
        if job.late:
            yield Text(f"{title(job.id, job.name)}: {clean(job.late)}")


def apart(one: pools.SharedPool) -> Iterator[RenderableType]:
    """Which jobs of a pool wait until they go first, and which have a deadline."""
    for job in one.jobs:
        first = "" if job.promoted_s is None else pools.goes_first(job.promoted_s)
        words = "; ".join(
            part for part in (first, "" if job.deadline is None else job.deadline.words) if part
        )
        if words:
            yield Text(f"{title(job.id, job.name)}: {words}")


def explain(
    job: RunningJob,
    cluster: ClusterOption = None,
    leases: LeasesOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Say what one slot more or less is worth to a job, and who has the slots that it would take."""
    if (at := _asked(cluster, leases)) is not None:
        found = explain_cluster_share(*at, job)
    else:
        with open_source(store_url) as source:
            found = pools.explain_share(source, job)
    if output.is_json:
        console.emit_answer(found)
        return 0
    console.emit(*share_text(found))
    return 0


def share_text(found: pools.ShareAnswer) -> Iterator[RenderableType]:
    """Why a job has its slots, for people."""
    yield Text(f"{title(found.job, found.name)} in pool {found.pool} ({found.policy}): {clean(found.why)}")
    for one in (found.more, found.less):
        if one is not None:
            yield from _sized(one)


def _sized(one: pools.Sized) -> Iterator[RenderableType]:
    if one.slots == 0:
        line = "without slots: it would wait"
    else:
        speed = "it could train" if one.faster is None else f"{one.faster:+.1%} speed"
        line = f"with {plural(one.slots, 'slot')}: {speed}"
        if one.sooner_s is not None:
            line += f", {duration(abs(one.sooner_s))} {'sooner' if one.sooner_s >= 0.0 else 'later'}"
    yield Text(line)
    for gain in one.others:
        yield Text(f"  {gained(gain)}")


def what_if(
    job_file: JobFile,
    priority: PriorityOption = 0,
    pool: PoolOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Say when a job would start and end if it was submitted now, and whom it would delay; nothing is submitted."""
    request = JobRequest(job_file=str(Path(job_file).absolute()), priority=priority, pool=pool)
    with open_source(store_url) as source:
        found = pools.what_if_submitted(source, request)
    if output.is_json:
        console.emit_answer(found)
        return 0
    console.emit(*what_if_text(found))
    return 0


def what_if_text(found: pools.WhatIfAnswer) -> Iterator[RenderableType]:
    """What a job would bring, for people."""
    by = "no run of it is known, so its end is not"
    if found.known_by is not None:
        by = f"by the curve of its run {found.known_by[:8]}"
    yield Text(f"{clean(found.name)} in pool {found.pool}, if it was submitted now ({by}):")
    begins = within(found.start_s, duration, duration_within)
    yield Text("  starts now" if found.start_s == NOW else f"  starts in  {begins}")
    yield Text(f"  ends in    {within(found.end_s, duration, duration_within)}")
    yield Text(f"  takes      {within(found.usd, money, money_within)}")
    if found.deadline is not None:
        yield Text(f"  {found.deadline.words}")
    for one in found.delays:
        yield Text(f"  {title(one.job, one.name)}: {_later(one.later_s)}")
    if not found.delays:
        yield Text("  delays nobody")


def _later(span: pools.Span) -> str:
    """By how much later a job would end."""
    if span.middle is None or span.low is None or span.high is None:
        return "nobody knows how much later"
    if span.middle < 0.0:
        sooner = pools.Span(-span.middle, -span.high, -span.low)
        return f"{within(sooner, duration, duration_within)} sooner"
    return f"{within(span, duration, duration_within)} later"


def drain(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Name of the node, as `scavenger pool` shows it.")
    ],
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="The pool that has it, if several do.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let jobs have the node again.")] = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Have jobs leave a node of a pool, which then gets no shares until `--undo`."""
    with open_source(store_url) as source:
        done = pools.drain_pool_node(source, node, pool, undo=undo)
    if output.is_json:
        console.emit_answer(done)
    elif undo:
        console.emit(Text(f"{clean(node)} of pool {done.pool} gets shares again."))
    else:
        leaves = f"; {title(done.job, done.name)} leaves it" if done.job else ""
        console.emit(Text(f"{clean(node)} of pool {done.pool} is drained{leaves}."))
    return 0


def pause(
    job: RunningJob,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Have a running job save and give all its slots back, until `scavenger resume JOB`."""
    with open_source(store_url) as source:
        one = submission_of(source, job)
    if one is not None and one.state == "queued":
        raise ConfigurationError(
            f"job {one.name} ({one.id[:8]}) has no slots: it waits; `scavenger jobs cancel` withdraws it"
        )
    code = operate(job, StopJob(save=True, reason=_PAUSED), Waiting(wait, timeout, store_url, output.is_json))
    if code == 0:
        console.note(f"`scavenger resume {job}` lets it go on")
    return code
