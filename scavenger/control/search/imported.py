"""Imports measurements of past runs and fits models to them, so that a first curve needs no search."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from scavenger.control.search.tables import (
    TABLE_MAX_BYTES,
    read_header,
    read_placements,
    read_runs,
)
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.measurement import ConvergenceRecord
from scavenger.domain.ranges import size_ranges
from scavenger.errors import ConfigurationError
from scavenger.models.backtest import BATCH_MAX, PlacementRow, RunRow
from scavenger.models.backtest_steps import notes_on_rows, step_times_of
from scavenger.models.evaluation import EvaluationLaw
from scavenger.models.job_model import JobModel, VmModel
from scavenger.models.parallel import fit_parallel
from scavenger.models.statistical import fit_statistical
from scavenger.search.plan import evenly

SCHEMA_VERSION = 1

UNKNOWN_EPOCHS = 100.0
"""Placeholder for unknown epochs to the target, with which only ratios of configurations are meaningful."""

DESIGN_POINTS_MAX = 1000
"""Maximum number of configurations that a law is fitted to; from more, an evenly spread subset is used, since the time
of a fit grows with the cube of their number while its error no longer falls."""

AXIS_MAX = 128
"""Maximum number of predicted cluster sizes and batch sizes, and of batch sizes that epochs are fitted to."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options for an import: information that the files lack.

    Attributes:
        workload: The workload to import; None if the files have only one.
        price_usd_per_hour: Price of one node. An unknown price is an error, never 0.
        dataset_size: Samples per epoch; None if the column `epochs` counts samples.
        workers, global_batch_sizes: What to predict, increasing, measured or not; None for what the files have.
    """

    price_usd_per_hour: float | None
    workload: str | None = None
    dataset_size: int | None = None
    workers: tuple[int, ...] | None = None
    global_batch_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """Fitted models with their search space."""

    name: str
    model: JobModel
    space: SearchSpace

    def to_dict(self) -> dict[str, object]:
        """Convert to plain JSON; `from_dict` returns an equal value."""
        space = TypeAdapter(SearchSpace).dump_python(self.space, mode="json")
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "scavenger-models",
            "name": self.name,
            "space": space,
            "job_model": self.model.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Imported:
        """Read the output of `to_dict`.

        Raises:
            ValueError: If the document is of another kind or version, or holds values out of range.
        """
        if document.get("kind") != "scavenger-models" or document.get("schema_version") != SCHEMA_VERSION:
            raise ValueError("not a file of models that this version can read")
        space = TypeAdapter(SearchSpace).validate_json(json.dumps(document.get("space")))
        if max(len(space.workers), len(space.global_batch_sizes)) > AXIS_MAX:
            raise ValueError(f"more than {AXIS_MAX} cluster sizes or batch sizes")
        if max(space.workers[-1], space.global_batch_sizes[-1]) > BATCH_MAX:
            raise ValueError("the cluster size or batch size is too large")
        if not all(0.0 <= offer.price_usd_per_hour < math.inf and offer.cpus >= 1 for offer in space.offers):
            raise ValueError("a price is 0 or more, and a VM has a processor")
        return cls(str(document.get("name")), JobModel.from_dict(document["job_model"]), space)


def read_sources(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Read models from files: one file of `models fit`, or tables of step times and of convergence, in any order.

    Raises:
        ConfigurationError: If a file cannot be read or is of another kind, or required information is missing.
    """
    if len(paths) == 1 and paths[0].suffix.lower() == ".json":
        return _over(_read_models(paths[0]), options)
    placements: list[PlacementRow] = []
    runs: list[RunRow] = []
    for path in paths:
        header = read_header(path)
        if "step_time_s" in header:
            placements += read_placements(path)
        elif "epochs" in header:
            runs += read_runs(path)
        else:
            raise ConfigurationError(
                f"{path}:1: neither a table of step times (column 'step_time_s') nor of convergence (column 'epochs')"
            )
    return _over(fit_to_rows(placements, runs, options), options)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes (see `size_ranges`) as increasing whole numbers; at most `AXIS_MAX`.

    Of a range with more, `AXIS_MAX` are taken, evenly in their logarithms, with both ends.

    Raises:
        ConfigurationError: If it is something else.
    """
    sizes: set[int] = set()
    try:
        ranges = size_ranges(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    for ends in ranges:
        if ends[1] - ends[0] < AXIS_MAX:
            sizes.update(range(ends[0], ends[1] + 1))
        else:
            sizes.update(int(size) for size in np.unique(np.geomspace(*ends, AXIS_MAX).round()))
    return evenly(tuple(sorted(sizes)), AXIS_MAX)


def _over(imported: Imported, options: ImportOptions) -> Imported:
    """The same models over the numbers of workers and batch sizes that the options name."""
    space = replace(
        imported.space,
        workers=options.workers or imported.space.workers,
        global_batch_sizes=options.global_batch_sizes or imported.space.global_batch_sizes,
    )
    if space.workers[0] > space.global_batch_sizes[-1]:
        raise ConfigurationError(
            f"no configuration gives every worker a sample: {space.workers[0]} workers or more share batches of "
            f"{space.global_batch_sizes[-1]} or fewer"
        )
    return replace(imported, space=space)


def fit_to_rows(
    placements: Sequence[PlacementRow], runs: Sequence[RunRow], options: ImportOptions
) -> Imported:
    """Fit the step time and convergence models to one workload's rows.

    Every pair (cluster, workers per node) is a VM type. The configurations are the measured numbers of workers with
    the batch sizes of the runs or, without runs, the measured batch sizes.

    Raises:
        ConfigurationError: If there are no usable step times of the workload, or something is missing in `options`.
    """
    workload = _workload(placements, runs, options.workload)
    if options.price_usd_per_hour is None:
        raise ConfigurationError("the price of a node is not known: give --price, US dollars per hour")
    if not (math.isfinite(options.price_usd_per_hour) and options.price_usd_per_hour >= 0.0):
        raise ConfigurationError(
            f"a price is 0 or more US dollars per hour, not {options.price_usd_per_hour:g}"
        )
    if options.dataset_size is not None and options.dataset_size < 1:
        raise ConfigurationError(f"a data set has at least one sample, not {options.dataset_size}")
    mine = [row for row in placements if row.workload == workload]
    vms, offers, workers, batches = [], [], set(), set()
    notes = notes_on_rows(mine)
    for cluster, per_node in sorted({(row.cluster, row.workers_per_node) for row in mine}):
        times = step_times_of([r for r in mine if (r.cluster, r.workers_per_node) == (cluster, per_node)])
        if not times:
            continue
        points = sorted({(time.workers, time.global_batch_size) for time in times})
        if len(points) > DESIGN_POINTS_MAX:
            notes.append(
                f"fitted to {DESIGN_POINTS_MAX} of {len(points)} measured configurations, evenly spread"
            )
            spread = {
                points[i * (len(points) - 1) // (DESIGN_POINTS_MAX - 1)] for i in range(DESIGN_POINTS_MAX)
            }
            times = [time for time in times if (time.workers, time.global_batch_size) in spread]
        name = (cluster or "node") + (f" with {per_node}" if per_node > 1 else "")
        offers.append(
            Offer(
                provider="measured",
                region="",
                vm=name,
                price_usd_per_hour=options.price_usd_per_hour,
                price_source="given by the user",
                cpus=per_node,
                memory_bytes=0,
                workers_per_vm=per_node,
            )
        )
        vms.append(VmModel(name, per_node, fit_parallel(times)))
        workers |= {time.workers for time in times}
        batches |= {time.global_batch_size for time in times}
    if not vms:
        raise ConfigurationError("; ".join((f"there is no usable step time of {workload}", *notes)))
    records, size, of_runs = _records([run for run in runs if run.workload == workload], options.dataset_size)
    notes += of_runs
    if records:
        batches = {record.global_batch_size for record in records}
        known = set(evenly(tuple(sorted(batches)), AXIS_MAX))
        if len(known) < len(batches):
            notes.append(f"epochs fitted to the runs at {len(known)} of {len(batches)} batch sizes")
            records = [record for record in records if record.global_batch_size in known]
    smallest = min(workers)
    sizes = tuple(sorted(batch for batch in batches if batch >= smallest)) or (max(batches),)
    statistical = fit_statistical(
        [], records, global_batch_sizes=sizes, epochs_hint=None, max_epochs=UNKNOWN_EPOCHS
    )
    limit = max([UNKNOWN_EPOCHS, *(1000.0 * record.epochs for record in records)])
    notes.append("evaluation, starting the workers, aggregators, storage and traffic are not counted")
    model = JobModel(size, statistical, tuple(vms), EvaluationLaw(), limit, tuple(notes))
    counts = evenly(tuple(sorted(workers)), AXIS_MAX)
    return Imported(workload, model, SearchSpace(tuple(offers), counts, evenly(sizes, AXIS_MAX)))


def _workload(placements: Sequence[PlacementRow], runs: Sequence[RunRow], wanted: str | None) -> str:
    known = sorted({row.workload for row in placements})
    if wanted is None:
        if len(known) == 1:
            return known[0]
        if not known:
            raise ConfigurationError(
                "no step times are given; time and cost cannot be predicted without them"
            )
        raise ConfigurationError(
            f"the files have several workloads: give --workload, one of {', '.join(known)}"
        )
    if wanted not in known:
        raise ConfigurationError(
            f"there are no step times of workload {wanted!r}; there are: {', '.join(known)}"
        )
    return wanted


def _records(
    runs: Sequence[RunRow], dataset_size: int | None
) -> tuple[list[ConvergenceRecord], int, list[str]]:
    """Convergence records in epochs, the samples per epoch, and notes for the user."""
    sources = sorted({run.source for run in runs})
    if len(sources) > 1:
        raise ConfigurationError(
            f"runs of several sources ({', '.join(sources)}): they do not share a target"
        )
    good = [run for run in runs if run.usable()]
    notes = [f"bad rows of convergence dropped: {len(runs) - len(good)}"] if len(good) < len(runs) else []
    if not good:
        notes.append("no run shows how many epochs the target takes: only ratios are meaningful")
        if dataset_size is None:
            raise ConfigurationError("the samples of an epoch are not known: give --dataset-size")
        return [], dataset_size, notes
    if dataset_size is None:
        # The column counts samples: any epoch length works if it holds many steps.
        unit = min(run.epochs for run in good)
        if unit < max(run.global_batch_size for run in good):
            raise ConfigurationError(
                "column 'epochs' seems to count epochs: give --dataset-size, the samples of one"
            )
        notes.append("column 'epochs' is taken to count samples, as no --dataset-size is given")
    else:
        unit = 1.0
    records = [ConvergenceRecord(int(run.global_batch_size), run.epochs / unit) for run in good]
    return records, dataset_size or round(unit), notes


def _read_models(path: Path) -> Imported:
    try:
        with path.open("rb") as stream:
            raw = stream.read(TABLE_MAX_BYTES + 1)
        document = json.loads(raw)
        if not isinstance(document, dict):
            raise ValueError("not a file of models")
        return Imported.from_dict(document)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    except (ValueError, ValidationError, KeyError, RecursionError) as error:
        words = str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: not a file of models: {words}") from error
