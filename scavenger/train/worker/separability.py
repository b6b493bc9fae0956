"""Check, on a few samples, that loss, metrics and states of a batch follow from those of its parts.

Workers compute parts of a batch, so the model must treat a batch as the sum of its samples. For deterministic
models the check compares a batch with its parts. With randomness (dropout, noise), equal seeds give equal draws at
the same positions of batches of one size, so the check exchanges samples instead: in a sum over samples, the change
caused by the first sample does not depend on the second.

`BatchNormalization` alone may look across the batch in training: each worker normalises its own part, as in any
data-parallel training. This check freezes it, so that it hides nothing else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.errors import NotSupportedError
from scavenger.train.worker.data import SampleSource, within_reach
from scavenger.train.worker.steps import Steps

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

_SAMPLES = 4  # enough to be cut into unequal parts
_MANY, _MANY_WITH_GRADIENTS = 64, 16
_MANY_BYTES = 1 << 26
_TOLERANCE = 1e-3  # far above rounding in single precision, far below any change of meaning
_TOLERANCE_HALF = 3e-2  # the same for a model that computes with 16 bits
_DRAWS = 16  # number of draws, for models that can be checked in expectation only
_ERRORS = 8.0  # standard errors; a false alarm about once in a million models


@dataclass(frozen=True, slots=True)
class _Outcome:
    loss: float
    metrics: list[Array]
    states: list[Array]
    gradients: list[Array]


@dataclass(frozen=True, slots=True)
class Separability:
    """Check of one model.

    Attributes:
        model: Compiled and built.
        source: Its training data.
        trainable, states, metrics: The model's variables of each kind.
        draw_from: Sets the model's random generators to the beginning of the streams with a given number.
        inference: Whether the test step is checked, too.
    """

    model: Any
    steps: Steps
    source: SampleSource
    trainable: Sequence[Any]
    states: Sequence[Any]
    metrics: Sequence[Any]
    draw_from: Callable[[int], None]
    inference: bool = True
    _unsplit: set[int] = field(default_factory=set)

    def check(self) -> frozenset[int]:
        """Refuse a model whose batches are not sums of samples, in inference or in training.

        Weights, states and metrics are restored afterwards.

        Returns:
            The indices of metric variables that are not sums over samples.

        Raises:
            NotSupportedError: If the loss, a gradient or a state of a batch does not follow from those of its parts,
                or the forward pass changes trainable weights.
        """
        reach = within_reach(self.source)
        count = min(_SAMPLES, reach)
        if count < 2:
            return frozenset()
        # from all parts of the data, which may be sorted by class
        batch = self.source.batch(np.linspace(0, reach - 1, count).astype(np.int64))
        begin = [tf.convert_to_tensor(v.value) for v in (*self.trainable, *self.states)]
        try:
            if self.inference:
                self._compare(batch, begin, count, training=False)
                self._check_metrics(batch, count)
            with self._normalisation_still():
                self._run(batch, begin, training=True)
                self._check_trainable(begin)
                self._compare(batch, begin, count, training=True)
        finally:
            self._restore(begin)
            self.model.reset_metrics()
        return frozenset(self._unsplit)

    def _compare(self, batch: Any, begin: list[Any], count: int, *, training: bool) -> None:
        def run(*samples: int, stream: int = 0) -> _Outcome:
            part = tf.nest.map_structure(lambda leaf: leaf[list(samples)], batch)
            return self._run(part, begin, training=training, stream=stream)

        everything = tuple(range(count))
        whole, again, other = run(*everything), run(*everything), run(*everything, stream=1)
        if whole.loss == again.loss == other.loss or np.isnan(whole.loss):
            alone = [run(sample) for sample in everything]
            self._check_parts(whole, [(1, alone[0]), (count - 1, run(*everything[1:]))], training=training)
            # a function of the mean is nearly a mean of parts that are means themselves, and a sum of a few samples
            # is small beside the loss: single samples and large batches show them
            mean = float(np.mean([one.loss for one in alone]))
            many = self._repeated(run, everything, self._copies(batch, count))
            if not (self._close(whole.loss, mean) and self._close(many, mean)):
                raise NotSupportedError(_loss_message(training))
        elif whole.loss == again.loss:
            self._check_exchange(run, batch, begin, training=training)
        else:
            self._check_expectation(run, everything, training=training)

    def _run(self, batch: Any, begin: list[Any], *, training: bool, stream: int = 0) -> _Outcome:
        """Return what a step from the initial state gives: with gradients only if the step is the model's own."""
        self._restore(begin)
        self.draw_from(stream)
        self.model.reset_metrics()
        gradients: list[Any] = []
        if training and self.steps.own_train:
            loss, gradients = self.steps.train(batch, self.trainable)
        else:
            loss = self.steps.forward(batch) if training else self.steps.test(batch)
        return _Outcome(
            np.nan if loss is None else float(loss),
            [np.asarray(v.numpy()) for v in self.metrics],
            [np.asarray(v.numpy()) for v in self.states],
            [np.zeros(()) if g is None else g.numpy() for g in gradients],
        )

    def _check_metrics(self, batch: Any, count: int) -> None:
        """Compare the metrics of one set of predictions with those of its parts, whatever draws have led to it."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        predicted = model(x, training=False) if model._call_has_training_arg else model(x)
        arguments = (x, y, predicted, sample_weight)
        leaves = [leaf for leaf in tf.nest.flatten(arguments) if leaf is not None]
        if self.steps.own_test or any(leaf.shape[:1] != (count,) for leaf in leaves):
            return

        def sums(start: int, stop: int) -> list[Array]:
            model.reset_metrics()
            model.compute_metrics(
                *keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[start:stop], arguments)
            )
            return [np.asarray(v.numpy()) for v in self.metrics]

        for index, (value, *values) in enumerate(
            zip(sums(0, count), sums(0, 1), sums(1, count), strict=True)
        ):
            if not self._close(value, sum(values)):
                self._unsplit.add(index)

    def _restore(self, begin: list[Any]) -> None:
        for variable, value in zip((*self.trainable, *self.states), begin, strict=True):
            variable.assign(value)

    @contextlib.contextmanager
    def _normalisation_still(self) -> Iterator[None]:
        layers = [
            layer
            for layer in self.model._flatten_layers()
            if isinstance(layer, keras.layers.BatchNormalization) and layer._trainable
        ]
        for layer in layers:
            layer._trainable = False  # its variables keep their own flags
        try:
            yield
        finally:
            for layer in layers:
                layer._trainable = True

    def _check_trainable(self, begin: list[Any]) -> None:
        for variable, value in zip(self.trainable, begin, strict=False):
            if not bool(tf.reduce_all(tf.equal(variable.value, value))):
                raise NotSupportedError(
                    f"the forward pass in training changes the trainable weights {variable.path} (as the layer "
                    "SpectralNormalization does): the aggregator, which alone updates weights, would not know; "
                    "use a layer that leaves its weights to the optimizer"
                )

    # ---- without randomness --------------------------------------------------------------------------------

    def _check_parts(self, whole: _Outcome, parts: list[tuple[int, _Outcome]], *, training: bool) -> None:
        total = sum(samples for samples, _ in parts)
        if not self._close(whole.loss, sum(n / total * part.loss for n, part in parts)):
            raise NotSupportedError(_loss_message(training))
        for value, *values in zip(whole.gradients, *(part.gradients for _, part in parts), strict=True):
            mean = sum(n / total * each for (n, _), each in zip(parts, values, strict=True))
            if not self._close(value, mean, float(np.abs(value).max(initial=0))):
                raise NotSupportedError(
                    f"the gradient of a batch in the train_step of {type(self.model).__name__} is not the mean of its "
                    "samples' gradients: it cannot be split over workers"
                )
        for index, (value, *values) in enumerate(
            zip(whole.metrics, *(part.metrics for _, part in parts), strict=True)
        ):
            if not self._close(value, sum(values)):
                self._unsplit.add(index)
        if not training:
            return
        for variable, value, *values in zip(
            self.states, whole.states, *(part.states for _, part in parts), strict=True
        ):
            mean = sum(n / total * each for (n, _), each in zip(parts, values, strict=True))
            floating = "float" in keras.backend.standardize_dtype(variable.dtype)
            if not self._close(value, mean if floating else values[0]):
                raise NotSupportedError(
                    f"what training makes of the state {variable.path} with a batch is not the mean of what it "
                    "makes of it with the batch's parts: it cannot be put together from the workers'"
                )

    # ---- with randomness -----------------------------------------------------------------------------------

    def _check_exchange(
        self, run: Callable[..., _Outcome], batch: Any, begin: list[Any], *, training: bool
    ) -> None:
        """Exchange each of two samples for another, in a batch of two and alone.

        With per-sample losses `f` at the first and `g` at the second place, `2 L(u, v) = f(u) + g(v)`. So `L(u, v)
        - L(w, v)` does not depend on `v`, and twice that is `f(u) - f(w)`, which batches of one sample also give:
        generators draw row by row, so the first row is drawn alike in batches of any size. Layers that draw in
        another order are compared in expectation.
        """
        count = len(tf.nest.flatten(batch)[0])
        u, w, v, z = 0, 1, 2 % count, (count - 1 if count > 2 else 0)
        uv, wv, uz, wz = run(u, v), run(w, v), run(u, z), run(w, z)
        scale = max(abs(each.loss) for each in (uv, wv, uz, wz))
        moved, moved_elsewhere = uv.loss - wv.loss, uz.loss - wz.loss
        if not self._close(moved, moved_elsewhere, scale):
            raise NotSupportedError(_loss_message(training))
        alone_u, alone_w = run(u), run(w)
        if not self._close(2 * moved, alone_u.loss - alone_w.loss, scale):
            if self._draws_by_rows(batch, begin, (u, v), training=training):
                raise NotSupportedError(_loss_message(training))
            self._check_expectation(run, tuple(range(count)), training=training)
            return
        for index in range(len(self.metrics)):
            a, b, c, d = (each.metrics[index] for each in (uv, wv, uz, wz))
            e, f = alone_u.metrics[index], alone_w.metrics[index]
            largest = max(float(np.abs(each).max(initial=0)) for each in (a, b, c, d, e, f))
            if not self._close(a - b, c - d, largest) or not self._close(a - b, e - f, largest):
                self._unsplit.add(index)

    def _draws_by_rows(self, batch: Any, begin: list[Any], pair: tuple[int, int], *, training: bool) -> bool:
        """Whether the first of a pair is predicted alike alone and in the pair, so that its draws are the same."""

        def predicted(*samples: int) -> list[Any]:
            x = keras.utils.unpack_x_y_sample_weight(
                tf.nest.map_structure(lambda leaf: leaf[list(samples)], batch)
            )[0]
            self._restore(begin)
            self.draw_from(0)
            model = self.model
            outputs = model(x, training=training) if model._call_has_training_arg else model(x)
            return [leaf[0].numpy() for leaf in tf.nest.flatten(outputs)]

        return all(
            self._close(alone, together, float(np.abs(together).max(initial=0)))
            for alone, together in zip(predicted(pair[0]), predicted(*pair), strict=True)
        )

    def _check_expectation(
        self, run: Callable[..., _Outcome], samples: tuple[int, ...], *, training: bool
    ) -> None:
        """Compare the mean over draws of a batch's loss with that of its samples' losses."""
        apart = np.array(
            [
                run(*samples, stream=draw).loss
                - np.mean([run(one, stream=_DRAWS + len(samples) * draw + one).loss for one in samples])
                for draw in range(_DRAWS)
            ]
        )
        error = float(apart.std(ddof=1)) / np.sqrt(_DRAWS)
        scale = abs(run(*samples).loss)
        if abs(float(apart.mean())) > _ERRORS * error + self._tolerance * scale:
            raise NotSupportedError(_loss_message(training))

    def _copies(self, batch: Any, count: int) -> int:
        """How often a batch is repeated to make a large one that takes less memory than a step of a small one."""
        most = _MANY_WITH_GRADIENTS if self.steps.own_train else _MANY
        size = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(batch))
        return max(1, min(most // count, _MANY_BYTES // max(size, 1)))

    def _repeated(self, run: Callable[..., _Outcome], samples: tuple[int, ...], copies: int) -> float:
        """The loss of a batch of copies of some samples, of fewer if memory does not suffice."""
        while True:
            try:
                return run(*np.tile(samples, copies).tolist()).loss
            except (MemoryError, tf.errors.ResourceExhaustedError):
                if copies == 1:
                    raise
                copies //= 2

    # ---- arithmetic ----------------------------------------------------------------------------------------

    @property
    def _tolerance(self) -> float:
        small = any(
            getattr(layer, "compute_dtype", None) in ("float16", "bfloat16")
            for layer in self.model._flatten_layers()
        )
        return _TOLERANCE_HALF if small else _TOLERANCE

    def _close(self, a: Any, b: Any, scale: float | None = None) -> bool:
        tolerance = self._tolerance
        if scale is not None:
            return bool(np.allclose(a, b, rtol=0.0, atol=tolerance * scale + 1e-6, equal_nan=True))
        return bool(np.allclose(a, b, rtol=tolerance, atol=1e-6, equal_nan=True))


def whole_metrics(
    model: Any, variables: Sequence[Any], unsplit: Collection[int]
) -> tuple[tuple[int, ...], frozenset[str]]:
    """Find the metrics that cannot be put together from the workers' parts.

    Args:
        variables: The variables of all its metrics.
        unsplit: Indices of those that are not sums over samples.

    Returns:
        The indices of all variables of these metrics, and the names of their results.
    """
    of_unsplit = {id(variables[index]) for index in unsplit}
    metrics = [
        one
        for metric in model.metrics
        for one in getattr(metric, "metrics", [metric])
        if any(id(v) in of_unsplit for v in one.variables)
    ]
    for metric in metrics:  # in the instance's own namespace, past Keras's tracking of attributes
        vars(metric)["result"] = lambda: np.nan
    names = {name for name, value in model.get_metrics_result().items() if value is np.nan}
    for metric in metrics:
        del vars(metric)["result"]
    if names:
        log.warning(
            "%s: not a sum over samples, so one worker computes it over all validation data, in batches of the job's "
            "batch size, on which its value may depend as in fit; training has none",
            ", ".join(sorted(names)),
        )
    whole = {id(v) for metric in metrics for v in metric.variables}
    return tuple(index for index, v in enumerate(variables) if id(v) in whole), frozenset(names)


def _loss_message(training: bool) -> str:
    if not training:
        return "the loss of a batch is not the mean of its samples' losses: it cannot be split over workers"
    return (
        "in training, the loss of a batch is not the mean of its samples' losses (a loss, a layer or add_loss "
        "compares samples with each other, or sums where it should average): it cannot be split over workers; "
        "BatchNormalization alone may look across a batch"
    )
