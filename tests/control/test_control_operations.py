"""What a running job is asked to do from outside, done on a scripted supervisor and answered in a real store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Scripted, trainer_of

from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.training.operations import NOT_YET, OperationHandler
from scavenger.control.training.trainer import Trainer
from scavenger.domain import operation as op
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import GoalSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.pool import PoolShare
from scavenger.errors import LimitReachedError, TransientError
from scavenger.store import Store
from scavenger.store.records import OperationRecord


class Job:
    """A job of two workers, batch 32, that may have one to four; past its search unless it is said."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        scripted: Scripted,
        policy: str = "fixed",
        pool: str = "",
        obeyed: int = 0,
        per_slot: int = 1,
        **limits: object,
    ) -> None:
        self.store, self.supervisor = store, scripted
        self.id = store.create_job("tiny", spec={}, job_file=folder / "job.yaml").id
        self.trainer: Trainer = trainer_of(scripted, folder, workers_per_vm=per_slot, **limits)  # type: ignore[arg-type]
        self.measured: list[Measurement] = []
        self.stopped: list[tuple[str, bool]] = []
        self.kept: list[Callable[[], object]] = []
        self.held = False
        self.operations = OperationHandler(
            store,
            self.id,
            keep=self._keep,
            workers=(1, 4),
            batch=lambda workers: 16 * workers,
            stop=lambda reason, save: self.stopped.append((reason, save)),
            measured=self.measured.append,
            policy=policy,
            pool=pool,
            obeyed=obeyed,
            per_slot=per_slot,
        )
        self.operations.refusing = ""
        self.trainer.start(2)
        self.trainer.move(Configuration("local-1", 2, 32), "chosen")

    def _keep(self, write: Callable[[], object]) -> None:
        self.kept.append(write)
        while self.kept and not self.held:
            self.kept.pop(0)()

    def ask(self, operation: op.Operation) -> OperationRecord:
        """Submit it, and drive the job until it has been answered, or taken back."""
        record = self.store.submit_operation(self.id, operation, "me@here")
        self.operations.look()
        self.operations.carry_out(self.trainer)
        return self.store.operation(record.id)

    @property
    def training(self) -> tuple[str, ...]:
        return self.supervisor.workers("training")


@pytest.fixture
def job(store: Store, tmp_path: Path) -> Job:
    return Job(store, tmp_path, Scripted(epoch_steps=10**6))


@pytest.mark.parametrize(
    ("operation", "training"),
    [
        (op.ScaleTo(4), ("w0", "w1", "w2", "w3")),
        (op.ScaleTo(1), ("w0",)),
        (op.ScaleTo(2), ("w0", "w1")),
        (op.ScaleOut(1), ("w0", "w1", "w2")),
        (op.ScaleIn(("w0",)), ("w1",)),
        (op.Migrate(("w0",)), ("w1", "w2")),
        (op.Migrate(), ("w2", "w3")),
    ],
)
def test_each_change_of_size_is_done_without_a_step_lost_and_the_spare_workers_go(
    job: Job, operation: op.Operation, training: tuple[str, ...]
) -> None:
    answer = job.ask(operation)
    after = job.trainer.step
    job.trainer.until(lambda: job.trainer.step > after + 3)

    batch = 32 if isinstance(operation, op.Migrate) else 16 * len(training)
    assert (answer.state, answer.message) == (
        "done",
        f"now at {Configuration('local-1', len(training), batch)}",
    )
    assert (job.training, job.supervisor.alive) == (training, training)
    assert [record.step for record in job.trainer.history.steps] == list(range(1, job.supervisor.step + 1))
    assert not job.operations.waiting


@pytest.mark.parametrize("operation", [op.ScaleTo(1), op.ScaleOut(1), op.ScaleIn(("w0",)), op.Migrate()])
def test_the_answer_says_that_a_policy_may_change_the_size_again(
    store: Store, tmp_path: Path, operation: op.Operation
) -> None:
    job = Job(store, tmp_path, Scripted(epoch_steps=10**6), policy="model")

    said = "; elastic.policy: model may change that at its next decision, and fixed does not"
    assert job.ask(operation).message.endswith(said) is not isinstance(operation, op.Migrate)


def test_a_migration_never_has_fewer_workers_than_before(job: Job) -> None:
    began = job.trainer.step
    job.ask(op.Migrate())

    assert {record.workers for record in job.trainer.history.steps_since(began)} == {2}
    assert [left.kind for left in job.trainer.history.departures] == ["eviction"] * 2


def test_fewer_aggregators_hold_the_model_while_the_job_trains_and_all_again(job: Job) -> None:
    answer = job.ask(op.ScaleAggregators(2))
    assert (answer.state, answer.message) == ("done", "2 of 3 aggregators hold the model")
    assert job.supervisor.migrations.holding == (0, 1)

    job.ask(op.ScaleAggregators(3))
    assert job.supervisor.migrations.holding == (0, 1, 2)
    assert (job.training, job.trainer.configuration) == (("w0", "w1"), Configuration("local-1", 2, 32))


def test_a_model_that_has_to_stay_where_it_is_stays_there_with_the_reason(job: Job) -> None:
    job.supervisor.migrations.unmoved = "the optimizer needs all gradients at once"
    answer = job.ask(op.ScaleAggregators(1))

    assert (answer.state, answer.message) == ("refused", "the optimizer needs all gradients at once")


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (op.ScaleAggregators(4), "has 3 aggregators, by elastic.aggregators, not 4"),
        (op.ScaleTo(5), "1 to 4 workers"),
        (op.ScaleOut(3), "not 5"),
        (op.ScaleIn(("w0", "w1")), "not 0"),
        (op.ScaleIn(("w7",)), "no worker w7; it has w0, w1"),
        (op.Migrate(("w0", "w9")), "no worker w9"),
        (op.ProfileRange(1, 5, 5), "not 5"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason_and_changes_nothing(
    job: Job, operation: op.Operation, words: str
) -> None:
    answer = job.ask(operation)

    assert answer.state == "refused"
    assert words in answer.message
    assert (job.training, len(job.supervisor.launched)) == (("w0", "w1"), 2)


def test_a_profile_measures_from_most_to_fewest_workers_and_goes_back(job: Job) -> None:
    answer = job.ask(op.ProfileRange(1, 3, steps=5))

    assert answer.state == "done"
    assert [m.configuration.workers for m in job.measured] == [3, 2, 1]
    assert all(m.steps >= 5 for m in job.measured)
    assert answer.message == "step time by workers: 3: 100 ms, 2: 100 ms, 1: 100 ms"
    assert job.trainer.configuration == Configuration("local-1", 2, 32)
    assert "measurement" in job.trainer.journal.path.read_text()


def test_sizes_that_cannot_be_kept_alive_are_left_out_of_a_profile_and_said(
    store: Store, tmp_path: Path
) -> None:
    job = Job(store, tmp_path, Scripted(epoch_steps=10**6, doomed={f"w{i}" for i in range(2, 100)}))

    answer = job.ask(op.ProfileRange(1, 3, steps=5))

    assert (answer.state, [m.configuration.workers for m in job.measured]) == ("done", [2, 1])
    assert "1 of 3 sizes could not be measured" in answer.message


def test_a_profiled_size_whose_worker_is_lost_for_good_does_not_hold_the_job_up(
    store: Store, tmp_path: Path
) -> None:
    scripted = Scripted(epoch_steps=10**6, doomed={f"w{i}" for i in range(2, 100)}, dies_at={6: "w1"})
    job = Job(store, tmp_path, scripted)

    answer = job.ask(op.ProfileRange(2, 2, steps=200))

    assert answer.state == "refused"
    assert "1 of 1 sizes could not be measured" in answer.message


@pytest.mark.parametrize("asked", [op.ScaleTo(4), op.TakeShare(4, 9)])
def test_more_workers_than_can_be_kept_alive_are_told_and_the_job_keeps_its_size(
    store: Store, tmp_path: Path, asked: op.Operation
) -> None:
    """Each that never joins is a failure of its host; a pool gets its slots back by the answer."""
    scripted = Scripted(epoch_steps=10**6, doomed={f"w{i}" for i in range(2, 100)})
    job = Job(store, tmp_path, scripted, pool="pool gpu" if isinstance(asked, op.TakeShare) else "")

    answer = job.ask(asked)

    assert (answer.state, job.training) == ("refused", ("w0", "w1"))
    assert job.operations.obeyed == (9 if isinstance(asked, op.TakeShare) else 0)
    failed = [one for one in job.trainer.history.departures if one.kind == "failure"]
    assert {one.worker for one in failed} >= {"w2", "w3"}
    assert all(one.host and not one.steps for one in failed)
    assert (
        answer.message == f"so many workers could not be kept alive; now at {Configuration('local-1', 2, 32)}"
    )


def test_training_that_is_done_first_is_told(store: Store, tmp_path: Path) -> None:
    class NeverReady(Scripted):
        """No third worker ever gets ready."""

        @property
        def ready(self) -> int:
            return min(2, super().ready)

    job = Job(store, tmp_path, NeverReady(epoch_steps=20), goal=GoalSpec(max_epochs=1))

    answer = job.ask(op.ScaleOut(1))

    assert (answer.state, answer.message) == ("refused", "training was finished before")


def test_during_the_search_only_a_stop_is_heard(job: Job, store: Store) -> None:
    job.operations.refusing = "the search is under way"

    assert job.ask(op.ScaleTo(1)).message == "the search is under way"
    assert job.ask(op.Migrate()).state == "refused"
    assert job.ask(op.StopJob(save=False)).state == "running"
    assert job.stopped == [("stopped by me@here", False)]


def test_a_stop_is_answered_by_the_end_of_the_job(job: Job, store: Store) -> None:
    record = job.ask(op.StopJob())
    assert record.state == "running"
    with pytest.raises(TransientError, match="busy"):
        job.ask(op.ScaleTo(1))

    store.finish_job(job.id, state="interrupted", report=None, error="stopped by me@here", exit_code=130)

    assert store.operation(record.id).state == "done"
    assert job.stopped == [("stopped by me@here", True)]


def test_one_operation_is_taken_at_a_time_and_the_next_only_after_its_answer(job: Job, store: Store) -> None:
    first = store.submit_operation(job.id, op.ScaleTo(1), "me")
    job.operations.look()
    job.operations.look()

    assert job.operations.waiting
    with pytest.raises(TransientError, match="busy"):
        store.submit_operation(job.id, op.ScaleTo(2), "you")
    job.operations.carry_out(job.trainer)
    assert store.operation(first.id).state == "done"
    assert job.ask(op.ScaleTo(2)).state == "done"


def test_what_is_taken_while_the_store_is_held_is_refused_once_it_is_free(job: Job, store: Store) -> None:
    job.operations.refusing = "the search is under way"
    record = store.submit_operation(job.id, op.ScaleTo(1), "me")
    job.held = True
    job.operations.look()
    job.held = False
    job._keep(lambda: None)
    assert store.operation(record.id).state == "running"

    job.operations.look()

    assert store.operation(record.id).state == "refused"
    assert not job.operations.waiting


def test_an_answer_that_a_held_store_keeps_waiting_is_given_once_before_the_next_operation(
    job: Job, store: Store
) -> None:
    first = store.submit_operation(job.id, op.ScaleTo(1), "me")
    job.operations.look()
    job.held = True
    job.operations.carry_out(job.trainer)
    for _ in range(3):
        job.operations.look()
    assert store.operation(first.id).state == "running"
    assert len(job.kept) == 2  # the answer, and one look

    job.held = False
    job.operations.look()
    job._keep(lambda: None)

    assert store.operation(first.id).state == "done"
    assert job.training == ("w0",)


def test_what_ends_the_job_fails_the_operation_with_its_words(store: Store, tmp_path: Path) -> None:
    job = Job(store, tmp_path, Scripted(epoch_steps=10**6), deadline_s=12.0)
    record = store.submit_operation(job.id, op.ProfileRange(1, 4, steps=1000), "me")
    job.operations.look()
    with pytest.raises(LimitReachedError, match="deadline"):
        job.operations.carry_out(job.trainer)

    answer = store.operation(record.id)
    assert answer.state == "failed"
    assert "deadline of 12 s" in answer.message


def test_a_share_of_an_older_decision_is_refused_by_its_number(store: Store, tmp_path: Path) -> None:
    """As of a server that slept while another one decided."""
    job = Job(store, tmp_path, Scripted(epoch_steps=10**6), pool="pool gpu", obeyed=7)

    old = job.ask(op.TakeShare(4, 6))
    assert (old.state, len(job.training)) == ("refused", 2)
    assert old.message == "allotment 6 of pool gpu is older than 7, which the job has had"
    assert (job.ask(op.TakeShare(3, 9)).state, len(job.training), job.operations.obeyed) == ("done", 3, 9)
    assert (job.ask(op.TakeShare(1, 8)).state, len(job.training), job.operations.obeyed) == ("refused", 3, 9)


def test_a_share_of_vms_is_taken_with_their_workers_and_counted_in_vms(store: Store, tmp_path: Path) -> None:
    scripted = Scripted(epoch_steps=10**6, vms_of={"w0": "a", "w1": "b", "w2": "a", "w3": "b"})
    job = Job(store, tmp_path, scripted, pool="pool gpu", obeyed=3, per_slot=2)
    seat = PoolSeat("pool gpu", PoolShare(2, 2, 2, 3), per_slot=2)
    workflow: Any = SimpleNamespace(trainer=job.trainer, rate=None, left=lambda: None, rates=tuple)

    def counted(vms: int) -> tuple[int | None, int]:
        seat.look(workflow, job.operations, pausing=False, vms=vms)
        now = seat.standing()
        return now.size, now.held

    assert job.ask(op.TakeShare(2, 4)).state == "done"
    assert (job.training, counted(2)) == (("w0", "w1", "w2", "w3"), (2, 2))
    assert job.ask(op.TakeShare(1, 5)).state == "done"
    assert job.training == ("w0", "w2")
    assert (counted(2), counted(1)) == ((1, 2), (1, 1))
    assert job.ask(op.TakeShare(3, 6)).state == "done"
    assert len(job.training) == 4  # its most


def test_a_share_that_comes_while_the_job_searches_cuts_the_search_off_and_is_taken_after_it(
    store: Store, tmp_path: Path
) -> None:
    job = Job(store, tmp_path, Scripted(epoch_steps=10**6), pool="pool gpu", obeyed=3)
    job.operations.refusing = NOT_YET

    assert job.ask(op.ScaleTo(1)).state == "refused"
    assert not job.operations.cuts
    asked = job.store.submit_operation(job.id, op.TakeShare(1, 4), "pool gpu")
    job.operations.look()
    job.operations.look()
    assert (job.operations.cuts, job.operations.obeyed) == (True, 3)
    assert store.operation(asked.id).state not in ("refused", "done")

    job.operations.refusing = ""
    job.operations.look()
    job.operations.carry_out(job.trainer)
    assert (store.operation(asked.id).state, len(job.training), job.operations.obeyed) == ("done", 1, 4)
