"""A step of an aggregator's part is Keras's step, bit for bit the same whenever it is done again."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.errors import NotSupportedError
from scavenger.train.aggregation.kernels import Array, read_rule
from scavenger.train.aggregation.schedules import read_learning_rate
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.aggregation.update import Norms, Update
from scavenger.train.norms import copied_sqnorm, sqnorm
from scavenger.train.transport.messages.values import TensorSpec

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(11)
_SHAPES = {
    "embedding/table": (6, 4),
    "dense/kernel": (4, 3),
    "dense/bias": (3,),
    "scale": (),
}
_STEPS = 24
_O, _S = keras.optimizers, keras.optimizers.schedules
_ADAM = json.dumps(_O.serialize(_O.Adam(0.01)), default=float)

FUSED: dict[str, Callable[[], Any]] = {
    "SGD": lambda: _O.SGD(0.1),
    "SGD, momentum, decay": lambda: _O.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "SGD, Nesterov, clipped by norm": lambda: _O.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5),
    "SGD, averages": lambda: _O.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "Adam": lambda: _O.Adam(0.01, epsilon=1e-5),
    "Adam, amsgrad, decay, clipped together": lambda: _O.Adam(
        0.01, weight_decay=0.1, global_clipnorm=0.5, amsgrad=True
    ),
    "Adam, averages put in place": lambda: _O.Adam(
        0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7
    ),
    "AdamW, warm-up, clipped by value": lambda: _O.AdamW(
        _S.CosineDecay(0.001, 30, warmup_target=0.02, warmup_steps=10), clipvalue=0.3
    ),
    "RMSprop, schedule": lambda: _O.RMSprop(_S.ExponentialDecay(0.1, 20, 0.5)),
    "RMSprop, centered, momentum": lambda: _O.RMSprop(0.01, centered=True, momentum=0.5),
    "RMSprop, momentum, decay": lambda: _O.RMSprop(0.01, momentum=0.5, weight_decay=0.01),
    "Adagrad": lambda: _O.Adagrad(0.1, clipvalue=0.2),
}
BY_KERAS: dict[str, Callable[[], Any]] = {
    "Nadam": lambda: _O.Nadam(0.01),
    "Muon, told by the layers' names": lambda: _O.Muon(0.01, exclude_layers=["dense", "scale"]),
    "Lamb": lambda: _O.Lamb(_S.ExponentialDecay(0.01, 9, 0.5)),
    "Adafactor": lambda: _O.Adafactor(0.01),
    "ScheduleFreeAdamW": lambda: _O.ScheduleFreeAdamW(0.01),
    "gradient accumulation": lambda: _O.Adam(
        _S.CosineDecayRestarts(0.01, 9), gradient_accumulation_steps=3, use_ema=True
    ),
    "scaled loss": lambda: _O.Lion(0.01, loss_scale_factor=2.0),
    "an optimizer for each tensor": lambda: _O.MultiOptimizer(
        _O.OptimizerMap(_O.Adam(0.01), {"dense/.*": _O.SGD(_S.ExponentialDecay(0.1, 9, 0.5), momentum=0.9)})
    ),
}


def serialised(optimizer: Any) -> str:
    return json.dumps(_O.serialize(optimizer), default=float)


def tensors(dtype: str = "float32", shapes: dict[str, tuple[int, ...]] = _SHAPES) -> list[TensorSpec]:
    return [TensorSpec(path, shape, dtype, "trainable") for path, shape in shapes.items()]


def values(dtype: str = "float32", shapes: dict[str, tuple[int, ...]] = _SHAPES) -> list[Array]:
    return [np.asarray(_RANDOM.normal(size=shape)).astype(dtype) for shape in shapes.values()]


def keras_steps(
    optimizer: Any,
    start: Sequence[Array],
    gradients: Sequence[Sequence[Array]],
    shapes: dict[str, tuple[int, ...]] = _SHAPES,
) -> tuple[list[Array], list[Array]]:
    """What Keras makes of the same gradients with variables of the same paths: the weights, and finalised."""
    variables = []
    for path, value in zip(shapes, start, strict=True):
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            variables.append(keras.Variable(value, dtype=str(value.dtype), name=name))
    optimizer.build(variables)
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in step], variables)
    last = [variable.numpy() for variable in variables]
    optimizer.finalize_variable_values(variables)
    return last, [variable.numpy() for variable in variables]


def one_step(
    update: Update,
    contributions: Sequence[tuple[int, Sequence[Array]]],
    weights: Sequence[Array],
    slots: Sequence[Array],
    step: int,
    **options: Any,
) -> tuple[list[Array], list[Array], Norms]:
    new_weights, new_slots = ([np.full_like(array, 77) for array in state] for state in (weights, slots))
    before, after = ShardState(weights, slots), ShardState(new_weights, new_slots)
    norms = update.apply(contributions, before, after, step=step, **options)
    return new_weights, new_slots, norms


def our_steps(
    update: Update, start: Sequence[Array], gradients: Sequence[Sequence[Array]], **options: float
) -> tuple[list[Array], list[Array]]:
    weights, slots = list(start), update.initial_slots(start)
    for number, gradient in enumerate(gradients, 1):
        weights, slots, _ = one_step(update, [(1, gradient)], weights, slots, number, **options)
    final = [np.full_like(array, 77) for array in weights]
    update.finalise(weights, slots, final)
    return weights, final


def assert_close(got: Sequence[Array], want: Sequence[Array], rtol: float, atol: float) -> None:
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def check_against_keras(make: Callable[[], Any], dtype: str, shapes: dict[str, tuple[int, ...]]) -> None:
    start = values(dtype, shapes)
    gradients = [values(dtype, shapes) for _ in range(_STEPS)]
    update = Update(tensors(dtype, shapes), serialised(make()), threads=1)
    expected = keras_steps(make(), start, gradients, shapes)
    tolerance = {"float16": 4e-3, "float32": 2e-6, "float64": 2e-7}[dtype]
    for got, want in zip(our_steps(update, start, gradients), expected, strict=True):
        assert_close(got, want, rtol=tolerance, atol=tolerance)


# ---- the same as Keras -------------------------------------------------------------------------------------


def _precisions() -> list[Any]:
    """Each rule in single precision; in double precision, ordinary runs try one of each family."""
    ordinary = (
        "SGD, momentum, decay",
        "Adam, amsgrad, decay, clipped together",
        "RMSprop, centered, momentum",
    )
    double = [
        pytest.param(name, "float64", marks=[] if name in ordinary else pytest.mark.long) for name in FUSED
    ]
    return [*((name, "float32") for name in FUSED), *double]


@pytest.mark.parametrize(("name", "dtype"), _precisions())
def test_steps_without_tensorflow_are_those_of_keras(name: str, dtype: str) -> None:
    assert read_rule(serialised(FUSED[name]())) is not None
    check_against_keras(FUSED[name], dtype, _SHAPES)


@pytest.mark.parametrize("name", [name for name in FUSED if "norm" not in name and "together" not in name])
def test_steps_in_half_precision_are_those_of_keras(name: str) -> None:
    check_against_keras(FUSED[name], "float16", _SHAPES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("Lamb", "Adafactor", "scaled loss") else [])
        for name in BY_KERAS
    ],
)
def test_every_other_optimizer_is_left_to_keras(name: str) -> None:
    assert read_rule(serialised(BY_KERAS[name]())) is None
    start, gradients = values(), [values() for _ in range(_STEPS)]
    update = Update(tensors(), serialised(BY_KERAS[name]()))
    expected = keras_steps(BY_KERAS[name](), start, gradients)
    # the reference runs op by op, the update as a graph, which TensorFlow may simplify
    for got, want in zip(our_steps(update, start, gradients), expected, strict=True):
        assert_close(got, want, rtol=2e-5, atol=2e-5)


@settings(max_examples=8)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=4),
    name=st.sampled_from(sorted(FUSED)),
)
def test_shapes_do_not_matter(shapes: list[tuple[int, ...]], name: str) -> None:
    check_against_keras(FUSED[name], "float32", {f"t{i}": shape for i, shape in enumerate(shapes)})


@pytest.mark.parametrize("name", FUSED)
def test_a_tensor_without_elements_changes_nothing(name: str) -> None:
    # not compared with Keras, which cannot update such a tensor
    start, gradients = values(), [values() for _ in range(3)]
    empty = np.zeros((0, 5), "float32")
    config = serialised(FUSED[name]())
    want, _ = our_steps(Update(tensors(), config), start, gradients)

    specs = [*tensors(), TensorSpec("nothing", (0, 5), "float32", "trainable")]
    got, _ = our_steps(Update(specs, config), [*start, empty], [[*gradient, empty] for gradient in gradients])

    for one, other in zip(got[:-1], want, strict=True):
        np.testing.assert_array_equal(one, other)
    assert got[-1].shape == (0, 5)


@pytest.mark.parametrize("name", [*FUSED, "gradient accumulation", "Nadam", "an optimizer for each tensor"])
def test_a_scaled_learning_rate_is_that_of_an_optimizer_with_such_a_rate(name: str) -> None:
    make = (FUSED | BY_KERAS)[name]
    start, gradients = values(), [values() for _ in range(5)]
    document = json.loads(serialised(make()))

    def halve(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else ():
            if key in ("learning_rate", "initial_learning_rate", "warmup_target") and isinstance(
                value, float
            ):
                node[key] = value / 2
            else:
                halve(value)

    halve(document)
    halved = Update(tensors(), json.dumps(document))
    plain = Update(tensors(), serialised(make()))

    want, _ = our_steps(halved, start, gradients)
    got, _ = our_steps(plain, start, gradients, lr_scale=0.5)
    unscaled, _ = our_steps(plain, start, gradients)

    assert_close(got, want, rtol=1e-6, atol=1e-7)
    assert not np.allclose(got[0], unscaled[0], rtol=1e-4)


SCHEDULES = [
    _S.ExponentialDecay(0.1, 7, 0.9),
    _S.ExponentialDecay(0.1, 7, 0.9, staircase=True),
    _S.CosineDecay(0.1, 100, alpha=0.1),
    _S.CosineDecay(0.0, 100, warmup_target=0.1, warmup_steps=20),
    _S.PolynomialDecay(0.1, 50, power=2.0),
    _S.PolynomialDecay(0.1, 50, cycle=True),
    _S.InverseTimeDecay(0.1, 10, 0.5),
    _S.InverseTimeDecay(0.1, 10, 0.5, staircase=True),
    _S.PiecewiseConstantDecay([5, 10.5], [0.1, 0.2, 0.3]),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_a_schedule_gives_the_rates_of_keras(schedule: Any) -> None:
    rate = read_learning_rate(json.loads(json.dumps(_S.serialize(schedule))))

    for step in (*range(25), 49, 50, 51, 99, 100, 101, 119, 120, 121, 1000):
        assert float(rate(step)) == pytest.approx(float(schedule(np.int64(step))), rel=3e-7, abs=1e-9)


@pytest.mark.parametrize(
    "schedule", [_S.CosineDecay(0.05, 100), _S.CosineDecayRestarts(0.05, 100)], ids=["here", "by Keras"]
)
def test_a_schedule_may_be_further_than_the_steps(schedule: Any) -> None:
    start, gradient = values(), values()
    optimizer = serialised(_O.Adam(schedule))
    constant = serialised(_O.Adam(float(schedule(np.int64(72)))))

    slots = Update(tensors(), constant).initial_slots(start)
    want, _, _ = one_step(Update(tensors(), constant), [(1, gradient)], start, slots, 9)
    slots = Update(tensors(), optimizer).initial_slots(start)
    got, _, _ = one_step(Update(tensors(), optimizer), [(1, gradient)], start, slots, 9, schedule_step=72)

    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


# ---- mean and norms ----------------------------------------------------------------------------------------


def test_the_mean_weighs_by_samples_and_passes_over_who_has_none() -> None:
    start, a, b = values(), values(), values()
    nothing = [np.full_like(array, np.nan) for array in a]
    mean = [(0.75 * x + 0.25 * y).astype(x.dtype) for x, y in zip(a, b, strict=True)]
    update = Update(tensors(), serialised(_O.SGD(0.1)))

    got, _, norms = one_step(update, [(3, a), (0, nothing), (1, b)], start, [], 1)
    want, _, _ = one_step(update, [(7, mean)], start, [], 1)

    assert_close(got, want, rtol=1e-6, atol=1e-7)
    square = sum(float(np.sum(g.astype("float64") ** 2)) for g in mean)
    assert norms.mean_sqnorm == pytest.approx(square, rel=1e-6)
    assert norms.finite


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_norms_outlast_single_precision(size: float) -> None:
    shapes: dict[str, tuple[int, ...]] = {"a": (10_000,), "b": (3,)}
    gradient = [(array * size).astype("float32") for array in values(shapes=shapes)]
    exact = sum(float(np.sum(array.astype("float64") ** 2)) for array in gradient)
    update = Update(tensors(shapes=shapes), serialised(_O.SGD(0.1)))

    _, _, norms = one_step(update, [(1, gradient)], values(shapes=shapes), [], 1)

    assert norms.finite
    assert norms.mean_sqnorm == pytest.approx(exact, rel=1e-6, abs=0.0)
    copies = [np.empty_like(array) for array in gradient]
    found = sum(copied_sqnorm(array, copy) for array, copy in zip(gradient, copies, strict=True))
    assert found == pytest.approx(exact, rel=1e-6, abs=0.0)
    assert all(np.array_equal(array, copy) for array, copy in zip(gradient, copies, strict=True))


@pytest.mark.parametrize("value", [0.0, -0.0, math.nan])
def test_the_norm_of_rows_that_no_sample_names_costs_no_second_pass(value: float) -> None:
    block = np.full(1 << 16, value, "float32")
    tracemalloc.start()

    square = sqnorm(block)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert math.isnan(square) if math.isnan(value) else square == 0.0
    assert peak < block.nbytes, "double precision would need twice as much"


@pytest.mark.parametrize("name", ["Adam", "SGD, Nesterov, clipped by norm", "Nadam"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_told_and_leaves_the_old_state_alone(name: str, bad: float) -> None:
    update = Update(tensors(), serialised((FUSED | BY_KERAS)[name]()))
    weights, good, worse = values(), values(), values()
    worse[1][2, 1] = bad
    slots = update.initial_slots(weights)
    before = [array.copy() for array in (*weights, *slots)]

    _, _, norms = one_step(update, [(1, good), (1, worse)], weights, slots, 1)

    assert not norms.finite
    for array, copy in zip((*weights, *slots), before, strict=True):
        np.testing.assert_array_equal(array, copy)


# ---- done again, by any number of threads, in parts --------------------------------------------------------


@pytest.mark.parametrize("name", ["Adam", "Adam, amsgrad, decay, clipped together", "SGD, averages"])
def test_a_step_is_the_same_bit_for_bit_whatever_the_threads(name: str) -> None:
    shapes = {"large": (300, 1000), "small": (7,), "odd": (70_001,)}
    weights, a, b = (values(shapes=shapes) for _ in range(3))
    config = serialised(FUSED[name]())
    outcomes = []
    for threads in (1, 2, 5):
        update = Update(tensors(shapes=shapes), config, threads=threads)
        state = one_step(update, [(3, a), (4, b)], weights, update.initial_slots(weights), 1)
        outcomes.append(one_step(update, [(4, b), (3, a)], state[0], state[1], 2))
        again = one_step(update, [(4, b), (3, a)], state[0], state[1], 2)
        assert again[2] == outcomes[-1][2]

    for weights_, slots_, norms in outcomes[1:]:
        assert norms == outcomes[0][2]
        for one, other in zip((*weights_, *slots_), (*outcomes[0][0], *outcomes[0][1]), strict=True):
            np.testing.assert_array_equal(one, other)


def test_old_arrays_and_gradients_are_only_read() -> None:
    update = Update(tensors(), _ADAM)
    weights, gradient = values(), values()
    slots = update.initial_slots(weights)
    for array in (*weights, *slots, *gradient):
        array.flags.writeable = False

    _, new_slots, _ = one_step(update, [(1, gradient)], weights, slots, 1)

    np.testing.assert_allclose(new_slots[0], 0.1 * gradient[0], rtol=1e-5)


@pytest.mark.parametrize("name", [*FUSED, "Nadam"])
def test_parts_updated_apart_are_the_whole_unless_all_gradients_have_one_norm(name: str) -> None:
    config = serialised((FUSED | BY_KERAS)[name]())
    start, gradients = values(), [values() for _ in range(3)]
    together, _ = our_steps(Update(tensors(), config), start, gradients)
    apart = []
    for part in (slice(0, 1), slice(1, 4)):
        update = Update(tensors()[part], config)
        apart += our_steps(update, start[part], [gradient[part] for gradient in gradients])[0]

    if "together" not in name:
        assert_close(apart, together, rtol=1e-6, atol=1e-7)
    else:
        assert not np.allclose(apart[0], together[0], rtol=1e-4)


@pytest.mark.parametrize("name", [*FUSED, *BY_KERAS])
def test_a_slot_is_told_by_its_tensor_and_number_however_the_tensors_are_shared_out(name: str) -> None:
    config, every = serialised((FUSED | BY_KERAS)[name]()), tensors()
    whole = Update(every, config).slots

    found = {(slot.tensor, slot.number): slot.shape for slot in whole}
    assert len(found) == len(whole)
    for place in range(len(every)):
        alone = {(slot.tensor, slot.number): slot.shape for slot in Update([every[place]], config).slots}
        of_tensor = {(0, n): shape for (tensor, n), shape in found.items() if tensor == place}
        assert alone == of_tensor | {key: shape for key, shape in found.items() if key[0] == -1}


@pytest.mark.parametrize("name", [*FUSED, *BY_KERAS])
def test_slots_are_what_they_are_said_to_be(name: str) -> None:
    update = Update(tensors(), serialised((FUSED | BY_KERAS)[name]()))

    initial = update.initial_slots(values())

    assert [(slot.shape, slot.dtype) for slot in update.slots] == [(a.shape, str(a.dtype)) for a in initial]
    assert not any("iteration" in slot.path or "learning_rate" in slot.path for slot in update.slots)


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        "no JSON",
        "[]",
        "{}",
        '{"class_name": "Nothing", "config": {}}',
        '{"module": "os", "class_name": "x"}',
        _ADAM.replace('"clipnorm": null, "global_clipnorm": null', '"clipnorm": 1.0, "global_clipnorm": 1.0'),
        _ADAM.replace('"beta_1"', '"beta_0"'),
    ],
)
def test_what_is_no_optimizer_of_keras_is_refused_in_one_line(config: str) -> None:
    with pytest.raises(NotSupportedError, match="optimizer cannot be built") as caught:
        Update(tensors(), config)

    assert "\n" not in str(caught.value)


def test_a_step_without_samples_or_number_or_room_is_refused() -> None:
    update = Update(tensors(shapes={"a": (4, 4)}), serialised(_O.SGD(0.1)))
    a, gradient, b = ([np.zeros((4, 4), "float32")] for _ in range(3))
    old, new = ShardState(a, []), ShardState(b, [])

    with pytest.raises(ValueError, match="no contribution has samples"):
        update.apply([(0, gradient)], old, new, step=1)
    with pytest.raises(ValueError, match="count from 1"):
        update.apply([(1, gradient)], old, new, step=0)
    turned = ShardState([np.zeros((4, 4), "float32").T[:, ::-1]], [])
    with pytest.raises(ValueError, match="not contiguous"):
        update.apply([(1, gradient)], old, turned, step=1)
    with pytest.raises(ValueError, match="1 tensors with 0 slots"):
        update.apply([(1, gradient)], old, ShardState(b, b), step=1)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Update(tensors(), _ADAM, threads=0)


def test_common_optimizers_do_without_tensorflow() -> None:
    program = (
        "import sys\n"
        "from scavenger.train.transport.messages.values import TensorSpec\n"
        "from scavenger.train.aggregation.update import Update\n"
        "update = Update([TensorSpec('a', (3,), 'float32', 'trainable')], sys.argv[1])\n"
        "assert len(update.slots) == 2\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", program, _ADAM], check=True, timeout=60)
