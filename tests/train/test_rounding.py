"""Gradients rounded to bfloat16: what is sent, what is not lost, and that sums are the same wherever they form."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from driving import Run, assert_same_weights, plain_keras
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from manifests import manifest_of

from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.buckets import buckets, packed, read, rounded_tensors, unpacked
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.values import Manifest, TensorSpec
from scavenger.train.transport.shared_memory import Block
from scavenger.train.worker.rounding import Rounding

_VALUES = st.floats(-1e4, 1e4, width=32)


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=_VALUES),
    st.integers(1, 8),
)
def test_what_is_rounded_off_is_added_later_so_that_the_sum_is_that_of_the_gradients(
    gradients: np.ndarray, scale: int
) -> None:
    rounding, total = Rounding([0]), np.zeros(gradients.shape[1])
    largest = 0.0
    for gradient in gradients:
        given_, target = gradient * np.float32(2.0**-scale), np.empty_like(gradient)
        square = rounding.write(0, given_, target)
        assert np.array_equal(target, target.astype(ml_dtypes.bfloat16).astype(np.float32))
        assert square == pytest.approx(float(np.vdot(target.astype(float), target.astype(float))), rel=1e-5)
        total += target
        largest = max(largest, float(np.abs(given_).max(initial=0.0)))
    exact = (gradients * np.float32(2.0**-scale)).sum(axis=0, dtype=float)
    # one rounding of a value that is little larger than the largest gradient, to 8 bits
    assert np.abs(total - exact).max() <= 1.1 * largest * 2.0**-8 + 1e-30


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_gradient_that_is_not_finite_is_told_and_leaves_nothing_behind(bad: float) -> None:
    rounding, target = Rounding([0]), np.empty(3, np.float32)
    assert not np.isfinite(rounding.write(0, np.array([1.001, bad, 2.0], np.float32), target))
    assert np.array_equal(target, np.array([1.0, bad, 2.0], np.float32), equal_nan=True)

    rounding.write(0, np.zeros(3, np.float32), target)

    assert not target.any()


def test_what_was_rounded_off_for_nothing_is_forgotten() -> None:
    rounding, target = Rounding([0]), np.empty(1, np.float32)
    rounding.write(0, np.array([1.001], np.float32), target)
    rounding.forget()
    rounding.write(0, np.zeros(1, np.float32), target)

    assert target[0] == 0.0


def manifest(*tensors: TensorSpec) -> Manifest:
    return manifest_of(tensors)


_MODEL = manifest(
    TensorSpec("dense/kernel", (64, 64), "float32", "trainable"),
    TensorSpec("dense/bias", (5000,), "float32", "trainable"),
    TensorSpec("words/embeddings", (500, 64), "float32", "trainable"),
    TensorSpec("small/kernel", (8, 8), "float32", "trainable"),
    TensorSpec("double/kernel", (64, 64), "float64", "trainable"),
    TensorSpec("frozen/kernel", (64, 64), "float32", "mean"),
)


def test_large_matrices_alone_are_rounded() -> None:
    assert rounded_tensors(_MODEL) == {0}


@pytest.fixture
def block() -> Iterator[Block]:
    fd = create_block()
    yield Block(fd, Layout.of(_MODEL))
    os.close(fd)


@pytest.mark.parametrize("exact", [True, False])
def test_half_of_the_bytes_of_a_rounded_gradient_are_sent_and_all_of_one_that_is_not(
    block: Block, exact: bool
) -> None:
    """Whatever is sent, what arrives has the bits of the slot."""
    at = block.layout.slot_at(0)
    random = np.random.default_rng(1)
    for tensor in block.tensors(at):
        values = random.normal(size=tensor.shape).astype(tensor.dtype)
        tensor[...] = values.astype(ml_dtypes.bfloat16).astype(tensor.dtype) if exact else values
    rounded = {number for number, one in enumerate(block.layout.segments) if one.tensor == 0}
    saved = 0
    for bucket in buckets(block.layout):
        counts, data = packed(block, at, (), bucket, rounded)
        for sent, here in zip(
            unpacked(bucket, counts, bytes(data)), read(block, at, (), bucket), strict=True
        ):
            assert isinstance(sent, np.ndarray)
            assert isinstance(here, np.ndarray)
            assert sent.tobytes() == here.tobytes()
        saved += sum(part.bytes for part in bucket.parts) - len(data)

    assert saved >= 64 * 64 * 2 - 64 if exact else saved <= 0


def test_a_bucket_that_claims_to_be_rounded_and_is_not_is_refused(block: Block) -> None:
    double = next(one for one in buckets(block.layout) if any(part.dtype == np.float64 for part in one.parts))
    with pytest.raises(ValueError, match="single precision"):
        unpacked(double, [-2] * len(double.parts), bytes(double.bytes))
    single = next(one for one in buckets(block.layout) if one.parts[0].dtype == np.float32)
    with pytest.raises(ValueError, match="buffer"):
        unpacked(single, [-2] * len(single.parts), b"12345678")


@pytest.mark.slow
def test_weights_are_the_same_wherever_workers_are_and_near_those_of_plain_keras(tmp_path: Path) -> None:
    found = []
    for name, remote in (("here", ()), ("elsewhere", ("w0", "w1"))):
        with Run("small:wide", tmp_path / name, remote=remote, gradients="bfloat16", epochs=3) as run:
            run.begin(2, 34)
            run.to_the_end()
            found.append(run.finish())

    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    plain = plain_keras("wide", run.steps)
    assert_same_weights(found[0], plain, 2e-2)
    assert not all(np.array_equal(one, other) for one, other in zip(found[0], plain, strict=True))
