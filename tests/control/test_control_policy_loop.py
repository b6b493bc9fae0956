"""What policies are shown of a job, and what is done about what they decide."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scripted import PRICE, STEP_S, Scripted, trainer_of

from scavenger.control.training.controller import RATE_STEPS
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.policy_loop import LOOK_S, PolicyLoop
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.decision import Blacklist, ChangeSize, Decision, Hold, Pause, Replace, Stop
from scavenger.domain.job import JobSpec
from scavenger.domain.snapshot import JobSnapshot
from scavenger.errors import LimitReachedError, WorkersLostError
from scavenger.policy.table import policy_for

AT = Configuration("local-1", 2, 32)


class Says:
    """Decides what it is told, once; keeps what it was shown."""

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = list(decisions)
        self.shown: list[JobSnapshot] = []

    def decide(self, job: JobSnapshot) -> Decision:
        self.shown.append(job)
        return self._decisions.pop(0) if self._decisions else Hold("nothing more")


def steered(scripted: Scripted, folder: Path, policy: Any, **options: Any) -> tuple[PolicyLoop, Trainer]:
    trainer = trainer_of(scripted, folder, **options)
    trainer.start(2)
    trainer.move(AT, "chosen")
    return PolicyLoop(trainer, policy=policy, reference=AT, remaining_samples=lambda: 1000.0), trainer


def drive(policy_loop: PolicyLoop, trainer: Trainer, steps: int) -> None:
    begin = trainer.step
    while trainer.step < begin + steps:
        trainer.until(lambda: policy_loop.due)
        policy_loop.look()


@pytest.mark.parametrize(
    ("decision", "training", "batch"),
    [
        (Hold("all is well"), ("w0", "w1"), 32),
        (ChangeSize(3, 48, "worth it"), ("w0", "w1", "w2"), 48),
        (ChangeSize(1, 32, "too dear"), ("w0",), 32),
        (Replace(("w0",), "slow"), ("w1", "w2"), 32),
        (Blacklist(("here",), 1e6, "it fails"), ("w0", "w1"), 32),
    ],
)
def test_each_decision_is_carried_out(
    tmp_path: Path, decision: Decision, training: tuple[str, ...], batch: int
) -> None:
    scripted = Scripted(epoch_steps=10**6)
    policy_loop, trainer = steered(scripted, tmp_path, Says(decision))
    drive(policy_loop, trainer, 30)

    assert scripted.workers("training") == training == scripted.alive
    assert trainer.configuration == Configuration("local-1", len(training), batch)
    assert [record.step for record in trainer.history.steps] == list(range(1, scripted.step + 1))


def test_buckets_are_looked_at_before_each_decision(tmp_path: Path) -> None:
    _, trainer = steered(Scripted(epoch_steps=10**6), tmp_path, Says())
    looked: list[int] = []
    policy = Says()
    policy_loop = PolicyLoop(
        trainer,
        policy=policy,
        reference=AT,
        remaining_samples=lambda: 1000.0,
        balance=lambda: looked.append(len(policy.shown)),
    )
    drive(policy_loop, trainer, 30)

    assert looked == list(range(len(policy.shown)))
    assert looked


def test_what_changes_workers_or_hosts_is_told_with_its_reason(tmp_path: Path) -> None:
    policy = Says(Replace(("w0",), "slow"), Blacklist(("here",), 1e6, "here failed 3 times"))
    policy_loop, trainer = steered(Scripted(epoch_steps=10**6), tmp_path, policy)
    drive(policy_loop, trainer, 40)

    assert trainer.warnings == ["w0 replaced: slow", "here failed 3 times"]
    assert [(left.worker, left.kind) for left in trainer.history.departures] == [("w0", "eviction")]
    assert policy.shown[-1].cluster.blacklist == (("here", 1e6),)
    assert [left.worker for left in policy.shown[-1].cluster.departures] == ["w0"]


def test_a_host_that_is_ruled_out_gets_no_more_workers_until_its_time_is_over(tmp_path: Path) -> None:
    scripted = Scripted(epoch_steps=10**6)
    policy = Says(Blacklist(("bad",), 6.0, "it fails"), Hold("so"), Blacklist(("worse",), 1e6, "too"))
    policy_loop, trainer = steered(scripted, tmp_path, policy)
    drive(policy_loop, trainer, 100)

    assert scripted.avoided == [{"bad"}, {"bad", "worse"}, {"worse"}]


def test_hosts_are_ruled_out_while_all_workers_are_replaced_and_nothing_else_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(epoch_steps=10**6)
    policy_loop, trainer = steered(scripted, tmp_path, Says())
    drive(policy_loop, trainer, 20)
    monkeypatch.setattr(Scripted, "settled", property(lambda self: False))
    monkeypatch.setattr(scripted, "workers", lambda *states: ())
    bad = Blacklist(("bad",), 1e6, "it fails")
    policy = Says(ChangeSize(1, 32, "fewer"), bad, Stop("no money", "limits"))
    alone = PolicyLoop(trainer, policy=policy, reference=AT, remaining_samples=lambda: 1000.0)
    for _ in range(3):
        alone.look()

    assert len(policy.shown) == 3
    assert scripted.avoided == [{"bad"}]
    assert trainer.configuration == AT


@pytest.mark.parametrize(
    ("hosts", "avoided"), [((), [{"here"}]), (("here", "there"), [{"here"}]), (("here",), [])]
)
def test_a_host_on_which_workers_keep_dying_is_ruled_out_unless_it_is_the_only_one(
    tmp_path: Path, hosts: tuple[str, ...], avoided: list[set[str]]
) -> None:
    job = JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}}
    )
    dies_at = {30: "w0", 60: "w2", 90: "w3"}
    scripted = Scripted(epoch_steps=10**6, dies_at=dies_at, hosts=hosts)
    policy_loop, trainer = steered(scripted, tmp_path, policy_for(job))
    drive(policy_loop, trainer, 150)

    assert scripted.avoided == avoided


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        (Stop("over the budget", "budget"), LimitReachedError),
        (Stop("too late", "deadline"), LimitReachedError),
        (Stop("they all die", "failures"), WorkersLostError),
        (Pause("no workers to be had"), LimitReachedError),
    ],
)
def test_a_stop_ends_the_job_with_the_reason(tmp_path: Path, decision: Any, error: type[Exception]) -> None:
    policy_loop, _ = steered(Scripted(epoch_steps=10**6), tmp_path, Says(decision))

    with pytest.raises(error, match=decision.reason):
        policy_loop.look()


def test_nothing_is_decided_while_the_view_is_being_changed(tmp_path: Path) -> None:
    policy = Says(ChangeSize(1, 32, "now"))
    policy_loop, trainer = steered(Scripted(epoch_steps=10**6), tmp_path, policy)
    trainer.supervisor.resize(2, 64, "by somebody else")
    policy_loop.look()
    assert policy.shown == []

    drive(policy_loop, trainer, 3)
    assert policy.shown != []


@examples(10)
@given(
    slow=st.dictionaries(st.sampled_from(["w0", "w1", "w2"]), st.floats(0.5, 10.0)),
    dies_at=st.dictionaries(st.integers(20, 60), st.sampled_from(["w0", "w1"]), max_size=1),
    workers=st.integers(1, 4),
    spent=st.tuples(st.floats(0, 100), st.floats(0, 1)),
)
def test_a_snapshot_counts_the_same_workers_steps_and_money_as_the_job(
    tmp_path_factory: pytest.TempPathFactory,
    slow: dict[str, float],
    dies_at: dict[int, str],
    workers: int,
    spent: tuple[float, float],
) -> None:
    scripted = Scripted(epoch_steps=25, slow=slow, dies_at=dies_at)
    policy = Says(ChangeSize(workers, 32, "so"))
    policy_loop, trainer = steered(
        scripted,
        tmp_path_factory.mktemp("j"),
        policy,
        budget_usd=10.0,
        before=EarlierAttempts(step=0, elapsed_s=spent[0], cost_usd=spent[1]),
    )
    drive(policy_loop, trainer, 100)

    for job in policy.shown:
        assert len(job.cluster.training) == len(
            {worker.name for worker in job.cluster.workers if worker.state == "training"}
        )
        for worker in job.cluster.workers:
            assert len(worker.compute_s) == len(worker.samples)
            assert sum(worker.samples) <= 32 * job.progress.step
        assert job.costs.cost_usd <= job.limits.budget_usd == 10.0  # type: ignore[operator]
        assert job.progress.elapsed_s >= spent[0]
        assert job.costs.price_usd_per_hour == PRICE
    last = policy.shown[-1]
    assert (last.progress.step, last.cluster.view, last.configuration) == (
        trainer.step,
        trainer.view,
        trainer.configuration,
    )
    assert {worker.name for worker in last.cluster.workers} == set(scripted.alive)
    for worker in last.cluster.training:
        assert worker.compute_s[-1] == pytest.approx(STEP_S / 2 * slow.get(worker.name, 1.0))
    counted = sum(seen.steps for seen in last.throughput)
    assert counted == sum(not record.disturbed for record in trainer.history.steps)
    at = [a.at_s for a in policy.shown]
    assert all(later - earlier >= LOOK_S - 1e-9 for earlier, later in pairwise(at))


def test_the_job_files_policy_replaces_the_one_slow_worker(tmp_path: Path) -> None:
    job = JobSpec.model_validate(
        {
            "version": 1,
            "name": "tiny",
            "train": "train:job",
            "goal": {"max_epochs": 2},
            "elastic": {"straggler": {"rule": "edl"}},
        }
    )
    scripted = Scripted(epoch_steps=10**6, slow={"w1": 3.0})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(3)
    trainer.move(Configuration("local-1", 3, 48), "chosen")
    policy_loop = PolicyLoop(
        trainer,
        policy=policy_for(job),
        reference=Configuration("local-1", 3, 48),
        remaining_samples=lambda: None,
    )
    drive(policy_loop, trainer, 100)

    assert scripted.workers("training") == ("w0", "w2", "w3")
    assert [left.worker for left in trainer.history.departures] == ["w1"]


def test_a_learning_rate_that_follows_the_noise_is_gone_over_to_at_most_every_so_many_steps(
    tmp_path: Path,
) -> None:
    scales = iter([1.0, 1.5, 2.0, 2.01])
    now = [1.0]
    scripted = Scripted(epoch_steps=10**6)
    trainer = trainer_of(scripted, tmp_path, lr_scale=lambda batch, noise: now[0])
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    policy_loop = PolicyLoop(trainer, policy=Says(), reference=AT, remaining_samples=lambda: None)
    for now[0] in scales:
        drive(policy_loop, trainer, RATE_STEPS + 20)

    # 2.01 is too little of a change to be worth a change of view
    assert scripted.lr_scales == [1.0, 1.5, 2.0]
