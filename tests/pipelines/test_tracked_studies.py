"""Trackers of real jobs: trials of a study are runs under its own, with what the jobs cost."""

from __future__ import annotations

from pathlib import Path

import pipeline_code
import pytest

from scavenger import Client, Job


@pytest.mark.slow
def test_a_trial_of_a_study_is_a_nested_run(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    job = Job(  # long enough that the choice, and so a prediction, comes before its end on a slow machine
        pipeline_code.model,
        data=pipeline_code.waited_data,
        goal={"metric": "val_loss", "max_epochs": 20},
        workers=1,
        batch_size=[50],
        settings={"profile.steps": 3, "output": str(tmp_path / "out")},
    )
    trackers = {"mlflow": uri, "tensorboard": str(tmp_path / "runs")}
    with Client(store=f"sqlite:///{tmp_path}/store.db", trackers=trackers) as client:
        trial = client.study("rates").run(job, {"learning_rate": 0.01})
        assert client.study("rates").run(job, {"learning_rate": 0.01}).known

    records = MlflowClient(tracking_uri=uri)
    experiment = records.get_experiment_by_name("rates")
    assert experiment is not None
    runs = records.search_runs([experiment.experiment_id])
    (found,) = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    parent = records.get_run(found.data.tags["mlflow.parentRunId"])
    assert parent.data.tags["scavenger.study"] == "rates"
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["trials"] == 1
    assert parent.data.metrics["actual_cost_usd"] == found.data.metrics["actual_cost_usd"]
    assert found.data.tags["mlflow.runName"] == f"rates-{trial.id[:8]}, 1 x local-1, batch 50"
    assert found.data.tags["scavenger.job_id"] == trial.id
    assert found.data.params["params.learning_rate"] == "0.01"
    assert found.info.status == "FINISHED"
    assert found.data.metrics["actual_cost_usd"] == pytest.approx(trial.cost_usd, rel=0.05)
    assert found.data.metrics["predicted_cost_usd"] == pytest.approx(trial.predicted_usd)
    assert any(tag.startswith("scavenger.view.") for tag in found.data.tags)
    losses = records.get_metric_history(found.info.run_id, "val_loss")
    assert [one.step for one in losses] == list(range(4, 81, 4))
    events = EventAccumulator(str(tmp_path / "runs" / "rates" / f"rates-{trial.id[:8]}")).Reload()
    scalars = [(one.step, one.value) for one in events.Scalars("val_loss")]
    assert scalars == [(one.step, pytest.approx(one.value)) for one in losses]
