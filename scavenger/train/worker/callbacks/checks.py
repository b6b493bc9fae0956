"""Which of a user's callbacks a job runs, leaves out or refuses."""

from __future__ import annotations

import importlib.util
from typing import Any

import keras

from scavenger.errors import NotSupportedError

_Callback = keras.callbacks.Callback

_LEFT_OUT: tuple[tuple[str, str], ...] = (
    ("BackupAndRestore", "the job writes checkpoints itself, and `scavenger resume` goes on from them"),
    ("ProgbarLogger", "the job shows its own progress"),
    ("TerminateOnNaN", "a step whose loss or gradient is not finite is not applied, and ends the job"),
)
"""Callbacks whose work the job does itself, and how."""

_REFUSED: tuple[tuple[str, str], ...] = (
    (
        "SwapEMAWeights",
        "it changes the weights, which only aggregators do; the saved model has the averages of use_ema",
    ),
    ("OrbaxCheckpoint", "it saves at batches; use ModelCheckpoint, or the job's own checkpoints"),
)
"""Callbacks that the job can neither run nor replace, and why."""

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")

_WITHOUT_MODEL = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks that look at metrics and the learning rate alone."""


def chosen_callbacks(given: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the callbacks that the job runs, and notes on those that it leaves out.

    Args:
        given: A callback, or a list of them, as in Keras's `fit`; None for none.

    Raises:
        NotSupportedError: If one of them cannot be run; says why.
    """
    chosen: list[Any] = []
    notes = []
    for callback in _flat(given):
        if not isinstance(callback, _Callback):
            raise NotSupportedError(
                f"KerasJob(callbacks=...) takes keras.callbacks.Callback objects, not {type(callback).__name__}"
            )
        name = type(callback).__name__
        if why := _kind_of(callback, _REFUSED):
            raise NotSupportedError(f"callbacks: {name} is not supported: {why}")
        if why := _kind_of(callback, _LEFT_OUT):
            notes.append(f"the callback {name} is left out: {why}")
            continue
        _check(callback, name)
        chosen.append(callback)
    if sum(restores_best_weights(callback) for callback in chosen) > 1:
        raise NotSupportedError(
            "callbacks: only one EarlyStopping may have restore_best_weights=True: a job keeps one set of weights"
        )
    return chosen, tuple(notes)


def needs_model(callback: Any) -> bool:
    """Whether a callback may look at the weights or the optimizer's state; one of unknown code may."""
    return type(callback) not in _WITHOUT_MODEL


def has_batch_hooks(callback: Any) -> bool:
    """Whether a callback is to run at every step."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_freq != "epoch":
        return True
    return any(_is_own(callback, hook) for hook in _BATCH_HOOKS)


def restores_best_weights(callback: Any) -> bool:
    """Whether a callback keeps the best weights, and restores them at the end of training."""
    return isinstance(callback, keras.callbacks.EarlyStopping) and bool(callback.restore_best_weights)


def _flat(given: Any) -> list[Any]:
    if isinstance(given, keras.callbacks.CallbackList):
        return _flat(given.callbacks)
    if isinstance(given, list | tuple):
        return [callback for item in given for callback in _flat(item)]
    return [] if given is None else [given]


def _kind_of(callback: Any, reasons: tuple[tuple[str, str], ...]) -> str:
    for name, why in reasons:
        kind = getattr(keras.callbacks, name, None)
        if kind is not None and isinstance(callback, kind):
            return why
    return ""


def _check(callback: Any, name: str) -> None:
    """Refuse a callback that is to do something that no worker can."""
    for hook in _TEST_HOOKS:
        if _is_own(callback, hook):
            raise NotSupportedError(
                f"callbacks: {name}.{hook} is not called: several workers evaluate at once, each a part of the "
                "validation data; use on_test_end or on_epoch_end"
            )
    if not isinstance(callback, keras.callbacks.TensorBoard):
        return
    if importlib.util.find_spec("tensorboard") is None:
        raise NotSupportedError(f"callbacks: {name} needs another package: pip install tensorboard")
    for setting, value, allowed in (
        ("update_freq", callback.update_freq, "epoch"),
        ("profile_batch", callback._stop_batch, 0),
        ("write_steps_per_second", callback.write_steps_per_second, False),
    ):
        if value != allowed:
            raise NotSupportedError(
                f"callbacks: {name}({setting}={value!r}) is not supported: it runs when an epoch ends, since several "
                f"workers compute each batch; use {setting}={allowed!r}"
            )


def _is_own(callback: Any, hook: str) -> bool:
    """Whether a hook is the user's: set on the object, or defined by a class that is not one of Keras's."""
    if hook in vars(callback):
        return True
    owner = next(kind for kind in type(callback).__mro__ if hook in vars(kind))
    return owner.__module__.partition(".")[0] != "keras"
