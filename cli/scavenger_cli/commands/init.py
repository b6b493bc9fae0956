"""`init`: copies an example to a folder, with the user's values in its job file."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from scavenger.control.job_file.examples import (
    JOB_FILE,
    Example,
    example_texts,
    examples_path,
    refuse_existing,
    write_new,
)
from scavenger.control.job_file.load import load_job, override_job, parse_job
from scavenger.control.job_file.script_text import job_file_of, job_name, job_text, written_fit
from scavenger.control.job_file.text import changed_text
from scavenger.domain.job import JobSpec, Script
from scavenger.domain.overrides import sizes
from scavenger.domain.ranges import workers_of_text
from scavenger.errors import ConfigurationError, Interrupted
from scavenger.presentation.formatting import clean
from scavenger_cli.options import Output, OutputOption
from scavenger_cli.ui import console

MODULE = "train.py"
COMPILED = 'metrics=["accuracy"]'
"""The metrics in the starter's module."""


@dataclass(frozen=True, slots=True)
class StarterValues:
    """Values for the job file, in the forms of options; None for those of the example."""

    name: str | None = None
    train: str | None = None
    metric: str | None = None
    target: str | None = None
    workers: str | None = None
    budget: str | None = None

    def changes(self) -> dict[str, object]:
        """The values by their dotted keys in the job file.

        Raises:
            ConfigurationError: If the workers cannot be read.
        """
        workers = sizes("--workers", self.workers, workers_of_text)
        given: dict[str, object] = {
            "name": self.name,
            "train": self.train,
            "goal.metric": self.metric,
            "goal.target": self.target,
            # as it was written, if the job file knows the form
            "search.workers": self.workers if _RANGE.fullmatch(self.workers or "") else workers,
            # shells eat a `$`, so it may be left out here
            "constraints.budget": None if self.budget is None else f"${self.budget.removeprefix('$')}",
        }
        return {key: value for key, value in given.items() if value is not None}


_RANGE = re.compile(r"[0-9]+(\.\.[0-9]+)?")

QUESTIONS = {
    "name": "Name of the job",
    "train": "Training code, module:function",
    "metric": "Metric to reach",
    "target": "Its target",
    "workers": "Numbers of workers to consider",
    "budget": "Budget in US dollars, if any",
}


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write. Default: this folder.")
    ] = Path(),
    example: Annotated[
        Example | None, typer.Option(help="Copy this example. Default: starter, a small one to change.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The job's name.")] = None,
    train: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="The training code; a module that exists is kept."),
    ] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="The metric to reach.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="The metric's value at which training is done.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Numbers of workers to consider, such as 1..4.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="$", help="Highest cost in US dollars, such as 20 or $0.50.")
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option("--from", metavar="SCRIPT.py", help="Write the job file of a script that calls fit."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Write a job file and a training module to start from, or the job file of a script."""
    settings = StarterValues(name, train, metric, target, workers, budget)
    if script is not None:
        if folder != Path() or example is not None or train is not None:
            raise ConfigurationError(
                f"--from writes beside {script}, so it takes no FOLDER, example or --train"
            )
        job_file = job_file_of(script)
        write_new(script.parent, {job_file.name: _text_of_script(script, settings)})
        return _show([job_file], f"scavenger optimize {shlex.quote(str(job_file))}", output)
    chosen = Example.STARTER if example is None else example
    source = examples_path() / chosen.value
    job_file = source / JOB_FILE
    if not job_file.is_file():
        if settings != StarterValues():
            raise ConfigurationError(
                f"--example {chosen.value} has no job file, so it takes no other options"
            )
        texts = example_texts(source)
        ran = sys.executable if "run.py" in texts else "scavenger optimize"
        command = f"{ran} {shlex.quote(str(folder / ('run.py' if 'run.py' in texts else MODULE)))}"
    else:
        job = load_job(job_file)
        if chosen is not Example.STARTER:
            _refuse_code(settings, job)
        else:
            refuse_existing(folder, [JOB_FILE])  # before any question
            settings = _named(settings, folder)
            if not yes and console.is_interactive():
                settings = _asked(job, settings)
        texts = _begun(source, job, settings, folder)
        command = f"scavenger optimize {shlex.quote(str(folder / JOB_FILE))}"
    write_new(folder, texts)
    if not output.is_json and not any(name.endswith(".py") for name in texts):
        console.note(
            f"kept: the training module; {load_job(folder / JOB_FILE).train} is to be a KerasJob, or to return one"
        )
    return _show([folder / name for name in texts], command, output)


def _show(written: list[Path], command: str, output: Output) -> int:
    """Say what was written, and what to type next; returns the exit code."""
    if output.is_json:
        paths = list(map(str, written))
        console.emit_json({"schema_version": console.SCHEMA_VERSION, "written": paths, "next": command})
        return 0
    for path in written:
        console.note(f"written: {path}")
    console.write(sys.stdout, f"next: {clean(command)}\n")
    return 0


def _text_of_script(path: Path, settings: StarterValues) -> str:
    """The job file of a script, as far as its text tells, with the user's values.

    Raises:
        ConfigurationError: If the text does not tell, or a value cannot be.
    """
    fit = written_fit(path)
    script, place = Script(path.name), f"{path.name}:{fit.line}"
    text = job_text(
        script, place, epochs=fit.epochs, batch_size=fit.batch_size, processors=os.cpu_count() or 1
    )
    changed = changed_text(text, settings.changes()) if settings != StarterValues() else text
    parse_job(changed, path=job_file_of(path).name)
    return changed


def _refuse_code(settings: StarterValues, job: JobSpec) -> None:
    """Refuse options that an example's training module would not follow."""
    if settings.train is not None or settings.metric is not None:
        raise ConfigurationError(
            f"--train and --metric go without --example: {job.name} has its own module, whose metric is "
            f"{job.goal.metric}"
        )


def _named(settings: StarterValues, folder: Path) -> StarterValues:
    """Name the job after its folder, unless it has a name."""
    if settings.name is not None:
        return settings
    return replace(settings, name=job_name(folder.resolve().name) or "my-job")


def _asked(job: JobSpec, settings: StarterValues) -> StarterValues:
    """Ask for the name and for each value that was not given."""
    for field in fields(StarterValues):
        if field.name == "name" or getattr(settings, field.name) is None:
            settings = _answered(field.name, _default(field.name, job, settings), job, settings)
    return settings


def _answered(field: str, default: str, job: JobSpec, settings: StarterValues) -> StarterValues:
    """Ask for one value, again after an invalid answer; an empty answer takes the default.

    Raises:
        Interrupted: If the terminal was closed.
    """
    while True:
        sys.stderr.write(f"{QUESTIONS[field]}{f' [{default}]' if default else ''}: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise Interrupted
        answer = line.strip() or default
        tried = replace(settings, **{field: answer or None})
        try:
            _changed(job, tried)
        except ConfigurationError as error:
            console.note(error)
        else:
            return tried


def _default(field: str, job: JobSpec, settings: StarterValues) -> str:
    """What an empty answer means; empty for no value."""
    counts = job.search.workers
    defaults = {
        "name": settings.name,
        "train": None if job.train is None else str(job.train),
        "metric": job.goal.metric,
        "target": None if _drops_target(job, settings) else str(job.goal.target),
        "workers": f"{counts[0]}..{counts[-1]}",
    }
    return defaults.get(field) or ""


def _changed(job: JobSpec, settings: StarterValues) -> JobSpec:
    """The example's job with the user's values; another metric does not keep the target of the example's."""
    if _drops_target(job, settings):
        job = job.model_copy(update={"goal": job.goal.model_copy(update={"target": None})})
    return override_job(job, settings.changes())


def _drops_target(job: JobSpec, settings: StarterValues) -> bool:
    return settings.target is None and settings.metric not in (None, job.goal.metric)


def _begun(source: Path, job: JobSpec, settings: StarterValues, folder: Path) -> dict[str, str]:
    """The files of a new job by their path in its folder."""
    entry = _changed(job, settings).train
    if isinstance(entry, Script):
        raise ConfigurationError(
            f"--train names an object of a module, as train:job: `scavenger init --from {entry.path}` is for a script"
        )
    texts = example_texts(source)
    texts[JOB_FILE] = _job_text(texts[JOB_FILE], job, settings)
    if source.name != Example.STARTER.value or entry is None:
        return texts
    module = texts.pop(MODULE).replace("def job()", f"def {entry.name}()")
    if settings.metric is not None:
        name = settings.metric.removeprefix("val_")
        module = module.replace(COMPILED, "metrics=[]" if name == "loss" else f'metrics=["{name}"]')
    path = f"{entry.module.replace('.', '/')}.py"
    if not (folder / path).exists():
        texts[path] = module
    return texts


def _job_text(text: str, job: JobSpec, settings: StarterValues) -> str:
    """The text of a job file with the user's values; comments stay."""
    without = ("goal.target",) if _drops_target(job, settings) else ()
    return changed_text(text, settings.changes(), without=without)
