"""Fewer nodes for the jobs of a pool, by moving buckets.

`recycle` empties nodes one by one, least loaded first, as AutoPS does when a job has left [1]_. `repack` also
tries to assign all jobs again in several orders, which finds what no series of single moves does. Neither
starts a node of a type that costs more than what it frees.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.optimize import linear_sum_assignment

from scavenger.scheduler.joint import assign, reassign
from scavenger.scheduler.pool import JobLoad, NodeLoad, NodeType, NoRoom, PlacedJob, PoolState

_ORDERS_MAX = 12
"""About as many orders of the jobs are tried by `repack`."""


def recycle(pool: PoolState, *, failures_max: int = 0) -> PoolState:
    """Empty as many nodes as possible, least loaded first, onto the others that are in use.

    A node is emptied wholly or not at all. Empty nodes stay in the pool.

    Args:
        failures_max: Nodes that cannot be emptied after which the others are still tried. AutoPS ends at
            the first.
    """
    loads = sorted(pool.nodes.values(), key=lambda load: (load.utilisation, load.node.name))
    for name in [load.node.name for load in loads if load.tenants]:
        emptied = _emptied(pool, name)
        if emptied is None:
            failures_max -= 1
            if failures_max < 0:
                break
        else:
            pool = emptied
    return pool


def _emptied(pool: PoolState, name: str) -> PoolState | None:
    """The pool with nothing on a node, or None if the other nodes in use do not hold it."""
    jobs, trial = pool.nodes[name].tenants, replace(pool, types=())
    empty = [other for other, load in pool.nodes.items() if not load.tenants]
    for job in sorted(jobs, key=lambda job: (-jobs[job].execution_s / jobs[job].step_time_s, job)):
        placement = reassign(trial, job, name, avoid=empty)
        if isinstance(placement, NoRoom):
            return None
        trial = placement.pool
    return replace(trial, types=pool.types)


def repack(pool: PoolState, *, unstarted: Collection[str] = ()) -> PoolState:
    """The jobs on the cheapest nodes that are found for them; the same pool if none are cheaper.

    Every job is assigned again to nodes of the pool's types, and of each of them alone, in several orders. The
    best result is laid over the nodes that are there so that as few bytes as possible move. Nodes that are
    not needed stay, empty.

    Args:
        unstarted: Nodes of the pool that are not there yet, which empty ones replace.
    """
    best = recycle(pool, failures_max=len(pool.nodes))
    types = tuple({load.node.type: None for load in pool.nodes.values()} | dict.fromkeys(pool.types))
    choices = [types, *((type_,) for type_ in types if len(types) > 1)]
    loads = [placed.load for placed in pool.jobs.values()]
    for order, choice in product(_orders(loads), choices):
        blank = PoolState(choice, replace(pool.rules, nodes_max=None), apart=pool.apart)
        packed = _assigned(blank, order)
        if packed is not None and _cost(packed := recycle(packed, failures_max=len(packed.nodes))) < _cost(
            best
        ):
            laid = _laid_over(packed, pool)
            if laid is not None and _cost(laid) < _cost(best):
                best = laid
    return _without_starting(best, unstarted)


def moved_buckets(
    before: PoolState, after: PoolState, *, except_for: Collection[str] = ()
) -> Iterator[tuple[str, int, str, str]]:
    """Job, number, old and new node of every bucket that is elsewhere in the second pool.

    Args:
        except_for: Jobs that are left out, as those which are in only one of the pools.
    """
    for job, placed in after.jobs.items():
        was = before.jobs.get(job, placed)
        if was is not placed and job not in except_for:
            places = zip(was.nodes, placed.nodes, strict=True)
            yield from ((job, i, old, new) for i, (old, new) in enumerate(places) if old != new)


def _without_starting(pool: PoolState, unstarted: Collection[str]) -> PoolState:
    """The pool with an empty node in the place of each of its type that is not there yet."""
    for name in sorted(unstarted):
        type_ = pool.nodes[name].node.type
        empty = (
            other
            for other, load in pool.nodes.items()
            if not load.tenants and load.node.type == type_ and other not in unstarted
        )
        if pool.nodes[name].tenants and (target := next(empty, None)):
            loads = {target: pool.nodes[name], name: pool.nodes[target]}
            pool = _with_loads(pool, loads, pool.jobs, {name: target})
    return pool


def _with_loads(
    pool: PoolState, loads: Mapping[str, NodeLoad], jobs: Mapping[str, PlacedJob], names: Mapping[str, str]
) -> PoolState:
    """The pool with other nodes' loads on its own nodes, and with these jobs where nodes are named anew.

    The loads come whole, with their cycles: jobs that are assigned one by one would be given the cycle that
    suits their order, which may be one in which the same buckets do not fit.
    """
    nodes = {name: replace(load, node=pool.nodes[name].node) for name, load in loads.items()}
    placed = {
        job: replace(each, nodes=tuple(names.get(name, name) for name in each.nodes))
        for job, each in jobs.items()
    }
    return replace(pool, nodes={**pool.nodes, **nodes}, jobs=placed)


def _assigned(pool: PoolState, loads: Sequence[JobLoad]) -> PoolState | None:
    """The pool with these jobs too, assigned in this order; None if one does not fit."""
    for load in loads:
        placement = assign(pool, load)
        if isinstance(placement, NoRoom):
            return None
        pool = placement.pool
    return pool


def _cost(pool: PoolState) -> tuple[float, int]:
    """Price and number of the nodes in use."""
    used = [load.node.type.price_usd_per_hour for load in pool.nodes.values() if load.tenants]
    return round(sum(used), 9), len(used)


def _orders(loads: Sequence[JobLoad]) -> Iterator[list[JobLoad]]:
    """By step time, so that those which share a cycle well come together, beginning anywhere; and by work."""
    slowest = sorted(loads, key=lambda load: (-load.step_time_s, load.name))
    yield sorted(loads, key=lambda load: (-_demand(load), load.name))
    yield slowest[::-1]
    for first in range(0, len(slowest), max(1, -(-len(slowest) // (_ORDERS_MAX // 2)))):
        yield slowest[first:] + slowest[:first]
    rng = np.random.default_rng(len(loads))  # any order may be best; the same jobs get the same ones
    for _ in range(_ORDERS_MAX // 2):
        yield [slowest[index] for index in rng.permutation(len(slowest))]


def _demand(load: JobLoad) -> float:
    """Processors that the job needs in the mean."""
    return sum(bucket.execution_s for bucket in load.buckets) / load.step_time_s


def _laid_over(packed: PoolState, pool: PoolState) -> PoolState | None:
    """The assignments of the first pool on nodes of the second where there are such; None if it may not grow so."""
    names: dict[str, str] = {}
    result = replace(pool, nodes={name: NodeLoad(load.node) for name, load in pool.nodes.items()}, jobs={})
    used = [name for name, load in packed.nodes.items() if load.tenants]
    for type_ in {packed.nodes[name].node.type: None for name in used}:
        groups = [name for name in used if packed.nodes[name].node.type == type_]
        there = [name for name, load in pool.nodes.items() if load.node.type == type_]
        names |= _matched(packed, pool, groups, there)
        for group in groups:
            if group not in names:
                if not _may_start(result, type_):
                    return None
                result, node = result.started(type_)
                names[group] = node.name
    loads = {name: packed.nodes[group] for group, name in names.items()}
    return _with_loads(result, loads, {job: packed.jobs[job] for job in pool.jobs}, names)


def _matched(
    packed: PoolState, pool: PoolState, groups: Sequence[str], there: Sequence[str]
) -> dict[str, str]:
    """Which node each group of buckets goes to so that most bytes, then most buckets, stay where they are."""
    stays = np.zeros((len(groups), len(there)))
    rows = {name: row for row, name in enumerate(groups)}
    columns = {name: column for column, name in enumerate(there)}
    for job, placed in packed.jobs.items():
        for bucket, new, old in zip(placed.load.buckets, placed.nodes, pool.jobs[job].nodes, strict=True):
            if new in rows and old in columns:
                stays[rows[new], columns[old]] += bucket.memory_bytes + 1
    chosen = linear_sum_assignment(stays, maximize=True)
    return {groups[row]: there[column] for row, column in zip(*chosen, strict=True)}


def _may_start(pool: PoolState, type_: NodeType) -> bool:
    limit = pool.rules.nodes_max
    return type_ in pool.types and (limit is None or len(pool.nodes) < limit)
