"""A search by Ray Tune, run by a test as a program of its own: `tune_program.py FOLDER`; prints what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pipeline_code
import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler

from scavenger import Client, Job
from scavenger.integrations.ray_tune import StudyOfTune, scaling_config


class StopsSlowLearners(FIFOScheduler):
    """Stops a trial that cannot learn after its fifth epoch."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return "STOP" if trial.config["learning_rate"] < 1e-4 and result["epoch"] >= 5 else "CONTINUE"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    job = Job(
        pipeline_code.model,
        data=pipeline_code.data,
        goal={"metric": "val_loss", "max_epochs": 120},
        workers=[1, 2],
        batch_size=[50],
        params={"width": 16},
        settings={"profile.steps": 3, "profile.points": 1, "output": str(folder / "out")},
    )
    search = StudyOfTune(job, "tuned", store=str(folder / "jobs.db"), budget=1, at_once=2)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    scheduler = search.scheduler(workers=2, base=StopsSlowLearners())
    tuner = tune.Tuner(
        search.trainable(),
        param_space={"learning_rate": tune.grid_search([0.05, 1e-7])},
        tune_config=tune.TuneConfig(
            metric="val_loss", mode="min", scheduler=scheduler, max_concurrent_trials=2
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "tuning"), stop=search.stopper(), verbose=0),
    )
    results = tuner.fit()
    with Client(store=search.store, progress=False) as client:
        scaled = scaling_config(client.curve("tuned"))
    print(
        json.dumps(
            {
                "best": results.get_best_result().config,
                "results": [one.metrics for one in results],
                "errors": results.num_errors,
                "changes": scheduler.changes,
                "num_workers": scaled.num_workers,
            },
            default=str,
        )
    )
