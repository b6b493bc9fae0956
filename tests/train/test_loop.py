"""Custom training loops: payloads, rules of use, and real workers that join, leave and die."""

from __future__ import annotations

import importlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import (
    arrays,
    boolean_dtypes,
    floating_dtypes,
    integer_dtypes,
    unsigned_integer_dtypes,
)
from waiting import eventually

from scavenger.errors import ConfigurationError, NonFiniteError, TrainingCodeError, WorkersLostError
from scavenger.sdk import loop
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.mean import weighted_mean
from scavenger.train.custom_loop.reports import LoopReport
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Event, Lost, RolledBack
from scavenger.train.transport.messages import CheckpointWritten, EpochReport, StepReport

JOBS = Path(__file__).with_name("jobs")
_WITHIN_S = 60.0


# ---- payloads ----------------------------------------------------------------------------------------------

numbers = (
    boolean_dtypes() | integer_dtypes() | unsigned_integer_dtypes() | floating_dtypes(sizes=(16, 32, 64))
)
tensors = st.dictionaries(
    st.text(max_size=5), numbers.flatmap(lambda d: arrays(d, (2, 3)) | arrays(d, ()) | arrays(d, 0))
)


@settings(max_examples=30)
@given(tensors)
def test_arrays_arrive_as_they_were_sent(given: dict[str, Any]) -> None:
    headers, frames = lm.pack(given)

    got = lm.unpack(headers, [bytes(frame) for frame in frames])

    assert got.keys() == given.keys()
    for name, array in given.items():
        assert got[name].shape == array.shape
        assert got[name].dtype == array.dtype.newbyteorder("<")
        assert got[name].tobytes() == array.astype(got[name].dtype.newbyteorder("<")).tobytes()


def test_an_array_larger_than_a_frame_travels_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "_FRAME_BYTES", 64)
    given = {"large": np.arange(50.0), "small": np.arange(3), "other": np.asfortranarray(np.eye(5))}

    headers, frames = lm.pack(given)
    got = lm.unpack(headers, [bytes(frame) for frame in frames])

    assert len(frames) == 7 + 1 + 4
    assert all(np.array_equal(got[name], array) for name, array in given.items())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda headers, frames: (headers, frames[:-1]),
        lambda headers, frames: (headers, [*frames, b"more"]),
        lambda headers, frames: (headers, [frames[0][:-1], *frames[1:]]),
        lambda headers, frames: ((headers[0], headers[0]), [frames[0], frames[0]]),
        lambda headers, frames: ((lm.TensorHeader("a", "<f8", (1 << 40,)), headers[1]), frames),
    ],
)
def test_frames_that_do_not_fit_their_headers_are_refused(spoil: Callable[[Any, Any], Any]) -> None:
    headers, frames = lm.pack({"a": np.ones(4), "b": np.ones(2)})

    with pytest.raises(ValueError, match=r"frames|same name|announce"):
        lm.unpack(*spoil(headers, [bytes(frame) for frame in frames]))


def test_arrays_of_objects_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="only arrays of numbers"):
        lm.pack({"a": np.array([object()])})


# ---- the mean ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 1000))
def test_the_mean_is_that_of_all_samples_at_once_in_whatever_order(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    samples = [random.normal(size=(size, 3)).astype("float32") for size in sizes]
    given = [(f"w{k}", len(x), {"g": x.mean(axis=0)}) for k, x in enumerate(samples)]

    forwards, backwards = (weighted_mean(order, step=1).arrays["g"] for order in (given, given[::-1]))

    assert forwards.dtype == np.float32
    np.testing.assert_allclose(forwards, np.concatenate(samples).mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(forwards, backwards, rtol=1e-6, atol=1e-7)


_singles = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [
        1e-45,
        -1e-45,
        1.1754942e-38,
        1.1754944e-38,
        3.4028235e38,
        -3.4028235e38,
        1.0,
        1.0 + 2.0**-23,
        2.0**-24,
        -0.0,
    ]
)


@given(
    st.lists(st.lists(_singles, min_size=4, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_the_mean_has_the_bits_of_a_sum_in_double_precision(
    values: list[list[float]], sizes: list[int]
) -> None:
    parts = [np.array(part, dtype=np.float32) for part in values]
    for samples in (sizes[: len(parts)], [5] * len(parts)):
        given = [
            (f"w{k}", count, {"g": part}) for k, (count, part) in enumerate(zip(samples, parts, strict=True))
        ]
        shares = [count / sum(samples) for count in samples]
        expected = parts[0].astype(np.float64) * shares[0]
        for part, share in zip(parts[1:], shares[1:], strict=True):
            expected += part.astype(np.float64) * share

        means = weighted_mean(given, step=1)

        np.testing.assert_array_equal(means.arrays["g"].view("u4"), expected.astype(np.float32).view("u4"))
        assert means.sqnorm == pytest.approx(float(np.square(expected).sum()), rel=1e-4, abs=1e-30)


def test_buffers_that_all_workers_have_alike_keep_their_bits_whatever_they_are() -> None:
    mask = np.array([0.1, -np.inf, np.nan])
    given = [(f"w{k}", k + 1, {"g": np.ones(2), "statistics/mask": mask.copy()}) for k in range(3)]
    means = weighted_mean(given, step=1).arrays
    given[1][2]["statistics/mask"][0] = 0.2

    np.testing.assert_array_equal(means["statistics/mask"].view("u8"), mask.view("u8"))
    with pytest.raises(NonFiniteError, match="statistics/mask"):
        weighted_mean(given, step=1)


def test_the_mean_of_arrays_of_many_blocks_is_that_of_their_elements() -> None:
    random, size = np.random.default_rng(0), 300_001
    parts = random.normal(size=(2, size)).astype(np.float32)
    parts[:, 200_000] = 3e38  # the sum is out of range, the mean is not

    means = weighted_mean([(f"w{k}", 7, {"g": part}) for k, part in enumerate(parts)], step=1)

    np.testing.assert_array_equal(means.arrays["g"], parts.astype(np.float64).mean(axis=0).astype(np.float32))
    assert means.sqnorm == pytest.approx(9e76, rel=1e-4)
    assert means.worker_sqnorm == pytest.approx(9e76, rel=1e-4)


@pytest.mark.parametrize(
    "other",
    [
        {"g": np.ones(4)},
        {"h": np.ones(3)},
        {"g": np.ones(3, dtype="float32")},
        {},
        {"g": np.ones(3), "h": np.ones(1)},
    ],
)
def test_workers_that_push_different_arrays_are_told_apart(other: dict[str, Any]) -> None:
    with pytest.raises(TrainingCodeError, match="w0 and w1 pushed different arrays"):
        weighted_mean([("w0", 1, {"g": np.ones(3)}), ("w1", 1, other)], step=4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_averaged(bad: float) -> None:
    with pytest.raises(NonFiniteError, match="w1 pushed NaN or infinity in 'g' at step 4"):
        weighted_mean([("w0", 1, {"g": np.ones(2)}), ("w1", 1, {"g": np.array([1, bad])})], step=4)


# ---- rules of use ------------------------------------------------------------------------------------------


class Alone:
    """A link without other workers: shards come in order, and the mean is what this worker pushed."""

    worker = "w0"

    def __init__(self, answers: Sequence[loop.Granted | loop.Step | None] = ()) -> None:
        self.answers = list(answers)
        self.step = 0
        self.said: list[tuple[int, int, float | None]] = []
        self.over: set[int] = set()

    def enter(
        self, sizes: Sequence[int], state: Any, load: Any, evaluate: Any = None, *, apart: bool = False
    ) -> loop.Progress:
        self.sizes = sizes
        return loop.Progress(0, 0, 1)

    def seek(self, epoch: int) -> loop.Granted | loop.Step | None:
        return self.answers.pop(0)

    def push(self, part: loop.Granted, tensors: dict[str, Any]) -> loop.Step:
        self.step += 1
        return loop.Step(self.step, self.step in self.over, 1, tensors)

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        self.said.append((epoch, samples, loss))


@pytest.fixture
def link() -> Iterator[Alone]:
    alone = Alone([loop.Granted(1, (0, 0), 2, 7), loop.Granted(0, (0, 1), 0, 2)])
    loop.connect(alone)
    yield alone
    loop.connect(None)


def begin() -> loop.Job:
    return loop.init([2, 7], state=dict, load=lambda _: None)


def test_a_batch_ends_with_its_size_or_its_grant(link: Alone) -> None:
    job, seen = begin(), []
    link.over = {4}

    for batch in job.batches(2):
        seen.append((batch.shard, batch.start, batch.stop, len(batch)))
        assert job.push_pull({"g": [1.0]}, samples=len(batch)) == {"g": [1.0]}
        job.notify_batch_end(loss=0.5)

    assert seen == [(1, 2, 4, 2), (1, 4, 6, 2), (1, 6, 7, 1), (0, 0, 2, 2)]
    assert link.said == [(0, 2, 0.5), (0, 2, 0.5), (0, 1, 0.5), (0, 2, 0.5)]
    assert (job.epoch, job.step) == (1, 4)


def test_after_a_break_the_next_call_goes_on(link: Alone) -> None:
    job, seen = begin(), []
    link.over = {3}

    for _ in job.epochs(1):
        for batch in job.batches(3):
            seen.append((batch.shard, batch.start, batch.stop))
            job.push_pull({"g": [1.0]})
            job.notify_batch_end()
            break

    assert seen == [(1, 2, 5), (1, 5, 7), (0, 0, 2)]


def test_a_step_made_without_this_worker_is_applied_with_an_empty_batch(link: Alone) -> None:
    job = begin()
    mean = {"g": np.ones(2)}
    link.answers = [loop.Step(1, True, 3, mean)]

    [batch] = [applied(job, batch) for batch in job.batches(4)]

    assert len(batch[0]) == 0
    assert batch[1] is mean
    assert (job.epoch, job.step, job.workers) == (1, 1, 3)
    assert link.said == [(0, 0, None)]


def applied(job: loop.Job, batch: loop.Batch) -> tuple[loop.Batch, dict[str, Any]]:
    mean = job.push_pull(None)
    job.notify_batch_end(loss=float("nan"))
    return batch, mean


def test_an_epoch_that_is_over_yields_nothing(link: Alone) -> None:
    job = begin()
    link.answers = [None]

    assert list(job.batches(4)) == []
    assert job.epoch == 1


def _push_twice(job: loop.Job) -> None:
    next(job.batches(2))
    job.push_pull({"g": [1.0]})
    job.push_pull({"g": [1.0]})


def _not_pushed(job: loop.Job) -> None:
    next(job.batches(2))
    job.notify_batch_end()


def _not_notified(job: loop.Job) -> None:
    for _ in job.batches(2):
        job.push_pull({"g": [1.0]})


def _other_size(job: loop.Job) -> None:
    next(job.batches(2))
    job.push_pull({"g": [1.0]}, samples=1)


def _integers(job: loop.Job) -> None:
    next(job.batches(2))
    job.push_pull({"g": np.array([1, 2])})


def _nothing(job: loop.Job) -> None:
    next(job.batches(2))
    job.push_pull(None)


def _objects(job: loop.Job) -> None:
    next(job.batches(2))
    job.push_pull({"g": object()})


def _unread(job: loop.Job) -> None:
    for _ in job.epochs(2):
        pass


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda job: job.push_pull({"g": [1.0]}), "once for each batch"),
        (_push_twice, "once for each batch"),
        (_not_pushed, "after job.push_pull"),
        (_not_notified, "each batch needs one"),
        (_other_size, "has 2 samples, not 1"),
        (_integers, "takes floats"),
        (_nothing, "needs their gradients"),
        (_objects, "not an array of numbers"),
        (_unread, "left without a step"),
    ],
)
def test_a_loop_that_would_train_on_the_wrong_thing_is_stopped(
    link: Alone, wrong: Callable[[loop.Job], object], message: str
) -> None:
    with pytest.raises(TrainingCodeError, match=message):
        wrong(begin())


def test_init_works_in_a_worker_alone() -> None:
    with pytest.raises(ConfigurationError, match="run_loop"):
        begin()


@pytest.mark.parametrize("sizes", [[], [0, 0], [3, -1]])
def test_there_must_be_samples(link: Alone, sizes: list[int]) -> None:
    with pytest.raises(TrainingCodeError, match="some samples"):
        loop.init(sizes, state=dict, load=lambda _: None)


# ---- real workers ------------------------------------------------------------------------------------------


class Drive:
    """A run, and all events that it has returned."""

    def __init__(self, work_dir: Path, *, train: str = "train", workers: int = 3, **options: Any) -> None:
        self.run = LoopRun(
            JobSource(f"loop_small:{train}", JOBS, 3, threads=1),
            workers=workers,
            work_dir=work_dir,
            timeouts=Timeouts(start_s=30.0, step_s=30.0),
            **options,
        )
        self.events: list[Event] = []

    def until(self, condition: Callable[[], bool]) -> None:
        def polled() -> bool:
            self.events += self.run.poll(0.05)
            return condition()

        assert eventually(polled, within_s=_WITHIN_S), self.events[-5:]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def finish(self) -> LoopReport:
        self.until(lambda: self.run.done)
        return self.run.report


def surviving(events: Sequence[Event]) -> list[StepReport]:
    """Return the steps that no rollback has undone."""
    steps: list[StepReport] = []
    for event in events:
        if isinstance(event, StepReport):
            steps.append(event)
        elif isinstance(event, RolledBack):
            steps = steps[: event.step]
    return steps


def replayed(steps: Sequence[StepReport], small: Any, replica: Any) -> Any:
    """Train one process on the same batches, and return its model."""
    all_x, all_y = np.concatenate(small.X), np.concatenate(small.Y)
    for step in steps:
        x = np.concatenate([all_x[start:stop] for _, start, stop in step.pieces])
        y = np.concatenate([all_y[start:stop] for _, start, stop in step.pieces])
        replica.apply(replica.gradient(x, y)[0])
    return replica


def assert_each_sample_once(steps: Sequence[StepReport], small: Any) -> None:
    counts = Counter(
        (step.epoch, place)
        for step in steps
        for _, start, stop in step.pieces
        for place in range(start, stop)
    )
    assert counts == Counter(
        (epoch, place) for epoch in range(small.EPOCHS) for place in range(sum(small.SIZES))
    )
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(JOBS)
    return importlib.import_module("loop_small")


@pytest.mark.slow
def test_every_sample_counts_once_and_all_end_alike_through_deaths_joins_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Any
) -> None:
    monkeypatch.setenv("SCAV_FAIL", "worker.pushed/w1:kill@4,worker.computed/w2:stop@7")
    monkeypatch.setenv("LOOP_PAUSE_S", "0.04")
    drive = Drive(tmp_path, replace=False)
    with drive.run as run:
        drive.until(lambda: bool(drive.of(StepReport)))
        origin = drive.of(StepReport)[0].pieces[0][0]
        begun_with = small.Replica(run.engine.pid(origin))
        drive.until(lambda: len(drive.of(Lost)) == 2)
        [joiner] = run.scale_out(1)
        drive.until(lambda: any(name == joiner for step in drive.of(StepReport) for name, *_ in step.pieces))
        run.scale_in(["w0"])
        at = run.step
        report = drive.finish()

    steps = drive.of(StepReport)
    assert_each_sample_once(steps, small)
    assert {(loss.worker, loss.cause.split()[0]) for loss in drive.of(Lost)} == {("w1", "was"), ("w2", "was")}
    assert "w0" not in {name for step in steps if step.step > at + 1 for name, *_ in step.pieces}
    assert {event.epoch for event in drive.of(EpochReport)} == {0, 1}
    assert report.replicas_equal
    assert report.steps == len(steps) == report.state["steps"]
    assert report.epochs == small.EPOCHS
    assert set(report.losses) == {0, 1}
    alone = replayed(steps, small, begun_with)
    np.testing.assert_allclose(report.state["w"], alone.w, rtol=1e-5)
    np.testing.assert_allclose(report.state["velocity"], alone.velocity, rtol=1e-5, atol=1e-9)


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint_when_all_workers_or_the_leader_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Any
) -> None:
    monkeypatch.setenv("LOOP_PAUSE_S", "0.04")
    options = {"workers": 2, "checkpoints": str(tmp_path / "kept"), "checkpoint_every_s": 0.1}
    first = Drive(tmp_path, **options)
    with first.run as run:
        first.until(lambda: bool(first.of(StepReport)))
        origin = first.of(StepReport)[0].pieces[0][0]
        begun_with = small.Replica(run.engine.pid(origin))
        first.until(lambda: bool(first.of(CheckpointWritten)))
        for worker in run.members:
            os.kill(run.engine.pid(worker), signal.SIGKILL)
        first.until(lambda: bool(first.of(RolledBack)))
        first.until(
            lambda: (
                first.events.index(first.of(CheckpointWritten)[-1])
                > first.events.index(first.of(RolledBack)[0])
            )
        )
    second = Drive(tmp_path, resume=True, **options)
    with second.run:
        report = second.finish()

    steps = surviving(
        [*first.events, RolledBack(second.of(StepReport)[0].step - 1, "resumed", 0.0), *second.events]
    )
    assert_each_sample_once(steps, small)
    assert report.replicas_equal
    np.testing.assert_allclose(report.state["w"], replayed(steps, small, begun_with).w, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stored", [pytest.param(True, marks=pytest.mark.long), False], ids=["checkpoints", "no checkpoint"]
)
def test_a_sample_that_kills_its_readers_is_left_out_and_nothing_else(
    stored: bool, tmp_path: Path, small: Any
) -> None:
    kept = {"checkpoints": str(tmp_path / "kept"), "checkpoint_every_s": 0.0} if stored else {}
    drive = Drive(tmp_path, train="poisoned", workers=2 if stored else 1, **kept)
    with drive.run:
        report = drive.finish()

    if (
        not stored
    ):  # nobody was left who had the weights: it began again, and knew which samples were suspected
        assert {event.step for event in drive.of(RolledBack)} == {0}

    shard, place = small.POISON
    [left_out] = report.quarantined
    assert (left_out.piece.scope, left_out.piece.start, left_out.piece.stop) == (shard, place, place + 1)
    counts = Counter(
        sample
        for step in surviving(drive.events)
        for _, start, stop in step.pieces
        for sample in range(start, stop)
    )
    assert counts[sum(small.SIZES[:shard]) + place] == 0
    assert sum(counts.values()) == small.EPOCHS * (sum(small.SIZES) - 1)
    assert set(counts.values()) == {small.EPOCHS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        ("raises", TrainingCodeError, r"loop_small.py:\d+: ValueError: cannot digest 8 samples"),
        ("yields_nan", NonFiniteError, "pushed NaN"),
        ("forgets_to_join", TrainingCodeError, r"without calling loop\.init"),
        ("missing", TrainingCodeError, "has no function 'missing'"),
    ],
)
def test_a_fault_of_the_training_code_ends_the_job_and_says_what(
    tmp_path: Path, train: str, error: type[Exception], message: str
) -> None:
    drive = Drive(tmp_path, train=train, workers=1)

    with drive.run, pytest.raises(error, match=message):
        drive.finish()


@pytest.mark.slow
def test_replicas_that_drift_apart_end_the_job_and_the_array_is_named(tmp_path: Path) -> None:
    drive = Drive(tmp_path, train="drifts", workers=2)

    with drive.run, pytest.raises(TrainingCodeError, match=r"the replicas of w\d and w\d differ in 'own'"):
        drive.finish()


@pytest.mark.slow
def test_losing_every_worker_where_none_is_replaced_ends_the_job(tmp_path: Path) -> None:
    drive = Drive(tmp_path, workers=1, replace=False)
    with drive.run as run:
        drive.until(lambda: run.step >= 2)
        with pytest.raises(ConfigurationError, match="cannot leave"):
            run.scale_in(["w0"])
        os.kill(run.engine.pid("w0"), signal.SIGKILL)

        with pytest.raises(WorkersLostError, match="no worker is left"):
            drive.finish()
