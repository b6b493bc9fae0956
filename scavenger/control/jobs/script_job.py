"""The job of a script: it is run as far as it trains, what it trains is told, and its job file is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from scavenger.control.job_file.load import load_job
from scavenger.control.job_file.script_text import (
    fits_in,
    job_file_of,
    job_text,
    other_fits,
    read_script,
)
from scavenger.control.job_file.text import changed_text
from scavenger.control.jobs.variables import settled_variables
from scavenger.control.places.kinds import check_keras_backend
from scavenger.domain.environment import plain
from scavenger.domain.fit import FitFound
from scavenger.domain.script import Script
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import plural
from scavenger.train.custom_loop.script import is_prepared, library_of, to_make_elastic
from scavenger.train.fit_process import find_fit

_NOTES_MAX = 3


def job_file_of_script(path: Path, arguments: Sequence[str], *, tell: Callable[[str], None]) -> Path:
    """Find what a script trains, say it, and write its job file; one that is there keeps what is not the script's.

    Args:
        tell: Receives what was found and written, a line each.

    Raises:
        ConfigurationError: If there is no such script, its job file cannot be written, or it cannot be a job.
        TrainingCodeError: If the script fails.
    """
    tree = read_script(path)
    prepares = is_prepared(tree)
    if not (prepares or fits_in(tree)) and (job_file := _file_of_module(path)) is not None:
        raise ConfigurationError(
            f"{path.name} calls no fit: it is the module of {job_file.name}; give {job_file}"
        )
    if not prepares:
        if not fits_in(tree) and (library := library_of(tree)):
            raise ConfigurationError(
                f"{path}: {to_make_elastic(library)}; or a job file with run: python {path.name} "
                "(docs/command-jobs.md), which starts it again at each change"
            )
        check_keras_backend(os.environ)
    job_file, script = job_file_of(path), Script(path.name, tuple(arguments))
    folder = path.resolve().parent
    known = load_job(job_file) if job_file.exists() else None
    variables = {} if known is None else plain(settled_variables(known, os.environ).env)
    tell(f"{path}: running it as far as its {'first epoch' if prepares else 'call of fit'}")
    found = find_fit(
        script,
        folder,
        log=folder / ".scavenger" / f"{path.stem}.log",
        seed=0 if known is None else known.seed,
        prepares=prepares,
        environ={**os.environ, **variables},
    )
    file, _, line = found.place.rpartition(":")
    left_out = other_fits(tree, int(line)) if file == path.name else ""
    place = f"{path.parent / file}:{line}"
    for told in _told_loop(found, place) if prepares else _told(found, place, left_out):
        tell(told)
    if known is None:
        text = job_text(
            script,
            found.place,
            epochs=found.epochs,
            batch_size=found.batch_size,
            processors=os.cpu_count() or 1,
            start_s=found.start_s,
            of="its loader" if prepares else "fit",
        )
        _write(job_file, text)
        tell(f"written: {job_file}, for budget, target, clouds and next time")
    else:
        tell(bring_up_to_date(job_file, script, found))
    return job_file


def _file_of_module(path: Path) -> Path | None:
    """The job file beside a module that trains an object of it, as `train:job`; None if there is none."""
    named = re.compile(rf"^train:\s*['\"]?{re.escape(path.stem)}:", re.MULTILINE)
    beside = (one for kind in ("*.yaml", "*.yml") for one in sorted(path.parent.glob(kind)) if one.is_file())
    return next((one for one in beside if named.search(one.read_text("utf-8", errors="replace"))), None)


def _told(found: FitFound, place: str, left_out: str) -> list[str]:
    """What was taken at which place, and what is not run, a line each."""
    more = f", nor {left_out}" if left_out else ""
    return [
        f"{place} fit: {_words(found)}",
        f"not run: what follows fit in the script{more}; the trained model will be .scavenger/JOB-ID/model.keras",
        *(f"note: {note}" for note in found.notes[:_NOTES_MAX]),
    ]


def _told_loop(found: FitFound, place: str) -> list[str]:
    return [
        f"{place} prepare: {_words(found)}",
        "not run: what follows the loop over epochs; the trained model will be .scavenger/JOB-ID/model.safetensors",
        *(f"note: {note}" for note in found.notes),
    ]


def _words(found: FitFound) -> str:
    words = [
        f"{found.model} of {found.weights:,} weights",
        f"{found.samples:,} samples in batches of {found.batch_size}",
        *([f"{found.validation_samples:,} for validation"] if found.validation_samples else []),
        plural(found.epochs, "epoch"),
        *([found.optimizer] if found.optimizer else []),
        *found.metrics,
        *found.callbacks,
    ]
    return ", ".join(words)


def bring_up_to_date(job_file: Path, script: Script, found: FitFound) -> str:
    """Give a job file the script's arguments and epochs, and say which; all else in it is the user's."""
    job = load_job(job_file)
    ours = {"train": str(script), "goal.max_epochs": found.epochs}
    theirs = {"train": str(job.train), "goal.max_epochs": job.goal.max_epochs}
    changes = {key: value for key, value in ours.items() if theirs[key] != value}
    if not changes:
        return f"job file: {job_file}"
    newline = "\r\n" if b"\r\n" in job_file.read_bytes() else "\n"  # the file keeps its own
    job_file.write_text(changed_text(job_file.read_text("utf-8"), changes), "utf-8", newline=newline)
    said = ", ".join(f"{key} is {value} instead of {theirs[key]}" for key, value in changes.items())
    return f"job file: {job_file}; {said}, as in the script"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
