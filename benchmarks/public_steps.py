"""Public step times: T4s by one to four a node (Pollux), A100s by eight a node on Azure (ElasticFlow)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from scavenger.control.search.tables import number, read_placements, read_table
from scavenger.models.backtest import PlacementRow

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

KEPT_BACK = ("bert", "ncf", "yolov3")
"""Jobs on T4s that no prior, rule or width of an interval is set by."""

T4 = "aws-g4dn-t4"
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


def read_more_step_times() -> list[PlacementRow]:
    """What Pollux measured and `read_step_times` leaves out: two and three T4s a node, and the jobs `KEPT_BACK`.

    Marked are one, two and the most nodes with the smallest and the largest batch.

    Raises:
        SystemExit: If the data is not there.
    """
    folder = DATA / "pollux" / "jobs"
    if not folder.is_dir():
        raise SystemExit(f"the public measurements are not at {folder}: nothing to test against")
    rows = []
    for job in sorted(folder.iterdir()):
        for per_node in range(1, 5):
            if job.name in KEPT_BACK or per_node in (2, 3):
                rows += _marked(_placements(job, per_node))
    return rows


def _placements(job: Path, per_node: int) -> list[PlacementRow]:
    """Where every node has as many workers: up to four nodes in one table, from six on in the other."""
    times = ("local_bsz", "step_time", "sync_time")
    found = [
        (len(line["placement"]) * per_node, line)
        for line in read_table(job / "placements.csv", ("placement", *times))
        if set(line["placement"]) == {str(per_node)}
    ]
    found += [
        (int(line["num_replicas"]), line)
        for line in read_table(job / "scalability.csv", ("num_nodes", "num_replicas", *times))
        if int(line["num_replicas"]) == int(line["num_nodes"]) * per_node
    ]
    return [
        PlacementRow(
            workload=job.name,
            cluster=T4,
            workers_per_node=per_node,
            workers=workers,
            local_batch_size=number(line["local_bsz"]),
            global_batch_size=number(line["local_bsz"]) * workers,
            step_time_s=number(line["step_time"]),
            sync_time_s=number(line["sync_time"]),
            marked=False,
        )
        for workers, line in found
    ]


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
