"""Search hyperparameters with Optuna under one budget: `python search.py [TRIALS]`; killed, it goes on where it was."""

import sys

import optuna
import train

import scavenger
from scavenger.integrations.optuna import StopAtBudget, objective, resume_interrupted


def suggest(trial: optuna.Trial) -> dict[str, float]:
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 0.3, log=True)}


if __name__ == "__main__":
    goal = {"metric": "val_accuracy", "max_epochs": 8}
    job = scavenger.Job(train.model, data=train.data, goal=goal, workers=[1, 2], batch_size=[32])
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=2)
    where = {"study_name": "digits", "storage": "sqlite:///digits.db", "load_if_exists": True}
    search = optuna.create_study(**where, direction="maximize", pruner=pruner)
    resume_interrupted(search)
    with scavenger.Client(store="jobs.db") as client:
        study = client.study("digits", budget="$1")
        left = int(sys.argv[1] if len(sys.argv) > 1 else 8) - sum(one.over for one in study.trials)
        run, stop = objective(study, job, suggest), StopAtBudget(study)
        search.optimize(run, n_trials=left, callbacks=[stop], catch=scavenger.ScavengerError)
        print(study)
