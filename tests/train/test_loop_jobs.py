"""What makes a loop a job: its description, the ends of its epochs, its reports, and its noise at one worker."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from scavenger.control.places.kinds import kind_of
from scavenger.control.places.needs import Kind
from scavenger.domain.job import JobSpec
from scavenger.elastic.leases import LeaseAttempt, LeasedSamples
from scavenger.elastic.ledger import ShardLedger
from scavenger.errors import TrainingCodeError
from scavenger.models.noise import noise_scale_parts
from scavenger.sdk import LoopJob
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.epoch_ends import EpochEnds
from scavenger.train.custom_loop.exchange import KeptMeans, StepMean, SuccessiveSteps
from scavenger.train.custom_loop.gradient_memory import MEAN, STATES, GradientMemory
from scavenger.train.custom_loop.mean import weighted_mean
from scavenger.train.custom_loop.reports import EpochLosses, StepInReport, manifest_of
from scavenger.train.transport.block_file import create_block

_SPEC = {"version": 1, "name": "x", "train": "train:job", "goal": {"max_epochs": 3}}


def _spec(**sections: object) -> JobSpec:
    return JobSpec.model_validate({**_SPEC, **sections})


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        ("job = LoopJob(train)", True),
        ("job = sdk.LoopJob(train, metrics=['a'])", True),
        ("job: LoopJob = LoopJob(train)", True),
        ("@LoopJob\ndef job(): ...", True),
        ("other = LoopJob(train)", False),
        ("def job():\n    return KerasJob()", False),
        ("job = KerasJob(model, data)", False),
        ("job = (", False),
    ],
)
def test_a_loop_is_known_from_its_module_without_importing_it(
    tmp_path: Path, text: str, is_loop: bool
) -> None:
    (tmp_path / "train.py").write_text(text)

    assert (kind_of(_spec(), tmp_path) is Kind.LOOP) is is_loop


def test_a_loop_job_takes_a_function_and_names() -> None:
    assert LoopJob(print, metrics=["a"]).metrics == ("a",)
    with pytest.raises(TypeError, match="takes a function"):
        LoopJob(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes names"):
        LoopJob(print, metrics="val_accuracy")


def test_members_wait_at_the_end_of_an_epoch_until_all_may_go_on() -> None:
    ends = EpochEnds()
    assert not ends.holds("w0", 3, 0)
    assert ends.holds("w0", 8, 1)
    assert ends.holds("w1", 8, 1)
    ends.evaluator = "w0"
    assert ends.idle == {"w1"}
    ends.gone("w0")
    assert (ends.evaluator, ends.held) == ("", ("w1",))
    assert ends.go_on() == [("w1", 8, 1)]
    assert not ends.holds("w1", 9, 1)
    ends.begin(0)  # after a rollback
    assert ends.holds("w2", 4, 1)


def test_a_step_is_reported_with_the_samples_of_all_shards_and_the_mean_loss() -> None:
    parts = tuple(
        (f"w{k}", LeasedSamples(k, LeaseAttempt(0, k), 2, 2 + count)) for k, count in enumerate((4, 2))
    )
    averaged = StepMean((), (), False, {}, {"w0": 0.2, "w1": 0.3}, 0.0, 0.0, 2)
    step, ledger = StepInReport(5, 1, 3, parts, 0.5, averaged, 6, {"w0", "w1"}), ShardLedger((10, 10), 0)
    told = {"w0": lm.Stepped(5, 1, 4, 1.0, 0.01), "w1": lm.Stepped(5, 1, 2, 4.0, 0.02)}

    step.add("w0", told["w0"])
    assert step.awaited == {"w1"}
    step.add("w1", told["w1"])
    report = step.report(ledger)

    assert (report.samples, report.global_batch_size, report.workers) == (6, 6, 2)
    assert report.pieces == (("w0", 2, 6), ("w1", 12, 14))
    assert report.loss == pytest.approx(2.0)
    assert (report.compute_s, report.update_s) == (0.3, 0.02)
    step.add("w0", msgspec.structs.replace(told["w0"], sums={"w": (1.0, 5.0), "n": (3.0, 3.0)}))
    step.add("w1", msgspec.structs.replace(told["w1"], sums={"w": (1.00001, 5.0), "n": (3.0, 3.0)}))
    step.report(ledger)
    step.add("w1", msgspec.structs.replace(told["w1"], sums={"w": (1.01, 5.0), "n": (3.0, 3.0)}))
    with pytest.raises(TrainingCodeError, match="after step 5, the replicas of w0 and w1 differ in 'w'"):
        step.report(ledger)
    losses = EpochLosses()
    for loss, samples in ((1.0, 4), (4.0, 2), (5.0, 3), (None, 1), (math.nan, 0)):
        losses.add(1, loss, samples)
    assert losses.metrics(1) == {"loss": pytest.approx(3.0)}
    assert losses.metrics(2) == {}
    losses.undo_from(1)
    assert losses.metrics(1) == {}


def test_a_change_of_the_state_makes_another_loop() -> None:
    header = lm.TensorHeader("w", "<f4", (3, 2))
    one = manifest_of(lm.ReplicaBuilt((5, 7), (header,), ("val_error",)))

    assert (one.dataset_size, one.parameters, one.metric_names) == (12, 6, ("loss", "val_error"))
    assert (
        one.architecture
        != manifest_of(lm.ReplicaBuilt((5,), (lm.TensorHeader("w", "<f4", (2, 3)),))).architecture
    )


@pytest.mark.parametrize("batch", [4, 32])
def test_the_noise_of_successive_steps_is_that_of_two_halves(batch: int) -> None:
    random, true = np.random.default_rng(0), np.full(50, 0.2)
    steps, traces, squares = SuccessiveSteps(), [], []
    for _ in range(4000):
        gradient = true + random.normal(size=50) / np.sqrt(batch)  # a trace of 50, |g|² = 2
        means = weighted_mean([("w0", batch, {"g": gradient, "statistics/m": gradient * 100})], step=1)
        worker, whole, parts = steps.noise(means)
        if parts == 2:
            trace, square = noise_scale_parts(worker, whole, batch / 2, batch)
            traces.append(trace)
            squares.append(square)

    assert len(traces) == 3999
    assert np.mean(traces) == pytest.approx(50.0, rel=0.03)
    assert np.mean(squares) == pytest.approx(2.0, rel=0.1)


def test_a_step_that_trains_other_arrays_than_the_one_before_tells_no_noise_at_one_worker() -> None:
    steps = SuccessiveSteps()
    means = [weighted_mean([("w0", 4, {"g": np.ones(size)})], step=1) for size in (4, 3, 3, 4)]

    assert [steps.noise(mean)[2] for mean in means] == [1, 1, 2, 1]


@pytest.fixture
def block() -> Iterator[int]:
    fd = create_block()
    yield fd
    os.close(fd)


def test_places_of_the_shared_memory_are_apart_and_seen_by_all(block: int) -> None:
    tensors = {"a": np.arange(5000.0), "b": np.arange(3, dtype="float32"), "c": np.zeros((0, 2))}
    headers = lm.headers_of(tensors)
    worker, supervisor = GradientMemory(block), GradientMemory(block)

    for place in (1, 2):
        for name, array in worker.arrays(place, headers).items():
            np.copyto(array, tensors[name] * place)
    seen = [supervisor.arrays(place, headers) for place in (1, 2)]
    weighted_mean([("w0", 1, seen[0]), ("w1", 3, seen[1])], step=1, into=supervisor.arrays(MEAN, headers))

    for name, array in worker.arrays(MEAN, headers).items():
        assert array.dtype == tensors[name].dtype
        np.testing.assert_allclose(array, tensors[name] * 1.75)


def test_a_worker_that_has_other_arrays_than_before_writes_to_no_place_of_others(block: int) -> None:
    before, after = (lm.headers_of({"g": np.zeros(size)}) for size in (5000, 100))
    ahead, behind = GradientMemory(block), GradientMemory(block)
    read = [behind.arrays(place, before)["g"] for place in (MEAN, 2)]
    for array in read:
        array[:] = 3.0

    ahead.arrays(1, after)["g"][:] = 7.0

    assert all((array == 3.0).all() for array in read)


def test_other_arrays_are_told_apart_in_the_shared_memory(block: int) -> None:
    memory = GradientMemory(block)
    one = memory.arrays(1, lm.headers_of({"g": np.ones(3)}))
    other = memory.arrays(2, lm.headers_of({"g": np.ones(4)}))

    with pytest.raises(TrainingCodeError, match="w0 and w1 pushed different arrays"):
        weighted_mean([("w0", 1, one), ("w1", 1, other)], step=4)


def test_the_memory_of_a_state_is_given_back_and_that_of_others_stays(block: int) -> None:
    state, gradient = {"w": np.arange(50_000.0)}, lm.headers_of({"w": np.zeros(3)})
    memory, headers = GradientMemory(block), lm.headers_of(state)
    joiner = GradientMemory(block).of_states()
    memory.arrays(1, gradient)["w"][:] = 3.0
    for place in (STATES, STATES + 1):
        memory.put(place, headers, state)
    before = os.fstat(block).st_blocks

    memory.give_back(STATES, headers[0].bytes)

    assert os.fstat(block).st_blocks < before - headers[0].bytes // 1024
    np.testing.assert_array_equal(joiner.arrays(STATES + 1, headers)["w"], state["w"])
    assert (memory.arrays(1, gradient)["w"] == 3.0).all()


def test_arrays_of_any_shape_are_put_into_the_shared_memory(block: int) -> None:
    state = {"scalar": np.array(3.5), "none": np.zeros((0, 4)), "turned": np.arange(6.0).reshape(2, 3).T}
    headers = lm.headers_of(state)

    GradientMemory(block).put(STATES, headers, state)

    for name, array in GradientMemory(block).arrays(STATES, headers).items():
        np.testing.assert_array_equal(array, state[name])


def test_a_mean_lies_in_the_shared_memory_until_all_that_follow_have_applied_it(block: int) -> None:
    headers = lm.headers_of({"g": np.zeros(50_000)})
    leader, joiner = GradientMemory(block), GradientMemory(block)
    kept = KeptMeans(leader)
    places = {}
    for step, applied in ((5, 4), (6, 4), (7, 5), (8, 6)):  # it is behind by one step, then by two
        formed = leader.arrays(MEAN, headers)
        formed["g"][:] = step
        mean = StepMean(headers, (), True, formed, {}, 1.0, 1.0, 1)
        places[step], frames = kept.keep(mean, step, applied)
        assert not frames
        for unread in range(applied + 1, step + 1):
            assert (joiner.arrays(places[unread], headers)["g"] == unread).all()
    full = os.fstat(block).st_blocks

    assert len(set(places.values())) == 2
    kept.forget(9)
    assert os.fstat(block).st_blocks == full  # who follows no more may still have the last one to apply
    kept.forget(10)
    assert os.fstat(block).st_blocks < full - headers[0].bytes // 1024


def test_means_of_other_arrays_than_before_are_given_back_whole(block: int) -> None:
    """A layer that is unfrozen while a worker follows makes the next means larger than those that lie there."""
    leader = GradientMemory(block)
    kept = KeptMeans(leader)
    before = os.fstat(block).st_blocks
    for step, size in ((5, 50_000), (6, 10), (7, 90_000), (8, 10)):
        headers = lm.headers_of({"g": np.zeros(size)})
        mean = StepMean(headers, (), True, {"g": np.full(size, float(step))}, {}, 1.0, 1.0, 1)
        kept.keep(mean, step, step - 2)

    kept.forget(10)

    assert os.fstat(block).st_blocks - before < 64  # some pages at the ends of places
