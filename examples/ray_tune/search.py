"""Search hyperparameters with Ray Tune under one budget: `python search.py`; killed, it goes on where it was."""

import sys
from pathlib import Path

import ray
import train
from ray import tune

import scavenger
from scavenger.integrations.ray_tune import StudyOfTune

if __name__ == "__main__":
    goal = {"metric": "val_accuracy", "max_epochs": 8}
    job = scavenger.Job(train.model, data=train.data, goal=goal, workers=[1, 2], batch_size=[32])
    search = StudyOfTune(job, "digits", store="jobs.db", budget="$1", at_once=2)
    ray.init(num_cpus=2, include_dashboard=False)
    space = {"learning_rate": tune.loguniform(1e-3, 0.3), "momentum": tune.choice([0.5, 0.9])}
    options = tune.TuneConfig(
        metric="val_accuracy", mode="max", num_samples=int(sys.argv[1] if len(sys.argv) > 1 else 8),
        max_concurrent_trials=2, scheduler=search.scheduler(workers=3),
    )  # fmt: skip
    where = tune.RunConfig(name="digits", storage_path=str(Path("tuning").absolute()), stop=search.stopper())
    if tune.Tuner.can_restore(Path("tuning", "digits").absolute()):
        tuner = tune.Tuner.restore(str(Path("tuning", "digits").absolute()), search.trainable())
    else:
        tuner = tune.Tuner(search.trainable(), param_space=space, tune_config=options, run_config=where)
    best = tuner.fit().get_best_result()
    with scavenger.Client(store="jobs.db") as client:
        print(client.study("digits", budget="$1"))
    print(best.config)
