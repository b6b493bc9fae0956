"""Search hyperparameters with KerasTuner under one budget: `python search.py`; killed, it goes on where it was."""

import sys

import train

import scavenger
from scavenger.integrations.keras_tuner import RandomSearch

if __name__ == "__main__":
    job = scavenger.Job(train.build, data=train.data, goal=6, workers=[1, 2], batch_size=[32])
    where = {"directory": "tuning", "project_name": "digits"}
    trials = int(sys.argv[1] if len(sys.argv) > 1 else 8)
    with scavenger.Client(store="jobs.db") as client:
        study = client.study("digits", budget="$1")
        tuner = RandomSearch(
            train.build, study=study, job=job, objective="val_accuracy", max_trials=trials, seed=1, **where
        )
        tuner.search()
        print(study)
        print(tuner.get_best_hyperparameters()[0].values)
