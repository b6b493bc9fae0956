"""Workers that trials share which run at once: how they are divided, and that real trials keep to it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pipeline_code
import pytest
from waiting import wait_for

from scavenger import Client, Job
from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.operation import TakeShare
from scavenger.domain.pool import JobStanding, PoolShare, RatePoint
from scavenger.domain.report import Event, Observer, PhaseChanged, ViewChanged
from scavenger.errors import ConfigurationError, TransientError
from scavenger.pipelines.sharing import WorkerShares
from scavenger.pipelines.study import trial_key
from scavenger.scheduler.jobs.seeing import Sizes

JOB = Job(
    pipeline_code.model,
    data=pipeline_code.waited_data,
    goal={"metric": "val_loss", "max_epochs": 1_000_000},
    workers=[1, 2],
    batch_size=[20],
)
PATIENCE_S = 120.0


class Trial(Observer):
    """What a trial has come to; it ends where the test says so."""

    def __init__(self) -> None:
        self.running, self.epochs, self.enough = threading.Event(), threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, PhaseChanged) and event.phase == "running":
            self.running.set()
        if isinstance(event, ViewChanged):
            self.sizes.append(event.configuration.workers)

    def on_epoch(self, record: EpochRecord) -> bool:
        self.epochs.set()
        return self.enough.is_set()


@contextmanager
def watched(client: Client) -> Iterator[Counter[int]]:
    """Counts how often there were so many workers, over all jobs of a client."""
    seen, over = Counter[int](), threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            jobs = [job for run in [*client._running.values()] if (job := run.supervisor) is not None]
            seen[sum(sum(job.existing.values()) for job in jobs)] += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trials_at_once_never_have_more_workers_than_the_study_and_take_over_those_of_ended_ones(
    tmp_path: Path,
) -> None:
    job = JOB.with_settings({"output": str(tmp_path / "out")})
    first, second = Trial(), Trial()
    with (
        Client(store=str(tmp_path / "store.db"), progress=False) as client,
        ThreadPoolExecutor() as pool,
        watched(client) as seen,
    ):
        study = client.study("rates", at_once=2, workers=2)

        def run(trial: Trial, rate: float) -> object:
            return pool.submit(
                study.run, job, {"learning_rate": rate}, on_epoch=trial.on_epoch, observer=trial
            )

        try:
            run(first, 0.01)
            assert first.running.wait(PATIENCE_S)
            run(second, 0.02)
            assert second.epochs.wait(PATIENCE_S)  # the first has given one back, whatever it had chosen
            assert study.shares is not None
            assert study.shares.in_use == 2
            first.enough.set()
            wait_for(lambda: second.sizes[-1] == 2)
        finally:
            first.enough.set()
            second.enough.set()
        wait_for(lambda: len(study.trials) == 2)
        trials = study.trials

    assert max(seen) == 2
    assert second.sizes[0] == 1
    assert [trial.pruned for trial in trials] == [True, True]
    for one in trials:
        (path,) = (tmp_path / "out").glob(f"{one.id}/measurements.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        samples = Counter[int]()
        for line in lines:
            if line["kind"] == "step":
                samples[line["epoch"]] += line["samples"]
        whole = [line["epoch"] for line in lines if line["kind"] == "epoch"]
        assert whole
        assert {samples[epoch] for epoch in whole} == {pipeline_code.WAITED}


class Shared:
    """One job that has a share while its thread runs, and answers as the test says."""

    def __init__(self, shares: WorkerShares, least: int, most: int) -> None:
        self.shares, self.sizes = shares, Sizes(least, most, most)
        self.asked = list[TakeShare]()
        self.seat: PoolSeat | None = None
        self.busy = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Shared:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        with self.shares.share(self.sizes, self._ask) as self.seat:
            self._over.wait(30)

    def _ask(self, share: TakeShare) -> None:
        if self.busy:
            raise TransientError("it is busy")
        self.asked.append(share)

    @property
    def begun(self) -> int:
        """The workers that it was begun with; 0 while it waits."""
        return 0 if self.seat is None else self.seat.share.told

    def trains(self, workers: int) -> None:
        """Say that it trains with so many, and has answered whatever it was asked for."""
        assert self.seat is not None
        obeyed = self.asked[-1].allotment if self.asked else self.seat.share.since
        self.seat._now = JobStanding(0, "training", workers, obeyed, curve=(RatePoint(workers, 1.0, True),))
        self.seat.changed.set()


def test_a_trial_waits_until_another_one_has_given_its_workers_back() -> None:
    shares = WorkerShares("rates", 3)
    with Shared(shares, 1, 3) as first:
        wait_for(lambda: first.begun == 3, within_s=10)
        with Shared(shares, 1, 1) as second:
            time.sleep(0.1)
            assert not first.asked  # it searches, and could not
            first.busy = True
            first.trains(3)
            time.sleep(0.1)
            first.busy = False
            wait_for(lambda: [one.slots for one in first.asked] == [2], within_s=10)
            assert not second.begun
            assert shares.in_use == 3
            first.trains(2)
            wait_for(lambda: second.begun == 1, within_s=10)
            assert shares.in_use == 3
        wait_for(lambda: [one.slots for one in first.asked] == [2, 3], within_s=10)
    assert shares.in_use == 0


def test_who_refuses_is_asked_again_later_and_nobody_has_its_workers_meanwhile() -> None:
    shares = WorkerShares("rates", 2)
    with Shared(shares, 1, 2) as first:
        wait_for(lambda: first.begun == 2, within_s=10)
        first.trains(2)
        with Shared(shares, 1, 2) as second:
            wait_for(lambda: len(first.asked) == 1, within_s=10)
            first.trains(2)
            wait_for(lambda: len(first.asked) == 2, within_s=10)
            assert not second.begun
            first.trains(1)
            wait_for(lambda: second.begun == 1, within_s=10)


def test_a_trial_that_is_interrupted_while_it_waits_takes_no_workers() -> None:
    shares = WorkerShares("rates", 1)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with shares.share(Sizes(1, 1, 1), lambda share: None):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            with pytest.raises(KeyboardInterrupt), shares.share(Sizes(1, 1, 1), lambda share: None):
                raise AssertionError("there are no workers for it")
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert shares.in_use == 0
    with shares.share(Sizes(1, 1, 1), lambda share: None) as seat:
        assert seat.share.told == 1


def test_a_trial_that_could_never_begin_is_refused() -> None:
    with (
        pytest.raises(ConfigurationError, match="needs 4 workers, and the study's trials have 3 together"),
        WorkerShares("rates", 3).share(Sizes(4, 4, 4), lambda share: None),
    ):
        pass


def test_a_trial_of_a_servers_pool_is_not_run_by_a_program(tmp_path: Path) -> None:
    with Client(store=str(tmp_path / "store.db"), progress=False) as client:
        study = client.study("rates", workers=2)
        with pytest.raises(ConfigurationError, match="infra: pool/gpu: the server of a pool runs its jobs"):
            study.run(JOB.with_settings({"infra": "pool/gpu"}))
        assert study.shares is not None
        assert study.shares.in_use == 0


def test_a_trial_is_the_same_whatever_its_share_was() -> None:
    small = PoolSeat("study rates", PoolShare(1, 1, 1, 1)).within(JOB.spec)
    assert trial_key(small.written()) == trial_key(JOB.spec.written())
    weak = JOB.with_settings({"elastic.batch": "weak"})
    assert trial_key(weak.spec.written()) != trial_key(JOB.spec.written())
