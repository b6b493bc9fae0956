"""Jobs of which the dashboard's tests make pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from scavenger.control.provisioning.bill import JobCost
from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.control.training.run_course import CostAt, RunCourse, StepBucket
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, CurveConfigurations, Interval, PointMarks, TradeoffCurve
from scavenger.domain.document import report_document
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.progress import Progress
from scavenger.domain.report import Actual, Predicted, ReportedJob, RunReport
from scavenger.server.dashboard.job_page import JobSight
from scavenger.store import Store
from scavenger.store.records import EventRecord, JobRecord

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
BEGAN = NOW - timedelta(minutes=10)
HOSTILE = "<script>alert(1)</script>\x1b[2J\"'&\u202e"
"""Text that would be a script, move a cursor, end an attribute, or change the direction of what follows."""

PREDICTED = Predicted(900.0, (600.0, 1500.0), 1.5, (1.0, 2.5), 0.05, 30.0, spent_s=60.0, spent_usd=0.1)
ACTUAL = Actual(800.0, 1.4, 0.049, 28.0)
GOAL = {"metric": "val_accuracy", "target": 0.99, "max_epochs": 120}


def curve_of(points: int = 6) -> tuple[TradeoffCurve, Choice]:
    """A curve over `points` configurations, the second of which is chosen."""
    place = np.arange(points)
    time_s = 1000.0 / (1 + place) ** 0.5
    cost = 1.0 + 0.2 * place
    curve = TradeoffCurve(
        CurveConfigurations(("local-1",), np.zeros(points, np.int64), place + 1, np.full(points, 10**6)),
        time_s,
        Interval(time_s * 0.7, time_s * 1.5),
        cost,
        Interval(cost * 0.7, cost * 1.5),
        np.full(points, 0.05),
        np.full(points, 30.0),
        PointMarks(place < 3, place < 2, place > 4, np.zeros(points, np.int64)),
        knee=2,
    )
    return curve, Choice(curve[1], "knee", "the bend of the front", (("fastest", curve[points - 1]),))


def job_of(folder: Path, **changes: Any) -> JobRecord:
    """A running job of a store in a folder, with changes."""
    with Store.open(f"sqlite:///{folder}/sample.db", clock=lambda: BEGAN) as store:
        spec = {"goal": GOAL, "constraints": {"budget": 2.0, "deadline": 3600.0}}
        made = store.create_job("digits", spec=spec, job_file=folder / "job.yaml")
    return replace(made, state="running", step=120, cost_usd=0.5, predicted=PREDICTED, **changes)


def sight_of_running(folder: Path, **changes: Any) -> JobSight:
    """All of a job that runs: five epochs, steps at two sizes, a view, a lost worker, costs and a curve."""
    job = job_of(folder, chosen=Configuration("local-1", 2, 10**6))
    curve, choice = curve_of()
    report = RunReport(ReportedJob(job.id, job.name, "running"), NOTHING_SEARCHED, curve=curve, choice=choice)
    steps = tuple(
        StepBucket(n, n, 1 + n // 10, 10**6, 1, 0.05, 0.06, 2.0 / (1 + n), 100.0 + n, n * 0.05)
        for n in range(1, 20)
    )
    epochs = tuple(EpochRecord(n, 4 * n, {"val_accuracy": 0.5 + 0.08 * n}, 0.1, float(n)) for n in range(5))
    costs = (CostAt(60.0, (BEGAN + timedelta(minutes=1)).timestamp(), 0.1),)
    view = {"workers": 2, "global_batch_size": 64}
    events = (
        EventRecord(1, job.id, BEGAN + timedelta(seconds=20), "info", "view", "view 1", view),
        EventRecord(
            2, job.id, BEGAN + timedelta(seconds=90), "warning", "worker", "w1 lost", {"state": "lost"}
        ),
    )
    progress = Progress(
        120,
        4,
        Configuration("local-1", 2, 10**6),
        0.4,
        "val_accuracy",
        0.82,
        0.99,
        (9.0, 40.0),
        600.0,
        (300.0, 1200.0),
    )
    sight = JobSight(
        job=job,
        progress=progress,
        processes=(),
        operations=(),
        events=events,
        intents=(),
        cost=JobCost(
            job.id,
            job.name,
            "running",
            PREDICTED,
            None,
            0.5,
            (),
            (),
            "counted",
            (),
            job.created_at,
            alive=True,
        ),
        course=RunCourse(steps, epochs, costs, report_document(report)),
        reachable=True,
        at=NOW,
    )
    return replace(sight, **changes)
