"""Random pools of jobs for the tests of the policies, and what follows from an allotment."""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import strategies as st

from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.placing import Placement
from scavenger.scheduler.jobs.policies import Patience
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.values import (
    Claims,
    Curves,
    Nodes,
    PoolSeen,
    Shares,
    Standing,
)

RIGID = ("fifo", "srtf", "tiresias")
BY_SPEED = ("throughput", "goodput", "worth")
CURVE_SLOTS = 24


def whole(values: list[int]) -> np.ndarray:
    """A column of integers."""
    return np.array(values, dtype=np.int64)


@st.composite
def curves(draw: st.DrawFn) -> Curves:
    """Up to three curves that rise less and less; one may fall at its end, one may have a step."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        bend = draw(st.floats(0.0, 1.0))
        slots = np.arange(CURVE_SLOTS + 1, dtype=float)
        rate = slots / (1.0 + bend * np.maximum(slots - 1.0, 0.0) * draw(st.sampled_from([0.1, 0.3])))
        if draw(st.booleans()):
            rate = np.where(slots > 8, 0.8 * rate, rate)
        rows.append(rate * draw(st.floats(0.1, 10.0)))
    return Curves(np.array(rows))


@st.composite
def nodes(draw: st.DrawFn) -> Nodes:
    """Up to five nodes, of one size or of several, of which some are closed."""
    count = draw(st.integers(1, 5))
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 8))] * count
    else:
        sizes = draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    is_open = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count))
    return Nodes(whole(sizes), np.array(is_open))


@st.composite
def claims(draw: st.DrawFn, count: int, curve_count: int) -> Claims:
    """Of jobs of three users and three priorities; about every third is inelastic."""
    least = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    asked = [low + draw(st.integers(0, 6)) for low in least]
    most = [middle + draw(st.integers(0, 8)) for middle in asked]
    for row in range(count):
        if draw(st.integers(0, 2)) == 0:
            least[row] = most[row] = asked[row]
    return Claims(
        user=whole(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))),
        priority=whole(draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=count, max_size=count))),
        submitted_s=np.array(draw(st.permutations(range(count))), dtype=float) * 10.0,
        least=whole(least),
        asked=whole(asked),
        most=whole(most),
        curve=whole(draw(st.lists(st.integers(0, curve_count - 1), min_size=count, max_size=count))),
    )


@st.composite
def pools(draw: st.DrawFn) -> PoolSeen:
    """A pool in the middle of its life: some jobs have slots, some do not, and some cannot change."""
    found, machines = draw(curves()), draw(nodes())
    count = draw(st.integers(0, 12))
    wants = draw(claims(count, len(found.rates)))
    free = machines.slots.copy()
    rows: list[tuple[int, int, int]] = []
    fixed = np.zeros(count, dtype=bool)
    largest = int(machines.room.max())
    for job in range(count):
        slots = draw(st.integers(int(wants.least[job]), int(wants.most[job])))
        where = [node for node in draw(st.permutations(range(len(free)))) if free[node] > 0]
        allowed = -(-slots // max(1, largest))
        part: list[tuple[int, int, int]] = []
        for node in where[:allowed]:
            taken = min(slots - sum(row[2] for row in part), int(free[node]))
            part += [(job, node, taken)] if taken else []
        if sum(row[2] for row in part) == slots and draw(st.booleans()):
            rows += part
            for _, node, taken in part:
                free[node] -= taken
            on_open = all(machines.open[node] for _, node, _ in part)
            fixed[job] = on_open and draw(st.integers(0, 5)) == 0
    shares = Shares(*(whole([row[at] for row in rows]) for at in range(3))) if rows else Shares.none()
    seconds = st.floats(0.0, 5000.0)

    def column(each: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(each, min_size=count, max_size=count)), dtype=float)

    held = shares.by_job(count) > 0
    return PoolSeen(
        nodes=machines,
        claims=wants,
        standing=Standing(
            level=whole(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))),
            attained_slot_s=column(st.sampled_from([0.0, 100.0, 499.9, 500.0, 4000.0, 20_000.0])),
            waited_s=column(seconds),
            ran_s=np.where(held, column(seconds), 0.0),
            left=column(st.one_of(st.floats(1.0, 1e5), st.just(np.nan))),
            left_log_sd=column(st.floats(0.0, 2.0)),
            change_s=(changes_s := column(st.floats(0.0, 60.0))),
            fixed=fixed,
            worker_s=changes_s[::-1],
        ),
        shares=shares,
        curves=found,
    )


patiences = st.builds(
    Patience,
    starved_s=st.sampled_from([inf, 3000.0]),
    turn_s=st.just(1000.0),
    kept_s=st.sampled_from([inf, 2000.0]),
)


@st.composite
def rules(draw: st.DrawFn, names: tuple[str, ...] = tuple(POLICIES)) -> tuple[str, Rules]:
    """A policy with its name, some patience, and a way to place."""
    name = draw(st.sampled_from(names))
    placement = Placement(draw(st.sampled_from(["best", "roomiest"])), draw(st.booleans()))
    return name, Rules(POLICIES[name], draw(patiences), placement)


def fits(free: np.ndarray, slots: int, largest: int) -> bool:
    """Whether so many slots are on as few nodes as a job may have."""
    return int(np.sort(free)[::-1][: -(-slots // largest)].sum()) >= slots
