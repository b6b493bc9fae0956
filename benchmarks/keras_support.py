"""`python -m benchmarks.keras_support`: which of Keras's optimizers and layers with state train exactly as in Keras.

Each is trained by plain Keras on one batch for some steps, and by the code of workers and aggregators in two unequal
pieces with two aggregators. The table of what came out goes into docs/keras.md. Optimizers and layers are found in
the Keras that is installed, so one that a new version adds is tried too, or has to be named here.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import numpy.typing as npt

from benchmarks.figures import replace_section
from benchmarks.keras_training import SEED, STEPS, in_pieces
from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.failure import DataError
from scavenger.train.worker.program import Program

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "keras.md"
SECTION = "keras_support"

_SAMPLES = 16
_PIECES = ((0, 9), (9, 16))
_TOLERANCE = {"float32": 2e-4, "float64": 1e-6}
"""Tolerance relative to the largest value of a tensor: some numbers of Keras, as the learning rate, are float32."""

_O, _L = keras.optimizers, keras.layers
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One model to be trained in both ways, from scratch each time that `build` is called.

    With `goes_on`, the saved model is trained further too, by Keras, which depends on the optimizer's state.
    """

    name: str
    build: Callable[[], Any]
    x: Array
    floatx: str
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one optimizer or layer.

    Attributes:
        name: Of the optimizer or layer.
        answer: `equal`, `equal for the same draws`, `each worker's part`, `refused`, or `different`, which no
            released version may show.
        reason: Why it is refused, in the words that a user sees.
    """

    name: str
    answer: str
    reason: str = ""


# ---- optimizers --------------------------------------------------------------------------------------------


def _by_kind() -> Any:
    return _O.MultiOptimizer(_O.OptimizerMap(_O.SGD(0.1), {".*kernel": _O.Adam(0.01)}))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "LossScaleOptimizer": lambda: _O.LossScaleOptimizer(_O.SGD(0.1)),
    "MultiOptimizer": _by_kind,
}
"""Optimizers that need more than a learning rate to be created."""

OPTIONS: dict[str, Callable[[], Any]] = {
    "ScheduleFreeAdamW, built by the user": lambda: _O.ScheduleFreeAdamW(0.01),
    "loss_scale_factor": lambda: _O.SGD(0.1, loss_scale_factor=128.0),
    "loss_scale_factor of a MultiOptimizer": lambda: _O.MultiOptimizer(
        _O.OptimizerMap(_O.SGD(0.1), {".*kernel": _O.Adam(0.01)}), loss_scale_factor=16.0
    ),
    "use_ema": lambda: _O.Adam(0.01, use_ema=True, ema_momentum=0.5),
    "gradient_accumulation_steps": lambda: _O.Adam(0.01, gradient_accumulation_steps=2),
    "weight_decay": lambda: _O.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "clipnorm": lambda: _O.Adam(0.01, clipnorm=0.1),
    "global_clipnorm": lambda: _O.Adam(0.01, global_clipnorm=0.1),
    "clipvalue": lambda: _O.SGD(0.1, clipvalue=0.01),
    "a schedule": lambda: _O.SGD(_O.schedules.CosineDecay(0.1, 3)),
}


def exported(module: Any, base: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Each class below `base` that a module of Keras exports, once, under the first of its names."""
    seen = {base}
    for name in sorted(dir(module)):
        kind = getattr(module, name)
        if inspect.isclass(kind) and issubclass(kind, base) and kind not in seen:
            seen.add(kind)
            yield name, kind


def _with_rate(kind: Any) -> Callable[[], Any]:
    return lambda: kind(0.01)


def optimizer_cases() -> Iterator[Case]:
    """One for each optimizer that Keras exports, and one for each option that they share."""
    makers = {name: OPTIMIZERS.get(name, _with_rate(kind)) for name, kind in exported(_O, _O.Optimizer)}
    x = np.random.default_rng(1).normal(size=(_SAMPLES, 6))
    for name, make in (makers | OPTIONS).items():

        def build(name: str = name, make: Callable[[], Any] = make) -> Any:
            model = keras.Sequential([keras.Input((6,)), _L.Dense(5, activation="tanh"), _L.Dense(1)])
            model.compile(make(), "mse")
            if name.endswith("built by the user"):
                model.optimizer.build(model.trainable_variables)
            return model

        yield Case(name, build, x, "float64", goes_on=True)


# ---- layers ------------------------------------------------------------------------------------------------

LEFT_OUT = {
    **dict.fromkeys(("InputLayer", "Wrapper"), "no layer of its own"),
    **dict.fromkeys(("FlaxLayer", "JaxLayer", "TorchModuleWrapper"), "for another backend"),
    "TFSMLayer": "not trained by Keras",
    **dict.fromkeys(
        ("HashedCrossing", "Hashing", "IntegerLookup", "StringLookup", "TextVectorization"), "no numbers"
    ),
    **dict.fromkeys(("GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"), "part of RNN"),
    **dict.fromkeys(("MaxNumBoundingBoxes", "STFTSpectrogram", "MelSpectrogram"), "no state, other data"),
}
"""Exported names that are not tested, with the reason."""

LAYERS: dict[str, Callable[[], Any]] = {
    "Bidirectional": lambda: _L.Bidirectional(_L.GRU(3, dropout=0.3)),
    "CategoryEncoding": lambda: _L.CategoryEncoding(4),
    "Discretization": lambda: _L.Discretization([0.3, 0.6]),
    "EinsumDense": lambda: _L.EinsumDense("ab,bc->ac", 3),
    "GroupNormalization": lambda: _L.GroupNormalization(groups=1),
    "Lambda": lambda: _L.Lambda(lambda x: 2 * x),
    "Normalization": lambda: _L.Normalization(mean=0.5, variance=0.1),
    "Pipeline": lambda: _L.Pipeline([_L.RandomFlip(), _L.RandomBrightness(0.3, value_range=(0, 1))]),
    "RNN": lambda: _L.RNN(_L.GRUCell(3, dropout=0.3)),
    "RandomPosterization": lambda: _L.RandomPosterization(4, value_range=(0, 1)),
    "RandomCrop": lambda: _L.RandomCrop(8, 8),
    "Reshape": lambda: _L.Reshape((-1,)),
    "SpectralNormalization": lambda: _L.SpectralNormalization(_L.Dense(3)),
    "TimeDistributed": lambda: _L.TimeDistributed(_L.Dense(3)),
}
"""Layers that cannot be created from `_ARGUMENTS`."""

MORE_LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "BatchNormalization(renorm=True)": (lambda: _L.BatchNormalization(renorm=True), (6,)),
    "BatchNormalization(synchronized=True)": (lambda: _L.BatchNormalization(synchronized=True), (6,)),
    "GRU(stateful=True)": (lambda: _L.GRU(3, stateful=True), (6, 4)),
}

_ARGUMENTS: dict[str, Any] = {
    "units": 3, "filters": 2, "kernel_size": 2, "pool_size": 2, "rate": 0.3, "stddev": 0.3, "factor": 0.3,
    "height": 6, "width": 6, "num_heads": 2, "key_dim": 2, "head_dim": 2, "num_query_heads": 2,
    "num_key_value_heads": 1, "input_dim": 9, "output_dim": 4, "size": 2, "output_size": 2, "n": 3,
    "dims": (2, 1), "axes": 1, "activation": "tanh", "scale": 0.5, "height_factor": 0.3, "width_factor": 0.3,
}  # fmt: skip
_OPTIONS: dict[str, Any] = {"dropout": 0.3, "value_range": (0, 1)}
"""Given where a layer has them, so that it does something."""

_MERGING = (_L.Add.__mro__[1], _L.Concatenate)
_SHAPES = ((8, 8, 3), (6, 4), (6,), (4, 4, 4, 2), (3, 8, 8, 2), (3, 4, 4, 4, 2))


def _maker(name: str, kind: type[Any]) -> Callable[[], Any]:
    if name in LAYERS:
        return LAYERS[name]
    arguments: dict[str, Any] = {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name in _OPTIONS and kind is not _L.MultiHeadAttention:
            arguments[parameter.name] = _OPTIONS[parameter.name]
        elif parameter.default is parameter.empty:
            if parameter.name not in _ARGUMENTS:
                raise LookupError(
                    f"keras.layers.{name} wants {parameter.name}: name it in LAYERS or LEFT_OUT"
                )
            arguments[parameter.name] = _ARGUMENTS[parameter.name]
    return lambda: kind(**arguments)


def _fitting(name: str, make: Callable[[], Any]) -> tuple[Any, tuple[int, ...]]:
    """A layer that was built, and the shape of a sample for it."""
    for shape in (_SHAPES[1],) if "Attention" in name or name == "RNN" else _SHAPES:
        layer = make()
        try:
            outputs = _applied(layer, keras.Input(shape))
        except Exception:  # noqa: BLE001 - whatever Keras raises says that the shape does not fit
            continue
        if isinstance(outputs, keras.KerasTensor):
            return layer, shape
    raise LookupError(f"keras.layers.{name} fits to no shape of data: name it in LAYERS or LEFT_OUT")


def _applied(layer: Any, x: Any) -> Any:
    """The output of a layer for an input, which is used for each input if the layer has several."""
    if isinstance(layer, (_L.Attention, _L.Dot, *_MERGING)):
        return layer([x, x])
    names = list(inspect.signature(layer.call).parameters)
    return layer(x, x) if names[:2] == ["query", "value"] else layer(x)


def stateful_layers() -> Iterator[tuple[str, Callable[[], Any], tuple[int, ...]]]:
    """Each layer that Keras exports and that holds more than weights: how it is made, and the shape of its samples.

    Raises:
        LookupError: If Keras exports a layer that this module does not know how to make.
    """
    for name, kind in exported(_L, _L.Layer):
        if name in LEFT_OUT:
            continue
        make = _maker(name, kind)
        layer, shape = _fitting(name, make)
        if layer.non_trainable_variables:
            yield name, make, shape
    for name, (make, shape) in MORE_LAYERS.items():
        yield name, make, shape


def layer_case(name: str, make: Callable[[], Any], shape: tuple[int, ...]) -> Case:
    """A model with the layer between its input and a layer of weights."""
    x = np.random.default_rng(2).uniform(size=(_SAMPLES, *shape)).astype("float32")

    def build() -> Any:
        batch = _SAMPLES if "stateful" in name else None
        inputs = keras.Input(shape, batch_size=batch)
        model = keras.Model(inputs, _L.Dense(1)(_L.Flatten()(_applied(make(), inputs))))
        model.compile(_O.SGD(0.01, momentum=0.9), "mse")
        return model

    return Case(name, build, x, "float32")


# ---- both ways ---------------------------------------------------------------------------------------------


def verdict_of(case: Case) -> Verdict:
    """Train it in both ways and compare."""
    before = keras.config.floatx()
    keras.config.set_floatx(case.floatx)
    keras.config.set_dtype_policy(case.floatx)  # layers made earlier may have fixed another default
    try:
        program = _program(case)
        peer = _plainly(case)
        plain = peer.initial_state()
        # one piece draws what Keras draws from the same state; several draw for themselves
        pieces = ((0, _SAMPLES),) if program.draws else _PIECES
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras" if case.goes_on else None
            if _equal(in_pieces(program, pieces, path), plain, case):
                if path is not None and not _goes_on(keras.models.load_model(path), peer, case):
                    return Verdict(case.name, "different")
                return Verdict(case.name, "equal for the same draws" if program.draws else "equal")
        normalises = any(
            isinstance(layer, keras.layers.BatchNormalization) for layer in program.model._flatten_layers()
        )
        if normalises and _equal(in_pieces(_program(case), ((0, _SAMPLES),)), plain, case):
            return Verdict(case.name, "each worker's part")
    except (NotSupportedError, DataError) as error:
        return Verdict(case.name, "refused", str(error))
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)
        keras.utils.clear_session(free_memory=False)
    return Verdict(case.name, "different")


def _program(case: Case) -> Program:
    keras.utils.set_random_seed(SEED)
    targets = np.random.default_rng(5).normal(size=(_SAMPLES, 1))
    return Program(KerasJob(case.build(), (case.x, targets)))


def _plainly(case: Case) -> Program:
    """The model after Keras's own steps, whose random layers begin each where ours do."""
    program = _program(case)
    model, batch = program.model, program.train.batch(np.arange(_SAMPLES))
    for step in range(STEPS):
        program.draw_from(SEED, step * _SAMPLES)
        model.train_on_batch(*batch)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return program


def _goes_on(loaded: Any, peer: Program, case: Case) -> bool:
    """Whether a saved model trains on as the plain one does, with the same state of the optimizer."""
    models = (loaded, peer.model)
    states = [[v.numpy() for v in model.optimizer.variables] for model in models]
    batch = peer.train.batch(np.arange(_SAMPLES))
    for model in models:
        for _ in range(STEPS):
            model.train_on_batch(*batch)
    one, other = models
    return _equal(states[0], states[1], case) and _equal(one.get_weights(), other.get_weights(), case)


def _equal(got: Sequence[Array], expected: Sequence[Array], case: Case) -> bool:
    tolerance = _TOLERANCE[case.floatx]
    return all(
        np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-3)
        for a, b in zip(got, expected, strict=True)
    )


# ---- the document ------------------------------------------------------------------------------------------


def tables(optimizers: Sequence[Verdict], layers: Sequence[Verdict]) -> str:
    """Both tables, as they stand in the document."""
    lines = [f"Keras {keras.__version__}."]
    for title, verdicts in (("optimizer or option", optimizers), ("layer with state", layers)):
        lines += ["", *document_lines(title, verdicts)]
    return "\n".join(lines)


def document_lines(title: str, verdicts: Sequence[Verdict]) -> list[str]:
    """A table of the answers, and below it what the refusals say, which is too long for a table."""
    lines = [f"| {title} | answer |", "|---|---|", *(f"| {one.name} | {one.answer} |" for one in verdicts)]
    refused = [f"- **{one.name}**: {one.reason}" for one in verdicts if one.reason]
    return [*lines, "", "Refused:", "", *refused] if refused else lines


def documented(text: str) -> dict[str, Verdict]:
    """The verdicts that `document_lines` has written, by name."""
    reasons = dict(re.findall(r"^- \*\*(.+?)\*\*: (.*)$", text, re.MULTILINE))
    answers = re.findall(r"^\| (\S.*?) \| (\S.*?) \|$", text, re.MULTILINE)
    return {
        name: Verdict(name, answer, reasons.get(name, "")) for name, answer in answers if answer != "answer"
    }


def main() -> None:
    """Try everything and put the tables into the document.

    Raises:
        SystemExit: If something trains otherwise than in Keras without being refused.
    """
    optimizers = [verdict_of(case) for case in optimizer_cases()]
    layers = [verdict_of(layer_case(*found)) for found in stateful_layers()]
    text = tables(optimizers, layers)
    print(text, flush=True)
    wrong = [one.name for one in (*optimizers, *layers) if one.answer == "different"]
    if wrong:
        raise SystemExit(f"different from Keras, and not refused: {', '.join(wrong)}")
    DOCUMENT.write_text(replace_section(DOCUMENT.read_text(), SECTION, text))


if __name__ == "__main__":
    main()
