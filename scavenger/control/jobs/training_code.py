"""What kind of training code a job file names, without importing it: a `LoopJob`, or what makes a Keras job."""

from __future__ import annotations

import ast
from pathlib import Path

from scavenger.domain.job import JobSpec
from scavenger.errors import NotSupportedError

__all__ = ["check_loop", "names_a_loop"]

_CLASS = "LoopJob"


def names_a_loop(job: JobSpec, folder: Path) -> bool:
    """Whether `train` names a `LoopJob` that is made at the top of its module.

    Args:
        folder: The job file's folder, where the module is.
    """
    path = folder.joinpath(*job.train.module.split("."))
    path = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    try:
        tree = ast.parse(path.read_bytes())
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
