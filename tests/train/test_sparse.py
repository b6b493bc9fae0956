"""A sparse gradient trains as the dense one would, whatever is lost, repeated or restarted, and takes less room."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import manifest_of

from scavenger.train.aggregation import mean_gradient, update
from scavenger.train.aggregation.mean_gradient import Contribution
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.aggregation.update import Update
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages import ApplyPart
from scavenger.train.transport.messages.values import Manifest, RowCounts, TensorSpec
from scavenger.train.transport.rows import Rows

pytestmark = pytest.mark.slow

Array = np.typing.NDArray[Any]
_SHAPES = ((150, 3), (80,), (5, 2), (9, 4, 7))
"""Two tables, a tensor that is small, and one whose rows are too long for spans."""

SPARING: dict[str, tuple[str, dict[str, object]]] = {
    "SGD": ("SGD", {}),
    "SGD, clipped by value": ("SGD", {"clipvalue": 0.3}),
    "Adagrad": ("Adagrad", {}),
    "SGD with a schedule": (
        "SGD",
        {
            "learning_rate": {
                "module": "keras.optimizers.schedules",
                "class_name": "ExponentialDecay",
                "config": {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5},
            }
        },
    ),
}
CHANGING_ALL: dict[str, tuple[str, dict[str, object]]] = {
    "SGD, momentum": ("SGD", {"momentum": 0.9}),
    "SGD, decay": ("SGD", {"weight_decay": 0.1}),
    "SGD, averages": ("SGD", {"use_ema": True, "ema_momentum": 0.5}),
    "Adagrad of zero by zero": ("Adagrad", {"initial_accumulator_value": 0.0, "epsilon": 0.0}),
    "Adam": ("Adam", {}),
    "RMSprop": ("RMSprop", {}),
}
CLIPPED: dict[str, tuple[str, dict[str, object]]] = {
    "SGD, clipped by norm": ("SGD", {"clipnorm": 0.5}),
    "Adagrad, clipped together": ("Adagrad", {"global_clipnorm": 0.5}),
    "Adam, clipped together": ("Adam", {"global_clipnorm": 0.5}),
}
ALL = SPARING | CHANGING_ALL | CLIPPED


def optimizer(name: str) -> str:
    class_name, options = ALL[name]
    config = {"learning_rate": 0.1, **options}
    return json.dumps({"module": "keras.optimizers", "class_name": class_name, "config": config})


def manifest(name: str, dtype: str = "float32") -> Manifest:
    return manifest_of(
        (TensorSpec(f"t{i}", shape, dtype, "trainable") for i, shape in enumerate(_SHAPES)), optimizer(name)
    )


@pytest.fixture(autouse=True)
def _short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is cut into several spans."""
    monkeypatch.setattr(mean_gradient, "SPAN_BYTES", 96)
    monkeypatch.setattr(update, "SPAN_BYTES", 96)


# ---- the same as dense, whatever happens -------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """What a worker pushes, drawn from the seed.

    Attributes:
        shares: Of each tensor's rows, how many a sparse gradient has, on average; None for a dense gradient.
    """

    samples: int
    shares: tuple[float | None, ...]
    seed: int

    def gradients(self, dtype: str) -> list[Array | Rows]:
        random = np.random.default_rng(self.seed)
        found: list[Array | Rows] = []
        for share, shape in zip(self.shares, _SHAPES, strict=True):
            dense = random.normal(size=shape).astype(dtype)
            rows = np.flatnonzero(random.random(shape[0]) < (share or 0))
            found.append(dense if share is None else Rows(rows, dense[rows]))
        return found


def whole(gradients: list[Array | Rows]) -> list[Array]:
    return [g.dense(shape) if isinstance(g, Rows) else g for g, shape in zip(gradients, _SHAPES, strict=True)]


_pieces = st.lists(
    st.builds(
        Piece,
        samples=st.sampled_from([3, 1, 2, 0]),
        shares=st.tuples(*[st.sampled_from([0.04, 0.03, 0.02, 0.0, 0.05, 0.06, 0.4, None])] * len(_SHAPES)),
        seed=st.integers(0, 1 << 16),
    ),
    min_size=1,
    max_size=2,
)
_events = st.sampled_from(["", "", "", "repeat", "replace", "restart", "restart in it", "nan"])
_steps = st.lists(st.tuples(_events, _pieces, _pieces), min_size=3, max_size=8)


class Shards:
    """The aggregators of a model in a block, and a worker that writes to it."""

    def __init__(self, fd: int, model: Manifest, aggregators: int, dtype: str) -> None:
        self._fd, self._dtype = fd, dtype
        self.layout = Layout.of(model, aggregators)
        self.start()
        self.block = self.shards[0].block
        for index, array in enumerate(self.block.tensors(self.layout.state_at(0))):
            array[...] = np.random.default_rng(index).normal(size=array.shape)
        for shard in self.shards:
            shard.begin()

    def start(self) -> None:
        """The first aggregators, or their successors."""
        self.shards = [ModelShard(self._fd, self.layout, index) for index in range(self.layout.aggregators)]

    def push(self, slot: int, piece: Piece) -> RowCounts:
        at, counts = self.layout.slot_at(slot), list[tuple[int, int]]()
        for index, gradient in enumerate(piece.gradients(self._dtype)):
            (dense,) = self.block.tensors(at, [index])
            dense[...] = np.nan  # of an earlier piece
            if isinstance(gradient, Rows):
                counts += self.block.write_sparse(at, index, gradient)
            else:
                dense[...] = gradient
        return tuple(counts)

    def apply(self, step: int, view: int, pieces: list[Piece]) -> list[bool]:
        orders = [(n, piece.samples, n, self.push(n, piece)) for n, piece in enumerate(pieces)]
        order = ApplyPart(step, view, 1.0, tuple(orders))
        return [shard.apply(order).finite for shard in self.shards]

    def state(self, step: int) -> list[Array]:
        return [record.array.copy() for shard in self.shards for record in shard._records(shard.held, step)]


class Reference:
    """The same steps with dense gradients, into new arrays."""

    def __init__(self, shards: Shards, dtype: str) -> None:
        self._dtype, layout = dtype, shards.layout
        segments = layout.segments
        self._parts = [[segments[n] for n in part] for part in layout.parts]
        self._updates = [
            Update([one.spec for one in part], layout.manifest.optimizer) for part in self._parts
        ]
        weights = shards.block.tensors(layout.state_at(0))
        self._weights = [[one.of(weights[one.tensor]).copy() for one in part] for part in self._parts]
        self._slots = [u.initial_slots(w) for u, w in zip(self._updates, self._weights, strict=True)]

    def apply(self, step: int, pieces: list[Piece]) -> None:
        counted: list[Contribution] = [
            (p.samples, whole(p.gradients(self._dtype))) for p in pieces if p.samples
        ]
        for number, (part, one) in enumerate(zip(self._parts, self._updates, strict=True)):
            weights, slots = self._weights[number], self._slots[number]
            if not counted or not part:
                continue
            self._weights[number] = [np.empty_like(array) for array in weights]
            self._slots[number] = [np.empty_like(array) for array in slots]
            mine = [(n, [one.of(gradients[one.tensor]) for one in part]) for n, gradients in counted]
            after = ShardState(self._weights[number], self._slots[number])
            one.apply(mine, ShardState(weights, slots), after, step=step)

    @property
    def state(self) -> list[Array]:
        both = zip(self._weights, self._slots, strict=True)
        return [array for weights, slots in both for array in (*weights, *slots)]


def check(name: str, dtype: str, aggregators: int, steps: Any, rtol: float) -> None:
    fd = create_block()
    try:
        shards = Shards(fd, manifest(name, dtype), aggregators, dtype)
        dense, view = Reference(shards, dtype), 1
        for step, (event, pieces, others) in enumerate(steps, start=1):
            if event == "restart":
                shards.start()
            elif event in ("replace", "restart in it"):  # only some have applied the step when its view ends
                orders = tuple((n, p.samples, n, shards.push(n, p)) for n, p in enumerate(others))
                shards.shards[0].apply(ApplyPart(step, view, 1.0, orders))
                view += 1
                if event == "restart in it":
                    shards.start()
            elif event == "nan":
                every, at = range(len(shards.layout.segments)), shards.layout.slot_at(0)
                counts = tuple((n, 1) for n in every if shards.layout.saves(n, 1))
                for segment in shards.block.segments(at, every):
                    segment[...] = np.nan
                for number, _ in counts:
                    rows = shards.block.rows(at, number, 1)
                    rows.indices[...], rows.values[...] = 0, np.nan
                order = ApplyPart(step, view, 1.0, ((0, 1, 0, counts),))
                assert [shard.apply(order).finite for shard in shards.shards] == [
                    not part for part in shards.layout.parts
                ]
                view += 1
            assert all(shards.apply(step, view, pieces))
            if event == "repeat":
                assert all(shards.apply(step, view, others)), "the order is known, and not done again"
            dense.apply(step, pieces)

            for got, want in zip(shards.state(step), dense.state, strict=True):
                np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
        del shards
    finally:
        os.close(fd)


@settings(max_examples=60)
@given(
    name=st.sampled_from([*SPARING, *SPARING, *CHANGING_ALL]),
    dtype=st.sampled_from(["float32", "float32", "float64", "float16"]),
    aggregators=st.integers(1, 3),
    steps=_steps,
)
def test_sparse_gradients_train_bit_for_bit_as_dense_ones(
    name: str, dtype: str, aggregators: int, steps: Any
) -> None:
    check(name, dtype, aggregators, steps, rtol=0.0)


@settings(max_examples=15)
@given(name=st.sampled_from(sorted(CLIPPED)), aggregators=st.integers(1, 2), steps=_steps)
def test_where_norms_clip_them_they_train_as_dense_ones_up_to_rounding(
    name: str, aggregators: int, steps: Any
) -> None:
    check(name, "float32", aggregators, steps, rtol=2e-6)
