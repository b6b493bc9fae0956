"""A submitted job whose runner died before the first checkpoint begins again, and what it has cost counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.training.trainer import Trainer
from scavenger.domain.report import Observer
from scavenger.errors import Interrupted
from scavenger.store import Store

JOB = """
version: 1
name: again
infra: local
train: train:job
goal: {max_epochs: 3}
search: {workers: 1, batch_size: 32}
constraints: {budget: 1.0}
"""


@pytest.mark.parametrize("earlier_usd", [None, 0.25])
def test_what_the_attempt_before_has_cost_counts_in_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier_usd: float | None
) -> None:
    costs = list[float]()

    def start(trainer: Trainer, workers: int) -> None:
        costs.append(trainer.cost_usd)
        raise Interrupted("enough")

    monkeypatch.setattr(Trainer, "start", start)
    (tmp_path / "train.py").write_text("def job():\n    pass\n")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    job = load_job(path)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        made = store.create_job("again", spec=job.written(), job_file=path)
        if earlier_usd is not None:
            store.update_job(made.id, state="running", cost_usd=earlier_usd)
        store.finish_job(made.id, state="failed", report=None, error="killed", exit_code=None)
        JobRun(
            prepare_job(job, path), store=store, observer=Observer(), run=True, confirm=None, job_id=made.id
        ).run()
    assert costs == [earlier_usd or 0.0]
