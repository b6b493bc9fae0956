"""What an earlier attempt at a job leaves, and how a later one counts it on."""

from __future__ import annotations

import contextlib
import json
import math
import resource
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from audits import AUDIT_FILE, verify_audit
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import PRICE, Scripted, trainer_of

from scavenger.control.jobs.resumption import checkpoint_url, find_resumption
from scavenger.control.search.outcome import actual_of
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import History, Journal, read_history
from scavenger.control.training.limits import DRAIN_S
from scavenger.control.training.trainer import Trainer
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import CheckpointSpec, GoalSpec
from scavenger.errors import ConfigurationError, LimitReachedError
from scavenger.store import Store
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.manifest import CheckpointManifest
from scavenger.train.supervisor.events import RolledBack
from scavenger.train.transport import messages as m

B32, B64 = Configuration("local-1", 1, 32), Configuration("local-1", 2, 64)
SAMPLES = 320
"""Of an epoch of the scripted supervisor's ten steps at batch 32."""


def attempt(
    folder: Path, before: EarlierAttempts, *, until: int, at: Configuration = B32, **options: object
) -> Trainer:
    """Train up to a step, as an attempt at a job whose last one left this; the job then dies."""
    resumed = before.step or None
    scripted = Scripted(step=before.step, epoch=before.epoch, consumed=before.consumed)
    audit = Journal(folder / AUDIT_FILE, resumed_step=resumed)
    trainer = trainer_of(scripted, folder, before=before, audit=audit, resumed_step=resumed, **options)  # type: ignore[arg-type]
    trainer.start(at.workers)
    trainer.move(at, "test")
    trainer.until(lambda: trainer.step >= until)
    return trainer


def before_of(folder: Path, step: int, **changes: object) -> EarlierAttempts:
    """As a checkpoint of a step in epochs of ten steps at batch 32, and the journal, tell."""
    epoch, ahead = divmod(step, 10)
    history = read_history(folder / "measurements.jsonl", step)
    return replace(
        EarlierAttempts(
            step, epoch, ahead * 32, history.elapsed_s, 0.0, history.epochs, history.samples_by_batch
        ),
        **changes,  # type: ignore[arg-type]
    )


# ---- the journal -------------------------------------------------------------------------------------------


def test_epochs_and_samples_up_to_the_checkpoint_are_read_and_what_came_after_it_is_not(
    tmp_path: Path,
) -> None:
    first = attempt(tmp_path, EarlierAttempts(), until=37)

    history = read_history(first.journal.path, 25)

    assert history.epochs == tuple(first.history.epochs[:2])
    assert history.samples_by_batch == ((32, 25 * 32),)
    assert history.elapsed_s == first.history.steps[-1].at_s  # what was undone took its time all the same


def test_the_runs_of_callbacks_are_read_as_the_epochs_are(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    runs = [
        CallbackRunRecord(
            epoch, 10 * (epoch + 1), f'[["EarlyStopping", {{"wait": {epoch}}}]]', 0.5**epoch, rate
        )
        for epoch, rate in ((-1, None), (0, 0.1), (1, 0.05), (2, 0.025))
    ]
    with contextlib.closing(Journal(path, job_id="j")) as journal:
        for run in runs:
            journal.add("callbacks", run)

    assert read_history(path, 25).callback_runs == tuple(runs[:3])
    assert read_history(path, 20).callback_runs == tuple(runs[:2])
    assert read_history(path, 0).callback_runs == (runs[0],)


def test_of_the_runs_within_epochs_the_one_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    ends = [CallbackRunRecord(epoch, 3 * (epoch + 1), f"end {epoch}") for epoch in (-1, 0)]
    within = [
        CallbackRunRecord(epoch, 3 * epoch + batch + 1, f"{attempt} {epoch} {batch}", batch=batch)
        for attempt, epoch, batch in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (2, 1, 1))
    ]
    with contextlib.closing(Journal(path, job_id="j")) as journal:
        for run in (ends[0], *within[:2], ends[1], *within[2:]):
            journal.add("callbacks", run)

    assert read_history(path, 6).callback_runs == (*ends, within[-1])
    assert read_history(path, 4).callback_runs == tuple(ends)
    assert read_history(path, 3).callback_runs == (ends[0], within[1])


def test_an_epoch_that_ends_with_the_checkpoint_is_left_out_since_it_is_evaluated_again(
    tmp_path: Path,
) -> None:
    first = attempt(tmp_path, EarlierAttempts(), until=30)

    assert read_history(first.journal.path, 20).epochs == tuple(first.history.epochs[:1])


def test_what_an_attempt_undid_is_not_counted_by_the_one_after_the_next(tmp_path: Path) -> None:
    attempt(tmp_path, EarlierAttempts(), until=48)
    second = attempt(tmp_path, before_of(tmp_path, 15), until=32, at=B64)
    history = read_history(tmp_path / "measurements.jsonl", 32)

    # the first attempt's epochs 2 and 3, with steps 30 and 40, were undone; so were its steps 16 to 48
    assert [epoch.epoch for epoch in history.epochs] == [0, 1, 2]
    assert history.epochs[1:] == tuple(second.history.epochs[1:])
    assert sum(samples for _, samples in history.samples_by_batch) == 15 * 32 + sum(
        record.samples for record in second.history.steps
    )
    assert dict(history.samples_by_batch) == second.history.samples_by_batch


def test_a_metric_that_was_not_finite_is_read_back_as_such(tmp_path: Path) -> None:
    scripted = Scripted(metrics=[{"val_loss": math.nan, "mae": 1.0}])
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(B32, "test")
    trainer.until(lambda: trainer.step >= 12)

    (epoch,) = read_history(trainer.journal.path, 12).epochs
    assert math.isnan(epoch.metrics["val_loss"])
    assert epoch.metrics["mae"] == 1.0


def test_a_journal_that_is_missing_tells_nothing(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none.jsonl", 100) == History()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return attempt(tmp_path_factory.mktemp("j"), EarlierAttempts(), until=25).journal.path.read_bytes()


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_journal_tells_less_but_nothing_wrong(
    journal: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("d") / "measurements.jsonl"
    path.write_bytes(journal)
    whole = read_history(path, 25)
    lines = journal.splitlines()
    for index in data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=8)):
        cut = data.draw(st.integers(0, len(lines[index]) - 1))
        junk = data.draw(st.sampled_from([b"", b"\xff\xfe", b"[]", b'{"kind":"step","step":"x"}', b"null"]))
        lines[index] = junk if data.draw(st.booleans()) else lines[index][:cut]
    path.write_bytes(b"\n".join(lines))

    history = read_history(path, 25)

    assert {epoch.epoch for epoch in history.epochs} <= {epoch.epoch for epoch in whole.epochs}
    assert sum(s for _, s in history.samples_by_batch) <= sum(s for _, s in whole.samples_by_batch)
    assert 0.0 <= history.elapsed_s <= whole.elapsed_s


def test_a_line_that_was_being_written_when_the_job_was_killed_is_taken_back(tmp_path: Path) -> None:
    first = attempt(tmp_path, EarlierAttempts(), until=25)
    path = first.journal.path
    with path.open("ab") as file:
        file.write(b'{"kind":"step","st' + b"x" * 100_000)

    attempt(tmp_path, before_of(tmp_path, 20), until=30)

    for name in ("measurements.jsonl", AUDIT_FILE):
        written = (tmp_path / name).read_text()
        assert all(isinstance(json.loads(line), dict) for line in written.splitlines())
    assert verify_audit(tmp_path / AUDIT_FILE, SAMPLES) == []


def test_lines_that_find_no_room_wait_and_are_written_in_order_once_there_is_some(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl", job_id="j")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 10, before[1]))
    try:
        for number in range(50):
            journal.add("step", {"step": number})
        assert not journal.sync()
        assert "File too large" in journal.problem
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.add("step", {"step": 50})

    assert journal.sync()
    assert journal.problem == ""
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [line["step"] for line in lines[1:]] == list(range(51))


# ---- counting on -------------------------------------------------------------------------------------------


def test_epochs_time_and_money_count_on_over_attempts(tmp_path: Path) -> None:
    first = attempt(tmp_path, EarlierAttempts(), until=37)
    before = before_of(tmp_path, 25, cost_usd=first.cost_usd)
    second = attempt(tmp_path, before, until=60)

    assert second.elapsed_s > first.elapsed_s
    assert second.cost_usd == pytest.approx(second.elapsed_s * PRICE / 3600, rel=0.05)
    assert [epoch.epoch for epoch in second.history.epochs] == list(range(6))
    assert [record.step for record in second.history.steps] == list(range(26, 61))
    actual = actual_of(second, SAMPLES, B32)
    assert actual is not None
    assert actual.epochs == pytest.approx(6.0)
    assert (actual.time_s, actual.cost_usd) == (second.elapsed_s, second.cost_usd)


def test_epochs_are_told_right_even_if_the_journal_is_lost(tmp_path: Path) -> None:
    second = attempt(tmp_path, EarlierAttempts(step=25, epoch=2, consumed=160), until=60)

    actual = actual_of(second, SAMPLES, B32)
    assert actual is not None
    assert actual.epochs == pytest.approx(6.0)


def test_max_epochs_counts_those_of_earlier_attempts(tmp_path: Path) -> None:
    attempt(tmp_path, EarlierAttempts(), until=37)
    second = attempt(tmp_path, before_of(tmp_path, 25), until=10**6, goal=GoalSpec(max_epochs=5))

    assert (second.finished, second.step) == (True, 50)


def test_a_goal_that_was_reached_just_before_the_end_is_reached_by_the_first_evaluation(
    tmp_path: Path,
) -> None:
    """The checkpoint is of the epoch's last step, and older than the verdict."""
    goal = GoalSpec(metric="val_loss", target=1.0, max_epochs=9)
    first = attempt(tmp_path, EarlierAttempts(), until=10**6, goal=goal)
    assert (first.reached, first.step) == (True, 10)
    scripted = Scripted(step=10, epoch=1, coming=[m.EpochReport(0, 10, {"val_loss": 0.9}, 0.5)])
    second = trainer_of(scripted, tmp_path, before=before_of(tmp_path, 10), resumed_step=10, goal=goal)
    second.start(1)
    second.until(lambda: False)

    assert (second.reached, second.step, scripted.verdicts) == (True, 10, [(True, True)])


def test_a_job_that_rolls_back_trains_the_same_samples_again_and_counts_them_once(tmp_path: Path) -> None:
    """As when an aggregator is lost with its memory: no attempt ends, but steps are undone."""
    scripted = Scripted(metrics=[{"val_loss": value} for value in (0.9, 0.8, 0.7)])
    goal = GoalSpec(metric="val_loss", target=0.1, max_epochs=9)
    trainer = trainer_of(scripted, tmp_path, audit=Journal(tmp_path / AUDIT_FILE), goal=goal)
    trainer.start(1)
    trainer.move(B32, "test")
    trainer.until(lambda: trainer.step == 27)
    assert trainer.history.best_epoch == trainer.history.epochs[1]

    scripted.step, scripted.epoch, scripted.consumed = 15, 1, 5 * 32
    scripted.coming = [RolledBack(15, "aggregator was lost with its memory", 2.5)]
    trainer.pump()
    assert (trainer.step, len(trainer.history.epochs), trainer.history.best_epoch) == (
        16,
        1,
        trainer.history.epochs[0],
    )
    assert trainer.history.samples_by_batch == {32: 16 * 32}
    trainer.until(lambda: trainer.step == 33)

    assert [record.step for record in trainer.history.steps] == list(range(1, 34))
    assert [(epoch.epoch, epoch.step) for epoch in trainer.history.epochs] == [(0, 10), (1, 20), (2, 30)]
    assert verify_audit(tmp_path / AUDIT_FILE, SAMPLES) == []
    history = read_history(trainer.journal.path, 33)
    assert (history.epochs, dict(history.samples_by_batch)) == (
        tuple(trainer.history.epochs),
        trainer.history.samples_by_batch,
    )
    actual = actual_of(trainer, SAMPLES, B32)
    assert actual is not None
    assert actual.epochs == pytest.approx(3.3)
    assert trainer.warnings == [
        "aggregator was lost with its memory; after 2.5 s the job continues from step 15 and repeats 12 steps"
    ]


def test_the_best_epoch_of_an_earlier_attempt_stays_the_best(tmp_path: Path) -> None:
    goal = GoalSpec(metric="val_loss", target=0.1, max_epochs=99)
    attempt(tmp_path, EarlierAttempts(), until=37, goal=goal)
    before = before_of(tmp_path, 25)
    better = replace(before.epochs[0], metrics={"val_loss": 0.5})
    second = attempt(tmp_path, replace(before, epochs=(better, *before.epochs[1:])), until=60, goal=goal)

    assert second.history.best_epoch == better
    assert second.supervisor.verdicts == [(False, False)] * len(second.supervisor.verdicts)  # type: ignore[attr-defined]


def test_a_deadline_and_a_budget_hold_over_all_attempts(tmp_path: Path) -> None:
    spent = EarlierAttempts(step=25, epoch=2, consumed=160, elapsed_s=90.0, cost_usd=0.09)
    with pytest.raises(LimitReachedError, match="deadline of 100 s"):
        attempt(tmp_path, spent, until=10**6, deadline_s=100.0)
    with pytest.raises(LimitReachedError, match="budget"):
        attempt(tmp_path, spent, until=10**6, budget_usd=0.1)

    scripted = Scripted()
    trainer = trainer_of(
        scripted, tmp_path, before=replace(spent, elapsed_s=100.0 - DRAIN_S), deadline_s=100.0
    )
    with pytest.raises(LimitReachedError):
        trainer.start(1)
    assert scripted.launched == {}


# ---- the audit ---------------------------------------------------------------------------------------------


def test_an_audit_over_attempts_finds_each_sample_of_each_epoch_once(tmp_path: Path) -> None:
    attempt(tmp_path, EarlierAttempts(), until=37)
    attempt(tmp_path, before_of(tmp_path, 25), until=43)
    attempt(tmp_path, before_of(tmp_path, 40), until=66)

    assert verify_audit(tmp_path / AUDIT_FILE, SAMPLES) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:5] + lines[6:], "1 steps are not recorded, the first is 5"),
        (lambda lines: lines[:5] + lines[6:], "epoch 0: 32 samples were left out"),
        (lambda lines: [*lines, lines[-1]], "step 25 is recorded twice"),
        (
            lambda lines: [x.replace('"w0",32,64', '"w0",32,65') for x in lines],
            "epoch 0: 1 samples were trained",
        ),
        (
            lambda lines: [x.replace('"w0",32,64', '"w0",32,321') for x in lines],
            "step 2: w0 computed 32 to 321",
        ),
        (lambda lines: [*lines[:-1], lines[-1][:20]], ""),
        (lambda lines: [*lines, '{"kind":"resumed","step":30}'], ""),
        (lambda lines: [*lines, '{"kind":"resumed","step":20}', *lines[21:]], ""),
        (lambda lines: [*lines, '{"kind":"resumed","step":20}', *lines[22:]], "1 steps are not recorded"),
    ],
)
def test_an_audit_tells_what_was_trained_on_twice_or_never(
    tmp_path: Path, change: object, words: str
) -> None:
    attempt(tmp_path, EarlierAttempts(), until=25)
    path = tmp_path / AUDIT_FILE
    assert verify_audit(path, SAMPLES) == []
    path.write_text("\n".join(change(path.read_text().splitlines())))  # type: ignore[operator]

    problems = verify_audit(path, SAMPLES)

    assert any(words in problem for problem in problems) if words else problems == []


# ---- finding -----------------------------------------------------------------------------------------------


def written(url: str, step: int, *, epoch: int, consumed: int) -> None:
    """A checkpoint of one small part."""
    checkpoints = CheckpointStore(url)
    part = checkpoints.write_part(step, "a", "part", {"w": np.ones(3, dtype=np.float32)})
    checkpoints.commit(
        CheckpointManifest(
            fingerprint="f",
            step=step,
            attempt="a",
            epoch=epoch,
            consumed=consumed,
            view=1,
            parts=(part,),
            created_at=datetime.now(UTC),
        )
    )


def test_the_newest_checkpoint_is_found_with_what_the_job_had_come_to(store: Store, tmp_path: Path) -> None:
    first = attempt(tmp_path, EarlierAttempts(), until=37)
    url = str(tmp_path / "checkpoints")
    written(url, 15, epoch=1, consumed=160)
    written(url, 25, epoch=2, consumed=160)
    job = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml")
    store.update_job(job.id, checkpoint=url, cost_usd=1.5, chosen=B64)

    found = find_resumption(store.job(job.id), first.journal.path)

    assert found.before == before_of(tmp_path, 25, cost_usd=1.5)
    assert (found.job_id, found.url, found.chosen) == (job.id, url, B64)


def test_a_job_whose_checkpoints_are_gone_or_damaged_is_not_resumed(store: Store, tmp_path: Path) -> None:
    url = str(tmp_path / "checkpoints")
    written(url, 15, epoch=1, consumed=160)
    job = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml")
    store.update_job(job.id, checkpoint=url)
    for file in Path(url).rglob("*part*"):
        if file.is_file():
            file.write_bytes(b"damaged")

    with pytest.raises(ConfigurationError, match=r"has no checkpoint in .* that can be read"):
        find_resumption(store.job(job.id), tmp_path / "measurements.jsonl")


def test_each_job_has_checkpoints_of_its_own_whatever_the_job_file_names(tmp_path: Path) -> None:
    def url(path: str | None, job_id: str) -> str:
        spec = None if path is None else CheckpointSpec(path=path)
        return checkpoint_url(spec, tmp_path / "job", tmp_path / "out" / job_id)

    assert url(None, "id1") == str(tmp_path / "out" / "id1" / "checkpoints")
    assert url("./checkpoints", "id1") == str(tmp_path / "job" / "checkpoints" / "id1")
    assert url("/far/away/", "id1") == "/far/away/id1"
    assert url("s3://bucket/jobs", "id1") == "s3://bucket/jobs/id1"
    for path in (None, "./checkpoints", "s3://bucket/jobs"):
        assert url(path, "id1") != url(path, "id2")
