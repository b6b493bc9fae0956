"""Fingerprint of a model and its data, by which similar jobs are recognised and workers compared."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import keras
import numpy as np

from scavenger.train.aggregation.keras_state import Rate, own_rate
from scavenger.train.worker.data import SampleSource, within_reach

_RATES_AT = (0, 10, 100, 1000, 10_000)  # steps whose learning rates identify a schedule
_TARGETS = 16  # number of targets that identify a data set: quick to read, rarely equal by chance
_PLACES, _BESIDE = 4, 2  # of the samples that are read twice, and how many there: random ones rarely agree


def architecture(model: Any, train: SampleSource, *, shuffle: bool = True) -> str:
    """SHA-256 of layers (classes, configurations, weight shapes) and loss, without names, and some targets.

    Data that is not shuffled trains otherwise, so `shuffle` is part of it.

    All workers must compute the same digest, which also detects a worker that shuffled its data differently.
    """
    layers = [[*_described(layer), [list(v.shape) for v in layer.weights]] for layer in model.layers]
    losses = [_described(loss) for loss in keras.tree.flatten(model.loss)]
    if own_rate(model.optimizer):
        losses.append([Rate(model.optimizer)(steps) for steps in _RATES_AT])
    if not shuffle:
        losses.append(["not shuffled"])
    text = json.dumps([type(model).__name__, layers, losses], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    reach = within_reach(train)
    for index in range(0, reach, -(-reach // _TARGETS)):
        for leaf in keras.tree.flatten(train.batch(np.array([index]))[:2][-1]):  # y, or x alone
            _add(digest, leaf)
    return digest.hexdigest()


def digest_of_samples(*sources: SampleSource | None) -> str:
    """Digest of some samples of each data set, which tells it from another with the same targets.

    Returns:
        The digest; empty if two readings of a sample differ, as where it is augmented by chance, or if data can only be
        read in sequence, so that reading it twice takes long.
    """
    digest = hashlib.sha256()
    for source in sources:
        if source is None:
            continue
        if source.blocks is not None and source.blocks.in_sequence:
            return ""
        once = _some(source)
        source.batch(np.array([0]), seed=1)  # with another seed, a source forgets what it has read
        if once != _some(source):
            return ""
        digest.update(once)
    return digest.hexdigest()


def _some(source: SampleSource) -> bytes:
    digest, size = hashlib.sha256(), len(source)
    for start in range(0, size, -(-size // _PLACES)):
        for leaf in keras.tree.flatten(source.batch(np.arange(start, min(start + _BESIDE, size)))):
            _add(digest, leaf)
    return digest.digest()


def _add(digest: Any, leaf: Any) -> None:
    digest.update(repr(leaf.tolist()).encode() if leaf.dtype == object else leaf.tobytes())


def _described(part: Any) -> list[Any]:
    """Return class and configuration of a layer or loss; its name alone if it has no configuration."""
    if not hasattr(part, "get_config"):
        return [getattr(part, "__name__", part), None]
    try:
        return [type(part).__name__, _nameless(part.get_config())]
    except (NotImplementedError, TypeError, ValueError):
        return [type(part).__name__, None]  # a subclass without a configuration: the class name must suffice


def _nameless(value: Any) -> Any:
    if isinstance(value, dict):
        drop = ("name", "inbound_nodes", "build_config", "input_layers", "output_layers")
        return {key: _nameless(item) for key, item in value.items() if key not in drop}
    if isinstance(value, (list, tuple)):
        return [_nameless(item) for item in value]
    return value
