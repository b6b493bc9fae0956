"""Runs a job's Keras callbacks in a worker, at the ends of epochs, and of steps where they have hooks of batches.

A run is a function of the state after the run before, the metrics and the weights: it returns the new state, so that
any other worker can do the next run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import msgspec
import numpy as np

from scavenger.errors import NotSupportedError, ScavengerError, TrainingCodeError
from scavenger.train.aggregation.keras_state import parts_of
from scavenger.train.failure import describe_failure, describe_limit
from scavenger.train.transport.messages.reports import CallbacksRun
from scavenger.train.transport.messages.requests import RunCallbacks
from scavenger.train.worker.callbacks.attributes import CallbackAttributes
from scavenger.train.worker.callbacks.checks import (
    chosen_callbacks,
    has_batch_hooks,
    needs_model,
    restores_best_weights,
)
from scavenger.train.worker.callbacks.other_state import OtherState, changes
from scavenger.train.worker.callbacks.rates import rates_asked


class CallbackRunner:
    """The callbacks of one job in one worker.

    Args:
        model: The compiled model.
        given: The callbacks of the user's module.
        job_dir: The folder of the user's module, to name the line that failed.
        data: The data sets of the user's module.

    Attributes:
        names: Classes of the callbacks that are run.
        batch_hooks: Whether some of them run at every step, too.

    Raises:
        NotSupportedError: If a callback cannot be run.
    """

    def __init__(self, model: Any, given: Any, *, job_dir: str = "", data: Sequence[Any] = ()) -> None:
        self._model, self._job_dir, self._data = model, job_dir, data
        self._others: OtherState | None = None  # until the model is built
        self._callbacks, self._notes = chosen_callbacks(given)
        self.names = tuple(type(callback).__name__ for callback in self._callbacks)
        self._at_batches = [has_batch_hooks(callback) for callback in self._callbacks]
        self.batch_hooks = any(self._at_batches)
        if self.batch_hooks:
            slow = ", ".join(name for name, at in zip(self.names, self._at_batches, strict=True) if at)
            self._notes += (
                f"the callbacks {slow} have hooks of batches: after each step, all workers wait until they have run",
            )
        self._attributes = [CallbackAttributes(callback) for callback in self._callbacks]
        self._optimizer = model.optimizer
        self._rates = [
            (one._learning_rate, float(np.float32(one._learning_rate.numpy())))
            for one in parts_of(model.optimizer)
            if isinstance(one._learning_rate, keras.Variable)
        ]
        self._state: str | None = None
        self._request: RunCallbacks | None = None
        self._answer: CallbacksRun | None = None

    def answer_to(self, request: RunCallbacks) -> CallbacksRun | None:
        """Return the answer to a request that is repeated; None if it is a new one."""
        if self._request is None or self._answer is None or not request.repeats(self._request):
            return None
        return msgspec.structs.replace(self._answer, number=request.number)

    def needs_model(self, request: RunCallbacks) -> bool:
        """Whether a callback that the request runs may look at the weights, which must be in the model then."""
        return any(
            needs_model(callback) and (request.ends_epoch or at_batches)
            for callback, at_batches in zip(self._callbacks, self._at_batches, strict=True)
        )

    def run(self, request: RunCallbacks, metrics: Mapping[str, float] | None = None) -> CallbacksRun:
        """Run the callbacks for an epoch or step that has ended, and for the beginning of the next.

        If `needs_model`, the model must have the weights and the optimizer's state after the step.

        Args:
            request: What to run.
            metrics: The metrics of the epoch so far, after a step within it; None for those of the request.

        Raises:
            TrainingCodeError: If a callback fails.
            NotSupportedError: If a callback changes what only the job may change.
        """
        looks = self.needs_model(request)
        before = self._untouchable(looks)
        self._others = self._others or OtherState(self._model, self._data)
        others_before = self._others.set_by_others()
        self._set_rates(request.rate_scale)
        self._begin(request)
        model, logs = self._model, dict(request.metrics if metrics is None else metrics)
        model.stop_training, stopped_by = False, ""
        if request.batch is not None:
            trained = {name: value for name, value in logs.items() if not name.startswith("val_")}
            stopped_by = self._call_at_batches("on_train_batch_end", request.batch, trained)
        if request.epoch >= 0 and request.ends_epoch:
            self._test_hooks(logs)
            stopped_at_end = self._call("on_epoch_end", request.epoch, logs)
            stopped_by = stopped_by or stopped_at_end
        if not (request.last or stopped_by):
            stopped_by = self._begin_next(request)
        if stopped_by and request.epoch < 0:
            raise NotSupportedError(f"the callback {stopped_by} stops training before its first epoch")
        rate_scale, learning_rate = self._rate_set()
        self._set_rates(1.0)
        suspects = [n for n, c in zip(self.names, self._callbacks, strict=True) if needs_model(c)]
        changing = ", ".join(suspects or self.names)
        if changed := changes(others_before, self._others.set_by_others()):
            raise NotSupportedError(
                f"a callback ({changing}) has changed {changed[0]}, which the training reads, in the one worker that "
                "runs it: let the step compute it, as from a weight of a layer that counts steps (docs/keras.md)"
            )
        if before != self._untouchable(looks):
            raise NotSupportedError(
                f"a callback ({changing}) has changed the weights, the optimizer or which layers are trainable: "
                "callbacks of a job may stop it and set the learning rate, and the aggregators alone update weights"
            )
        keep_best = self._forget_best_weights() if request.epoch >= 0 and request.ends_epoch else None
        self._flush()
        self._state = self._read()
        self._request, self._answer = (
            request,
            CallbacksRun(
                number=request.number,
                epoch=request.epoch,
                step=request.step,
                state=self._state,
                rate_scale=rate_scale,
                learning_rate=learning_rate,
                stopped_by=stopped_by,
                keep_best=keep_best,
                notes=(*(self._notes if request.epoch < 0 else ()), *self._unkept()),
                ends_epoch=request.ends_epoch,
                rates_ahead=self._rates_ahead(request.epochs) if request.epoch < 0 else (),
            ),
        )
        return self._answer

    def end(self, request: RunCallbacks) -> None:
        """Call `on_train_end`; the request has the last epoch, its metrics and the state after it.

        Raises:
            TrainingCodeError: If a callback fails.
        """
        self._begin(request)
        for callback in self._callbacks:
            if restores_best_weights(callback):
                callback.best_weights = None  # the model has them
        self._call("on_train_end", dict(request.metrics))
        self._state = self._request = self._answer = None

    # ---- state ---------------------------------------------------------------------------------------------

    def _begin(self, request: RunCallbacks) -> None:
        """Bring the callbacks into the state that the request gives, whatever they have done here before."""
        if self._state is not None and self._state == request.state:
            return
        kept: list[dict[str, Any]] = [{} for _ in self._callbacks]
        for attributes in self._attributes:
            attributes.reset()
        if request.state:
            kept = _of_these(json.loads(request.state), self.names)
            for attributes, state in zip(self._attributes, kept, strict=True):
                attributes.cut_log(state)
        for callback in self._callbacks:
            callback.set_params({"verbose": 1, "epochs": request.epochs, "steps": None})
            callback.set_model(self._model)
        self._call("on_train_begin", {})
        for attributes, state in zip(self._attributes, kept, strict=True):
            attributes.write(state)
        if request.state:
            self._set_rates(request.rate_scale)  # in a process that takes over, `on_train_begin` is repeated

    def _read(self) -> str:
        states = [attributes.read() for attributes in self._attributes]
        return json.dumps([list(pair) for pair in zip(self.names, states, strict=True)])

    def _unkept(self) -> tuple[str, ...]:
        """Notes on attributes that a worker which takes over has as the user's module builds them."""
        notes = []
        for callback, name, attributes in zip(self._callbacks, self.names, self._attributes, strict=True):
            if attributes.unkept and not type(callback).__module__.startswith("keras."):
                unkept = ", ".join(sorted(attributes.unkept))
                notes.append(
                    f"the callback {name}: {unkept} cannot be kept with the record of the job (numbers, texts, arrays "
                    "and collections of them can), so a worker that takes over has them as the module builds them"
                )
        return tuple(notes)

    def _forget_best_weights(self) -> bool | None:
        """Drop the weights that an EarlyStopping has just kept; returns whether it has, None if none keeps any."""
        for callback in self._callbacks:
            if restores_best_weights(callback):
                new = bool(callback.best_weights)
                if new:
                    callback.best_weights = []  # which is not None: it has kept some
                return new
        return None

    def _flush(self) -> None:
        """Write what TensorBoard has collected, since a worker may end at any time."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.TensorBoard):
                for writer in callback._writers.values():
                    writer.flush()

    # ---- calls ---------------------------------------------------------------------------------------------

    def _begin_next(self, request: RunCallbacks) -> str:
        """Call the hooks at the beginning of the next epoch, or of the next step within this one."""
        stopped_by, batch = "", (request.batch or 0) + 1
        if request.ends_epoch:
            stopped_by, batch = self._call("on_epoch_begin", request.epoch + 1, {}), 0
        stopping = "" if stopped_by else self._call_at_batches("on_train_batch_begin", batch, {})
        if stopping:
            raise NotSupportedError(
                f"the callback {stopping} stops training in on_train_batch_begin: Keras would train that batch, so do "
                "it in on_train_batch_end"
            )
        return stopped_by

    def _call_at_batches(self, hook: str, batch: int, logs: Mapping[str, float]) -> str:
        """Call a hook of the callbacks that have hooks of batches; see `_call`."""
        return self._call(hook, batch, dict(logs), among=self._at_batches)

    def _test_hooks(self, logs: Mapping[str, float]) -> None:
        """Call the hooks of the evaluation, which several workers have done."""
        evaluated = {
            name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")
        }
        if evaluated:
            self._call("on_test_begin", {})
            self._call("on_test_end", evaluated)

    def _call(self, hook: str, *args: Any, among: Sequence[bool] | None = None) -> str:
        """Call a hook of all callbacks, or of some; returns the class of the first that has stopped training."""
        stopped_by = ""
        called = among or [True] * len(self._callbacks)
        for callback, name in itertools.compress(zip(self._callbacks, self.names, strict=True), called):
            try:
                getattr(callback, hook)(*args)
            except ScavengerError:
                raise
            except Exception as error:
                if describe_limit(error):
                    raise
                if isinstance(error, ValueError) and "read-only" in str(error):
                    raise NotSupportedError(
                        f"the callback {name}, {hook}, writes into an array of the job's data: fit trains on a copy, "
                        "and other workers would have other data; write into a copy"
                    ) from error
                _, text = describe_failure(error, self._job_dir)
                raise TrainingCodeError(f"the callback {name}, {hook}: {text}") from error
            if self._model.stop_training and not stopped_by:
                stopped_by = name
        return stopped_by

    # ---- what callbacks may change -------------------------------------------------------------------------

    def _set_rates(self, scale: float) -> None:
        for variable, rate in self._rates:
            variable.assign(rate * scale)

    def _rate_set(self) -> tuple[float, float | None]:
        """Return the learning rate over the compiled one, and itself; it is None if the optimizer has a schedule."""
        now = [float(np.float32(variable.numpy())) for variable, _ in self._rates]
        scales = []
        for value, (_, rate) in zip(now, self._rates, strict=True):
            if rate == 0.0 != value:
                raise NotSupportedError(
                    "a callback sets the learning rate of an optimizer that was compiled with 0: compile it with "
                    "another one"
                )
            scales.append(value / rate if rate else None)
        known = {scale for scale in scales if scale is not None}
        # the same factor on several rates, each rounded to single precision
        if known and not np.allclose(sorted(known), max(known), rtol=1e-6, atol=0.0):
            raise NotSupportedError(
                "a callback gives the optimizers of a MultiOptimizer learning rates in another proportion than they "
                "were compiled with"
            )
        return (max(known) if known else 1.0), (now[0] if now else None)

    def _rates_ahead(self, epochs: int) -> tuple[float, ...]:
        """The learning rate of each epoch over the compiled one; empty where it cannot be known beforehand."""
        rate = self._rates[0][1] if self._rates else 0.0
        return tuple(one / rate for one in rates_asked(self._callbacks, rate, epochs)) if rate else ()

    def _untouchable(self, weights: bool) -> Any:
        """What callbacks must leave as it is, to be compared, with or without the weights."""
        model = self._model
        optimizers = parts_of(model.optimizer)
        configurations = [one.get_config() for one in (optimizers[1:] or optimizers)]
        for configuration in configurations:
            configuration.pop("learning_rate", None)
        return (
            model.optimizer is self._optimizer,
            [id(one._learning_rate) for one in optimizers],
            [id(variable) for variable in model.trainable_variables],
            json.dumps(configurations, sort_keys=True, default=str),
            # digests, since copies of the weights would double them
            [_digest(weight.numpy()) for weight in model.weights] if weights else (),
        )


def _digest(array: Any) -> bytes:
    return hashlib.blake2b(np.asarray(array).tobytes()).digest()


def _of_these(document: Sequence[Sequence[Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The states of these callbacks; empty for one whose state was not kept, as after a change of the module."""
    states = [state for _, state in document] if [name for name, _ in document] == list(names) else []
    return states or [{} for _ in names]
