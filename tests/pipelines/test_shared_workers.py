"""Workers that trials share which run at once: how they are divided, and that real trials keep to it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pipeline_code
import pytest
from waiting import wait_for

from scavenger import Client, Job
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import Event, Observer, PhaseChanged, ViewChanged
from scavenger.errors import ConfigurationError, TransientError
from scavenger.pipelines.sharing import WorkerShares
from scavenger.pipelines.study import trial_key

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


def test_a_trial_waits_for_its_workers_and_a_refused_change_is_asked_again() -> None:
    shares, asked = WorkerShares(3), list[int]()
    answers = iter([False, TransientError("it is busy"), True])

    def scale(workers: int) -> bool:
        asked.append(workers)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    begun, go = threading.Event(), threading.Event()

    def other() -> None:
        with shares.share(1, 1, lambda workers: True) as workers:
            assert workers == 1
            begun.set()
            go.wait(10)

    with shares.share(1, 3, scale) as workers:
        assert workers == 3
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(10)
        assert asked == [2, 2, 2]
        assert shares.in_use == 3
        answers = iter([True])
        go.set()
        thread.join()
        wait_for(lambda: asked == [2, 2, 2, 3], within_s=10)
    assert shares.in_use == 0


def test_a_trial_that_is_interrupted_while_it_waits_takes_no_workers() -> None:
    shares = WorkerShares(1)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with shares.share(1, 1, lambda workers: True):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            with pytest.raises(KeyboardInterrupt), shares.share(1, 1, lambda workers: True):
                raise AssertionError("there are no workers for it")
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert shares.in_use == 0
    with shares.share(1, 1, lambda workers: True) as workers:
        assert workers == 1


def test_what_a_trial_is_given_before_it_has_woken_up_its_job_is_asked_to_take() -> None:
    """It begins with what the shares know that it has, if its job takes no more."""
    shares, asked, over = WorkerShares(2), list[int](), threading.Event()
    begun = list[int]()

    def scale(workers: int) -> bool:
        asked.append(workers)
        return False

    def third() -> None:
        with shares.share(1, 2, scale) as workers:
            begun.append(workers)
            over.wait(10)

    with ExitStack() as others:
        for _ in range(2):
            others.enter_context(shares.share(1, 1, lambda workers: True))
        waiting = threading.Thread(target=third)
        waiting.start()
        wait_for(lambda: len(shares._members) == 3, within_s=10)
        with shares._changed:  # it wakes up when both have ended
            others.close()
    wait_for(lambda: bool(begun), within_s=10)
    wait_for(lambda: bool(asked), within_s=10)
    assert begun == [1]
    assert set(asked) == {2}
    over.set()
    waiting.join(10)
    assert shares.in_use == 0


def test_a_trial_that_could_never_begin_is_refused() -> None:
    with (
        pytest.raises(ConfigurationError, match="needs 4 workers, and the study's trials have 3 together"),
        WorkerShares(3).share(4, 4, lambda workers: True),
    ):
        pass


def test_a_trial_is_the_same_whatever_its_share_was() -> None:
    small = JOB.with_settings(
        {"search.workers": [1], "elastic.min": 1, "elastic.max": 2, "elastic.policy": "fixed"}
    )
    assert trial_key(small.spec.written()) == trial_key(JOB.spec.written())
    weak = JOB.with_settings({"elastic.batch": "weak"})
    assert trial_key(weak.spec.written()) != trial_key(JOB.spec.written())
