"""The controller's table: what each event leads to, and laws that hold in every order of events."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import offer

from scavenger.control.training import orders as o
from scavenger.control.training.controller import Controller, Mode
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import TrainingHistory
from scavenger.control.training.losses import CRASHES_MAX, HEALTHY_STEPS
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import GoalSpec
from scavenger.domain.report import WorkerChanged
from scavenger.elastic.view import Member, Position, View
from scavenger.models.fixed_epochs import FixedEpochs
from scavenger.train.supervisor.events import (
    Leaving,
    Lost,
    PreemptionNotice,
    Recovered,
    Refused,
    RolledBack,
    Started,
    Warned,
)
from scavenger.train.transport import messages as m

VM, OTHER = "local-1", "local-2"
OFFERS = {VM: offer(), OTHER: replace(offer(), vm=OTHER)}
GIVE_UP = 3
EPOCHS = 4


def here(*workers: str, starting: int = 0, vm: str = VM, **more: Any) -> o.Situation:
    """All of these workers live, and all but `starting` of them train."""
    training = len(workers) - starting
    return o.Situation(
        vms=dict.fromkeys(workers, vm),
        starting=starting,
        ready=training,
        training=training,
        vm=vm,
        host="h",
        **more,
    )


def view(number: int, *workers: str, batch: int = 32, first_step: int = 1) -> m.ViewInstalled:
    members = tuple(Member(worker, 0) for worker in workers)
    return m.ViewInstalled(View(number, first_step, batch, members, Position(), reason="test"))


def step(number: int, *workers: str, samples: int = 32, batch: int = 32) -> m.StepReport:
    return m.StepReport(
        step=number,
        view=1,
        epoch=0,
        workers=len(workers),
        global_batch_size=batch,
        samples=samples,
        step_time_s=0.1,
        compute_s=0.05,
        update_s=0.0,
        data_wait_s=0.0,
        loss=1.0,
        mean_worker_sqnorm=2.0,
        mean_sqnorm=1.0,
        noise_parts=2,
        worker_compute_s=dict.fromkeys(workers, 0.05),
        pieces=tuple((worker, 0, samples) for worker in workers),
    )


def controller(
    *, target: float | None = None, metric: str = "val_loss", lr_scale: Callable[..., float] = lambda *_: 1.0
) -> Controller:
    goal = Goal(
        GoalSpec(max_epochs=EPOCHS)
        if target is None
        else GoalSpec(metric=metric, target=target, max_epochs=EPOCHS)
    )
    return Controller(goal, TrainingHistory(goal), offers=OFFERS, give_up=GIVE_UP, lr_scale=lr_scale)


def training(*workers: str, steps: int = 1, **more: Any) -> Controller:
    """A job at a view of these workers, with so many steps behind it."""
    job, now = controller(**more), here(*workers)
    job.handle(o.Begin(len(workers)), now)
    job.handle(o.Gather(Configuration(VM, len(workers), 32)), now)
    job.handle(o.Switch(Configuration(VM, len(workers), 32), "test"), now)
    job.handle(view(1, *workers), now)
    for number in range(1, steps + 1):
        job.handle(step(number, *workers), now)
    return job


def done(*workers: str) -> Controller:
    job = training(*workers)
    job.handle(m.EpochReport(EPOCHS - 1, 1, {}, 0.5), here(*workers))
    return job


def recording(*workers: str) -> Controller:
    job = training(*workers)
    job.handle(o.Close(), here(*workers))
    return job


MODES = {Mode.TRAIN: training, Mode.DONE: done, Mode.RECORD: recording}


def kinds(actions: list[o.Action]) -> list[type]:
    return [type(action) for action in actions]


# ---- the table ---------------------------------------------------------------------------------------------


def always(follows: list[type]) -> Mapping[Mode, list[type]]:
    return dict.fromkeys(Mode, follows)


STEP = [o.Write, o.Write, o.ReportStep]
ROWS: list[tuple[o.Event, o.Situation, Mapping[Mode, list[type]]]] = [
    (step(2, "w0", "w1"), here("w0", "w1"), always(STEP)),
    (step(1, "w0", "w1"), here("w0", "w1"), always([])),
    (view(1, "w0", "w1"), here("w0", "w1"), always([])),
    (RolledBack(0, "lost", 1.0), here("w0", "w1"), always([o.Write, o.Write, o.Warn])),
    (m.SamplesQuarantined((3,), "it kills"), here("w0", "w1"), always([o.Write, o.Warn])),
    (m.MemoryExceeded(64), here("w0", "w1"), {Mode.TRAIN: [o.Warn], Mode.DONE: [o.Warn]}),
    (m.CheckpointWritten(1, 0, 0.5, 10), here("w0", "w1"), always([o.Write, o.Notify, o.RecordNow])),
    (m.CheckpointFailed(1, "full"), here("w0", "w1"), always([o.Warn])),
    (
        m.EpochReport(0, 1, {}, 0.5),
        here("w0", "w1"),
        {Mode.TRAIN: [o.Write, o.GiveVerdict, o.Notify], Mode.DONE: [o.GiveVerdict]},
    ),
    (m.BatchReport(0, 1, ()), here("w0", "w1"), {Mode.TRAIN: [o.Warn, o.RunCallbacks]}),
    (Started("w2", 1.0), here("w0", "w1", "w2"), {Mode.TRAIN: [o.Notify], Mode.DONE: [o.Notify]}),
    (Leaving("w1"), here("w0"), {Mode.TRAIN: [o.Notify], Mode.DONE: [o.Notify]}),
    (Recovered("aggregator", "died", 1.0), here("w0"), {Mode.TRAIN: [o.Notify], Mode.DONE: [o.Notify]}),
    (Warned("odd"), here("w0", "w1"), {Mode.TRAIN: [o.Warn], Mode.DONE: [o.Warn]}),
    (
        Lost("w1", "died", crashed=True),
        here("w0"),
        {Mode.TRAIN: [o.Notify, o.Warn, o.Launch], Mode.DONE: [o.Notify]},
    ),
    (Lost("w1", "died"), here("w0"), {Mode.TRAIN: [o.Notify, o.Warn], Mode.DONE: [o.Notify]}),
    (Refused("w2", "no room"), here("w0"), {Mode.TRAIN: [o.Notify, o.Warn], Mode.DONE: [o.Notify]}),
    (
        PreemptionNotice("w1", None, "at risk"),
        here("w0", "w1"),
        {Mode.TRAIN: [o.Notify], Mode.DONE: [o.Notify]},
    ),
    (
        PreemptionNotice("w1", 30.0, "taken"),
        here("w0", "w1"),
        {Mode.TRAIN: [o.Notify, o.Warn, o.Resize, o.Launch], Mode.DONE: [o.Notify]},
    ),
    (o.Look(), here("w0", "w1"), {Mode.TRAIN: [o.Release], Mode.DONE: [o.Release]}),
    (o.Gather(Configuration(VM, 3, 64), meanwhile=16), here("w0", "w1"), {Mode.TRAIN: [o.Resize, o.Launch]}),
    (o.Switch(Configuration(VM, 2, 64), "so"), here("w0", "w1"), {Mode.TRAIN: [o.Resize]}),
    (o.GatherSpares(("w0",)), here("w0", "w1"), {Mode.TRAIN: [o.Launch]}),
    (o.Swap(("w0",), "slow"), here("w0", "w1", "w2"), {Mode.TRAIN: [o.Resize]}),
    (o.Remove(("w0",), 32, "asked"), here("w0", "w1"), {Mode.TRAIN: [o.Resize]}),
    (o.FollowNoise(), here("w0", "w1"), {}),
    (o.Abandon(), here("w0", "w1"), {}),
    (o.Departed("w1", "eviction"), here("w0"), {}),
]


@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.name)
@pytest.mark.parametrize(("event", "now", "follows"), ROWS, ids=lambda value: type(value).__name__)
def test_each_row_of_the_table(
    mode: Mode, event: o.Event, now: o.Situation, follows: Mapping[Mode, list[type]]
) -> None:
    job = MODES[mode]("w0", "w1")
    assert job.mode is mode

    assert kinds(job.handle(event, now)) == follows.get(mode, [])


def test_the_modes_lead_to_each_other_as_the_table_says() -> None:
    job = done("w0")
    job.handle(RolledBack(0, "lost", 1.0), here("w0"))
    assert job.mode is Mode.TRAIN
    job.handle(m.EpochReport(EPOCHS - 1, 2, {}, 0.5), here("w0"))
    assert job.mode is Mode.DONE
    job.handle(o.Close(), here("w0"))
    assert (job.mode, job.finished) == (Mode.RECORD, True)


def test_the_epoch_that_reaches_the_target_ends_training_and_a_repetition_gets_the_same_answer() -> None:
    job = training("w0", target=0.5)
    report = m.EpochReport(0, 1, {"val_loss": 0.4}, 0.5)
    (verdict,) = [action for action in job.handle(report, here("w0")) if isinstance(action, o.GiveVerdict)]

    assert verdict == o.GiveVerdict(0, stop=True, keep_best=True)
    assert job.handle(report, here("w0")) == [verdict]
    assert (job.reached, job.finished) == (True, True)


def test_a_first_value_at_the_target_of_a_metric_whose_direction_is_a_guess_is_asked_about() -> None:
    job = training("w0", target=0.5, metric="val_token_loss")
    (asked,) = job.handle(m.EpochReport(0, 1, {"val_token_loss": 0.4}, 0.5), here("w0"))

    assert isinstance(asked, o.AskGoal)
    assert "write mode: min if so, else mode: max" in asked.message
    assert not job.history.epochs  # of which nothing is to be learnt

    job = training("w0", target=0.5, metric="val_token_loss")
    for epoch, value in enumerate((0.6, 0.4)):
        actions = job.handle(m.EpochReport(epoch, epoch + 1, {"val_token_loss": value}, 0.5), here("w0"))
        assert o.AskGoal not in kinds(actions)
    assert job.reached


# ---- callbacks ---------------------------------------------------------------------------------------------


def called(request: m.RunCallbacks, *, state: str, **more: Any) -> m.CallbacksRun:
    """The answer of a worker to a request."""
    fields: dict[str, Any] = {
        "rate_scale": request.rate_scale,
        "learning_rate": 0.1,
        "stopped_by": "",
        "keep_best": None,
        "notes": (),
        **more,
    }
    return m.CallbacksRun(7, request.epoch, request.step, state, **fields)


def asked(actions: list[o.Action]) -> m.RunCallbacks:
    (request,) = [action.request for action in actions if isinstance(action, o.RunCallbacks)]
    return request


def test_the_verdict_waits_for_the_callbacks_which_go_on_from_their_last_state() -> None:
    job, now = training("w0", "w1"), here("w0", "w1")
    begin = m.EpochReport(-1, 0, {}, 0.0, callbacks=True)
    first = asked(job.handle(begin, now))
    assert (first.epoch, first.state, first.rate_scale, first.last) == (-1, "", 1.0, False)
    assert asked(job.handle(begin, now)) == first  # reported again, since nobody has answered

    written, verdict = job.handle(called(first, state="s0", rate_scale=0.5), now)
    assert isinstance(written, o.Write)
    assert written.kind == "callbacks"
    assert verdict == o.GiveVerdict(-1, stop=False, keep_best=False, rate_scale=0.5)
    assert job.handle(called(first, state="other"), now) == []  # another answer

    report = m.EpochReport(0, 1, {"val_loss": 0.4}, 0.5, callbacks=True)
    actions = job.handle(report, now)
    assert kinds(actions) == [o.Write, o.RunCallbacks, o.Notify]
    second = asked(actions)
    assert (second.epoch, second.metrics, second.state, second.rate_scale) == (
        0,
        {"val_loss": 0.4},
        "s0",
        0.5,
    )
    assert kinds(job.handle(report, now)) == [o.RunCallbacks]
    _, verdict = job.handle(called(second, state="s1", rate_scale=0.25), now)
    assert verdict == o.GiveVerdict(0, stop=False, keep_best=False, rate_scale=0.25)
    assert job.handle(report, now) == [verdict]
    assert kinds(job.handle(begin, now)) == [o.GiveVerdict]  # late, and ignored by the sequencer


def test_a_callback_that_stops_training_ends_the_job_and_may_choose_the_best_weights() -> None:
    job, now = training("w0", target=0.1), here("w0")
    request = asked(job.handle(m.EpochReport(0, 1, {"val_loss": 0.4}, 0.5, callbacks=True), now))
    assert not job.finished
    actions = job.handle(
        called(request, state="s", stopped_by="EarlyStopping", keep_best=False, notes=("so",)), now
    )

    # by the goal's metric, these weights are the best
    assert o.GiveVerdict(0, stop=True, keep_best=False) in actions
    assert o.Warn("so") in actions
    assert o.Warn("stopped by EarlyStopping after epoch 1") in actions
    assert (job.finished, job.reached, job.stopped_by) == (True, False, "EarlyStopping")
    assert job.callbacks.keep_best


def test_the_last_epoch_ends_the_job_once_its_callbacks_have_run() -> None:
    job, now = training("w0"), here("w0")
    request = asked(job.handle(m.EpochReport(EPOCHS - 1, 1, {}, 0.5, callbacks=True), now))

    assert request.last
    assert not job.finished
    job.handle(called(request, state="s"), now)
    assert job.finished
    assert job.callbacks.last == msgspec.structs.replace(request, state="s")


def test_a_rollback_undoes_the_runs_of_callbacks_with_their_epochs() -> None:
    job, now = training("w0", steps=2), here("w0")
    for epoch, step_, state in ((-1, 0, "a"), (0, 1, "b"), (1, 2, "c")):
        report = m.EpochReport(epoch, step_, {}, 0.5, callbacks=True)
        request = asked(job.handle(report, now))
        job.handle(called(request, state=state, rate_scale=1.0 + step_), now)
    open_ = asked(job.handle(m.EpochReport(2, 3, {}, 0.5, callbacks=True), now))
    job.handle(RolledBack(1, "lost", 1.0), now)

    assert job.handle(called(open_, state="late"), now) == []
    assert [run.state for run in job.history.callback_runs] == ["a"]
    # the epoch that ended with the checkpoint's step is evaluated again
    again = asked(job.handle(m.EpochReport(0, 1, {}, 0.5, callbacks=True), now))
    assert (again.state, again.rate_scale) == ("a", 1.0)
    assert job.handle(m.EpochReport(-1, 0, {}, 0.5, callbacks=True), now) == [
        o.GiveVerdict(-1, stop=False, keep_best=False, rate_scale=1.0)
    ]


def test_with_hooks_of_batches_every_step_waits_for_its_run() -> None:
    job, now = training("w0", steps=4), here("w0")
    first = asked(job.handle(m.EpochReport(-1, 0, {}, 0.0, callbacks=True, batch_hooks=True), now))
    job.handle(called(first, state="s0"), now)

    report = m.BatchReport(0, 1, (b"12345678",))
    request = asked(job.handle(report, now))
    assert (request.batch, request.ends_epoch, request.sums, request.state) == (0, False, report.sums, "s0")
    assert asked(job.handle(report, now)) == request
    written, verdict = job.handle(called(request, state="s1", rate_scale=0.5, ends_epoch=False), now)
    assert isinstance(written, o.Write)
    assert written.value.batch == 0
    assert verdict == o.GiveVerdict(0, stop=False, keep_best=False, rate_scale=0.5, step=1)
    assert job.handle(report, now) == [verdict]

    request = asked(job.handle(m.BatchReport(0, 2, ()), now))
    assert (request.batch, request.state, request.rate_scale) == (1, "s1", 0.5)
    job.handle(called(request, state="s2", ends_epoch=False), now)
    assert job.handle(report, now) == []  # late
    # the last step of an epoch has its run at the epoch's end
    end = asked(job.handle(m.EpochReport(0, 3, {}, 0.5, callbacks=True, batch_hooks=True), now))
    assert (end.batch, end.ends_epoch, end.state) == (2, True, "s2")
    job.handle(called(end, state="s3"), now)
    assert asked(job.handle(m.BatchReport(1, 4, ()), now)).batch == 0


def test_a_hook_of_batches_that_stops_training_ends_the_epoch_with_its_step() -> None:
    job, now = training("w0", steps=2), here("w0")
    job.handle(called(asked(job.handle(m.EpochReport(-1, 0, {}, 0.0, True, True), now)), state="a"), now)
    request = asked(job.handle(m.BatchReport(0, 1, ()), now))
    actions = job.handle(called(request, state="b", stopped_by="Timer", ends_epoch=False), now)

    assert o.GiveVerdict(0, stop=True, keep_best=False, step=1) in actions
    assert o.Warn("stopped by Timer at step 1, in epoch 1") in actions
    assert not job.finished
    end = asked(job.handle(m.EpochReport(0, 1, {}, 0.5, True, True), now))
    assert (end.batch, end.last, end.state) == (None, True, "b")
    actions = job.handle(called(end, state="c", stopped_by="EarlyStopping"), now)
    assert o.GiveVerdict(0, stop=True, keep_best=False) in actions
    assert not [action for action in actions if isinstance(action, o.Warn)]
    assert (job.finished, job.stopped_by) == (True, "Timer")


def test_a_rollback_goes_on_from_the_run_before_its_step() -> None:
    job, now = training("w0", steps=5), here("w0")
    job.handle(called(asked(job.handle(m.EpochReport(-1, 0, {}, 0.0, True, True), now)), state="s0"), now)
    for step_ in range(1, 5):
        request = asked(job.handle(m.BatchReport(0, step_, ()), now))
        job.handle(called(request, state=f"s{step_}", ends_epoch=False), now)
    job.handle(m.CheckpointWritten(3, 0, 1.0, 1), now)
    assert [run.step for run in job.history.callback_runs] == [0, 2, 3, 4]

    job.handle(RolledBack(3, "lost", 1.0), now)
    again = asked(job.handle(m.BatchReport(0, 3, ()), now))
    assert (again.state, again.batch) == ("s2", 2)
    # from an older checkpoint, the state is no longer known
    job.handle(RolledBack(2, "lost", 1.0), now)
    actions = job.handle(m.BatchReport(0, 2, ()), now)
    assert kinds(actions) == [o.Warn, o.RunCallbacks]
    assert asked(actions).state == ""


def test_callbacks_without_a_record_begin_anew_with_one_warning() -> None:
    job, now = training("w0"), here("w0")
    report = m.EpochReport(0, 1, {}, 0.5, callbacks=True)

    assert kinds(job.handle(report, now)) == [o.Write, o.Warn, o.RunCallbacks, o.Notify]
    assert kinds(job.handle(report, now)) == [o.RunCallbacks]


# ---- lost workers ------------------------------------------------------------------------------------------


def launched(actions: list[o.Action]) -> int:
    return sum(action.workers for action in actions if isinstance(action, o.Launch))


def test_a_worker_that_crashes_on_its_samples_is_replaced_at_once_but_not_for_ever() -> None:
    job = training("w0")
    crash = Lost("w0", "was killed by SIGSEGV", crashed=True)
    for _ in range(CRASHES_MAX):
        assert launched(job.handle(crash, here())) == 1
    assert launched(job.handle(crash, here())) == 0
    job.handle(step(2, "w0"), here("w0"))
    assert launched(job.handle(crash, here())) == 1


def test_a_worker_that_dies_before_it_is_ready_has_read_no_samples_whatever_it_died_of() -> None:
    job = training("w0", "w1")
    actions = job.handle(Lost("w2", "was killed by SIGSEGV", crashed=True, ready=False), here("w0"))

    (warning,) = [action.message for action in actions if isinstance(action, o.Warn)]
    assert warning == "w2 was killed by SIGSEGV before it could train; it is replaced"
    assert launched(actions) == 0
    assert launched(job.handle(o.Look(), here("w0"))) == 1


def test_samples_were_computed_by_others_only_where_there_are_others() -> None:
    for others, said in (
        ((), "w1 was lost; it is replaced"),
        (("w0",), "computed by the others, and it is replaced"),
    ):
        actions = training("w0", "w1").handle(Lost("w1", "was lost"), here(*others))
        (warning,) = [action.message for action in actions if isinstance(action, o.Warn)]
        assert warning.endswith(said)


def test_while_workers_die_as_they_start_no_more_start_than_may_still_die() -> None:
    job = training("w0", "w1", "w2", "w3")
    for worker in ("w1", "w2"):
        job.handle(Lost(worker, "died", ready=False), here("w0", "w3"))
    # of three that may die two have, and one starts
    assert launched(job.handle(o.Look(), here("w0", "w3", starting=1))) == 0
    assert launched(job.handle(o.Look(), here("w0", "w3"))) == 1
    assert launched(job.handle(o.Look(), here("w0", "w3", "w4", starting=1))) == 0
    assert launched(job.handle(o.Look(), here("w0", "w3", "w4"))) == 1
    assert launched(job.handle(o.Look(), here("w0", "w3", "w4", "w5"))) == 0


@pytest.mark.parametrize(
    ("crashed", "by_code", "cause"),
    [(True, False, "crash"), (False, True, "code"), (False, False, "loss")],
)
def test_the_last_worker_that_may_die_early_ends_the_job_where_no_other_lives(
    crashed: bool, by_code: bool, cause: o.Cause
) -> None:
    job = training("w0")
    lost = Lost("w0", "died", crashed=crashed, ready=False, by_code=by_code)
    for _ in range(GIVE_UP - 1):
        assert o.GiveUp not in kinds(job.handle(lost, here()))
    *_, last = job.handle(lost, here())

    assert last == o.GiveUp("w0", "w0 died before it could train, as did 2 before it", cause)


def test_a_worker_that_had_done_its_part_says_nothing_about_the_next() -> None:
    job = training("w0", steps=HEALTHY_STEPS)
    job.handle(Lost("w1", "died", ready=False), here())
    job.handle(Lost("w0", "died"), here())

    assert job.workers_max(0.0) is None
    assert launched(job.handle(o.Look(), here())) == 1


def test_a_worker_whose_host_was_about_to_end_is_replaced_once() -> None:
    job = training("w0", "w1")
    assert launched(job.handle(PreemptionNotice("w1", 30.0, "taken"), here("w0", "w1"))) == 1
    assert kinds(job.handle(Lost("w1", "its VM is gone"), here("w0", "w2"))) == [o.Notify]
    assert [left.kind for left in job.history.departures] == ["eviction"]


# ---- laws --------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A job's workers as they would follow the controller's actions, for events in any order."""

    job: Controller = field(default_factory=controller)
    vms: dict[str, str] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)
    named: int = 0
    number: int = 0
    step: int = 0
    epoch: int = 0
    over: bool = False
    actions: list[o.Action] = field(default_factory=list)

    def begin(self, workers: int) -> None:
        self.take(o.Begin(workers))
        self.launch(workers, VM)

    def now(self, worker: str = "") -> o.Situation:
        ready = len(self.vms) - len(self.starting)
        return o.Situation(
            at_s=float(self.step),
            vms=dict(self.vms),
            starting=len(self.starting),
            ready=ready,
            training=ready,
            vm=VM if worker else "",
            host="h",
        )

    def launch(self, workers: int, vm: str) -> None:
        for _ in range(workers):
            self.vms[f"w{self.named}"] = vm
            self.starting.add(f"w{self.named}")
            self.named += 1

    def gone(self, worker: str) -> None:
        self.vms.pop(worker, None)
        self.starting.discard(worker)

    def take(self, event: o.Event, worker: str = "") -> None:
        if self.over:
            return
        now, twin = self.now(worker), copy.deepcopy(self.job)
        actions = self.job.handle(event, now)
        assert twin.handle(event, now) == actions  # nothing but the event and what came before it counts
        self.actions += actions
        for action in actions:
            match action:
                case o.Launch():
                    assert self.job.mode is Mode.TRAIN
                    self.launch(action.workers, action.vm)
                    assert len(self.vms) <= max(self.job.wanted, len(now.vms))
                case o.Resize():
                    assert self.job.mode is Mode.TRAIN
                    assert 1 <= action.workers <= action.global_batch_size
                    for name in action.without:
                        self.gone(name)
                case o.Release():
                    spare = [name for name in reversed(self.vms) if name not in self.starting]
                    for name in spare[: max(0, len(self.vms) - action.keep)]:
                        self.gone(name)
                case o.GiveUp():
                    assert not self.vms
                    self.over = True
        assert self.over or self.job.wanted >= 1

    def play(self, what: str, which: int) -> None:
        names = list(self.vms)
        name = names[which % len(names)] if names else ""
        ready = [worker for worker in names if worker not in self.starting]
        match what:
            case "ready" if name in self.starting:
                self.starting.discard(name)
                self.take(Started(name, 1.0))
            case "view" if ready:
                self.number += 1
                self.take(view(self.number, *ready, first_step=self.step + 1), ready[0])
            case "step" if ready:
                self.step += 1
                self.take(step(self.step, *ready))
            case "again" if ready:
                self.take(step(max(1, self.step - which), *ready))
            case "epoch" if ready and self.step and not self.job.finished:
                self.take(m.EpochReport(self.epoch, self.step, {}, 0.5))
                self.epoch += 1
            case "die" | "crash" if name:
                early = name in self.starting
                self.gone(name)
                self.take(Lost(name, "died", crashed=what == "crash", ready=not early), name)
            case "preempted" if name:
                self.take(PreemptionNotice(name, 30.0 if which % 2 else None, "taken"), name)
            case "refused" if name in self.starting:
                self.gone(name)
                self.take(Refused(name, "no room"), name)
            case "move":
                self.take(o.Gather(Configuration(VM, 1 + which % 5, 32), meanwhile=32))
            case "give up":
                self.take(o.Abandon())
            case "close" if which > 8:
                self.take(o.Close())
        self.take(o.Look())


WHAT = [
    "ready",
    "view",
    "step",
    "again",
    "epoch",
    "die",
    "crash",
    "preempted",
    "refused",
    "move",
    "give up",
    "close",
]


@given(
    workers=st.integers(1, 5),
    plays=st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 9)), max_size=40),
)
def test_in_every_order_of_events_workers_are_as_many_as_wanted_and_each_step_is_written_once(
    workers: int, plays: list[tuple[str, int]]
) -> None:
    world = World()
    world.begin(workers)
    for what, which in plays:
        world.play(what, which)

    written = [
        a.value.step for a in world.actions if isinstance(a, o.Write) and a.kind == "step" and not a.audit
    ]
    audited = [
        a.value["step"] for a in world.actions if isinstance(a, o.Write) and a.kind == "step" and a.audit
    ]
    told = [a.record.step for a in world.actions if isinstance(a, o.ReportStep)]
    assert written == audited == told == sorted(set(written))
    verdicts = [action for action in world.actions if isinstance(action, o.GiveVerdict)]
    assert [verdict.epoch for verdict in verdicts] == list(range(len(verdicts)))
    assert [verdict.stop for verdict in verdicts] == [n + 1 == EPOCHS for n in range(len(verdicts))]
    lost = [a.event.process for a in world.actions if isinstance(a, o.Notify) and _is_loss(a)]
    assert len(lost) == len(set(lost))


def _is_loss(action: o.Notify) -> bool:
    return isinstance(action.event, WorkerChanged) and action.event.state == "lost"


@given(workers=st.integers(1, 8), order=st.lists(st.integers(0, 9), max_size=60))
def test_a_job_whose_workers_all_die_as_they_start_ends_after_as_many_as_may_die(
    workers: int, order: list[int]
) -> None:
    world = World()
    world.begin(workers)
    for which in [*order, *range(40)]:
        world.play("crash", which)

    assert world.over
    assert world.named == max(workers, GIVE_UP)


def test_epochs_at_a_larger_batch_count_for_less_until_the_progress_is_made() -> None:
    job = training("w1")
    job.last_for(FixedEpochs(EPOCHS, None, 32), 64)
    for number in range(2, 66):
        job.handle(step(number, "w1", samples=64, batch=64), here("w1"))
    trained = 0
    while not job.finished:
        job.handle(m.EpochReport(trained, 65, {}, 0.5), here("w1"))
        trained += 1

    assert job.callbacks.epochs == 2 * EPOCHS
    assert trained == 2 * EPOCHS
