"""By what a job is recognised, so that what was learned of it serves the next one of its kind."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fingerprint"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides how a job's time and epochs depend on (K, B).

    Attributes:
        architecture: SHA-256, hex, of what is trained: the model's layers and loss in canonical JSON, without
            names, and some of the data's targets, which tell one data set from another of its size.
        parameters: Trainable parameters.
        optimizer: Class name and a digest of its configuration, as `Adam:1f0c...`.
        dataset_size: Training samples per epoch.
        sample_bytes: Bytes of one sample (inputs and targets).
        goal: Metric and target as `val_accuracy>=0.97`; empty without a target. Epochs compare only at the same.
        vm: VM type.
        hardware: What the VM type stands on where that is not fixed by its name: processor model and count.
    """

    architecture: str
    parameters: int
    optimizer: str
    dataset_size: int
    sample_bytes: int
    goal: str
    vm: str
    hardware: str
