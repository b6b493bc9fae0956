"""When nodes of a shared pool are started and ended, and which buckets move for it.

`decide(state, event)` returns the next state, the actions that lead there, and the reason:

| event | what is done |
|---|---|
| `JobArrived` | its buckets are assigned; it runs alone while new nodes are needed, but too few to start any |
| of a job that is there | it stays if its new load allows that; otherwise it is assigned again |
| `JobLeft` | least loaded nodes are emptied onto others, waiting jobs are placed, empty nodes end |
| `StepTimeMeasured`, within the limit | the changes on trial are confirmed for this job |
| above it, with a change on trial | what it brought to the job's nodes leaves them, and is kept apart from the job |
| above it, with none | the job itself leaves its neighbours |
| above it, without neighbours | sharing is not the cause: that is the job's step time alone from now on |
| `PeriodEnded` | jobs are packed again, waiting jobs are placed whatever they need, empty nodes end |
| `DrainNode` | its buckets move elsewhere, to new nodes if need be, and it ends; what fits nowhere runs alone |
| `NodeLost` | the same, but jobs are placed again instead of moved, since nothing is left to copy |

A change is *on trial* until every job on the nodes that it touched was measured within the limit. Predictions
know nothing of caches and busy networks. This feedback does, and what it finds holds from then on: no period
brings jobs together again that were kept apart.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, sections 3.3.2 and 3.3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scavenger.scheduler import events as ev
from scavenger.scheduler.cycles import speed_loss
from scavenger.scheduler.joint import assign, reassign
from scavenger.scheduler.packing import moved_buckets, recycle, repack
from scavenger.scheduler.pool import JobLoad, NoRoom, PoolState


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """How readily the pool changes.

    Attributes:
        starts_min: New nodes that waiting jobs need together before any is started within a period; 1
            starts them at once.
        spare_nodes: Empty nodes that are kept for the next job, the cheapest ones.
        moves_max: Buckets that one event may move to need fewer nodes.
        pack_jobs_max: Most jobs of a pool in which they are packed again when one arrives that would need
            another node; it takes time, so larger pools do that in periods only.
    """

    starts_min: int = 1
    spare_nodes: int = 0
    moves_max: int = 1000
    pack_jobs_max: int = 32

    def __post_init__(self) -> None:
        if self.starts_min < 1 or self.spare_nodes < 0 or self.moves_max < 0:
            raise ValueError(f"a pool cannot be scaled by {self}")


@dataclass(frozen=True, slots=True)
class ScalingTrial:
    """A change whose effect is not known yet.

    Attributes:
        moved: Jobs that it placed or moved.
        awaited: Jobs on the nodes that it touched, as far as they were not measured since.
    """

    moved: frozenset[str]
    awaited: frozenset[str]


@dataclass(frozen=True, slots=True)
class SharedPool:
    """A pool and what its scaling has to remember.

    Attributes:
        waiting: Jobs that run alone until there is a place for them, in the order of their arrival.
        trials: Changes that are not confirmed, oldest first.
    """

    pool: PoolState
    rules: ScalingRules = ScalingRules()
    waiting: tuple[JobLoad, ...] = ()
    trials: tuple[ScalingTrial, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """What follows from an event.

    Attributes:
        state: After all actions.
        actions: In the order in which they are to be carried out.
    """

    state: SharedPool
    actions: tuple[ev.Action, ...]
    reason: str


def decide(state: SharedPool, event: ev.Event) -> Decided:
    """What is done about an event; see the table above.

    Events of jobs and nodes that the pool does not have change nothing: they may have crossed another event.
    """
    match event:
        case ev.JobArrived(load):
            return _arrived(state, load)
        case ev.JobLeft(job):
            return _left(state, job)
        case ev.StepTimeMeasured(job, step_time_s):
            return _measured(state, job, step_time_s)
        case ev.PeriodEnded():
            return _period(state)
        case ev.DrainNode(node):
            return _vacated(state, node, lost=False)
        case ev.NodeLost(node):
            return _vacated(state, node, lost=True)


def _arrived(state: SharedPool, load: JobLoad) -> Decided:
    if load.name in state.pool.jobs:
        return _measured_again(state, load)
    waiting = (*(other for other in state.waiting if other.name != load.name), load)
    return _place_waiting(state, replace(state, waiting=waiting), start=False)


def _measured_again(state: SharedPool, load: JobLoad) -> Decided:
    """A job of the pool has another load: it stays where it is if the rules allow it."""
    reason = f"job {load.name} was measured again"
    nodes = state.pool.jobs[load.name].nodes
    same = len(nodes) == len(load.buckets)
    if same:
        stayed = state.pool.with_job(load, nodes)
        if all(stayed.nodes[name].within(stayed.rules) for name in nodes):
            return _decided(state, replace(state, pool=stayed), "pack", f"{reason}, and stays")
    moved, _ = _assigned_again(state, load)
    return _decided(state, moved, "pack", reason, placed=frozenset() if same else frozenset({load.name}))


def _left(state: SharedPool, job: str) -> Decided:
    waiting = tuple(load for load in state.waiting if load.name != job)
    trials = (ScalingTrial(trial.moved - {job}, trial.awaited - {job}) for trial in state.trials)
    after = replace(state, waiting=waiting, trials=tuple(trial for trial in trials if trial.awaited))
    if job in state.pool.jobs:
        pool = state.pool.without_job(job).forgetting(job)
        after = replace(after, pool=_within_moves(pool, recycle(pool), state.rules))
    decided = _place_waiting(state, after, start=False)
    return replace(decided, reason=f"job {job} left; {decided.reason}")


def _period(state: SharedPool) -> Decided:
    recycled = _within_moves(state.pool, recycle(state.pool), state.rules)
    packed = _within_moves(state.pool, repack(state.pool), state.rules, otherwise=recycled)
    return _place_waiting(state, replace(state, pool=packed), start=True)


def _place_waiting(before: SharedPool, state: SharedPool, *, start: bool) -> Decided:
    """The waiting jobs placed where there is room.

    Args:
        start: Whether nodes are started even if few are needed.
    """
    pool, waiting = _filled(state.pool, state.waiting)
    if len(state.pool.nodes) < len(pool.nodes) and len(pool.jobs) <= state.rules.pack_jobs_max:
        started = pool.nodes.keys() - state.pool.nodes.keys()
        packed = repack(pool, unstarted=started)
        pool = _unstarted(_within_moves(before.pool, packed, state.rules, otherwise=pool), state.pool)
    needed = len(pool.nodes) - len(state.pool.nodes)
    reasons = [f"job {load.name} fits on no node" for load in waiting]
    if 0 < needed < state.rules.starts_min and not start:
        reasons.append(f"{needed} new nodes are needed, and {state.rules.starts_min} are started at least")
        pool, waiting = _filled(replace(state.pool, types=()), state.waiting)
        pool = replace(pool, types=state.pool.types)
    if placed := [load.name for load in state.waiting if load.name in pool.jobs]:
        reasons.insert(0, f"{', '.join(placed)} placed")
    after = replace(state, pool=pool, waiting=waiting)
    return _decided(before, after, "pack", "; ".join(reasons) or "no job is waiting")


def _filled(pool: PoolState, loads: Iterable[JobLoad]) -> tuple[PoolState, tuple[JobLoad, ...]]:
    """The pool with those of the jobs that fit, and the others."""
    others = []
    for load in loads:
        placement = assign(pool, load)
        if isinstance(placement, NoRoom):
            others.append(load)
        else:
            pool = placement.pool
    return pool, tuple(others)


def _measured(state: SharedPool, job: str, step_time_s: float) -> Decided:
    if job not in state.pool.jobs:
        return Decided(state, (), f"job {job} is not in the pool")
    load = state.pool.jobs[job].load
    loss = speed_loss(step_time_s, load.step_time_s)
    if state.pool.rules.allows(loss):
        trials = (ScalingTrial(trial.moved, trial.awaited - {job}) for trial in state.trials)
        kept = tuple(trial for trial in trials if trial.awaited)
        return Decided(replace(state, trials=kept), (), f"job {job} loses {loss:.1%}, within the limit")
    reason = f"job {job} loses {loss:.1%} of its speed, above the limit of {state.pool.rules.loss_limit:.0%}"
    neighbours = state.pool.neighbours(job)
    if not neighbours:
        decided = _measured_again(state, replace(load, step_time_s=step_time_s))
        return replace(decided, reason=f"{reason}, but shares with none: its step takes longer by itself")
    trial = next((trial for trial in reversed(state.trials) if job in trial.awaited), None)
    newcomers = frozenset() if trial is None or job in trial.moved else trial.moved & neighbours
    return _parted(state, job, newcomers, reason)


def _parted(state: SharedPool, job: str, newcomers: frozenset[str], reason: str) -> Decided:
    """The newcomers leave the job's nodes; without any, the job leaves its neighbours."""
    after = state
    for leaving in sorted(newcomers or {job}):
        others = {job} if newcomers else state.pool.neighbours(job)
        after = replace(after, pool=after.pool.keeping_apart(leaving, others))
        after, fits = _assigned_again(after, after.pool.jobs[leaving].load)
        reason += f"; {leaving} {'moves away' if fits else 'runs alone'}"
    return _decided(state, after, "revert", reason)


def _assigned_again(state: SharedPool, load: JobLoad) -> tuple[SharedPool, bool]:
    """A job of the pool at the place that it would get now, or waiting if there is none."""
    pool = state.pool.without_job(load.name)
    placement = assign(pool, load)
    if isinstance(placement, NoRoom):
        return replace(state, pool=pool, waiting=(*state.waiting, load)), False
    return replace(state, pool=placement.pool), True


def _vacated(state: SharedPool, node: str, *, lost: bool) -> Decided:
    if node not in state.pool.nodes:
        return Decided(state, (), f"node {node} is not in the pool")
    pool, waiting = state.pool, list(state.waiting)
    tenants = sorted(pool.nodes[node].tenants)
    for job in tenants:
        placement = reassign(pool, job, node)
        if isinstance(placement, NoRoom):
            waiting.append(pool.jobs[job].load)
            pool = pool.without_job(job)
        else:
            pool = placement.pool
    after = replace(state, pool=pool.without_node(node), waiting=tuple(waiting))
    placed = frozenset(tenants) if lost else frozenset()
    decided = _decided(
        state, after, "drain", f"node {node} {'was lost' if lost else 'has to go'}", placed=placed
    )
    if lost:
        return replace(decided, actions=tuple(act for act in decided.actions if act != ev.EndNode(node)))
    return decided


def _within_moves(
    before: PoolState, after: PoolState, rules: ScalingRules, *, otherwise: PoolState | None = None
) -> PoolState:
    """The second pool if it takes at most the allowed moves, otherwise the first, or another one."""
    moves = sum(1 for _ in moved_buckets(before, after))
    return after if moves <= rules.moves_max else otherwise or before


def _unstarted(pool: PoolState, before: PoolState) -> PoolState:
    """Without the empty nodes that are not in the second pool either."""
    for name, load in pool.nodes.items():
        if not load.tenants and name not in before.nodes:
            pool = pool.without_node(name)
    return pool


def _decided(
    before: SharedPool,
    after: SharedPool,
    why: ev.Reason,
    reason: str,
    *,
    placed: frozenset[str] = frozenset(),
) -> Decided:
    """The actions that lead from one state to the other; empty nodes end, except the cheapest spare ones.

    Args:
        placed: Jobs that are placed again instead of moved.
    """
    pool = after.pool
    empty = [load.node for load in pool.nodes.values() if not load.tenants]
    empty.sort(key=lambda node: (node.type.price_usd_per_hour, node.name))
    for node in empty[after.rules.spare_nodes :]:
        pool = pool.without_node(node.name)
    moves = [
        ev.MoveBucket(job, bucket, source, target, why)
        for job, bucket, source, target in moved_buckets(before.pool, pool, except_for=placed)
    ]
    new = [job for job in pool.jobs if job not in before.pool.jobs or job in placed]
    actions: list[ev.Action] = [
        *(ev.StartNode(load.node) for name, load in pool.nodes.items() if name not in before.pool.nodes),
        *moves,
        *(ev.PlaceJob(job, pool.jobs[job].nodes) for job in new),
        *(ev.EndNode(name) for name in before.pool.nodes if name not in pool.nodes),
    ]
    changed = frozenset({move.job for move in moves} | set(new))
    trials = _with_trial(after.trials, pool, changed)
    return Decided(replace(after, pool=pool, trials=trials), tuple(actions), reason)


def _with_trial(
    trials: tuple[ScalingTrial, ...], pool: PoolState, changed: frozenset[str]
) -> tuple[ScalingTrial, ...]:
    """With the change of these jobs on trial, if there is anyone whom it could slow down."""
    shared = {job: pool.neighbours(job) for job in changed}
    awaited = frozenset(job for job, others in shared.items() if others).union(*shared.values())
    older = (
        trial if changed.isdisjoint(trial.moved) else ScalingTrial(trial.moved - changed, trial.awaited)
        for trial in trials
    )
    kept = tuple(trial for trial in older if trial.moved)
    return (*kept, ScalingTrial(changed, awaited)) if awaited else kept
