"""Kinds of training code: which one a job file names, without importing it, and what its code needs before a start."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from scavenger.control.places.needs import Kind
from scavenger.domain.job import JobSpec, Script
from scavenger.errors import ConfigurationError, NotSupportedError
from scavenger.train.custom_loop.script import is_prepared
from scavenger.train.user_module import module_file

_CLASS = "LoopJob"
_OWN = "scavenger."
"""Begin of the names of modules that are there wherever workers run, as `scavenger.integrations.hypermodel`."""


def kind_of(job: JobSpec, folder: Path) -> Kind:
    """The kind of a job's training code.

    It is a loop, if `train` names a `LoopJob` that is made at the top of its module, or a script that imports
    `scavenger.torch` or `scavenger.jax`.

    Args:
        folder: The job file's folder, where the module is.
    """
    if job.train is None:
        return Kind.COMMAND
    train = job.train
    file = folder / train.path if isinstance(train, Script) else module_file(folder, train.module)
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return Kind.KERAS  # the worker that imports it says what is wrong
    if isinstance(train, Script):
        loop = is_prepared(tree)
    else:
        loop = any(_makes_loop(statement, train.name) for statement in tree.body)
    return Kind.LOOP if loop else Kind.KERAS


def _makes_loop(statement: ast.stmt, name: str) -> bool:
    """Whether a statement binds the name to a `LoopJob`, by an assignment or as a decorator."""
    match statement:
        case ast.Assign(targets=targets, value=ast.Call(func=function)):
            bound = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            return bound and _is_class(function)
        case ast.AnnAssign(target=ast.Name(id=bound_name), value=ast.Call(func=function)):
            return bound_name == name and _is_class(function)
        case ast.FunctionDef():
            return statement.name == name and any(_is_class(entry) for entry in statement.decorator_list)
        case _:
            return False


def _is_class(expression: ast.expr) -> bool:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == _CLASS
        case _:
            return False


def check_code(job: JobSpec, kind: Kind, folder: Path) -> None:
    """Check that a job's code is there, with what its kind needs.

    Args:
        folder: The job file's folder.

    Raises:
        ConfigurationError: If it is not; the message says what is missing.
    """
    for key, entry in (("train", job.train), ("data", job.data)):
        if isinstance(entry, Script):
            _check_script(entry, folder)
            continue
        if entry is None or entry.module.startswith(_OWN):
            continue
        path = folder.joinpath(*entry.module.split("."))
        if not (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
            hint = _meant(entry.module, folder, f":{entry.name}")
            raise ConfigurationError(
                f"{key} names {entry.module}.py, which is not in {folder}; {hint}", key=key
            )
    if kind is Kind.KERAS:
        check_keras_backend(os.environ)
    elif kind is Kind.COMMAND:
        check_command(job, folder)


def _check_script(script: Script, folder: Path) -> None:
    path = folder / script.path
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(
            f"train names {script.path}, which is not in {folder}, all that workers get: put the job file beside it",
            key="train",
        )
    if not path.is_file():
        hint = _meant(Path(script.path).stem, path.parent, ".py")
        raise ConfigurationError(f"train names {script.path}, which is not in {folder}; {hint}", key="train")


def _meant(stem: str, folder: Path, end: str) -> str:
    """Which module of a folder may be meant in place of one that is missing, or what to do."""
    close = get_close_matches(stem, sorted(p.stem for p in folder.glob("*.py")), n=1)
    return f"did you mean {close[0]}{end}?" if close else "put it beside the job file"


def check_command(job: JobSpec, folder: Path) -> None:
    """Check that a command tells the metric of the goal, and that its program is there.

    Raises:
        ConfigurationError: If it does not, or there is no such program.
    """
    run, metric = job.run, job.goal.metric
    assert run is not None
    if run.log is not None and metric is not None and not {metric, "metric"} & run.log_groups:
        raise ConfigurationError(
            f"no pattern of run.log has the group (?P<metric>...), so {metric} would never be seen: add it where the "
            "program prints the metric",
            key="goal.metric",
        )
    if job.infra.capabilities.rents:
        return  # VMs have programs of their own
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    at = str(folder / run.program) if "/" in run.program else run.program
    if shutil.which(at, path=beside) is None:
        raise ConfigurationError(
            f"run: there is no program {run.program!r} here; install it beside Scavenger, or write its whole path",
            key="run",
        )


def check_keras_backend(environ: Mapping[str, str]) -> None:
    """Check that Keras is configured for TensorFlow, the only backend that workers use.

    Args:
        environ: The environment of the command. As in Keras, `KERAS_BACKEND` takes precedence over the file keras.json
            in `KERAS_HOME` or `~/.keras`.

    Raises:
        NotSupportedError: If another backend is configured; the message names the variable or file.
    """
    if "KERAS_BACKEND" in environ:
        backend, place = environ["KERAS_BACKEND"], "the environment variable KERAS_BACKEND"
    else:
        file = Path(environ.get("KERAS_HOME") or Path.home() / ".keras", "keras.json")
        try:
            document = json.loads(file.read_text())
        except (OSError, ValueError):
            return
        backend = document.get("backend", "tensorflow") if isinstance(document, dict) else "tensorflow"
        place = str(file)
    if backend not in ("tensorflow", ""):
        raise NotSupportedError(
            f"{place} sets Keras's backend to {backend!r}, but workers compute with TensorFlow; set it to tensorflow, "
            "or start the command with KERAS_BACKEND=tensorflow; loops in PyTorch or JAX run as a LoopJob "
            "(docs/own-loop.md), and any command as run: (docs/command-jobs.md)"
        )
