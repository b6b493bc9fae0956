"""Back-test of the parallel model: predictions of step times that were not used in the fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from scavenger.models.backtest import (
    BATCH_MAX,
    STEP_TIME_RANGE_S,
    GroupResult,
    HeldOutPrediction,
    PlacementRow,
    SkippedGroup,
)
from scavenger.models.design import Candidate, ProfilingCost, propose
from scavenger.models.overlap_law import BELIEFS, Beliefs
from scavenger.models.parallel import INTERVAL_Z, StepTimes, fit_parallel

POINTS = ("search", "marked", "extremes")
"""What a back-test can fit to, beside a number of placements."""

SEARCH_POINTS = 6
"""Points of a search that is not told otherwise."""

START_S = 5.8
"""Time until a worker can join, seconds: what one that is started takes (`python -m benchmarks starting`, 5.1 to 5.8).
One that is forked takes 1.9, so that a search there pays less for further workers than a back-test counts."""

STEPS = 20
"""Assumed number of steps of a mean in a file; without a known spread it has no influence."""

SAME_BATCH_MAX = 1.0
"""Samples by which the local batches of one step may differ: more contradict the global one."""


def backtest_steps(
    rows: Iterable[PlacementRow], points: int | str, *, beliefs: Beliefs = BELIEFS
) -> list[GroupResult | SkippedGroup]:
    """Fit each group's step times at a few placements, and predict them at all others.

    Args:
        rows: In any order; those without positive figures, or whose batch sizes contradict each other, are
            dropped and counted. Without `sync_time_s` the linear law, which rests on it, is not tried.
        points: What to fit to: `search`, `SEARCH_POINTS` placements as a search takes them with its costs, each chosen
            by `design.propose` from the step times of those before it; `marked`, the rows that say so; `extremes`,
            the smallest and the largest batch at the fewest and at the most workers; or how many placements, at
            least 2, chosen as by a search to which all placements cost the same.
        beliefs: Prior that the fits use (not the design).

    Returns:
        One per (cluster, workers per node, workload), sorted.

    Raises:
        ValueError: If `points` is none of these.
    """
    if points not in POINTS and not (isinstance(points, int) and points >= 2):
        raise ValueError(
            f"a back-test of step times fits to {', '.join(POINTS)}, or 2 placements or more, not {points!r}"
        )
    groups: dict[tuple[str, int, str], list[PlacementRow]] = {}
    for row in rows:
        groups.setdefault((row.cluster, row.workers_per_node, row.workload), []).append(row)
    return [_backtest(*key, groups[key], points, beliefs) for key in sorted(groups)]


def step_times_of(rows: Iterable[PlacementRow]) -> list[StepTimes]:
    """The usable rows as the parallel model takes them, in their order; unknown synchronisation is 0."""
    times = []
    for row in rows:
        if not _usable(row):
            continue
        place, sync_s = _place(row), _synchronisation(row) or 0.0
        times.append(
            StepTimes(
                workers=place.workers,
                global_batch_size=place.global_batch_size,
                local_batch_size=-(-place.global_batch_size // place.workers),
                contention=1.0,
                step_time_s=row.step_time_s,
                compute_s=row.step_time_s - sync_s,
                sync_s=sync_s,
                spread_s=0.0,
                steps=STEPS,
                workers_per_node=place.workers_per_node,
            )
        )
    return times


def notes_on_rows(rows: Iterable[PlacementRow]) -> list[str]:
    """How many rows `step_times_of` and the back-test leave out, by reason; empty if none."""
    left = [row for row in rows if not _usable(row)]
    shared = sum(_shares_samples(row) for row in left)
    notes = []
    if shared:
        notes.append(
            f"rows of step times left out: {shared} with fewer samples than workers; several workers that share "
            "a sample are model parallelism: give the groups that share one as the workers (K / degree)"
        )
    if len(left) > shared:
        notes.append(f"rows of step times left out: {len(left) - shared} without plausible positive numbers")
    return notes


def _shares_samples(row: PlacementRow) -> bool:
    """Whether there is less than a sample for each worker, in a row that makes sense otherwise."""
    low, high = STEP_TIME_RANGE_S
    return (
        min(row.workers, row.workers_per_node) >= 1
        and low <= row.step_time_s <= high
        and 0.0 < row.local_batch_size < 1.0
        and 1 <= round(row.local_batch_size * row.workers) < row.workers
        and abs(row.global_batch_size / row.workers - row.local_batch_size) <= SAME_BATCH_MAX
    )


def _backtest(
    cluster: str,
    workers_per_node: int,
    workload: str,
    rows: Sequence[PlacementRow],
    points: int | str,
    beliefs: Beliefs,
) -> GroupResult | SkippedGroup:
    places = _places(rows)
    dropped = len(rows) - sum(len(alike) for alike in places.values())
    chosen = _chosen(places, points)
    if len(chosen) < 2 or len(chosen) >= len(places):
        reason = (
            f"{len(places)} placements, {len(chosen)} to fit to: 2 or more are needed, and one to predict"
        )
        return SkippedGroup(cluster, workers_per_node, workload, reason, dropped)
    known = all(_synchronisation(row) is not None for place in chosen for row in places[place])
    model = fit_parallel(_times(places, chosen), law=None if known else "overlap", beliefs=beliefs)
    unseen = [place for place in sorted(places) if place not in chosen]
    predicted, deviation = model.predict(
        np.array([place.workers for place in unseen]),
        np.array([place.global_batch_size for place in unseen]),
        np.ones(len(unseen)),
    )
    margin = np.exp(INTERVAL_Z * deviation)
    return GroupResult(
        origin=cluster,
        workers_per_node=workers_per_node,
        workload=workload,
        law=model.law.kind,
        profiled=tuple(_name(place) for place in sorted(chosen)),
        predictions=tuple(
            HeldOutPrediction(
                _name(place), row.step_time_s, float(value), float(value / factor), float(value * factor)
            )
            for place, value, factor in zip(unseen, predicted, margin, strict=True)
            for row in places[place]
        ),
        dropped=dropped,
    )


def profiled_rows(rows: Iterable[PlacementRow], points: int | str) -> list[PlacementRow]:
    """The rows of one group that `backtest_steps` fits to."""
    places = _places(rows)
    return [row for place in _chosen(places, points) for row in places[place]]


def _places(rows: Iterable[PlacementRow]) -> dict[Candidate, list[PlacementRow]]:
    places: dict[Candidate, list[PlacementRow]] = {}
    for row in sorted((row for row in rows if _usable(row)), key=_order):
        places.setdefault(_place(row), []).append(row)
    return places


def _chosen(places: dict[Candidate, list[PlacementRow]], points: int | str) -> list[Candidate]:
    if points == "search" or isinstance(points, int):
        count = points if isinstance(points, int) else SEARCH_POINTS
        return _proposed(places, count, with_costs=points == "search") if count < len(places) else []
    return _marked(places) if points == "marked" else _extremes(places)


def _usable(row: PlacementRow) -> bool:
    batches = (row.local_batch_size, row.global_batch_size, row.local_batch_size * row.workers)
    if min(row.workers, row.workers_per_node) < 1 or not all(0.0 < batch <= BATCH_MAX for batch in batches):
        return False
    if not STEP_TIME_RANGE_S[0] <= row.step_time_s <= STEP_TIME_RANGE_S[1]:
        return False
    if round(row.local_batch_size * row.workers) < row.workers:
        return False
    return abs(row.global_batch_size / row.workers - row.local_batch_size) <= SAME_BATCH_MAX


def _place(row: PlacementRow) -> Candidate:
    return Candidate(row.workers, round(row.local_batch_size * row.workers), row.workers_per_node)


def _order(row: PlacementRow) -> tuple[int, float, float, float]:
    sync = _synchronisation(row)
    return (row.workers, row.local_batch_size, row.step_time_s, -1.0 if sync is None else sync)


def _synchronisation(row: PlacementRow) -> float | None:
    """Synchronisation time, seconds; None if unknown or not a part of the step."""
    return row.sync_time_s if 0.0 <= row.sync_time_s < row.step_time_s else None


def _times(places: dict[Candidate, list[PlacementRow]], chosen: Sequence[Candidate]) -> list[StepTimes]:
    return step_times_of([row for place in chosen for row in places[place]])


def _marked(places: dict[Candidate, list[PlacementRow]]) -> list[Candidate]:
    return [place for place, rows in places.items() if any(row.marked for row in rows)]


def _extremes(places: dict[Candidate, list[PlacementRow]]) -> list[Candidate]:
    counts = [place.workers for place in places]
    ends = []
    for workers in sorted({min(counts), max(counts)} if counts else ()):
        batches = [place for place in sorted(places) if place.workers == workers]
        ends += [batches[0], batches[-1]]
    return list(dict.fromkeys(ends))


def _proposed(
    places: dict[Candidate, list[PlacementRow]], points: int, *, with_costs: bool
) -> list[Candidate]:
    """Placements that a search would profile, until none is useful; at least two, so that a fit is possible."""
    candidates = sorted(places)
    chosen: list[Candidate] = []
    while len(chosen) < points:
        ready = max((place.workers for place in chosen), default=0)
        cost = ProfilingCost(STEPS, START_S, ready) if with_costs else None
        index = propose(candidates, _times(places, chosen), cost=cost)
        if index is None:
            break
        chosen.append(candidates[index])
    return chosen


def _name(place: Candidate) -> str:
    """Name of a placement, as `K 4, b 32`."""
    return f"K {place.workers}, b {-(-place.global_batch_size // place.workers)}"
