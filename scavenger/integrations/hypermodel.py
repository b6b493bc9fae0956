"""Builds the model of a KerasTuner trial in a worker process: the entry point of such a trial's job."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scavenger.errors import NotSupportedError, TrainingCodeError

__all__ = ["ENTRY", "build"]

ENTRY = f"{__name__}:build"
"""What the job of a trial has as `train`."""


def build(hypermodel: str, hyperparameters: Mapping[str, Any], weights: str = "") -> Any:
    """The compiled model of a trial.

    Args:
        hypermodel: What the user's job has as `train`: a `build(hp)` function, a `HyperModel`, or a class of them, as
            `module:object`.
        hyperparameters: Values by name; what they lack has its default.
        weights: A saved model whose weights it begins with; may be empty.

    Raises:
        NotSupportedError: If KerasTuner is not installed where the worker runs.
        TrainingCodeError: If the module has no such object, or the weights are not there.
    """
    try:
        import keras_tuner
    except ImportError as error:
        raise NotSupportedError(
            "this trial's workers need KerasTuner; install scavenger-ml[keras-tuner] where they run"
        ) from error
    module_name, _, name = hypermodel.partition(":")
    found = getattr(importlib.import_module(module_name), name, None)
    if found is None:
        raise TrainingCodeError(f"{module_name} has no object {name!r}")
    values = keras_tuner.HyperParameters()
    values.values = dict(hyperparameters)
    if isinstance(found, type):
        found = found()
    model = (found.build if isinstance(found, keras_tuner.HyperModel) else found)(values)
    if weights:
        if not Path(weights).is_file():
            raise TrainingCodeError(
                f"{weights}, with which this trial begins, is gone; begin the search again"
            )
        model.load_weights(weights)
    return model
