"""Public step times: T4s by one and by four a node (Pollux), A100s by eight a node on Azure (ElasticFlow)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from scavenger.control.search.tables import number, read_placements, read_table
from scavenger.models.backtest import PlacementRow

__all__ = ["DATA", "read_step_times"]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

_A100_WORKERS = ("1", "2", "4", "8", "16", "32", "64")


def read_step_times() -> list[PlacementRow]:
    """All of them; marked on A100s are 1, 2 and the most workers with the smallest and the largest batch.

    Raises:
        SystemExit: If the data is not there.
    """
    folder = DATA / "elasticflow" / "throughputs_A100"
    if not (folder.is_dir() and (DATA / "measured" / "step_times.csv").is_file()):
        raise SystemExit(f"the public measurements are not at {DATA}: nothing to test against")
    rows = read_placements(DATA / "measured" / "step_times.csv")
    for path in sorted(folder.glob("*.csv")):
        rows += _marked(_throughputs(path))
    return rows


def _throughputs(path: Path) -> list[PlacementRow]:
    """Iterations a second by global batch (rows) and workers (columns); 0 or nothing where it did not run."""
    rows = []
    for line in read_table(path, ("global_batch_size",), optional=_A100_WORKERS):
        batch = int(line["global_batch_size"])
        for workers in map(int, _A100_WORKERS):
            rate = number(line[str(workers)])
            if rate > 0.0 and batch >= workers:
                local = batch / workers
                rows.append(
                    PlacementRow(
                        path.stem, "azure-a100", 8, workers, local, batch, 1.0 / rate, math.nan, False
                    )
                )
    return rows


def _marked(rows: list[PlacementRow]) -> list[PlacementRow]:
    counts = sorted({row.workers for row in rows})
    batches = {count: [row.global_batch_size for row in rows if row.workers == count] for count in counts}
    ends = {(k, end(batches[k])) for k in (*counts[:2], counts[-1]) for end in (min, max)}
    return [replace(row, marked=(row.workers, row.global_batch_size) in ends) for row in rows]
