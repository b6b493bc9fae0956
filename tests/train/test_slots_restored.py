"""An optimizer's state comes back to the tensors that it belongs to, however they are shared out then."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import safetensors.numpy
from manifests import manifest_of
from plain_keras import one_by_one

from scavenger.errors import ScavengerError
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.start_up import checkpoint_of
from scavenger.train.checkpoints import checkpoint
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.files import LocalFiles
from scavenger.train.checkpoints.manifest import CheckpointFile as CheckpointPart
from scavenger.train.checkpoints.manifest import CheckpointManifest
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.worker.saved_optimizer import SavedOptimizer

pytestmark = pytest.mark.slow

_O = keras.optimizers
TWINS = {"block/kernel": (8, 4), "block/bias": (4,), "head/kernel": (8, 4), "head/bias": (4,), "odd": (3, 5)}
"""Layers alike in name and shape: what belongs to one fits the other."""
ONE_PATH = [("dense/kernel", (6, 3)), ("dense/kernel", (6, 3)), ("dense/bias", (3,)), ("dense/bias", (3,))]

OPTIMIZERS: dict[str, Any] = {
    "Adafactor": lambda: _O.Adafactor(0.1),
    "Adam": lambda: _O.Adam(0.1),
    "Nadam": lambda: _O.Nadam(0.1),
    "averaged RMSprop": lambda: _O.RMSprop(0.1, momentum=0.9, use_ema=True),
}


def manifest(optimizer: Any, shapes: Any) -> m.Manifest:
    return manifest_of(
        (m.TensorSpec(path, shape, "float32", "trainable") for path, shape in shapes),
        json.dumps(_O.serialize(optimizer), default=float),
    )


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    """Operations run one by one, for it is not about how a step is compiled, which takes most of the time."""
    with one_by_one():
        yield


class Model:
    """All parts of a model, on some aggregators."""

    def __init__(self, fd: int, made: m.Manifest, aggregators: int) -> None:
        self.fd, self.layout = fd, Layout.of(made, aggregators)
        self.parts = [ModelShard(fd, self.layout, index) for index in range(aggregators)]
        self._block = self.parts[0].block

    def begin(self) -> None:
        for place, array in enumerate(self._block.tensors(self.layout.state_at(0))):
            array[...] = np.random.default_rng(place).normal(size=array.shape)
        for part in self.parts:
            part.begin()

    def train(self, first: int, last: int) -> list[Any]:
        """The weights after steps `first` to `last`, each with a gradient of its own for each tensor."""
        for step in range(first, last + 1):
            for place, array in enumerate(self._block.tensors(self.layout.slot_at(0))):
                array[...] = (place + 1) * np.random.default_rng([step, place]).normal(size=array.shape)
            for part in self.parts:
                assert part.apply(m.ApplyPart(step, 1, 1.0, ((step, 4, 0, ()),))).finite
        return [array.copy() for array in self._block.tensors(self.layout.state_at(last))]

    def save(self, store: CheckpointStore, step: int) -> None:
        saved: list[m.PartSaved] = []
        for part in self.parts:
            part.save(store, step, "attempt", best=False, then=saved.append)
            part.wait_saved()
        assert not any(one.error for one in saved)
        store.commit(
            CheckpointManifest(
                fingerprint=self.layout.manifest.digest,
                step=step,
                attempt="attempt",
                epoch=0,
                consumed=0,
                view=1,
                parts=tuple(CheckpointPart(*part) for one in saved for part in one.parts),
                created_at=datetime.now(UTC),
            )
        )

    def restore(self, store: CheckpointStore) -> None:
        found = store.latest()
        assert found is not None
        for part in self.parts:
            with found.arrays() as saved:
                part.load(found.manifest.step, saved)


@contextmanager
def model(made: m.Manifest, aggregators: int) -> Iterator[Model]:
    fd = create_block()
    try:
        yield Model(fd, made, aggregators)
    finally:
        os.close(fd)


@pytest.mark.parametrize("aggregators", [1, 5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_job_goes_on_as_it_would_have_on_any_number_of_aggregators(
    name: str, aggregators: int, tmp_path: Path
) -> None:
    made, store = manifest(OPTIMIZERS[name](), TWINS.items()), CheckpointStore(str(tmp_path))
    with model(made, 3) as first:
        assert all(first.layout.parts)
        first.begin()
        first.train(1, 3)
        first.save(store, 3)
        expected = first.train(4, 6)
    with model(made, aggregators) as again:
        again.restore(store)
        found = again.train(4, 6)

    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=str(place))


@pytest.mark.parametrize("aggregators", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("name", ["Adam", "Nadam", "Adafactor"])
def test_tensors_of_one_path_have_state_of_their_own(
    name: str, aggregators: tuple[int, int], tmp_path: Path
) -> None:
    made, store = manifest(OPTIMIZERS[name](), ONE_PATH), CheckpointStore(str(tmp_path))
    with model(made, aggregators[0]) as first:
        first.begin()
        first.train(1, 3)
        first.save(store, 3)
        expected = first.train(4, 6)
    with model(made, aggregators[1]) as again:
        again.restore(store)
        found = again.train(4, 6)

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_a_checkpoint_of_the_form_that_confused_tensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, store = manifest(_O.Adam(0.1), TWINS.items()), CheckpointStore(str(tmp_path))
    with model(made, 1) as first:
        first.begin()
        with monkeypatch.context() as older:
            older.setattr(checkpoint, "FORMAT_VERSION", 1)
            first.save(store, 0)

        with pytest.raises(ScavengerError, match=r"format 1\).*start a new job"):
            checkpoint_of(m.RestorePoint(str(tmp_path)), made)
        first.train(1, 1)
        first.save(store, 1)

    newest = checkpoint_of(m.RestorePoint(str(tmp_path)), made)
    assert newest.manifest.step == 1


def test_an_aggregator_reads_only_its_own_part_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = manifest(_O.Adam(0.1), {"table": (40_000, 4), "bias": (1000,)}.items())
    store, counts = CheckpointStore(str(tmp_path)), [0]

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def readinto(self, buffer: Any, /) -> int | None:
            count: int | None = self._file.readinto(buffer)
            counts[-1] += count or 0
            return count

    @contextmanager
    def counted(self: Any, *place: Any) -> Iterator[Any]:
        with reading(self, *place) as (file, size):
            yield Counted(file), size

    with model(made, 3) as first:
        first.begin()
        first.train(1, 2)
        first.save(store, 2)
        expected = first.train(3, 3)
    found = store.latest()
    assert found is not None
    whole = sum(part.bytes for part in found.manifest.parts)
    with model(made, 5) as again:
        reading = LocalFiles.reading
        monkeypatch.setattr(LocalFiles, "reading", counted)
        for part in again.parts:
            counts.append(0)
            chosen = checkpoint_of(m.RestorePoint(str(tmp_path), found.manifest.folder), made)
            with chosen.arrays() as saved:
                part.load(2, saved)
        after = again.train(3, 3)

    for one, other in zip(after, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(count < 0.45 * whole for count in counts[1:]), "a fifth, and what its buckets overlap"


def as_of_format_2(
    made: m.Manifest, folder: Path, arrays: list[Any], slots: dict[tuple[int, int], Any]
) -> None:
    """Write a checkpoint of step 3 as Scavenger did whose parts held whole tensors, with one digest each."""
    names: list[dict[str, Any]] = [{}, {}]
    for index, array in enumerate(arrays):
        names[index % 2][f"weight.{index}"] = array
    for (tensor, number), array in slots.items():
        names[tensor % 2][f"slot.{'shared' if tensor < 0 else tensor}.{number}"] = np.asarray(array)
    place, parts = folder / "step-00000003-old", []
    place.mkdir(parents=True)
    for number, tensors in enumerate(names):
        data = safetensors.numpy.save({name: np.array(array, order="C") for name, array in tensors.items()})
        (place / f"part-{number}.safetensors").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        parts.append({"name": str(number), "sha256": digest, "bytes": len(data), "finite": True})
    body = msgspec.json.encode(
        {
            "fingerprint": made.digest,
            "step": 3,
            "attempt": "old",
            "epoch": 0,
            "consumed": 0,
            "view": 1,
            "parts": parts,
            "created_at": "2030-01-01T00:00:00Z",
            "state": {},
            "serial": 1,
            "version": 2,
        }
    )
    document = {"sha256": hashlib.sha256(body).hexdigest(), "manifest": msgspec.Raw(body)}
    (place / "manifest.json").write_bytes(msgspec.json.encode(document))


@pytest.mark.parametrize("name", ["Adam", "Nadam", "Adafactor"])
def test_a_checkpoint_of_whole_tensors_goes_on_in_ranges(name: str, tmp_path: Path) -> None:
    made = manifest(OPTIMIZERS[name](), TWINS.items())
    with model(made, 1) as first:
        first.begin()
        weights = first.train(1, 3)
        slots = SavedOptimizer(first.fd, first.layout).state(3, 1.0).slots
        as_of_format_2(made, tmp_path, weights, dict(slots))
        expected = first.train(4, 6)

    assert checkpoint_of(m.RestorePoint(str(tmp_path)), made).manifest.version == 2
    with model(made, 3) as again:
        again.restore(CheckpointStore(str(tmp_path)))
        found = again.train(4, 6)

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
