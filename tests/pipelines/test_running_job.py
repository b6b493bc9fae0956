"""A running job that is steered from Python: a real store, and somebody who drives the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from scavenger.domain import operation as op
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import Measurement
from scavenger.errors import ConfigurationError, TransientError
from scavenger.pipelines.running import RunningJob
from scavenger.store import Store
from scavenger.store.records import Verdict

Answer = Callable[[op.Operation], tuple[Verdict, str]]


class Driver:
    """Drives a job in a thread of its own: takes what it is asked for, and answers."""

    def __init__(self, url: str, folder: Path, answer: Answer) -> None:
        self._url, self._answer = url, answer
        self._ended = threading.Event()
        self.taken: list[op.Operation] = []
        with Store.open(url) as store:
            self.job_id = store.create_job("tiny", spec={}, job_file=folder / "job.yaml").id
        self._thread = threading.Thread(target=self._drive)

    def __enter__(self) -> Driver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _drive(self) -> None:
        with Store.open(self._url) as store:
            while not self._ended.wait(0.02):
                record = store.next_operation(self.job_id)
                if record is None:
                    continue
                self.taken.append(record.operation)
                if isinstance(record.operation, op.ProfileRange):
                    store.add_measurements(self.job_id, [measured(2, 0.5), measured(1, 0.9)])
                if isinstance(record.operation, op.StopJob):
                    store.finish_job(self.job_id, state="interrupted", report=None, exit_code=130)
                else:
                    store.end_operation(record.id, *self._answer(record.operation))


def measured(workers: int, step_time_s: float) -> Measurement:
    return Measurement(Configuration("local-1", workers, 32), 9, step_time_s, 0.0, 0.1, 0.1, None, None, 1)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    return f"sqlite:///{tmp_path / 's.db'}"


def done(operation: op.Operation) -> tuple[Verdict, str]:
    return "done", ""


def test_each_call_asks_for_its_operation_and_returns_once_it_is_done(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store, pytest.raises(ConfigurationError, match="a text, not 3"):
        store.job(3)  # type: ignore[arg-type]
    with Driver(url, tmp_path, done) as driver:
        job = RunningJob("tiny", url)
        job.scale_to(3)
        job.scale_out()
        job.scale_in(["w1"])
        job.scale_aggregators(2)
        job.migrate()
        job.migrate(["w2", "w3"])
        job.scale_in("w12")  # one name, not its letters
        job.migrate("w12")
        job.stop(save=False)

    assert driver.taken == [
        op.ScaleTo(3),
        op.ScaleOut(1),
        op.ScaleIn(("w1",)),
        op.ScaleAggregators(2),
        op.Migrate(),
        op.Migrate(("w2", "w3")),
        op.ScaleIn(("w12",)),
        op.Migrate(("w12",)),
        op.StopJob(save=False),
    ]
    with Store.open(url) as store:
        assert {record.state for record in store.operations(driver.job_id)} == {"done"}
        assert store.job("tiny").ended


def test_a_profile_returns_what_it_measured_also_of_a_size_that_was_known(url: str, tmp_path: Path) -> None:
    with Driver(url, tmp_path, done) as driver, Store.open(url) as store:
        store.add_measurements(driver.job_id, [measured(3, 0.3), measured(2, 0.4)])

        found = RunningJob(driver.job_id, url).profile(1, 2, steps=9)

    assert found == (measured(2, 0.5), measured(1, 0.9))
    assert driver.taken == [op.ProfileRange(1, 2, 9)]


@pytest.mark.parametrize(("verdict", "error"), [("refused", ConfigurationError), ("failed", TransientError)])
def test_a_refusal_and_a_failure_raise_with_the_jobs_own_words(
    url: str, tmp_path: Path, verdict: Verdict, error: type[Exception]
) -> None:
    with (
        Driver(url, tmp_path, lambda operation: (verdict, "it has 1 to 4 workers")),
        pytest.raises(error, match=r"asked to scale to 9 workers: .*: it has 1 to 4 workers"),
    ):
        RunningJob("tiny", url).scale_to(9)


@pytest.mark.parametrize(
    "call",
    [
        lambda job: job.scale_to(0),
        lambda job: job.scale_in([]),
        lambda job: job.scale_in(["w1", "w1"]),
        lambda job: job.migrate(["no such name"]),
        lambda job: job.profile(3, 2),
    ],
)
def test_what_no_job_could_be_asked_for_is_never_submitted(
    url: str, tmp_path: Path, call: Callable[[RunningJob], object]
) -> None:
    driver = Driver(url, tmp_path, done)
    with pytest.raises(ConfigurationError):
        call(RunningJob("tiny", url))

    with Store.open(url) as store:
        assert store.operations(driver.job_id) == ()


def test_what_nobody_takes_in_time_is_withdrawn(url: str, tmp_path: Path) -> None:
    driver = Driver(url, tmp_path, done)  # and nobody drives it
    with pytest.raises(TransientError, match="no answer within 100 ms; the request was withdrawn"):
        RunningJob("tiny", url, timeout_s=0.1).scale_out(1)

    with Store.open(url) as store:
        assert [record.state for record in store.operations(driver.job_id)] == ["refused"]


def test_a_job_that_is_busy_for_longer_than_one_waits_is_told_and_goes_on(url: str, tmp_path: Path) -> None:
    driver = Driver(url, tmp_path, done)
    with Store.open(url) as store:
        taker = threading.Thread(target=wait_for, args=[lambda: store.next_operation(driver.job_id)])
        taker.start()
        with pytest.raises(TransientError, match="the job is still working on it"):
            RunningJob("tiny", url, timeout_s=1.0).scale_out(1)
        taker.join()

        with pytest.raises(TransientError, match="busy"):
            RunningJob("tiny", url).scale_to(1)
        assert store.open_operation(driver.job_id) is not None


def test_a_job_that_has_ended_or_never_was_is_told(url: str, tmp_path: Path) -> None:
    driver = Driver(url, tmp_path, done)
    with Store.open(url) as store:
        store.finish_job(driver.job_id, state="succeeded", report=None, exit_code=0)

    with pytest.raises(ConfigurationError, match="has ended"):
        RunningJob("tiny", url).scale_to(1)
    with pytest.raises(ConfigurationError, match="there is no job"):
        RunningJob("other", url).stop()
