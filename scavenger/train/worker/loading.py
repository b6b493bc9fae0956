"""Loads the training code of a job, and seeds a worker."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from typing import Any

import keras

from scavenger.domain.script import Script
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.sdk.job import KerasJob
from scavenger.train.user_module import enter
from scavenger.train.worker.program import Program
from scavenger.train.worker.script import ScriptFit, run_to_fit


def load_program(
    train: str,
    job_dir: str,
    seed: int,
    *,
    data: str = "",
    params: Mapping[str, Any] | None = None,
    schedule_batch: int = 0,
) -> Program:
    """Build the job that `module:object` or a script names, after seeding every random generator that Keras controls.

    Args:
        train: A `KerasJob`, or a function that returns one; with `data`, a function that returns a compiled model. Or a
            script with its arguments, see `Script`.
        job_dir: The folder of the modules.
        seed: The job's seed.
        data: A function that returns the arguments of `KerasJob` besides the model; empty if `train` returns all.
        params: Arguments of the function that `train` names.
        schedule_batch: See `Manifest.schedule_batch`.

    Raises:
        TrainingCodeError: If a module has no such object, or the object is not a job.
        NotSupportedError: If the module asks for another backend of Keras.
    """
    if (script := Script.find(train)) is not None:
        return load_fit(script, job_dir, seed).program(schedule_batch=schedule_batch)
    enter(job_dir, train.partition(":")[0])
    keras.utils.set_random_seed(seed % (1 << 32))
    module = importlib.import_module(train.partition(":")[0])
    _check_backend(module.__file__)
    job = _named(train)
    if params and (not callable(job) or isinstance(job, KerasJob)):
        raise TrainingCodeError(
            f"{train} is no function, so it takes no params; make it a function, or leave them out"
        )
    if callable(job) and not isinstance(job, KerasJob):
        job = job(**(params or {}))
    if data and not isinstance(job, KerasJob):
        others = _named(data)()
        if not isinstance(others, Mapping):
            raise TrainingCodeError(
                f"{data} must return the arguments of KerasJob besides the model, as {{'train': (x, y)}}, not "
                f"{type(others).__name__}"
            )
        job = KerasJob(job, **others)
    if not isinstance(job, KerasJob):
        raise TrainingCodeError(
            f"{train} must be, or return, a scavenger.sdk.KerasJob, not {type(job).__name__}"
        )
    return Program(job, job_dir, schedule_batch=schedule_batch)


def load_fit(script: Script, job_dir: str, seed: int) -> ScriptFit:
    """The first `fit` of a script, which is run as far as that with the generators seeded.

    Raises:
        NotSupportedError, TrainingCodeError: See `run_to_fit`; also if the script asks for another backend of Keras.
    """
    keras.utils.set_random_seed(seed % (1 << 32))
    fit = run_to_fit(script, job_dir)
    _check_backend(script.path)
    return fit


def _check_backend(file: str | None) -> None:
    if (backend := os.environ.get("KERAS_BACKEND") or "tensorflow") != "tensorflow":
        raise NotSupportedError(
            f"{file} or a module that it imports sets KERAS_BACKEND to {backend!r}, but workers compute "
            "with TensorFlow: leave it out, or run the script as it is with run: (docs/command-jobs.md)"
        )


def _named(place: str) -> Any:
    """The object that `module:object` names.

    Raises:
        TrainingCodeError: If the module has no such object.
    """
    module_name, _, attribute = place.partition(":")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise TrainingCodeError(f"{module.__file__} has no object {attribute!r}") from None


def seed_worker(seed: int, name: str) -> None:
    """Seed NumPy, Python and TensorFlow's own random operations differently for each worker.

    `load_program` gives all workers the same seeds; from this call on, each worker draws other numbers. The
    generators of Keras layers are not affected.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=4, key=(seed % (1 << 64)).to_bytes(8, "little"))
    keras.utils.set_random_seed(int.from_bytes(digest.digest(), "little"))
