"""A study whose trials a server runs: a pruner sees their evaluations, and stops them."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
from real_jobs import Job as Folder
from real_jobs import environment
from waiting import wait_for
from warm_commands import Command

from scavenger import Client, Job
from scavenger.domain.report import EpochEnded, Event, Observer
from scavenger.integrations.optuna import objective
from scavenger.store import Store

pytestmark = pytest.mark.slow


@contextmanager
def served(job: Folder, folder: Path) -> Iterator[tuple[str, str]]:
    """A server of the job's store; yields its address and a token."""
    log = folder / "serve.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "scavenger_cli", "serve", "--port", "0", "--store", job.store]
        server = Command(command, env=environment(job.mark), stdout=output, stderr=output)
        try:
            yield wait_for(
                lambda: re.search(r"open (http://\S+)/login\?token=(\S+)", log.read_text())
            ).groups()
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0, log.read_text()


class Seen(Observer):
    def __init__(self) -> None:
        self.epochs: list[EpochEnded] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self.epochs.append(event)


class AfterTwo(optuna.pruners.BasePruner):
    """Prunes what was evaluated twice."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return len(trial.intermediate_values) >= 2


def test_a_pruner_stops_a_trial_of_a_server(make_job: Callable[..., Folder], tmp_path: Path) -> None:
    folder = make_job(
        name="digits", goal={"metric": "val_loss", "max_epochs": 2_000}, code={"sleep_s": 0.0002}
    )
    job = Job.from_yaml(folder.file)
    with (
        served(folder, tmp_path) as (address, token),
        Client(server=address, token=token) as client,
    ):
        study = client.study("digits", budget="$20", workers=1)
        search = optuna.create_study(pruner=AfterTwo())

        search.optimize(objective(study, job, lambda trial: {}), n_trials=1)

        (trial,) = study.trials
        assert (trial.pruned, trial.over) == (True, True)
        assert search.trials[0].state == optuna.trial.TrialState.PRUNED
        assert len(search.trials[0].intermediate_values) >= 2
        assert study.spent_usd == pytest.approx(trial.cost_usd)
        assert 0.0 < trial.cost_usd < 0.5
        again = client.study("digits").find(job)
    assert again is not None
    assert again.pruned
    with Store.open(folder.store) as store:
        (record,) = store.jobs(10)
        told = store.events(record.id, kind="epochs")
        (stop,) = store.operations(record.id, limit=5)
        submitted = store.submission(record.id)
    assert submitted is not None
    assert (submitted.job.study_workers, submitted.job.spec["search"]["workers"]) == (1, [1])
    assert record.error == "pruned"
    assert record.model_path is None
    assert stop.state == "done"
    values = {one["epoch"] + 1: one["metrics"]["val_loss"] for each in told for one in each.data["epochs"]}
    reported = search.trials[0].intermediate_values
    assert reported.items() <= values.items()
