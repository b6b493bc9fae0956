"""The fingerprint that identifies jobs of the same kind, so that a later one can reuse their models."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fingerprint"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The properties that determine how a job's time and epochs depend on (K, B).

    Attributes:
        architecture: SHA-256, hex, of what is trained: the model's layers and loss in canonical JSON, without
            names, and some of the data's targets, which tell one data set from another of its size.
        parameters: Trainable parameters.
        optimizer: Class name and a digest of its configuration, as `Adam:1f0c...`.
        dataset_size: Training samples per epoch.
        sample_bytes: Bytes of one sample (inputs and targets).
        goal: Metric and target as `val_accuracy>=0.97`; empty without a target. Epochs compare only at the same.
        vm: VM type.
        hardware: Processor model and count, where the VM type's name does not determine them.
    """

    architecture: str
    parameters: int
    optimizer: str
    dataset_size: int
    sample_bytes: int
    goal: str
    vm: str
    hardware: str
