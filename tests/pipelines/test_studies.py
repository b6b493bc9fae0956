"""Studies: what is on record counts and is not repeated, budgets hold over all trials, and Optuna drives them."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pipeline_code
import pytest
from killed_examples import run_again_after_a_kill
from sqlalchemy import create_engine, text
from studies import put_on_record

from scavenger import Client, Job, Study
from scavenger.errors import ConfigurationError, LimitReachedError, ScavengerError, StoreError
from scavenger.integrations.optuna import COST, StopAtBudget, objective, resume_interrupted
from scavenger.pipelines.budget import Budget
from scavenger.pipelines.study import PRUNED, trial_key, union_s
from scavenger.store import Store

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "study"
JOB = Job(pipeline_code.model, data=pipeline_code.data, goal={"metric": "val_loss", "max_epochs": 3})


def record(url: str, rate: float, **ended: Any) -> str:
    """Put a trial on record, whose value is its rate."""
    return put_on_record(url, JOB.with_params(learning_rate=rate), rate, **ended)


def test_a_trial_on_record_is_not_run_again(url: str, client: Client) -> None:
    first = record(url, 0.5)
    record(url, 0.25, state="interrupted", error=PRUNED, code=130)
    record(url, 0.1, state="failed", error="train.py:3: no", code=6)
    study = client.study("rates", budget=1)

    trials = [study.run(JOB, {"learning_rate": rate}) for rate in (0.5, 0.25, 0.1)]

    assert [trial.known for trial in trials] == [True] * 3
    assert (trials[0].id, trials[0].value, trials[0].predicted_usd) == (first, 0.5, pytest.approx(0.11))
    assert [trial.pruned for trial in trials] == [False, True, False]
    assert study.best("min").params == {"learning_rate": 0.5}
    assert (study.spent_usd, study.left_usd) == (pytest.approx(0.3), pytest.approx(0.7))
    assert "3 trials for $0.30 of $1.00" in str(study)
    assert study._repr_html_().count("<tr>") == 4


def test_nothing_is_begun_when_the_budget_or_the_time_of_the_study_is_used_up(
    url: str, client: Client
) -> None:
    record(url, 0.5, usd=0.75)
    with pytest.raises(LimitReachedError, match=r"budget of \$0\.70 is used up: \$0\.75 are spent"):
        client.study("rates", budget=0.7).run(JOB, {"learning_rate": 0.2})
    with Store.open(url) as store:
        assert len(store.jobs(name="rates")) == 1
    assert client.study("other", budget=0.7).left_usd == 0.7
    late = client.study("rates", deadline=1e-6)
    with pytest.raises(LimitReachedError, match="the time of study rates is used up"):
        late.run(JOB, {"learning_rate": 0.2})
    assert late.left_usd == float("inf")


def test_a_trial_whose_program_was_killed_counts_and_is_not_over(url: str, client: Client) -> None:
    program = (
        "import sys; from scavenger.store import Store\n"
        f"with Store.open({url!r}) as store:\n"
        f"    job = store.create_job('rates', spec={JOB.with_params(width=3).spec.written()!r}, job_file='a.yaml')\n"
        "    store.update_job(job.id, state='running', cost_usd=0.125)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

    (trial,) = client.study("rates").trials

    assert (trial.state, trial.cost_usd, trial.over) == ("interrupted", 0.125, False)
    assert client.study("rates").spent_usd == 0.125


def test_what_running_trials_of_other_programs_may_cost_is_set_aside(url: str, client: Client) -> None:
    record(url, 0.5, usd=0.2)
    for at, (limit, cost) in enumerate(((0.3, 0.1), (0.1, 0.15))):
        job = JOB.with_settings({"constraints.budget": limit}).with_params(width=at + 1)
        with Store.open(url) as store:  # this process is alive, so they are taken for running
            made = store.create_job("rates", spec=job.spec.written(), job_file=JOB.path)
            store.update_job(made.id, state="running", cost_usd=cost)
    study = client.study("rates", budget=1, at_once=4)
    assert study.left_usd == pytest.approx(1.0 - 0.2 - 0.3 - 0.15)
    assert [trial.params for trial in study.trials] == [{"learning_rate": 0.5}]


def test_a_study_whose_costs_cannot_be_read_does_not_begin(url: str, client: Client) -> None:
    record(url, 0.5, usd=0.25)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE intents RENAME TO elsewhere"))
    engine.dispose()
    with pytest.raises(StoreError):
        _ = client.study("rates", budget=0.7).spent_usd


def test_what_makes_another_trial() -> None:
    key = trial_key(JOB.spec.written())
    assert (
        trial_key(
            JOB.with_settings({"name": "x", "constraints.budget": 3, "search.workers": 2}).spec.written()
        )
        == key
    )
    chosen = {"elastic": {"aggregators": 2, "aggregator_vms": 2}}
    assert trial_key(JOB.spec.written() | chosen) == key, "a record has the number that was chosen"
    assert trial_key(JOB.with_params(width=3).spec.written()) != key
    assert trial_key(JOB.with_settings({"goal.max_epochs": 4}).spec.written()) != key


def test_time_in_which_trials_overlap_counts_once() -> None:
    at = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in range(20)]
    assert union_s([(at[0], at[4]), (at[2], at[6]), (at[10], at[11]), (at[10], at[10])]) == 7.0
    assert union_s([]) == 0.0


class TestOptuna:
    def search(self, study: Study, *, cost: Any = "attribute", **options: Any) -> optuna.Study:
        directions = ["minimize", "minimize"] if cost == "direction" else ["minimize"]
        search = optuna.create_study(directions=directions)
        for rate in (0.5, 0.25, 0.1):
            search.enqueue_trial({"learning_rate": rate})
        run = objective(study, JOB, self.suggest, cost=cost, **options)
        search.optimize(run, n_trials=3, callbacks=[StopAtBudget(study)], catch=ScavengerError)
        return search

    def suggest(self, trial: optuna.Trial) -> dict[str, float]:
        return {"learning_rate": trial.suggest_float("learning_rate", 0.0, 1.0)}

    def test_values_costs_and_states_are_those_of_the_jobs(self, url: str, client: Client) -> None:
        job_id = record(url, 0.5)
        record(url, 0.25, state="interrupted", error=PRUNED, code=130)
        record(url, 0.1, state="failed", error="train.py:3: no", code=6)

        search = self.search(client.study("rates"))

        assert [trial.state.name for trial in search.trials] == ["COMPLETE", "PRUNED", "FAIL"]
        assert search.best_value == 0.5
        assert search.best_trial.user_attrs == {COST: 0.1, "time_s": 8.0, "profiled": 0, "job_id": job_id}

    def test_cost_as_a_second_value_and_as_a_constraint(self, url: str, client: Client) -> None:
        for rate, usd in ((0.5, 0.1), (0.25, 0.2), (0.1, 0.3)):
            record(url, rate, usd=usd)
        two = self.search(client.study("rates"), cost="direction")
        assert [trial.values for trial in two.trials] == [[0.5, 0.1], [0.25, 0.2], [0.1, 0.3]]
        assert len(two.best_trials) == 3
        one = self.search(client.study("rates"), cost="constraint", cost_max_usd=0.2)
        assert [trial.constraints[COST] for trial in one.trials] == pytest.approx([-0.1, 0.0, 0.1])
        with pytest.raises(ConfigurationError, match="go together"):
            self.search(client.study("rates"), cost="constraint")

    def test_a_search_ends_when_the_rest_pays_for_no_other_trial(self, url: str, client: Client) -> None:
        for rate in (0.5, 0.25):
            record(url, rate, usd=0.4)
        search = self.search(client.study("rates", budget=1))
        assert len(search.trials) == 3
        assert [trial.state.name for trial in search.trials] == ["COMPLETE", "WAITING", "WAITING"]
        used_up = self.search(client.study("rates", budget=0.8), cost="attribute")
        assert used_up.trials[0].state.name == "COMPLETE"

    def test_a_trial_that_finds_nothing_left_is_pruned_and_ends_the_search(
        self, url: str, client: Client
    ) -> None:
        record(url, 0.9, usd=2.0)
        search = self.search(client.study("rates", budget=1))
        assert [trial.state.name for trial in search.trials] == ["PRUNED", "WAITING", "WAITING"]

    def test_trials_whose_program_was_killed_are_queued_again(self) -> None:
        search = optuna.create_study()
        search.ask().suggest_float("learning_rate", 0.0, 1.0)
        search.ask()
        killed = search.trials[0].params

        assert resume_interrupted(search) == 2
        assert [trial.state.name for trial in search.trials] == ["FAIL", "FAIL", "WAITING"]
        assert search.ask().suggest_float("learning_rate", 0.0, 1.0) == killed["learning_rate"]
        assert len(search.trials) == 3

    def test_a_goal_without_a_metric_is_refused(self, client: Client) -> None:
        job = Job(pipeline_code.model, data=pipeline_code.data, goal=3)
        with pytest.raises(ConfigurationError, match=r"name goal\.metric"):
            objective(client.study("rates"), job, self.suggest)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    env = {**os.environ, "SCAVENGER_LOCAL_PRICE": "0.1"}
    second = run_again_after_a_kill(tmp_path, EXAMPLE, 4, env, told="Trial 0 finished", midst_s=2.0)

    url = f"sqlite:///{tmp_path}/jobs.db"
    with Client(store=url) as client:
        study = client.study("digits", budget=1)
        trials = study.trials
        assert sum(trial.over for trial in trials) == 4
        assert trials[0].profiled > 0
        for trial in trials[1:]:  # however slow the machine has become meanwhile
            assert trial.profiled == 0
        assert study.spent_usd <= 1.0
        jobs = client.records("digits")
        assert study.spent_usd == pytest.approx(sum(client.cost_of(job.id) for job in jobs))
        assert study.spent_usd >= sum(trial.cost_usd for trial in trials) * 0.999
    assert "Study digits: 4 trials for $" in second.stdout
    search = optuna.load_study(study_name="digits", storage=f"sqlite:///{tmp_path}/digits.db")
    assert [trial.state.name for trial in search.trials].count("RUNNING") == 0


def test_what_vms_wait_for_is_set_aside_and_a_trial_that_ends_leaves_its_rest() -> None:
    budget = Budget(1.0)
    with budget.allowance(None) as trial:
        assert budget.left_usd == 0.0
        assert not budget.wait_for("vms", 0.0, 0.1)
        assert budget.wait_for("vms", 0.0, 0.1, returned_usd=0.6)  # it has cost 0.4
        assert not budget.wait_for("others", 0.0, 0.8, returned_usd=0.6)
        trial.cost_usd = 0.4
    assert budget.left_usd == pytest.approx(0.5)
    assert budget.wait_for("vms", 0.05, 0.05)
    assert (budget.spent_usd, budget.left_usd) == (pytest.approx(0.45), pytest.approx(0.5))
    assert budget.wait_for("vms", 0.07, 0.0)
    assert (budget.spent_usd, budget.left_usd) == (pytest.approx(0.47), pytest.approx(0.53))
