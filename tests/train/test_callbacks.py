"""Keras callbacks in one process: what a worker that takes over makes of their state, and what is refused."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.train.transport.messages.reports import CallbacksRun
from scavenger.train.transport.messages.requests import RunCallbacks
from scavenger.train.worker.callbacks.checks import chosen_callbacks
from scavenger.train.worker.callbacks.runner import CallbackRunner
from scavenger.train.worker.callbacks.state import UnkeepableError, decode, encode

pytestmark = pytest.mark.slow

callbacks = keras.callbacks
EPOCHS = 8


def model(rate: Any = 0.1) -> Any:
    built = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    built.compile(keras.optimizers.SGD(rate), loss="mse", metrics=["mae"])
    return built


MODEL = model()


class Counting(callbacks.Callback):
    """A callback of a user, which keeps what it has seen and stops by it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        self.by_epoch: dict[int, tuple[float, str]] = {}
        self.recent: deque[float] = deque(maxlen=3)
        self.total = np.zeros(2)

    def on_train_begin(self, logs: Any = None) -> None:
        self.begun = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(logs["val_loss"])
        self.by_epoch[epoch] = (logs["loss"], "loss")
        self.recent.append(logs["loss"])
        self.total = self.total + np.array([1.0, logs["val_loss"]])
        if len(self.seen) == 6 and sum(self.recent) > 2.0 and self.total[0] == 6:
            self.model.stop_training = True


def _stepped(epoch: int, rate: float) -> float:
    return 0.5 if epoch == 0 else rate * 0.9


KINDS: dict[str, Callable[[Path], Any]] = {
    "EarlyStopping": lambda path: callbacks.EarlyStopping(patience=1, min_delta=0.05),
    "EarlyStopping, max": lambda path: callbacks.EarlyStopping(
        "val_mae", mode="max", start_from_epoch=2, patience=2
    ),
    "EarlyStopping, weights": lambda path: callbacks.EarlyStopping(patience=1, restore_best_weights=True),
    "ReduceLROnPlateau": lambda path: callbacks.ReduceLROnPlateau(
        factor=0.3, patience=1, cooldown=1, min_delta=0.05, min_lr=1e-3
    ),
    "LearningRateScheduler": lambda path: callbacks.LearningRateScheduler(_stepped),
    "ModelCheckpoint": lambda path: callbacks.ModelCheckpoint(
        path / "best.weights.h5", save_best_only=True, save_weights_only=True
    ),
    "CSVLogger": lambda path: callbacks.CSVLogger(path / "log.csv"),
    "TensorBoard": lambda path: callbacks.TensorBoard(path / "board", write_graph=False),
    "LambdaCallback": lambda path: callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: (path / f"{epoch}.txt").write_text(str(logs["val_loss"]))
    ),
    "History": lambda path: callbacks.History(),
    "RemoteMonitor": lambda path: callbacks.RemoteMonitor("http://127.0.0.1:9"),
    "a user's": lambda path: Counting(),
}


class Outcome:
    """What came of callbacks: the rate of each epoch, who stopped when, and the files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rates: list[float] = []
        self.stopped_at: int | None = None
        self.best: list[int] = []

    def files(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in sorted(self.path.glob("*.*")) if file.suffix != ".h5"}


def plain(make: Callable[[Path], Any], metrics: list[dict[str, float]], path: Path) -> Outcome:
    """What Keras's own list of callbacks does, called as `fit` does."""
    outcome, callback = Outcome(path), make(path)
    MODEL.optimizer.learning_rate = 0.1
    MODEL.stop_training = False
    called = callbacks.CallbackList([callback], model=MODEL, epochs=len(metrics))
    called.on_train_begin()
    for epoch, logs in enumerate(metrics):
        called.on_epoch_begin(epoch)
        outcome.rates.append(float(MODEL.optimizer.learning_rate.numpy()))
        called.on_epoch_end(epoch, dict(logs))
        if getattr(callback, "best_epoch", None) == epoch and getattr(callback, "best_weights", None):
            outcome.best.append(epoch)
        if MODEL.stop_training:
            outcome.stopped_at = epoch
            break
    called.on_train_end()
    return outcome


def moving(
    make: Callable[[Path], Any], metrics: list[dict[str, float]], path: Path, dying: int | None = None
) -> Outcome:
    """What the job makes of it if another worker runs the callbacks at each epoch.

    Args:
        dying: The epoch at which a worker dies after the run, before its answer arrives.
    """
    outcome, state, scale = Outcome(path), "", 1.0
    for epoch in range(-1, len(metrics)):
        for _ in range(2 if epoch == dying else 1):
            MODEL.optimizer.learning_rate = 0.1
            runner = CallbackRunner(MODEL, [make(path)])
            logs = metrics[epoch] if epoch >= 0 else {}
            request = RunCallbacks(
                1, epoch, epoch + 1, logs, len(metrics), epoch + 1 == len(metrics), state, scale
            )
            answer = runner.run(request)
        state, scale = answer.state, answer.rate_scale
        if answer.keep_best:
            outcome.best.append(epoch)
        if answer.stopped_by:
            outcome.stopped_at = epoch
            break
        if not request.last:
            outcome.rates.append(float(np.float32(float(np.float32(0.1)) * scale)))
    runner.end(RunCallbacks(1, epoch, epoch + 1, logs, len(metrics), True, state, scale))
    return outcome


LOSSES = st.lists(st.floats(0.0, 2.0, width=32) | st.just(math.nan), min_size=EPOCHS, max_size=EPOCHS)


@pytest.mark.filterwarnings("ignore:Could not reach RemoteMonitor")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(losses=LOSSES, dying=st.integers(-1, EPOCHS - 1))
def test_another_worker_at_each_epoch_goes_on_exactly(
    kind: str, losses: list[float], dying: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if kind == "TensorBoard":
        pytest.importorskip("tensorboard")
    metrics = [{"loss": x / 2, "mae": x / 3, "val_loss": x, "val_mae": 2.0 - x} for x in losses]
    expected = plain(KINDS[kind], metrics, tmp_path_factory.mktemp("plain"))
    outcome = moving(KINDS[kind], metrics, tmp_path_factory.mktemp("moving"), dying)

    assert outcome.rates[: len(expected.rates)] == expected.rates
    assert outcome.stopped_at == expected.stopped_at
    assert outcome.best == expected.best
    assert outcome.files() == expected.files()


# ---- hooks of batches --------------------------------------------------------------------------------------

STEPS = 3


class Cycle(callbacks.Callback):
    """A learning rate of its own for every batch, as in schedules with one cycle; stops after some batches."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last, self.trained = last, 0
        self.seen: list[tuple[str, int, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch", epoch, 0.0))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 / (1 + self.trained)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.trained += 1
        self.seen.append(("batch", batch, logs["loss"]))
        if self.trained == self.last:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("end", epoch, logs["val_loss"]))


def _logs(step: int) -> dict[str, float]:
    return {"loss": 1.0 / (1 + step)}


def _epoch_logs(step: int) -> dict[str, float]:
    return _logs(step) | {"val_loss": float(step)}


def plainly_by_batches(callback: Any, epochs: int) -> list[float]:
    """Rates of the steps, with the callback called as `fit` calls it."""
    MODEL.optimizer.learning_rate, MODEL.stop_training, rates = 0.1, False, []
    called = callbacks.CallbackList([callback], model=MODEL, epochs=epochs)
    called.on_train_begin()
    for epoch in range(epochs):
        called.on_epoch_begin(epoch)
        for batch in range(STEPS):
            called.on_train_batch_begin(batch)
            rates.append(float(MODEL.optimizer.learning_rate.numpy()))
            called.on_train_batch_end(batch, _logs(len(rates) - 1))
            if MODEL.stop_training:
                break
        called.on_epoch_end(epoch, _epoch_logs(len(rates) - 1))
        if MODEL.stop_training:
            break
    called.on_train_end()
    return rates


def moving_by_batches(make: Callable[[], Any], epochs: int) -> tuple[Any, list[float]]:
    """The callback and the rates of the steps, with another worker for every run."""
    answer, made, rates, step = None, None, [], 0

    def run(epoch: int, logs: dict[str, float], last: bool = False, **more: Any) -> CallbacksRun:
        nonlocal made
        MODEL.optimizer.learning_rate = 0.1
        made = make()
        state, scale = ("", 1.0) if answer is None else (answer.state, answer.rate_scale)
        request = RunCallbacks(1, epoch, step, logs, epochs, last, state, scale, **more)
        runner = CallbackRunner(MODEL, [made])
        return runner.run(request, logs)

    answer = run(-1, {})
    for epoch in range(epochs):
        for batch in range(STEPS):
            rates.append(float(np.float32(float(np.float32(0.1)) * answer.rate_scale)))
            step += 1
            if batch + 1 < STEPS:
                answer = run(epoch, _logs(step - 1), batch=batch, ends_epoch=False)
            if answer.stopped_by:
                run(epoch, _epoch_logs(step - 1), last=True)
                return made, rates
        answer = run(epoch, _epoch_logs(step - 1), last=epoch + 1 == epochs, batch=STEPS - 1)
        if answer.stopped_by:
            break
    return made, rates


@pytest.mark.parametrize("last", [2, 3, 5, 100])
def test_another_worker_at_each_batch_goes_on_exactly(last: int) -> None:
    expected = Cycle(last)
    rates = plainly_by_batches(expected, 3)
    made, found = moving_by_batches(lambda: Cycle(last), 3)

    np.testing.assert_allclose(found, rates, rtol=1e-6)
    assert len(found) == len(rates)
    assert (made.trained, [tuple(entry) for entry in made.seen]) == (expected.trained, expected.seen)


def test_a_checkpoint_at_every_other_batch_is_written_as_in_keras(tmp_path: Path) -> None:
    names = []
    for folder in (tmp_path / "plain", tmp_path / "moving"):
        folder.mkdir()

        def make(folder: Path = folder) -> Any:
            path = folder / "{epoch}-{batch}.weights.h5"
            return callbacks.ModelCheckpoint(path, save_freq=2, save_weights_only=True)

        if folder.name == "plain":
            plainly_by_batches(make(), 2)
        else:
            moving_by_batches(make, 2)
        names.append(sorted(path.name for path in folder.iterdir()))

    assert names[0] == names[1] == ["1-2.weights.h5", "2-1.weights.h5", "2-3.weights.h5"]


def test_only_callbacks_with_hooks_of_batches_run_at_batches_and_a_note_says_what_it_costs() -> None:
    quiet = begin(callbacks.History())
    assert not quiet.batch_hooks

    runner = CallbackRunner(model(), [Counting(), callbacks.LambdaCallback(on_train_batch_end=_nothing)])
    answer = runner.run(RunCallbacks(1, -1, 0, {}, EPOCHS, False, "", 1.0))

    assert runner.batch_hooks
    assert [note for note in answer.notes if "the callbacks LambdaCallback have hooks of batches" in note]


def _nothing(batch: int, logs: Any) -> None: ...


def test_stopping_before_a_batch_is_refused_since_keras_would_train_it() -> None:
    class Early(callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    with pytest.raises(NotSupportedError, match="do it in on_train_batch_end"):
        begin(Early())


# ---- the state of attributes -------------------------------------------------------------------------------

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.floats(width=32).map(np.float32)
)
_VALUES = st.recursive(
    _SCALARS | hnp.arrays(st.sampled_from(["f4", "f8", "i8", "?"]), hnp.array_shapes(min_dims=0)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=3)
        | st.sets(st.integers() | st.text(), max_size=3)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 5))
    ),
    max_leaves=8,
)


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other or (one != one and other != other)


@given(value=_VALUES)
def test_values_are_kept_as_they_are(value: Any) -> None:
    assert_equal(decode(json.loads(json.dumps(encode(value)))), value)


@pytest.mark.parametrize(
    "value", [print, object(), np.zeros(1 << 20), "x" * (1 << 20), [0.5] * 100_000, np.array([object()])]
)
def test_other_types_and_large_values_are_not_kept(value: Any) -> None:
    with pytest.raises(UnkeepableError):
        encode(value)


# ---- what is run, left out and refused ---------------------------------------------------------------------


def begin(*given: Any, trained: Any = None) -> CallbackRunner:
    runner = CallbackRunner(trained or model(), list(given), job_dir=str(Path(__file__).parent))
    runner.run(RunCallbacks(1, -1, 0, {}, EPOCHS, False, "", 1.0))
    return runner


def end_epoch(runner: CallbackRunner, epoch: int = 0) -> CallbacksRun:
    before = runner.run(RunCallbacks(1, -1, 0, {}, EPOCHS, False, "", 1.0))
    return runner.run(
        RunCallbacks(
            2, epoch, 5, {"loss": 1.0, "val_loss": 2.0}, EPOCHS, False, before.state, before.rate_scale
        )
    )


def test_callbacks_whose_work_the_job_does_are_left_out_with_a_note(tmp_path: Path) -> None:
    left_out = [callbacks.BackupAndRestore(tmp_path), callbacks.TerminateOnNaN(), callbacks.ProgbarLogger()]

    chosen, notes = chosen_callbacks([*left_out, [callbacks.History()]])

    assert [type(callback).__name__ for callback in chosen] == ["History"]
    assert len(notes) == 3
    assert "scavenger resume" in notes[0]


class AtTestBatches(callbacks.Callback):
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AtTestBatches(), "AtTestBatches.on_test_batch_end is not called"),
        (lambda: callbacks.TensorBoard(update_freq=5), "update_freq=5"),
        (lambda: callbacks.SwapEMAWeights(), "SwapEMAWeights"),
        (lambda: [callbacks.EarlyStopping(restore_best_weights=True) for _ in range(2)], "only one"),
        (lambda: print, "not builtin_function_or_method"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    make: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())  # as if tensorboard were there
    with pytest.raises(NotSupportedError, match=re.escape(words)):
        chosen_callbacks(make())


def test_tensorboard_without_its_package_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotSupportedError, match="pip install tensorboard"):
        chosen_callbacks(callbacks.TensorBoard())


def _assign(callback: Any) -> None:
    callback.model.layers[0].kernel.assign_add(callback.model.layers[0].kernel)


def _freeze(callback: Any) -> None:
    callback.model.layers[0].trainable = False


def _recompile(callback: Any) -> None:
    callback.model.compile("adam", loss="mse")


def _momentum(callback: Any) -> None:
    callback.model.optimizer.momentum = 0.5


@pytest.mark.parametrize("change", [_assign, _freeze, _recompile, _momentum])
def test_a_callback_that_changes_what_it_may_not_ends_the_job(change: Callable[[Any], None]) -> None:
    class Changing(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            change(self)

    with pytest.raises(NotSupportedError, match=r"Changing.*has changed the weights"):
        end_epoch(begin(Changing()))


def test_a_failing_callback_is_named_with_its_line() -> None:
    def fail(epoch: int, logs: Any) -> None:
        raise ValueError("no such thing")

    line = fail.__code__.co_firstlineno + 1
    with pytest.raises(
        TrainingCodeError,
        match=rf"^the callback LambdaCallback, on_epoch_end: test_callbacks.py:{line}: ValueError: no such thing",
    ):
        end_epoch(begin(callbacks.LambdaCallback(on_epoch_end=fail)))


def test_the_rate_is_relative_to_that_of_the_compiled_model_and_a_schedule_cannot_be_set() -> None:
    def set_rate(rate: float) -> Any:
        return callbacks.LearningRateScheduler(lambda epoch: rate)

    answer = end_epoch(begin(set_rate(0.02)))
    assert answer.learning_rate == pytest.approx(0.02)
    assert np.float32(float(np.float32(0.1)) * answer.rate_scale) == np.float32(0.02)

    with pytest.raises(NotSupportedError, match="compiled with 0"):
        begin(set_rate(0.02), trained=model(0.0))
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(TrainingCodeError, match="LearningRateScheduler, on_epoch_begin"):
        begin(set_rate(0.02), trained=model(schedule))
    assert end_epoch(begin(callbacks.History(), trained=model(schedule))).learning_rate is None


def test_a_repeated_request_gets_the_same_answer_without_another_run() -> None:
    counting = Counting()
    runner = begin(counting)
    answer = end_epoch(runner)
    request = RunCallbacks(7, 0, 5, {"loss": math.nan, "val_loss": 1.0}, EPOCHS, False, answer.state, 1.0)
    again = msgspec.structs.replace(request, number=8, metrics={"loss": math.nan, "val_loss": 1.0})

    assert runner.answer_to(request) is None
    first = runner.run(request)
    seen = list(counting.seen)

    assert runner.answer_to(again) == msgspec.structs.replace(first, number=8)
    assert counting.seen == seen


def test_attributes_that_cannot_be_kept_are_named_once_they_change() -> None:
    class Holding(callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.data = np.zeros(1 << 20)
            self.plot: Any = None

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.plot = object()

    answer = end_epoch(begin(Holding()))

    assert len(answer.notes) == 1
    assert "Holding: plot cannot be kept" in answer.notes[0]


def test_where_a_module_changes_a_setting_the_resumed_job_has_it() -> None:
    runner = begin(callbacks.EarlyStopping("val_loss", patience=5))
    state = end_epoch(runner).state

    changed = callbacks.EarlyStopping("val_loss", patience=9)
    CallbackRunner(MODEL, changed).run(
        RunCallbacks(1, 1, 9, {"loss": 1.0, "val_loss": 3.0}, EPOCHS, False, state, 1.0)
    )

    assert (changed.patience, changed.best, changed.wait) == (9, 2.0, 1)
