"""The kind of the training code that a job file names, without importing it, and the program of a command."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

from scavenger.control.jobs.needs import Kind
from scavenger.domain.command import RunSpec
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError
from scavenger.train.user_module import module_file

_CLASS = "LoopJob"


def kind_of(job: JobSpec, folder: Path) -> Kind:
    """The kind of a job's training code: a loop, if `train` names a `LoopJob` that is made at the top of its module.

    Args:
        folder: The job file's folder, where the module is.
    """
    if job.train is None:
        return Kind.COMMAND
    try:
        tree = ast.parse(module_file(folder, job.train.module).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return Kind.KERAS  # the worker that imports it says what is wrong
    loop = any(_makes_loop(statement, job.train.name) for statement in tree.body)
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


def check_command(job: JobSpec, run: RunSpec, folder: Path) -> None:
    """Check that a command tells the metric of the goal, and that its program is there.

    Raises:
        ConfigurationError: If it does not, or there is no such program.
    """
    metric = job.goal.metric
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
