"""What a worker tells of a model, made from its tensors alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scavenger.train.transport.messages.values import Manifest, TensorSpec


def manifest_of(tensors: Iterable[TensorSpec], optimizer: str = "", **more: Any) -> Manifest:
    """Of a model of these tensors, with ten samples and no metrics; `more` are other fields."""
    known: dict[str, Any] = {"metrics": (), "dataset_size": 10, "validation_size": 0, "sample_bytes": 1}
    known |= {"architecture": "", "parameters": 0, "metric_names": ()}
    return Manifest(tensors=tuple(tensors), optimizer=optimizer, **{**known, **more})
