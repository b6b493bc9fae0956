"""Finds what a script trains: `python -m scavenger.train.fit_process`, the question on standard input.

The script is run by a process of its own, with the same code as in workers, since it is the user's and imports
TensorFlow or PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

import msgspec

from scavenger.domain.fit import FitFound
from scavenger.domain.script import Script
from scavenger.errors import ScavengerError
from scavenger.frames import Frame, located, placed
from scavenger.masking import mask
from scavenger.private_files import FILE_MODE, make_private_folder
from scavenger.train.configuration import read_configuration
from scavenger.train.failure import describe_failure, error_of, masked_frames

_COMMAND = (sys.executable, "-P", "-m", "scavenger.train.fit_process")


class _Question(msgspec.Struct, frozen=True):
    script: str
    folder: str
    seed: int
    answer: str
    prepares: bool


class _Answer(msgspec.Struct, frozen=True):
    """What was found, or the kind, the text and the user's frames of a failure."""

    found: FitFound | None = None
    kind: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()


def find_fit(
    script: Script,
    folder: Path,
    *,
    log: Path,
    seed: int = 0,
    prepares: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> FitFound:
    """Run a script in a process of its own as far as its first `fit`, and check that a worker could train that.

    Args:
        script: Its path is relative to the folder.
        log: Where its output goes.
        prepares: Whether it calls `scavenger.torch` or `scavenger.jax`: then it is run as far as its first epoch.

    Raises:
        NotSupportedError: If there is no such call, or it cannot be a job; the message begins with its line.
        TrainingCodeError: If the script fails before it.
        ScavengerError: If the process was killed.
    """
    make_private_folder(log.parent)
    with tempfile.TemporaryDirectory(prefix="scavenger-") as place, log.open("wb") as output:
        answer = Path(place, "answer.json")
        log.chmod(FILE_MODE)
        question = msgspec.json.encode(_Question(str(script), str(folder), seed, str(answer), prepares))
        with subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **environ},
        ) as child:
            assert child.stdin is not None
            try:
                child.stdin.write(question + b"\n")
                child.stdin.flush()
                status = child.wait()
            finally:
                child.kill()
        if not answer.exists():
            raise ScavengerError(
                f"{script.path}: the process that looked at it ended with status {status}; see {log}"
            )
        told = msgspec.json.decode(answer.read_bytes(), type=_Answer)
    if told.found is None:
        frames = located(told.frames, folder)
        raise error_of(told.kind, placed(told.message, folder), process=script.path, log=log, frames=frames)
    return told.found


def main() -> int:
    """Answer one question; returns the exit status."""
    question = read_configuration(_Question)
    try:
        answer = _Answer(_found(question))
    except Exception as error:  # noqa: BLE001 - whatever the script raises is told
        sys.stderr.write(traceback.format_exc())
        kind, message = describe_failure(error, question.folder)
        answer = _Answer(kind=kind, message=mask(message), frames=masked_frames(error, question.folder))
    Path(question.answer).write_bytes(msgspec.json.encode(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of the script's do not hold it up


def _found(question: _Question) -> FitFound:
    began = time.monotonic()
    script = Script.find(question.script)
    assert script is not None
    if question.prepares:
        from scavenger.train.custom_loop.script import look_at

        return look_at(script, question.folder, question.seed)
    from scavenger.train.worker.loading import load_fit

    fit = load_fit(script, question.folder, question.seed)
    program = fit.program()
    manifest = program.manifest
    return FitFound(
        fit.place,
        type(program.model).__name__,
        manifest.parameters,
        manifest.dataset_size,
        manifest.validation_size,
        min(fit.batch_size, manifest.dataset_size),
        fit.epochs,
        type(program.model.optimizer).__name__,
        tuple(name for name in manifest.metric_names if name != "loss" and not name.startswith("val_")),
        manifest.callbacks,
        (*fit.notes, *manifest.notes),
        time.monotonic() - began,
    )


if __name__ == "__main__":
    sys.exit(main())
