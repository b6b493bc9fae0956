"""Budgets of clients and studies when jobs do not end as planned: cancelled, cut off, or resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipeline_code
import pytest
from studies import put_on_record

from scavenger import Client, Job
from scavenger.api.calls import Remote
from scavenger.client import Client as ServerClient
from scavenger.client import ServerAddress
from scavenger.control.jobs import resume
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.service import submitting
from scavenger.domain.measurement import EpochRecord
from scavenger.errors import ConfigurationError, LimitReachedError
from scavenger.pipelines import job_runner
from scavenger.server.serving import first_token, serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.records import JobRecord

JOB = Job(
    pipeline_code.model,
    data=pipeline_code.data,
    goal={"metric": "val_loss", "max_epochs": 500},
    workers=1,
    batch_size=[20],
)


def test_what_was_set_aside_for_a_job_that_never_began_is_there_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "ensure_server", lambda store: None)
    with Client(store=url, budget=1.0) as client:
        submission = client.submit(JOB.with_settings({"constraints.budget": 0.75}))
        assert client.left_usd == pytest.approx(0.25)
        with Store.open(url) as store:
            store.cancel(submission.id, "not wanted")
        with pytest.raises(ConfigurationError, match="did not begin: not wanted"):
            client.wait(submission)
        assert client.left_usd == 1.0


def test_a_trial_that_ctrl_c_ends_costs_what_it_has_cost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(run: JobRun) -> None:
        with run._recorder() as recorder:
            run._recorder_in_use = recorder
            recorder.update(state="running", cost_usd=0.25)
            raise KeyboardInterrupt

    monkeypatch.setattr(job_runner, "drive", interrupted)
    with Client(store=url, budget=2.0) as client:
        study = client.study("rates", budget=1.0, at_once=2)
        with pytest.raises(KeyboardInterrupt):
            study.run(JOB, {"learning_rate": 0.01})
        assert [trial.cost_usd for trial in study.trials] == [0.25]
        assert (study.spent_usd, study.left_usd) == (0.25, 0.75)
        assert (client.spent_usd, client.left_usd) == (0.25, 1.75)
        with pytest.raises(KeyboardInterrupt):
            study.run(JOB, {"learning_rate": 0.02})
        assert (study.spent_usd, client.spent_usd) == (0.5, 0.5)


def test_two_programs_of_a_study_spend_its_budget_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(run: JobRun) -> None:
        with run._recorder() as recorder:
            run._recorder_in_use = recorder
            recorder.update(state="running", cost_usd=0.25)
            raise KeyboardInterrupt

    monkeypatch.setattr(job_runner, "drive", costs)
    with Client(store=url) as one, Client(store=url) as other:
        studies = [client.study("rates", budget=1.0, at_once=4) for client in (one, other)]
        assert [study.left_usd for study in studies] == [1.0, 1.0], "both have read the record"
        for number in range(4):
            with pytest.raises(KeyboardInterrupt):
                studies[number % 2].run(JOB, {"learning_rate": 0.01 * (number + 1)})
        for study in studies:
            with pytest.raises(LimitReachedError, match=r"\$1\.00 is used up: \$1\.00 are spent"):
                study.run(JOB, {"learning_rate": 0.5})
            assert study.spent_usd == 1.0


def test_what_a_running_trial_may_cost_is_no_other_programs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def meanwhile(run: JobRun) -> None:
        with run._recorder() as recorder:
            run._recorder_in_use = recorder
            with pytest.raises(LimitReachedError) as limit:
                late.run(JOB, {"learning_rate": 0.02})
            refused.append(str(limit.value))
            raise KeyboardInterrupt

    monkeypatch.setattr(job_runner, "drive", meanwhile)
    with Client(store=url) as one, Client(store=url) as other:
        late = other.study("rates", budget=1.0)
        assert late.left_usd == 1.0
        with pytest.raises(KeyboardInterrupt):
            one.study("rates", budget=1.0).run(JOB, {"learning_rate": 0.01})
        assert refused == ["the budget of $1.00 is used up: $1.00 are spent; raise the budget"], (
            "all that it may cost counts"
        )
        with Store.open(url) as store:
            funds = store.funds_of_study("rates")
        assert (funds.spent_usd, funds.reserved_usd, funds.claims) == (0.0, 0.0, 0)


def test_a_trial_that_cannot_begin_costs_nothing(url: str, tmp_path: Path) -> None:
    with Client(store=url) as client:
        study = client.study("rates", budget=1.0)
        with pytest.raises(ConfigurationError):
            study.run(JOB.with_settings({"infra": "aws/nowhere"}))
        assert (study.spent_usd, study.left_usd, study.trials) == (0.0, 1.0, ())


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_that_an_exception_cuts_off_costs_what_it_has_cost(url: str, tmp_path: Path) -> None:
    job = JOB.with_settings({"output": str(tmp_path / "out")})
    seen = 0

    def raises(record: EpochRecord) -> bool:
        nonlocal seen
        seen += 1
        if seen == 40:  # it has trained for a while
            raise RuntimeError("the search is broken")
        return False

    with Client(store=url, progress=False) as client:
        study = client.study("rates", budget=1.0)
        with pytest.raises(RuntimeError, match="the search is broken"):
            study.run(job, {"learning_rate": 0.01}, on_epoch=raises)
        (trial,) = study.trials
        assert 0.0 < trial.cost_usd == pytest.approx(client.cost_of(trial.id))
        assert study.spent_usd == pytest.approx(trial.cost_usd)
        assert study.left_usd == pytest.approx(1.0 - trial.cost_usd)
        assert client.study("rates").spent_usd == pytest.approx(study.spent_usd), (
            "as another program finds it"
        )
        assert (trial.over, trial.known) == (False, False)


class _ResumedError(Exception):
    """Stands for the run of a resumed job."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The limits with which jobs are resumed; none runs."""
    asked: list[dict[str, Any]] = []

    def resumed(job_id: str, *, budget_usd: float | None, left_s: float | None, **others: Any) -> None:
        asked.append({"job": job_id, "budget_usd": budget_usd, "left_s": left_s})
        raise _ResumedError

    monkeypatch.setattr(resume, "resume_job", resumed)
    return asked


def test_a_trial_that_goes_on_has_what_the_study_has_left(url: str, limits: list[dict[str, Any]]) -> None:
    begun = put_on_record(
        url,
        JOB.with_settings({"constraints.budget": 1.0}).with_params(learning_rate=0.5),
        0.5,
        state="interrupted",
        usd=0.25,
        code=130,
    )
    put_on_record(url, JOB.with_params(learning_rate=0.25), 0.25, usd=0.5)
    with Client(store=url) as client:
        study = client.study("rates", budget=1.0, deadline=1_000_000)
        with pytest.raises(_ResumedError):
            study.run(JOB, {"learning_rate": 0.5})
        (asked,) = limits
        assert asked["job"] == begun
        assert asked["budget_usd"] == pytest.approx(0.25 + 0.25), (
            "what it has cost, and what the study has left"
        )
        assert 0.0 < asked["left_s"] <= 1_000_000
        assert study.spent_usd == pytest.approx(0.75)
        assert study.left_usd == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("budget", "own", "expected"),
    [(None, None, None), (None, 1.0, 1.0), (0.5, 1.0, 0.75), (0.5, None, 0.75), (10.0, 1.0, 1.0)],
)
def test_a_resumed_job_has_what_its_client_has_left(
    url: str, limits: list[dict[str, Any]], budget: float | None, own: float | None, expected: float | None
) -> None:
    job = JOB if own is None else JOB.with_settings({"constraints.budget": own})
    begun = put_on_record(url, job, 0.5, state="interrupted", usd=0.25, code=130)
    with Client(store=url, budget=budget) as client:
        with pytest.raises(_ResumedError):
            client.resume(begun)
        assert limits[0]["budget_usd"] == (None if expected is None else pytest.approx(expected))


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs that a server was asked to resume; none is waited for."""
    asked: list[str] = []

    def resumed(source: Remote, job: JobRecord, *_: object, **__: object) -> JobRecord:
        asked.append(job.id)
        return job

    def awaited(*_: object) -> None:
        raise _ResumedError

    monkeypatch.setattr(job_runner, "resumed", resumed)
    monkeypatch.setattr(job_runner, "submission_of", awaited)
    return asked


@pytest.fixture
def there(url: str) -> Iterator[Remote]:
    with Store.open(url) as store:
        token = first_token(store)
        assert token is not None
        with serving(store, ServerSettings(port=0)) as address:
            yield Remote(ServerClient(ServerAddress(address, token)))


@pytest.mark.parametrize(
    ("budget", "own", "goes_on"), [(0.5, 0.7, True), (0.5, 1.0, False), (0.5, None, False)]
)
def test_a_job_that_a_server_resumes_is_paid_for_by_its_client(
    url: str, there: Remote, resumed: list[str], budget: float, own: float | None, goes_on: bool
) -> None:
    job = JOB if own is None else JOB.with_settings({"constraints.budget": own})
    begun = put_on_record(url, job, 0.5, state="interrupted", usd=0.25, code=130)
    with Client(store=url, budget=budget) as client:
        client._source = there
        with pytest.raises(_ResumedError if goes_on else LimitReachedError):
            client.resume(begun)
        assert (resumed == [begun]) is goes_on
        assert client.left_usd == pytest.approx(0.5 - (0.7 - 0.25) if goes_on else 0.5)


def test_a_spent_budget_is_raised_and_what_is_below_it_is_refused(
    url: str, limits: list[dict[str, Any]]
) -> None:
    job = JOB.with_settings({"constraints.budget": 1.0})
    begun = put_on_record(url, job, 0.5, state="stopped", usd=1.0, code=5)
    with Client(store=url) as client:
        with pytest.raises(ConfigurationError, match=r"--budget 0\.5 is below the job's own, 1"):
            client.resume(begun, new_budget=0.5)
        with pytest.raises(ConfigurationError, match=r"has cost \$1\.0000 already"):
            client.resume(begun, new_budget="$1")
        with pytest.raises(_ResumedError):
            client.resume(begun, new_budget="$3", new_deadline="2h")
    assert limits[0]["budget_usd"] == pytest.approx(3.0)


def test_the_limits_of_a_resumed_job_are_only_lowered() -> None:
    spec = JOB.with_settings({"constraints.budget": 1.0}).spec
    lowered = resume._within(spec, {"budget": 0.5, "deadline": 60.0})
    assert (lowered.constraints.budget, lowered.constraints.deadline) == (0.5, 60.0)
    same = resume._within(spec, {"budget": 2.0, "deadline": None})
    assert (same.constraints.budget, same.constraints.deadline) == (1.0, None)
