"""What kind of training code a job file names, without importing it: a `LoopJob`, a Keras job, or a command."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

from scavenger.domain.command import RunSpec
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, NotSupportedError
from scavenger.train.user_module import module_file

__all__ = ["check_command", "check_loop", "names_a_loop"]

_CLASS = "LoopJob"


def names_a_loop(job: JobSpec, folder: Path) -> bool:
    """Whether `train` names a `LoopJob` that is made at the top of its module.

    Args:
        folder: The job file's folder, where the module is.
    """
    if job.train is None:
        return False
    try:
        tree = ast.parse(module_file(folder, job.train.module).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False  # the worker that imports it says what is wrong
    return any(_makes_loop(statement, job.train.name) for statement in tree.body)


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


def check_loop(job: JobSpec) -> None:
    """Check that this version can run a loop as the job file asks.

    Raises:
        NotSupportedError: If it cannot; the message names the key and what to write instead.
    """
    refused: list[tuple[bool, str, str]] = [
        (
            job.data is not None,
            "data",
            "data: is for a KerasJob; the function of a LoopJob reads its data itself, from a path in params, say",
        ),
        (
            job.engine != "process",
            "engine",
            f"engine: {job.engine}: a LoopJob runs on this machine or on VMs; leave engine out",
        ),
        (
            job.aggregation == "shared",
            "aggregation",
            "aggregation: shared: a LoopJob has no aggregators, since its workers hold the weights; write own",
        ),
        (
            job.elastic.aggregators > 1,
            "elastic.aggregators",
            f"elastic.aggregators: {job.elastic.aggregators}: a LoopJob has no aggregators; leave it out",
        ),
    ]
    for wrong, key, message in refused:
        if wrong:
            raise NotSupportedError(message, key=key)


def check_command(job: JobSpec, run: RunSpec, folder: Path) -> None:
    """Check that this version can run a command as the job file asks, and that its program is there.

    Raises:
        NotSupportedError: If it cannot; the message names the key and what to write instead.
        ConfigurationError: If there is no such program.
    """
    refused: list[tuple[bool, str, str]] = [
        (job.data is not None, "data", "data: is for a KerasJob; a command reads its data itself"),
        (
            job.engine != "process",
            "engine",
            f"engine: {job.engine}: a command runs on this machine or on VMs; leave engine out",
        ),
        (
            job.aggregation == "shared",
            "aggregation",
            "aggregation: shared: a command has no aggregators, since its processes hold the weights; write own",
        ),
        (
            job.elastic.aggregators > 1,
            "elastic.aggregators",
            f"elastic.aggregators: {job.elastic.aggregators}: a command has no aggregators; leave it out",
        ),
        (
            job.elastic.lr_scaling != "none" and "lr_scale" not in run.names,
            "elastic.lr_scaling",
            f"elastic.lr_scaling: {job.elastic.lr_scaling}: a command sets its learning rate itself; give it "
            "{lr_scale}",
        ),
    ]
    metric = job.goal.metric
    if run.log is not None and metric is not None and not {metric, "metric"} & run.log_groups:
        raise ConfigurationError(
            f"no pattern of run.log has the group (?P<metric>...), so {metric} would never be seen: add it where the "
            "program prints the metric",
            key="goal.metric",
        )
    for wrong, key, message in refused:
        if wrong:
            raise NotSupportedError(message, key=key)
    if job.infra.provider != "local":
        return  # VMs have programs of their own
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    at = str(folder / run.program) if "/" in run.program else run.program
    if shutil.which(at, path=beside) is None:
        raise ConfigurationError(
            f"run: there is no program {run.program!r} here; install it beside Scavenger, or write its whole path",
            key="run",
        )
