"""Whatever dies or stands still in mid-step, the job goes on, and its weights are those of the undisturbed run.

Failpoints are armed in a job of two workers and two aggregators, whose processes kill or stop themselves at a step in
the midst of an epoch. An ordinary run has those in which most is at stake, several in a job; the long proofs cross
every failpoint with both faults and every process, one in a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driving import Run, assert_fired, assert_same_weights, batches, plain_keras
from waiting import eventually

from scavenger.errors import WorkersLostError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAME, DATASET, B, EPOCHS = "adam", 170, 34, 3
STEPS = EPOCHS * DATASET // B
LIMIT_S = 60.0
"""A job that takes longer than this, in seconds, hangs."""


@dataclass(frozen=True)
class Case:
    """A fault at a failpoint, the n-th time that its process comes there.

    Attributes:
        because: A fault without which the point is not come to.
        job: Which of `small`'s jobs is trained; the embedding's gradient is sparse, and only its rows are updated.
    """

    point: str
    process: str
    nth: int
    because: str = ""
    job: str = NAME

    def param(self, action: str) -> Any:
        faults = [f"{self.point}/{self.process}:{action}@{self.nth}", *filter(None, [self.because])]
        name = f"{self.job}-{self.point}-{self.process}-{action}"
        return pytest.param(self.job, faults, id=name, marks=pytest.mark.long)


CASES = (
    Case("worker.joining", "w1", 1),
    Case("worker.leased", "w1", 8),
    Case("worker.computed", "w1", 8),
    Case("worker.pushed", "w0", 8),
    Case("worker.evaluated", "w1", 2),
    Case("worker.pushed_some", "w1", 8),
    Case("worker.pulling", "w1", 3),
    Case("aggregator.received", "aggregator-0", 13),
    Case("aggregator.applying", "aggregator-0", 8),
    Case("aggregator.applying", "aggregator-1", 8),
    Case("aggregator.applied", "aggregator-0", 8),
    Case("aggregator.applied", "aggregator-1", 8),
    Case("aggregator.published", "aggregator-0", 10),
    Case("aggregator.applied", "aggregator-0", 8, job="embedded"),
    Case("worker.computed", "w1", 8, job="embedded"),
    Case("worker.pushed_some", "w1", 8, job="embedded"),
    Case("coordinator.greeted", "coordinator-1", 1),
    Case("coordinator.announced", "coordinator-1", 1),
    Case("coordinator.installed", "coordinator-1", 1),
    Case("coordinator.lost", "coordinator-1", 1, because="worker.computed/w1:kill@8"),
)
SEVERAL = (
    (
        NAME,
        [
            "coordinator.announced/coordinator-1:kill@1",
            "worker.computed/w1:kill@5",
            "aggregator.published/aggregator-0:kill@12",
        ],
    ),
    (NAME, ["worker.pushed_some/w1:kill@5", "aggregator.applying/aggregator-1:stop@10"]),
    ("embedded", ["aggregator.applied/aggregator-0:kill@8", "worker.evaluated/w1:kill@2"]),
)
"""Those in which most is at stake, one after the other in a job."""
_BETWEEN_HOSTS = ("worker.pushed_some", "worker.pulling")
"""Failpoints in the transfer of payloads, which only a worker that does not share the aggregators' memory reaches."""


@pytest.mark.parametrize(
    ("job", "faults"), [*SEVERAL, *(case.param(action) for case in CASES for action in ("kill", "stop"))]
)
def test_faults_at_failpoints_change_nothing_but_the_time(
    job: str, faults: list[str], tmp_path: Path
) -> None:
    remote = ("w1",) if faults[0].startswith(_BETWEEN_HOSTS) else ()
    with Run(
        f"small:{job}",
        tmp_path,
        aggregators=2,
        epochs=EPOCHS,
        replace=faults[0].startswith("worker.joining"),
        faults=faults,
        remote=remote,
        start_s=25.0,
    ) as run:
        if remote:  # who shares the memory puts the initial weights there
            run.supervisor.start(1)
            run.until(lambda: run.supervisor.ready == 1, LIMIT_S)
            run.supervisor.launch(1)
            run.until(lambda: run.supervisor.ready == 2, LIMIT_S)
            run.supervisor.resize(2, B, "start")
        else:
            run.begin(2, B, LIMIT_S)
        run.to_the_end(LIMIT_S)
        for entry in faults:
            process = entry.partition("/")[2].partition(":")[0]
            run.until(lambda process=process: _noticed(run, process), LIMIT_S)  # type: ignore[misc]
            assert_fired(run, entry)
        got = run.finish()

    assert len(run.steps) == STEPS
    assert [report.epoch for report in run.epochs] == list(range(EPOCHS))
    assert len(run.lost) == sum("/w" in entry for entry in faults)
    assert len(run.recovered) == sum("/w" not in entry for entry in faults)
    assert_same_weights(got, plain_keras(job, run.steps))


def _noticed(run: Run, process: str) -> bool:
    if process.startswith("w"):
        return process in [lost.worker for lost in run.lost]
    # a coordinator's successor has another name
    role = process.partition("-")[0]
    return role in [recovered.process.partition("-")[0] for recovered in run.recovered]


@pytest.mark.parametrize(
    ("faults", "remote"),
    [
        pytest.param(("worker.computed/w1:kill@8", "worker.pushed/w2:kill@8"), (), marks=pytest.mark.long),
        (("worker.pushed/w1:kill@8", "aggregator.applying/aggregator-0:kill@8"), ()),
        # which loses the sums that it has formed, and the gradient with them
        (("worker.pushed/w1:kill@8", "aggregator.applying/aggregator-1:kill@8"), ("w0", "w1", "w2")),
    ],
    ids=["two workers", "a worker and an aggregator", "a worker and an aggregator apart"],
)
def test_two_losses_in_one_step_are_no_worse_than_one(
    faults: tuple[str, ...], remote: tuple[str, ...], tmp_path: Path
) -> None:
    with Run(f"small:{NAME}", tmp_path, aggregators=2, epochs=EPOCHS, faults=faults, remote=remote) as run:
        run.begin(3, B, LIMIT_S)
        run.to_the_end(LIMIT_S)
        run.until(lambda: len(run.lost) + len(run.recovered) == 2, LIMIT_S)
        for fault in faults:
            assert_fired(run, fault)
        got = run.finish()

    assert len(run.steps) == STEPS
    assert_same_weights(got, plain_keras(NAME, run.steps))


def test_without_a_worker_the_job_waits_and_a_new_one_goes_on(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2) as run:
        run.begin(2, B, LIMIT_S)
        run.train(7)
        run.supervisor.launch(1)
        run.until(lambda: run.supervisor.starting == 1)
        for worker in ("w0", "w1"):
            run.kill(worker)
        run.until(lambda: len(run.lost) == 2, LIMIT_S)
        applied = len(run.steps)
        run.until(lambda: "w2" in run.started, LIMIT_S)
        run.train(7)
        assert run.steps[applied].step == applied + 1
        assert {name for name, *_ in run.steps[-1].pieces} == {"w2"}
        got = run.finish()

    assert_same_weights(got, plain_keras("slow", run.steps))


def test_if_no_worker_is_left_at_the_end_another_one_writes_the_model(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2) as run:
        run.begin(2, B, LIMIT_S)
        run.train(7)
        for worker in ("w0", "w1"):
            run.kill(worker)
        got = run.finish()

    assert set(run.started) == {"w0", "w1", "w2"}
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_a_worker_that_wakes_after_it_was_given_up_is_refused(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2, faults=["worker.computed/w1:stop@5"]) as run:
        run.engine.spared.add("w1")
        run.begin(2, B, LIMIT_S)
        # it stands still with a gradient of step 5 that it has not told of
        run.until(lambda: bool(run.steps) and run.steps[-1].workers == 1, LIMIT_S)
        assert run.engine.suspended("w1")
        assert "refused w1" not in run.log("aggregator-0")
        run.wake("w1")
        run.until(lambda: "refused w1" in run.log("aggregator-0"), LIMIT_S)
        run.train(5)
        run.engine.spared.clear()
        got = run.finish()

    assert [step.step for step in run.steps if "w1" in {name for name, *_ in step.pieces}] == [1, 2, 3, 4]
    assert_same_weights(got, plain_keras("slow", run.steps))


def test_a_worker_that_computes_without_heartbeats_is_waited_for(tmp_path: Path) -> None:
    with Run("small:holding", tmp_path) as run:
        run.begin(2, B, LIMIT_S)
        run.train(120)
        got = run.finish()

    assert run.lost == []
    assert max(step.step_time_s for step in run.steps) > 3.0, "nobody was silent"
    assert_same_weights(got, plain_keras("momentum", run.steps))


@pytest.mark.long
def test_a_coordinator_that_wakes_after_another_leads_changes_nothing(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2) as run:
        run.begin(2, B, LIMIT_S)
        run.train(3)
        run.engine.spared.add("coordinator-1")
        run.freeze("coordinator-1")
        # what it has not read yet it will act upon when it wakes
        run.supervisor.resize(1, 20, "told to both")
        run.until(lambda: bool(run.recovered), LIMIT_S)
        run.until(lambda: run.supervisor.settled, LIMIT_S)
        assert run.engine.suspended("coordinator-1")
        assert run.leader() == "coordinator-2"
        run.supervisor.resize(2, 30, "told to the new one")
        run.until(lambda: run.supervisor.settled, LIMIT_S)
        views = len(run.views)
        run.wake("coordinator-1")
        run.until(lambda: not run.engine.suspended("coordinator-1"))
        run.train(10)
        assert (run.leader(), len(run.views)) == ("coordinator-2", views)
        assert {(step.workers, step.global_batch_size) for step in run.steps[-10:]} >= {(2, 30)}
        got = run.finish()

    assert [view.global_batch_size for view in run.views] == [B, 20, 30]
    assert_same_weights(got, plain_keras("slow", run.steps))


@pytest.mark.parametrize("process", [pytest.param("aggregator-0", marks=pytest.mark.long), "w1"])
def test_a_new_coordinator_notices_who_stood_still_before_it_led(process: str, tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2) as run:
        run.begin(2, B, LIMIT_S)
        run.train(7)
        run.freeze(process)
        run.kill("coordinator-1")
        run.until(
            lambda: process in [r.process for r in run.recovered] + [lost.worker for lost in run.lost],
            LIMIT_S,
        )
        run.train(7)
        got = run.finish()

    assert_same_weights(got, plain_keras("slow", run.steps))


def test_everything_but_the_command_dies_within_seconds(tmp_path: Path) -> None:
    with Run("small:slow", tmp_path, aggregators=2, replace=True) as run:
        run.begin(2, B, LIMIT_S)
        run.train(7)
        for process in ("coordinator-1", "aggregator-0", "w0", "aggregator-1", "w1"):
            pid = run.pid(process)
            run.kill(process)
            run.until(lambda pid=pid, process=process: _gone(run, process, pid))  # type: ignore[misc]
        run.until(lambda: len(run.recovered) == 3 and run.supervisor.ready == 2, LIMIT_S)
        run.train(7)
        assert run.supervisor.workers("training") == ("w2", "w3")
        run.supervisor.resize(1, 20, "it still obeys")
        run.until(lambda: run.supervisor.settled, LIMIT_S)
        run.train(3)
        got = run.finish()

    assert run.steps[-1].global_batch_size == 20
    assert_same_weights(got, plain_keras("slow", run.steps))


def _gone(run: Run, process: str, pid: int) -> bool:
    """Whether the end of a process was noticed: no process of that name runs, or a new one does."""
    return process not in run.engine.running or run.pid(process) != pid


def test_losses_that_do_not_end_are_told_in_one_line(tmp_path: Path) -> None:
    def kill_again_and_again(run: Run) -> None:
        for times in range(1, 20):
            run.kill("aggregator-1")
            run.until(lambda times=times: len(run.recovered) == times, LIMIT_S)  # type: ignore[misc]

    with Run("small:momentum", tmp_path, aggregators=2) as run:
        run.begin(1, B, LIMIT_S)
        with pytest.raises(
            WorkersLostError, match=r"aggregator-1 was killed by SIGKILL.* time within"
        ) as caught:
            kill_again_and_again(run)

    assert "\n" not in str(caught.value)
    assert len(run.recovered) >= 2
    assert eventually(lambda: not run.engine.running)
    batches(run.steps, DATASET)
