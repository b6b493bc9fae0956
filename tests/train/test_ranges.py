"""Every optimizer of Keras trains as in plain Keras, however its tensors are cut and shared out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import pytest
from manifests import manifest_of
from plain_keras import one_by_one

from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.divisibility import Divisibility, divisibility
from scavenger.train.transport.layout import Layout
from scavenger.train.worker.saved_optimizer import SavedOptimizer

pytestmark = pytest.mark.slow

_O = keras.optimizers
_STEPS = 4
SHAPES = {
    "embedding/table": (100, 20),
    "dense/kernel": (20, 4),
    "dense/bias": (4,),
    "scale": (),
    "head/kernel": (4, 3, 3),
}
"""The first has more than 90 % of all elements."""

BY_ELEMENT: dict[str, Callable[[], Any]] = {
    "Adadelta": lambda: _O.Adadelta(0.5),
    "Adagrad": lambda: _O.Adagrad(0.1),
    "Adam": lambda: _O.Adam(0.01),
    "Adam, amsgrad, decay": lambda: _O.Adam(0.01, amsgrad=True, weight_decay=0.05),
    "AdamW, averages put in place": lambda: _O.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3),
    "Adamax": lambda: _O.Adamax(0.01),
    "Ftrl": lambda: _O.Ftrl(0.1),
    "Lion": lambda: _O.Lion(0.01, weight_decay=0.01),
    "Nadam": lambda: _O.Nadam(0.01),
    "RMSprop, centered, momentum": lambda: _O.RMSprop(0.01, centered=True, momentum=0.5),
    "SGD": lambda: _O.SGD(0.1),
    "SGD, Nesterov, clipped by value": lambda: _O.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.3),
    "SGD, accumulated": lambda: _O.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "ScheduleFreeAdamW": lambda: _O.ScheduleFreeAdamW(0.01),
    "an optimizer for each tensor": lambda: _O.MultiOptimizer(
        _O.OptimizerMap(_O.Adam(0.01), {"dense/.*": _O.SGD(0.1, momentum=0.9)})
    ),
}
BY_TENSOR: dict[str, Callable[[], Any]] = {
    "Adafactor": lambda: _O.Adafactor(0.01),
    "Lamb": lambda: _O.Lamb(0.01),
    "Muon, by the layers' names": lambda: _O.Muon(0.01, exclude_layers=["embedding", "scale"]),
    "Adam, clipped by norm": lambda: _O.Adam(0.01, clipnorm=0.5),
    "Lamb for some tensors": lambda: _O.MultiOptimizer(
        _O.OptimizerMap(_O.SGD(0.1), {"head/.*": _O.Lamb(0.01)})
    ),
}
TOGETHER: dict[str, Callable[[], Any]] = {
    "SGD, clipped together": lambda: _O.SGD(0.1, global_clipnorm=0.5),
    "LossScaleOptimizer": lambda: _O.LossScaleOptimizer(_O.Adam(0.01), initial_scale=8.0),
}
ALL = BY_ELEMENT | BY_TENSOR | TOGETHER


GRAPHS = {"Nadam", "Lamb"}
"""One of each kind whose steps are compiled here, as aggregators do; `test_update` compiles each."""


@pytest.fixture(autouse=True)
def _eager(request: pytest.FixtureRequest) -> Iterator[None]:
    """Operations run one by one, for it is not about how a step is compiled, which takes most of the time."""
    called = getattr(request.node, "callspec", None)
    compiled = called is not None and called.params.get("name") in GRAPHS
    with nullcontext() if compiled else one_by_one():
        yield


def serialised(optimizer: Any) -> str:
    return json.dumps(_O.serialize(optimizer), default=float)


def manifest(optimizer: Any, constraints: Any = ()) -> m.Manifest:
    return manifest_of(
        (m.TensorSpec(path, shape, "float32", "trainable") for path, shape in SHAPES.items()),
        serialised(optimizer),
        constraints=constraints,
    )


def gradients(step: int) -> list[Any]:
    return [
        np.random.default_rng([step, place]).normal(size=shape).astype("float32")
        for place, shape in enumerate(SHAPES.values())
    ]


def start() -> list[Any]:
    return gradients(0)


class Model:
    """A model on some aggregators in one block."""

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout, self._fd = layout, fd
        self.shards = [ModelShard(fd, layout, index) for index in range(layout.aggregators)]
        self.block = self.shards[0].block

    def begin(self) -> None:
        for target, value in zip(self.block.tensors(self.layout.state_at(0)), start(), strict=True):
            target[...] = value
        for shard in self.shards:
            shard.begin()

    def train(self, first: int, last: int) -> list[Any]:
        for step in range(first, last + 1):
            for target, value in zip(
                self.block.tensors(self.layout.slot_at(0)), gradients(step), strict=True
            ):
                target[...] = value
            for shard in self.shards:
                assert shard.apply(m.ApplyPart(step, 1, 1.0, ((step, 4, 0, ()),))).finite
        return [array.copy() for array in self.block.tensors(self.layout.state_at(last))]

    def move(self, holders: list[int], first: int) -> None:
        """Let other aggregators hold the buckets from a step on."""
        self.layout = self.layout.moved(holders, self.layout.map_number + 1)
        for shard in self.shards:
            others = {other.index for other in self.shards} - {shard.index}
            shard.take(shard.prepare(self.layout), first, beside=others)

    @property
    def optimizer(self) -> SavedOptimizer:
        return SavedOptimizer(self._fd, self.layout)


@contextmanager
def model(layout: Layout) -> Iterator[Model]:
    fd = create_block()
    try:
        yield Model(fd, layout)
    finally:
        os.close(fd)


def plain(optimizer: Any) -> list[Any]:
    """The weights after Keras's own steps."""
    variables = []
    for path, value in zip(SHAPES, start(), strict=True):
        scope, _, name = path.rpartition("/")
        with keras.name_scope(scope) if scope else keras.name_scope("model"):
            variable = keras.Variable(value, name=name)
        variables.append(variable)
    optimizer.build(variables)
    scale = getattr(optimizer, "initial_scale", 1.0)  # aggregators get gradients without it
    for step in range(1, _STEPS + 1):
        optimizer.apply([scale * one for one in gradients(step)], variables)
    return [variable.numpy() for variable in variables]


def assert_same(got: list[Any], want: list[Any]) -> None:
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_an_optimizer_on_any_number_of_aggregators_is_that_of_keras(name: str) -> None:
    made, want = manifest(ALL[name]()), plain(ALL[name]())
    for aggregators in (1, 3):
        layout = Layout.of(made, aggregators, bucket_bytes=1000 if aggregators == 1 else None)
        with model(layout) as cut:
            cut.begin()
            assert_same(cut.train(1, _STEPS), want)
        held = [sum(end - begin for begin, end in ranges) for ranges in layout.part_ranges]
        if name in BY_ELEMENT:
            assert len(layout.segments_of(0)) > 1
            assert max(held) <= 1.3 * sum(held) / aggregators, "though one tensor is most of the model"


def test_buckets_may_be_with_any_aggregator() -> None:
    name = "Adam, amsgrad, decay"
    made, want = manifest(ALL[name]()), plain(ALL[name]())
    count = len(Layout.of(made, 3, bucket_bytes=128).buckets)
    holders = np.random.default_rng(3).integers(0, 3, size=count).tolist()
    layout = Layout.of(made, 3, holders, bucket_bytes=128)
    assert max(map(len, layout.part_ranges)) > 2

    with model(layout) as cut:
        cut.begin()
        assert_same(cut.train(1, _STEPS), want)


@pytest.mark.parametrize("name", BY_ELEMENT | BY_TENSOR)
def test_buckets_change_their_holder_between_any_two_steps(name: str) -> None:
    layout = Layout.of(manifest(ALL[name]()), 2, bucket_bytes=2000)
    count = len(layout.buckets)
    with model(layout) as still, model(layout.moved([0] * count, 1)) as moved:
        still.begin()
        moved.begin()
        moved.train(1, 1)
        moved.move([1] * count, 2)
        moved.train(2, 2)
        moved.move([number % 2 for number in range(count)], 3)
        for one, other in zip(still.train(1, _STEPS), moved.train(3, _STEPS), strict=True):
            np.testing.assert_array_equal(one, other)
        wanted, found = (one.optimizer.state(_STEPS, 1.0).slots for one in (still, moved))
        assert found.keys() == wanted.keys()
        for key, array in wanted.items():
            np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize("name", TOGETHER)
def test_what_has_to_stay_together_is_not_moved(name: str) -> None:
    layout = Layout.of(manifest(ALL[name]()), 2)

    with pytest.raises(ValueError, match="stays with aggregator 0"):
        layout.moved([1] * len(layout.buckets), 1)


def test_a_constrained_tensor_stays_whole_and_keeps_its_constraint() -> None:
    made = manifest(
        _O.SGD(0.1),
        ((0, '{"module": "keras.constraints", "class_name": "UnitNorm", "config": {"axis": 0}}'),),
    )
    with model(Layout.of(made, 2)) as cut:
        assert len(cut.layout.segments_of(0)) == 1
        cut.begin()
        first, *others = cut.train(1, 2)

    np.testing.assert_allclose(np.linalg.norm(first, axis=0), 1.0, rtol=1e-5)
    steps = zip(*(gradients(step) for step in (0, 1, 2)), strict=True)
    assert_same(others, [value - 0.1 * one - 0.1 * two for value, one, two in steps][1:])


@pytest.mark.parametrize("name", ["Adam", "Nadam", "Adafactor", "LossScaleOptimizer"])
def test_the_state_of_an_optimizer_goes_into_any_layout_and_comes_out_as_it_was(name: str) -> None:
    made = manifest(ALL[name]())
    with model(Layout.of(made)) as whole, model(Layout.of(made, 3)) as cut:
        for one in (whole, cut):
            one.begin()
            one.train(1, 2)
        wanted, found = whole.optimizer.state(2, 1.0).slots, cut.optimizer.state(2, 1.0).slots
        assert found.keys() == wanted.keys()
        for key, array in wanted.items():
            np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-7)

        cut.optimizer.write_initial(wanted)
        again = cut.optimizer.state(0, 1.0).slots
        for key, array in wanted.items():
            np.testing.assert_array_equal(again[key], array)


def test_every_optimizer_that_keras_exports_is_in_these_tests() -> None:
    exported = {
        name
        for name, one in vars(_O).items()
        if isinstance(one, type) and issubclass(one, _O.Optimizer) and one is not _O.Optimizer
    }

    assert exported == {type(make()).__name__ for make in ALL.values()}


@pytest.mark.parametrize("name", ALL)
def test_how_far_a_model_can_be_divided(name: str) -> None:
    expected = {
        **dict.fromkeys(BY_ELEMENT, Divisibility.ELEMENTS),
        **dict.fromkeys(BY_TENSOR, Divisibility.TENSORS),
        **dict.fromkeys(TOGETHER, Divisibility.MODEL),
    }

    assert divisibility(serialised(ALL[name]())) is expected[name]


def test_what_is_not_known_stays_whole() -> None:
    assert divisibility("") is Divisibility.TENSORS
    assert divisibility('{"class_name": "Shampoo", "config": {}}') is Divisibility.TENSORS
    assert divisibility('{"config": {"global_clipnorm": 1.0}}') is Divisibility.MODEL
    assert divisibility('{"config": {"global_clipnorm": null}}') is Divisibility.TENSORS
    scheduled = _O.SGD(_O.schedules.CosineDecay(0.1, 10))
    assert divisibility(serialised(scheduled)) is Divisibility.ELEMENTS
