"""The user's Keras model as three pure functions of (weights, samples): gradient, evaluation, metrics.

A worker keeps no state between steps that it could not fetch again: weights come in, gradients go out, dropout
draws from random streams that depend on the sample positions, and metric variables are zeroed before each step and
summed by the aggregator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from scavenger.elastic.order import Passes
from scavenger.errors import NotSupportedError
from scavenger.private_files import FILE_MODE, make_private_folder
from scavenger.sdk.job import KerasJob
from scavenger.train.aggregation.keras_state import (
    OptimizerState,
    Rate,
    assign_state,
    has_schedule,
    iterations_of,
    read_state,
    serialised,
)
from scavenger.train.names import partial_model
from scavenger.train.transport.messages.values import Manifest, TensorSpec
from scavenger.train.worker.callbacks.other_state import OtherState, changes
from scavenger.train.worker.callbacks.runner import CallbackRunner
from scavenger.train.worker.checks import (
    check_model,
    check_saving,
    check_variables,
    constraint_of,
    notes_of_model,
)
from scavenger.train.worker.data import ArraySource
from scavenger.train.worker.fingerprint import architecture, digest_of_samples
from scavenger.train.worker.fit_arguments import lock_arrays, open_data, passes_of
from scavenger.train.worker.generators import Generators
from scavenger.train.worker.gradients import Gradient, merged, rows_of, seen, shared
from scavenger.train.worker.prefetch import Prefetcher
from scavenger.train.worker.preparation import check_evaluation, left_as_it_was, prepare, without_gradient
from scavenger.train.worker.separability import Separability, whole_metrics
from scavenger.train.worker.steps import Steps, compiled

Array = npt.NDArray[Any]


class Program:
    """A job's model and data inside a worker.

    Args:
        job: The job that the user's module defines.
        job_dir: The folder of that module, to name the line of a callback that fails.
        schedule_batch: See `Manifest.schedule_batch`.

    Attributes:
        callbacks: Runs the job's callbacks.
        mixes_samples: Whether the forward pass in training combines the samples of a batch, as `BatchNormalization`
            does. Then the mean of the gradients of a batch's halves is not the gradient of the batch.

    Raises:
        NotSupportedError: If the model trains in a way that cannot be split over workers, or a callback cannot be run.
        DataError: If the data cannot be read.
    """

    def __init__(self, job: KerasJob, job_dir: str = "", *, schedule_batch: int = 0) -> None:
        self.model = job.model
        check_model(self.model)
        self._steps = Steps(self.model)
        data = tuple(one for one in (job.train, job.validation) if one is not None)
        self.callbacks = CallbackRunner(self.model, job.callbacks, job_dir=job_dir, data=data)
        self.train, self.validation = open_data(job)
        lock_arrays(data)
        self._validation = None if self.validation is None else Prefetcher(self.validation)
        sample = self.train.batch(np.zeros(1, dtype=np.int64))
        prepare(self.model, self._steps, sample)
        check_saving(self.model)

        model = self.model
        weights = {id(v) for v in model.non_trainable_weights}
        self._states = [v for v in model.non_trainable_variables if id(v) in weights]
        unused = without_gradient(self.model, self._steps, sample)  # an optimizer of Keras leaves them alone
        self._trainable = [v for v in model.trainable_variables if id(v) not in unused]
        self._states += [v for v in model.trainable_variables if id(v) in unused]
        self._generators = Generators([v for v in model.non_trainable_variables if id(v) not in weights])
        self._metrics = [v for metric in model.metrics for v in metric.variables]
        self.mixes_samples = any(
            isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
            for layer in model._flatten_layers()
        )
        check_variables(self._trainable, self._states)
        unsplit = Separability(
            model,
            self._steps,
            self.train,
            self._trainable,
            self._states,
            self._metrics,
            lambda number: self.draw_from(0, number),
            inference=self.validation is not None or not self._steps.own_train,
        ).check()
        self._whole_metrics, self._left_out = whole_metrics(model, self._metrics, unsplit)
        self.manifest = self._manifest(sample, passes_of(job, len(self.train)), schedule_batch)

        specs = _specs(sample)
        state = [tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype)) for tensor in self.manifest.tensors]
        streams = tf.TensorSpec((self._generators.count, 2), tf.int64)
        self._whole = compiled(model, self._gradient_whole, [state, specs, streams])
        if self.validation is not None:
            specs = _specs(self.validation.batch(np.zeros(1, dtype=np.int64)))
            check_evaluation(model, self._steps, sample, self.variables)
        self._test = compiled(model, self._evaluate_batch, [specs, streams])
        self._rate = Rate(model.optimizer)
        self._check_others(sample)
        self._load = tf.function(self._assign, input_signature=[state], autograph=False)

    @property
    def variables(self) -> list[Any]:
        """The model's variables whose values are the weights, in the manifest's order."""
        return self._trainable + self._states

    def initial_state(self) -> list[Array]:
        """Return the initial weights of the user's model, in the manifest's order."""
        return [v.numpy() for v in self.variables]

    def initial_slots(self) -> Mapping[tuple[int, int], Array] | None:
        """Return the arrays of an optimizer that has taken steps already, as in `OptimizerState`; else None."""
        if not self.manifest.iterations:
            return None
        return read_state(self.model.optimizer, self.model.trainable_variables, self._trainable)

    def alias(self, arrays: Sequence[Array]) -> list[Any]:
        """Return tensors that share memory with these arrays, to pass them as weights without a copy.

        The tensors see every change of the arrays, so the arrays must not change while the tensors are in use. The
        model's variables refer to this memory until other weights are passed.
        """
        return [shared(array) for array in arrays]

    def gradient(
        self,
        weights: Sequence[Array],
        batch: tuple[Any, ...],
        *,
        seed: int,
        position: int,
        loss_scale: float = 1.0,
    ) -> Gradient:
        """Compute the gradient of the mean loss over some samples at given weights.

        Args:
            weights: In the manifest's order; arrays, or tensors from `alias`.
            batch: The samples, as `train.batch` gives them; at least 1.
            seed: The job's seed.
            position: Number of samples that the job has used before the first of these; seed and position
                determine the random numbers that dropout draws.
            loss_scale: With dynamic loss scaling, the factor on the loss; the gradients are divided by it again.
        """
        self._steps.loss_scale.assign(loss_scale)
        gradients, states, metrics, loss = self._whole(
            list(weights), batch, self._generators.streams(seed, position)
        )
        return Gradient(
            gradients=[rows_of(g) if isinstance(g, tf.IndexedSlices) else seen(g) for g in gradients],
            states=[seen(s) for s in states],
            metrics=[seen(m) for m in metrics],
            loss=float(loss),
        )

    def evaluate(
        self,
        weights: Sequence[Array],
        start: int,
        stop: int,
        batch_size: int,
        *,
        seed: int = 0,
        step: int = 0,
        whole_batch_size: int = 0,
    ) -> list[Array]:
        """Compute metric variables over samples `start` to `stop` of the validation data at given weights.

        Random numbers that a model draws in inference depend on the job's seed, the step and the sample positions.
        Metrics that are not sums over samples are computed over all samples where `start` is 0, and are 0 elsewhere.

        Args:
            weights: In the manifest's order.
            start, stop: The samples.
            batch_size: Samples computed at once.
            seed, step: Of the job.
            whole_batch_size: Samples of a batch for metrics that are not sums over samples, and may be functions of the
                batch: the job's batch size, as in `fit`; 0: `batch_size`.
        """
        self.model.reset_metrics()
        if self._validation is None or self.validation is None or stop <= start:
            return [np.zeros(v.shape) for v in self._metrics]
        source = self._validation
        self._load(list(weights))

        def test(start: int, stop: int, size: int) -> list[Array]:
            shares = [np.arange(low, min(low + size, stop)) for low in range(start, stop, size)]
            for share, following in zip_longest(shares, shares[1:]):
                low = int(share[0])
                batch = source.take(low, share)
                if following is not None:
                    source.want(int(following[0]), following)
                self._test(batch, self._generators.streams(seed, low, evaluation=step + 1))
            return [v.numpy() for v in self._metrics]

        sums, everything, whole_size = test(start, stop, batch_size), len(self.validation), whole_batch_size
        if not self._whole_metrics or (start, stop, whole_size or batch_size) == (0, everything, batch_size):
            return sums
        over_all = None
        if start == 0:
            self.model.reset_metrics()
            over_all = test(0, everything, whole_size or batch_size)
        for index in self._whole_metrics:
            sums[index] = np.zeros_like(sums[index]) if over_all is None else over_all[index]
        return sums

    def rate(self, step: int, epoch: int, start: int) -> float:
        """Return the learning rate that a schedule of the user's gives; 1 if there is none.

        Args:
            step, epoch, start: See `Manifest.schedule_step`.
        """
        return self._rate(self.manifest.schedule_step(step, epoch, start))

    def summarise(self, training: Sequence[Array], validation: Sequence[Array] = ()) -> dict[str, float]:
        """Compute metrics, by Keras's names, from the sums of their variables over workers and steps."""
        results = {
            name: value for name, value in self._result(training).items() if name not in self._left_out
        }
        if self.validation is not None and validation:
            results |= {f"val_{name}": value for name, value in self._result(validation).items()}
        return results

    def save(self, weights: Sequence[Array], path: Path, optimizer: OptimizerState) -> None:
        """Write the model with given weights and state of the optimizer atomically as a `.keras` file."""
        self.restore(weights, optimizer)
        make_private_folder(path.parent)
        partial = partial_model(path)
        try:
            self.model.save(partial)
            partial.chmod(FILE_MODE)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def restore(self, weights: Sequence[Array], optimizer: OptimizerState) -> None:
        """Give the model copies of these weights, and its optimizer this state."""
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(np.array(value))
        assign_state(self.model.optimizer, self.model.trainable_variables, self._trainable, optimizer)

    @property
    def has_whole_metrics(self) -> bool:
        """Whether a metric is not a sum over samples, so that one worker computes it over all validation data."""
        return bool(self._whole_metrics)

    @property
    def draws(self) -> bool:
        """Whether a layer of the model has a random generator."""
        return bool(self._generators.variables)

    def draw_from(self, seed: int, position: int) -> None:
        """Set the model's random generators to the streams of the samples from a position on."""
        self._generators.draw_from(self._generators.streams(seed, position))

    # ---- traced --------------------------------------------------------------------------------------------

    def _assign(self, weights: list[Any]) -> None:
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)

    def _start(self, weights: list[Any], streams: Any) -> None:
        self._assign(weights)
        self._generators.draw_from(streams)
        for metric in self.model.metrics:
            metric.reset_state()

    def _gradient_whole(self, weights: list[Any], batch: tuple[Any, ...], streams: Any) -> Any:
        self._start(weights, streams)
        loss, gradients = self._steps.train(batch, self._trainable)
        gradients = [
            tf.zeros_like(v.value) if g is None else merged(g, v)
            for g, v in zip(gradients, self._trainable, strict=True)
        ]
        states = [tf.identity(v.value) for v in self._states]
        metrics = [tf.identity(v.value) for v in self._metrics]
        return gradients, states, metrics, loss

    def _evaluate_batch(self, batch: tuple[Any, ...], streams: Any) -> None:
        self._generators.draw_from(streams)
        self._steps.test(batch)

    # ---- set-up --------------------------------------------------------------------------------------------

    def _check_others(self, sample: tuple[Any, ...]) -> None:
        """Refuse a step that depends on variables which the model does not track, or which aggregators hold."""
        traced: Any = self._whole
        if self.model.run_eagerly:
            state = OtherState(self.model)
            before = state.set_by_steps()
            with left_as_it_was(self.model):
                self.gradient(self.initial_state(), sample, seed=0, position=0)
            if changed := changes(before, state.set_by_steps()):
                raise NotSupportedError(_untracked_message(changed[0]))
            return
        tracked = (
            *self.variables,
            *self._generators.variables,
            *self._metrics,
            global_seed_generator().state,
        )
        known = {v._value.ref() for v in tracked} | {self._steps.loss_scale.ref()}
        graph = traced.get_concrete_function().graph
        others = sorted((v for v in graph.variables if v.ref() not in known), key=lambda v: str(v.name))
        of_optimizer = {v._value.ref() for v in self.model.optimizer.variables}
        values = [v.numpy() for v in others]
        if others:
            with left_as_it_was(self.model):
                self.gradient(self.initial_state(), sample, seed=0, position=0)
        for variable, value in zip(others, values, strict=True):
            if variable.ref() in of_optimizer:
                raise NotSupportedError(
                    f"the training step uses {variable.name} of the optimizer, which the aggregator alone knows"
                )
            # the state of TensorFlow's own generators; each worker draws for itself
            generator = variable.name.startswith("StateVar")
            if not generator and not np.array_equal(variable.numpy(), value, equal_nan=True):
                raise NotSupportedError(_untracked_message(f"the variable {variable.name}"))

    def _manifest(self, sample: tuple[Any, ...], passes: Passes, schedule_batch: int) -> Manifest:
        model = self.model
        tensors = [
            TensorSpec(v.path, tuple(v.shape), keras.backend.standardize_dtype(v.dtype), "trainable")
            for v in self._trainable
        ]
        for variable in self._states:
            dtype = keras.backend.standardize_dtype(variable.dtype)
            role = "mean" if _is_float(variable) else "first"
            tensors.append(TensorSpec(variable.path, tuple(variable.shape), dtype, role))
        every = tuple(model.get_metrics_result())
        names = tuple(name for name in every if name not in self._left_out)
        if self.validation is not None:
            names += tuple(f"val_{name}" for name in every)
        return Manifest(
            tensors=tuple(tensors),
            metrics=tuple(tuple(v.shape) for v in self._metrics),
            optimizer=serialised(model.optimizer),
            architecture=architecture(model, self.train, shuffle=passes.shuffle),
            parameters=sum(int(np.prod(v.shape)) for v in self._trainable),
            dataset_size=len(self.train) // passes.epochs,
            validation_size=0 if self.validation is None else len(self.validation),
            sample_bytes=sum(leaf.nbytes for leaf in keras.tree.flatten(sample)),
            metric_names=names,
            constraints=tuple(
                (place, text)
                for place, v in enumerate(self._trainable)
                if v.constraint is not None and (text := constraint_of(v)) is not None
            ),
            iterations=iterations_of(model.optimizer),
            blocks=self.train.blocks,
            notes=tuple(
                f"KerasJob.{name}: {note}"
                for name, source in (("train", self.train), ("validation", self.validation))
                if source is not None
                for note in source.notes
            )
            + notes_of_model(model),
            callbacks=self.callbacks.names,
            batch_hooks=self.callbacks.batch_hooks,
            epochs_per_pass=passes.epochs,
            shuffle=passes.shuffle,
            schedule_batch=schedule_batch if has_schedule(model.optimizer) else 0,
            # an evaluation that takes long, or hangs, does so under its own limit and not while a worker starts
            data=digest_of_samples(
                self.train, self.validation if isinstance(self.validation, ArraySource) else None
            ),
        )

    def _result(self, sums: Sequence[Array]) -> dict[str, float]:
        for variable, value in zip(self._metrics, sums, strict=True):
            variable.assign(np.asarray(value).astype(variable.dtype))
        flat: dict[str, float] = {}
        for name, value in self.model.get_metrics_result().items():
            for key, leaf in value.items() if isinstance(value, dict) else ((name, value),):
                flat[key] = float(np.mean(leaf))
        return flat


def _untracked_message(what: str) -> str:
    return (
        f"the training step changes {what}, which is no weight of the model (as that of a second optimizer): every "
        "worker would have another; keep it as a weight of a layer"
    )


def _is_float(variable: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(variable.dtype)


def _specs(sample: tuple[Any, ...]) -> Any:
    """Return the tensor specs of a batch, of any size, of samples like this one."""
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), tf.as_dtype(leaf.dtype)), sample
    )
