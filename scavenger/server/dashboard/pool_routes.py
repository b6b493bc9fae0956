"""The page of pools: the slots that jobs share, what comes of the jobs, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import APIRouter, Request
from starlette.responses import Response

from scavenger.api.pool_words import NOW, changing, gained, ranged, title
from scavenger.api.pools import SharedNode, SharedPool, SharingJob, show_pools
from scavenger.domain.access import Caller
from scavenger.presentation.formatting import (
    clean,
    duration,
    duration_range,
    money,
    money_range,
    plural,
    when,
)
from scavenger.server.access import CallerOf
from scavenger.server.context import Context, ContextOf
from scavenger.server.dashboard.answers import PageRoute, page_answer, part_answer
from scavenger.server.dashboard.words import Meter, Moment, moment

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job of a pool; `id` is None for another user's."""

    id: str | None
    title: str
    state: str
    workers: str
    starts: str
    ends: str
    dollars: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node of a pool; `job_id` is None for one without a job, or with another user's."""

    name: str
    type: str
    slots: str
    price: str
    state: str
    since: str
    job_id: str | None
    job: str


@dataclass(frozen=True, slots=True)
class PoolCard:
    """A pool with its nodes, its jobs, and the latest moves as (time, what)."""

    name: str
    words: str
    used: Meter
    nodes: tuple[NodeLine, ...]
    jobs: tuple[JobLine, ...]
    further: str
    moves: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PoolsPage:
    """All pools of the server's machine."""

    pools: tuple[PoolCard, ...]
    at: Moment


@router.get("/pools")
def pools(context: ContextOf, caller: CallerOf) -> Response:
    """The slots that jobs share."""
    return page_answer("pools.html", caller.user.name, here="/pools", page=_page(context, caller))


@router.get("/pools/live")
def pools_live(request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """The live part of the page of pools."""
    return part_answer(request, "pools_live.html", page=_page(context, caller))


def _page(context: Context, caller: Caller) -> PoolsPage:
    now = datetime.now(UTC)
    return PoolsPage(tuple(map(pool_card, show_pools(context.local(caller)).pools)), moment(now, now))


def pool_card(one: SharedPool) -> PoolCard:
    """A pool in words."""
    each = "one job at a time has all of them" if one.whole else f"shared out by {one.policy}"
    used = one.slots - one.free
    return PoolCard(
        name=one.name,
        words=f"{plural(one.slots, 'slot')}, {each}",
        used=Meter(min(100.0, 100.0 * used / one.slots), f"{used} of {one.slots} in use"),
        nodes=tuple(map(_node, one.nodes)),
        jobs=tuple(map(_line, one.jobs)),
        further=", ".join(map(gained, one.further)),
        moves=tuple((when(move.at), clean(move.what)) for move in one.moves),
    )


def _node(node: SharedNode) -> NodeLine:
    return NodeLine(
        name=node.name,
        type=f"{node.type}{' spot' if node.spot else ''}" or "-",
        slots=str(node.slots) + (f" of {plural(node.per_slot, 'worker')}" if node.per_slot > 1 else ""),
        price=money(node.usd_per_hour),
        state=node.state,
        since=when(node.since),
        job_id=node.job,
        job="-" if node.job is None else title(node.job, node.job_name),
    )


def _line(job: SharingJob) -> JobLine:
    starts = "now" if job.start_s == NOW else ranged(job.start_s, duration, duration_range)
    return JobLine(
        id=job.id,
        title=title(job.id, job.name),
        state=job.state,
        workers=changing(job.workers, job.next_workers, "→"),
        starts="-" if job.slots else starts,
        ends=ranged(job.end_s, duration, duration_range),
        dollars=ranged(job.usd, money, money_range),
        why=clean(job.why),
    )
