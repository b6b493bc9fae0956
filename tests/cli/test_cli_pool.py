"""`pool` and `jobs queue`: who has how many slots, what comes, and why, from what is on record."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scavenger_cli.main import main
from sqlalchemy import select

from scavenger.api.calls import Local
from scavenger.api.pools import explain_share, show_pools, what_if_submitted
from scavenger.api.submitting import JobRequest, SubmitRequest, submit
from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.control.service.pools import Pools
from scavenger.domain.access import Caller, User
from scavenger.domain.document import report_document
from scavenger.domain.pool import JobStanding, Pool, PoolAllotment, PoolShare, RatePoint, WorkLeft
from scavenger.domain.report import ReportedJob, RunReport
from scavenger.domain.submission import NewSubmission
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.server.dashboard.pool_routes import pool_card
from scavenger.store import Store
from scavenger.store.schema import SubmissionRow
from tests.server.dashboard_samples import PREDICTED, curve_of

pytestmark = pytest.mark.slow

JOB = """\
version: 1
name: third
infra: pool/gpu
train: train:job
search: {workers: 1..4, batch_size: 64}
goal: {metric: val_accuracy, target: 0.97, max_epochs: 60}
"""
CURVE = tuple(RatePoint(slots, 100.0 * slots**0.8, True) for slots in (1, 2, 4))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A pool of four slots: `first` and `second` have two each, `waits` has none, and nobody knows how long it is."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SCAVENGER_LOCAL_PRICE", "0.36")
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("SCAVENGER_STORE", url)
    monkeypatch.delenv("SCAVENGER_SERVER", raising=False)
    with Store.open(url) as store:
        spec = {
            "version": 1,
            "infra": "pool/gpu",
            "train": "train:job",
            "search": {"workers": [1, 2], "batch_size": [64]},
            "goal": {"metric": "val_accuracy", "target": 0.97, "max_epochs": 60},
        }
        ids = [
            store.submit(
                NewSubmission(
                    name,
                    {**spec, "name": name},
                    f"{tmp_path}/{name}.yaml",
                    "ann",
                    socket.gethostname(),
                    os.getuid(),
                )
            ).id
            for name in ("first", "second", "waits")
        ]
        now = datetime.now(UTC)
        shares = {job: PoolShare(2, 2, 2, 1, at=now) for job in ids[:2]}
        moves = ("first begins with 2 slots", "second begins with 2 slots")
        store.put_allotment(PoolAllotment(Pool("gpu", 4, "fifo"), 1, shares, moves, now))
        for job, samples in zip(ids[:2], (100_000.0, 50_000.0), strict=True):
            lease = store.start_runner(job, "x/1/1", None)
            assert lease is not None
            standing = JobStanding(
                lease.token, "training", 2, 1, rate=CURVE[1].rate, left=WorkLeft(samples, 0.2), curve=CURVE
            )
            assert store.stand(lease.fence, job, standing)
        yield store


def submission(user: str, name: str) -> NewSubmission:
    return NewSubmission(name, {}, f"/jobs/{name}.yaml", user, socket.gethostname(), os.getuid())


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "-o", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_pool_tells_what_comes_of_its_jobs(shared: Store, capsys: pytest.CaptureFixture[str]) -> None:
    [pool] = answer(capsys, "pool")["pools"]
    first, second, waits = pool["jobs"]

    assert (pool["name"], pool["slots"], pool["free"], pool["number"]) == ("gpu", 4, 0, 1)
    assert [(one["slots"], one["next"], one["state"]) for one in pool["jobs"]] == [
        (2, 2, "training"),
        (2, 2, "training"),
        (0, 0, "waiting"),
    ]
    alone_s = 100_000.0 / CURVE[1].rate
    assert first["end_s"]["middle"] == pytest.approx(alone_s, rel=0.1)
    assert first["end_s"]["low"] < alone_s < first["end_s"]["high"]
    assert first["usd"]["middle"] == pytest.approx(first["end_s"]["middle"] * 2 * 0.36 / 3600.0)
    assert waits["end_s"] == {"middle": None, "low": None, "high": None}
    assert waits["start_s"]["low"] >= 0.9 * second["end_s"]["low"]
    assert [one["what"] for one in pool["moves"]] == [
        "first begins with 2 slots",
        "second begins with 2 slots",
    ]


def test_tables_fit_a_terminal(shared: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["pool"], ["jobs", "queue"], ["pool", "explain", "waits"], ["pool", "what-if", "job.yaml"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80, words
        assert "waits" in shown or "third" in shown


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("local", "--in must be a cluster, as kubernetes or kubernetes/CONTEXT, not local"),
        (
            "gcp/us-central1",
            "--in must be a cluster, as kubernetes or kubernetes/CONTEXT, not gcp/us-central1",
        ),
        ("kubernets", "--in must be "),
        (
            "kubernetes/nowhere",
            "error: --in kubernetes/nowhere: .*No configuration.*`kubectl config get-contexts`",
        ),
    ],
)
@pytest.mark.parametrize("command", [["pool"], ["pool", "explain", "waits"]])
def test_a_cluster_that_cannot_be_asked_is_one_line(
    command: list[str],
    place: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main([*command, "--in", place]) == ConfigurationError.exit_code
    told = capsys.readouterr().err
    assert re.search(words, " ".join(told.split())), told
    assert main([*command, "--lease-namespace", "a"]) == ConfigurationError.exit_code
    assert "--lease-namespace is of a cluster: give --in" in capsys.readouterr().err


def test_a_job_is_told_whose_slots_it_would_take(shared: Store, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "pool", "explain", "waits")

    assert (found["slots"], found["more"]["slots"], found["more"]["idle"]) == (0, 2, 0)
    assert [one["more"] for one in found["more"]["others"]] == [-2]
    assert found["why"].startswith(
        "waits: needs 2 slots, 0 free, and would take from second (2 to 0: it would wait)"
    )
    assert main(["pool", "explain", "nobody"]) == 2
    assert "there is no submitted job 'nobody'" in capsys.readouterr().err


def test_what_if_submits_nothing_and_says_that_the_end_is_not_known(
    shared: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shared.submissions()
    found = answer(capsys, "pool", "what-if", "job.yaml", "--priority", "5")

    assert shared.submissions() == before
    assert (found["pool"], found["known_by"], found["end_s"]["middle"]) == ("gpu", None, None)
    assert found["start_s"]["middle"] is not None


def test_what_if_knows_a_job_by_a_run_of_its_file_that_is_going_on(shared: Store) -> None:
    request = JobRequest(job_file=str(Path.cwd() / "job.yaml"), priority=5)
    spec = request.prepared().job.written()
    one = shared.submit(replace(submission("ann", "third"), spec=spec, job_file=request.job_file))
    lease = shared.start_runner(one.id, "x/1/1", None)
    assert lease is not None
    left = WorkLeft(50_000.0, 0.1, whole=100_000.0)
    shared.stand(lease.fence, one.id, JobStanding(lease.token, "training", 2, 1, left=left, curve=CURVE))
    found = what_if_submitted(Local(store=shared), request)

    assert found.known_by == one.id
    assert found.end_s.low is not None
    assert found.end_s.low > 0.7 * 100_000.0 / CURVE[-1].rate


def test_a_job_that_waits_cannot_be_paused(shared: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pool", "pause", "waits"]) == 2
    assert "has no slots: it waits; `scavenger jobs cancel` withdraws it" in " ".join(
        capsys.readouterr().err.split()
    )
    waiting = shared.submission("waits")
    assert waiting is not None
    assert waiting.state == "queued"


def test_a_job_of_no_pool_is_refused(shared: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pool", "what-if", "job.yaml", "--pool", "other"]) == 2
    assert "the job would run in pool other, which is none of gpu" in " ".join(
        capsys.readouterr().err.split()
    )


def test_users_see_how_many_slots_others_have_and_not_their_names(shared: Store) -> None:
    shared.submit(replace(submission("bob", "mine"), spec={"infra": "pool/gpu"}))
    bob = Caller(User("bob", "user", datetime.now(UTC)), "test")
    [pool] = show_pools(Local(store=shared, caller=bob)).pools

    assert [(one.name, one.slots) for one in pool.jobs] == [(None, 2), (None, 2), (None, 0), ("mine", 0)]
    assert (pool.moves, {one.id for one in pool.jobs[:3]}) == ((), {None})
    assert "first" not in repr(pool)
    with pytest.raises(NotFoundError):
        explain_share(Local(store=shared, caller=bob), "first")


def test_a_pool_is_on_record_before_it_has_jobs(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        pools = Pools(store, {"gpu": Pool("gpu", 4)})
        backlog = store.backlog(store.me().host, os.getuid(), None)
        for number in (1, 1):
            pools.decide(backlog, (), lambda seen: True, datetime.now(UTC))
            last = store.allotment("gpu")
            assert last is not None
            assert (last.number, last.pool.slots, last.shares) == (number, 4, {})


def test_trials_of_a_study_have_no_more_workers_together_than_it_says(tmp_path: Path) -> None:
    spec = {
        "version": 1,
        "name": "rates",
        "infra": "pool/gpu",
        "train": "train:job",
        "search": {"workers": [1, 2, 3], "batch_size": [64]},
        "goal": {"max_epochs": 60},
    }
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        trial = replace(submission("ann", "rates"), spec=spec, study_workers=3)
        ids = [store.submit(replace(trial, job_file=f"/jobs/{number}.yaml")).id for number in range(5)]
        others = [store.submit(replace(trial, user=user, study_workers=None)).id for user in ("ann", "bob")]
        backlog = store.backlog(store.me().host, os.getuid(), None)
        found = Pools(store, {"gpu": Pool("gpu", 20, "even")}).decide(
            backlog, [*ids, *others], lambda seen: True, datetime.now(UTC)
        )
        last = store.allotment("gpu")
    assert last is not None
    assert [last.shares[one].slots if one in last.shares else 0 for one in ids] == [1, 1, 1, 0, 0]
    assert [last.shares[one].slots for one in others] == [3, 3]
    assert found.begin == {*ids[:3], *others}
    assert {found.waiting[one] for one in ids[3:]} == {
        "jobs rates of ann have at most 3 slots together, and others have them"
    }


def test_a_deadline_is_told_wherever_the_job_is(shared: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """What is promised by `worth`; by other policies, that they promise none."""
    words = [
        "is promised",
        "cannot be promised: an end in ",
        "is not promised: how long it takes is not known",
    ]
    last = shared.allotment("gpu")
    assert last is not None
    spec = shared.submissions(1)[0].job.spec
    for number, policy in enumerate(("worth", "fifo"), last.number + 1):
        shared.put_allotment(replace(last, number=number, pool=Pool("gpu", 4, policy, starved_s=7200.0)))
        with shared._database.writing() as session:
            for name, hours in (("first", 2.0), ("second", 0.01), ("waits", 3.0)):
                row = session.scalar(select(SubmissionRow).where(SubmissionRow.name == name))
                assert row is not None
                row.spec = {**spec, "name": name, "constraints": {"deadline": 3600.0 * hours}}
        jobs = answer(capsys, "pool")["pools"][0]["jobs"]
        told = words if policy == "worth" else ["fifo promises none"] * 3
        for job, what in zip(jobs, told, strict=True):
            assert what in job["deadline"]["words"]
            assert job["why"].endswith(job["deadline"]["words"])
            assert what in answer(capsys, "pool", "explain", job["id"])["deadline"]["words"]
        assert main(["jobs", "queue"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        waiting = re.search(r"waits \(\w+\): goes before all others in (1 h 59 min|2 h); its deadline", shown)
        assert (waiting is not None) == (policy == "fifo")
        for what in told:
            assert what in shown


def test_a_submission_is_told_whether_its_deadline_is_promised_by_its_earlier_run(shared: Store) -> None:
    last, at, file = shared.allotment("gpu"), Local(store=shared), str(Path.cwd() / "job.yaml")
    assert last is not None
    shared.put_allotment(replace(last, number=2, pool=Pool("gpu", 4, "worth")))
    asked = SubmitRequest(job_file=file, deadline="8h")

    made = submit(at, asked)
    unknown = made.deadline
    assert unknown is not None
    assert (unknown.promised, "not known yet" in unknown.words) == (None, True)
    (found, choice), prepared = curve_of(), asked.prepared()
    spec = {**prepared.job.written(), "search": {"workers": [1, 2], "batch_size": [64]}}
    job = shared.create_job("third", spec=spec, job_file=file, job_id=made.submission.id)
    report = RunReport(ReportedJob(job.id, "third", "succeeded"), NOTHING_SEARCHED, found, choice, PREDICTED)
    shared.finish_job(job.id, state="succeeded", report=report_document(report), exit_code=0)

    promised = submit(at, asked).deadline
    assert promised is not None
    assert (promised.promised, promised.earliest_s) == (True, None)
    soon = what_if_submitted(at, JobRequest(job_file=file, deadline="10s"))
    assert soon.deadline is not None
    assert (soon.deadline.promised, soon.known_by) == (False, job.id)
    assert (soon.deadline.earliest_s or 0.0) > 100.0
    assert submit(at, replace(asked, deadline=None)).deadline is None


def test_the_page_of_the_dashboard_shows_the_same(shared: Store) -> None:
    [pool] = show_pools(Local(store=shared)).pools
    card = pool_card(pool)

    assert (card.used.words, card.used.percent) == ("4 of 4 in use", 100.0)
    assert [one.workers for one in card.jobs] == ["2", "2", "0"]
    assert card.jobs[2].why.startswith("waits: needs 2 slots, 0 free")
    assert card.jobs[2].ends == "unknown"
    assert card.jobs[0].ends.endswith("min")
