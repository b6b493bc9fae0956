"""A script of the user's that calls `fit`: it is run as Python runs it, as far as that call, which becomes a job.

The call is never made. What it would do otherwise than a job does is refused, with the line that calls it.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays

from scavenger.domain.script import KERAS_BATCH_SIZE, Script
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.frames import named_from
from scavenger.sdk.job import KerasJob
from scavenger.train.failure import describe_failure
from scavenger.train.worker.callbacks.other_state import is_users
from scavenger.train.worker.data.batches import is_py_dataset
from scavenger.train.worker.data.tf_dataset import batches_of, without_repeat
from scavenger.train.worker.program import Program

_OTHERWISE = (
    "make it a LoopJob (docs/own-loop.md), or run the script as it is, by run: (docs/command-jobs.md)"
)
_PLACE = re.compile(r"\S+\.py:\d+: ")
_WORDS = (
    ("KerasJob.train: ", "the data of fit: "),
    ("KerasJob.validation: ", "validation_data: "),
    ("KerasJob(", "fit("),
)
"""What a `KerasJob` calls its arguments, and what a script calls them."""

_main_before: list[types.ModuleType | None] = []  # it still runs, so its names must stay


@dataclass(frozen=True, slots=True)
class ScriptFit:
    """The first call of `fit` in a script.

    Attributes:
        place: Of the call, as `train.py:31`.
        job: What it would train.
        batch_size: Samples of a step.
        notes: What is done otherwise than in `fit`.
        job_dir: The folder of the script.
    """

    place: str
    job: KerasJob
    epochs: int
    batch_size: int
    notes: tuple[str, ...]
    job_dir: str

    def program(self, *, schedule_batch: int = 0) -> Program:
        """Its model and data inside a worker.

        Raises:
            NotSupportedError, TrainingCodeError: If it cannot be trained as a job; says where it is called.
        """
        with _told_at(self.place, self.job_dir):
            return Program(self.job, self.job_dir, schedule_batch=schedule_batch)


class _Reached(BaseException):
    """Ends the script at its call of `fit`; no handler for `Exception` of the script's catches it."""


@dataclass(slots=True)
class _Calls:
    """What the script has called: the first `fit`, or what cannot be a job."""

    folder: str
    place: str = ""
    model: Any = None
    given: Mapping[str, Any] | None = None
    refused: NotSupportedError | None = None

    def stop(self, refused: str = "") -> NoReturn:
        if not self.place:
            self.place, caller = _place_of_call(self.folder)
            if refused or caller:
                self.refused = NotSupportedError(f"{self.place}: {refused or caller}")
        raise _Reached


def run_to_fit(script: Script, job_dir: str) -> ScriptFit:
    """Run a script as `python SCRIPT ARGUMENTS` would, as far as its first call of `fit`.

    Args:
        script: Its path is relative to the folder.
        job_dir: The job file's folder.

    Raises:
        NotSupportedError: If it does not call `fit`, or the call cannot be a job; says where.
        TrainingCodeError: If the script ends itself, as a parser of arguments does.
    """
    calls = _Calls(job_dir)
    path = Path(job_dir, script.path)
    os.environ.setdefault("MPLBACKEND", "Agg")  # a window would wait for somebody
    with _intercepted(calls):
        try:
            _run_as_main(path, script.arguments)
        except _Reached:
            pass
        except SystemExit as error:
            if calls.given is None and calls.refused is None:
                raise TrainingCodeError(
                    f"{_place_of_error(error, job_dir)}: the script ended itself ({error}) before it called fit: is an "
                    f"argument missing? They follow `--`: scavenger optimize {named_from(str(path))} -- --name value"
                ) from error
    if calls.refused is not None:
        raise calls.refused
    if calls.given is None:
        raise NotSupportedError(f"{script.path}: the script never calls fit of a Keras model: {_OTHERWISE}")
    return _taken(calls.place, calls.model, calls.given, job_dir)


def _run_as_main(path: Path, arguments: tuple[str, ...]) -> None:
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    _main_before.append(sys.modules.get("__main__"))
    sys.modules["__main__"] = module
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102


@contextlib.contextmanager
def _intercepted(calls: _Calls) -> Iterator[None]:
    """Have `fit` of any model recorded, and refuse what else would train one."""
    signature = inspect.signature(keras.Model.fit)

    def fit(model: Any, *args: Any, **kwargs: Any) -> NoReturn:
        bound = signature.bind(model, *args, **kwargs)  # raises in the script what Keras would
        bound.apply_defaults()
        if not calls.place:
            calls.model, calls.given = model, {**bound.arguments}
        calls.stop()

    def train_on_batch(*args: Any, **kwargs: Any) -> NoReturn:
        calls.stop(f"train_on_batch makes the steps of a loop of the script's own: {_OTHERWISE}")

    def apply(*args: Any, **kwargs: Any) -> NoReturn:
        calls.stop(f"the script applies gradients in a loop of its own, without fit: {_OTHERWISE}")

    with (
        _replaced(keras.Model, "fit", fit),
        _replaced(keras.Model, "train_on_batch", train_on_batch),
        _replaced(keras.optimizers.Optimizer, "apply", apply),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _place_of_call(folder: str) -> tuple[str, str]:
    """The line of the user's that has called; with it a complaint if a library stands between."""
    frame: types.FrameType | None = sys._getframe(2)
    library = ""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if is_users(name):
            break
        if name.partition(".")[0] not in ("keras", "tensorflow", "scavenger"):
            library = library or name.partition(".")[0]
        frame = frame.f_back
    if frame is None:
        return "the script", f"fit is called by {library}, not by the script itself: {_OTHERWISE}"
    complaint = f"fit is called by {library}, not by the script itself: {_OTHERWISE}" if library else ""
    return _place(frame.f_code.co_filename, frame.f_lineno, folder), complaint


def _place_of_error(error: BaseException, folder: str) -> str:
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(folder)]
    return _place(frames[-1].filename, frames[-1].lineno or 0, folder) if frames else "the script"


def _place(file: str, line: int, folder: str) -> str:
    path = Path(file)
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{line}"


# ---- the call as a job -------------------------------------------------------------------------------------


def _taken(place: str, model: Any, given: Mapping[str, Any], job_dir: str) -> ScriptFit:
    with _told_at(place, job_dir):
        if not isinstance(given["epochs"], int) or given["epochs"] < 1:
            raise NotSupportedError(f"fit(epochs={given['epochs']!r}): a job trains at least one epoch")
        data = _data_of(given)
        validation = given["validation_data"]
        if isinstance(validation, (tuple, list)):
            validation = tuple(one for one in validation if one is not None)  # (x, y, None)
        validation, validation_steps = _whole_pass(
            validation, given["validation_steps"], given["validation_batch_size"] or data.batch_size
        )
        job = KerasJob(
            model,
            data.train,
            validation,
            class_weight=given["class_weight"],
            sample_weight=given["sample_weight"],
            validation_split=given["validation_split"] or 0.0,
            callbacks=getattr(given["callbacks"], "callbacks", given["callbacks"]),
            shuffle=data.shuffle,
            steps_per_epoch=data.steps,
            batch_size=None if data.steps is None else data.batch_size,
            initial_epoch=given["initial_epoch"],
            validation_freq=given["validation_freq"],
            validation_steps=validation_steps,
        )
    return ScriptFit(place, job, given["epochs"], data.batch_size, data.notes, job_dir)


@dataclass(frozen=True, slots=True)
class _Data:
    """Training data as a `KerasJob` takes them, and how `fit` goes through them.

    Attributes:
        steps: Of an epoch; None for a whole pass.
        batch_size: Samples of a step.
        notes: What is done otherwise than in `fit`.
    """

    train: Any
    steps: int | None
    shuffle: Any
    batch_size: int
    notes: tuple[str, ...] = ()


def _data_of(given: Mapping[str, Any]) -> _Data:
    x, y, steps = given["x"], given["y"], given["steps_per_epoch"]
    if isinstance(x, tf.data.Dataset):
        size, shuffles, drops = batches_of(x)
        note = f"each epoch has the samples, too, that drop_remainder leaves out of batches of {size}"
        return _Data(*_whole_pass(x, steps, size), shuffles, size, (note,) * drops)
    if is_py_dataset(x):
        size = _length(x[0])
        return _Data(*_whole_pass(x, steps, size), given["shuffle"], size)
    size = given["batch_size"]
    if not can_convert_arrays((x, y)):  # what is wrong with it is told when it is opened
        return _Data(x if y is None else (x, y), None, given["shuffle"], size or KERAS_BATCH_SIZE)
    samples = math.floor(_length(x) * (1.0 - (given["validation_split"] or 0.0)))
    size = size or (-(-samples // steps) if steps else KERAS_BATCH_SIZE)
    whole = steps == -(-samples // size)
    return _Data((x,) if y is None else (x, y), None if whole else steps, given["shuffle"], size)


def _whole_pass(data: Any, steps: int | None, batch_size: int) -> tuple[Any, int | None]:
    """Data, and the steps of an epoch through it; None if they are a whole pass.

    An endless `.repeat()`, with which Keras needs a number of steps, is left out.
    """
    if steps is None or data is None:
        return data, steps
    if isinstance(data, tf.data.Dataset):
        data = without_repeat(data)
        batches: int | None = int(data.cardinality())
    elif is_py_dataset(data):
        batches = len(data)
    else:
        batches = -(-_length(data) // batch_size) if can_convert_arrays((data,)) else None
    return data, None if steps == batches else steps


def _length(data: Any) -> int:
    """The length of the first axis of the first array."""
    return len(keras.tree.flatten(data)[0])


@contextlib.contextmanager
def _told_at(place: str, job_dir: str) -> Iterator[None]:
    """Name the call of `fit` where an error names no line of the user's."""
    try:
        yield
    except Exception as error:
        kind, text = describe_failure(error, job_dir)
        for ours, theirs in _WORDS:
            text = text.replace(ours, theirs)
        text = text if _PLACE.match(text) else f"{place}: {text}"
        if kind == "unsupported":
            raise NotSupportedError(text) from error
        if kind == "code":
            raise TrainingCodeError(text) from error
        raise
