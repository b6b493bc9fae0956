"""The module of the training code, and what it finds when a process imports it."""

from __future__ import annotations

import sys
from pathlib import Path


def module_file(folder: Path, module: str) -> Path:
    """The file of a module in a folder, whether it is there or not.

    Args:
        folder: The job file's folder.
        module: Its dotted name.
    """
    path = folder.joinpath(*module.split("."))
    plain = path.with_name(f"{path.name}.py")
    package = path / "__init__.py"
    return package if package.is_file() and not plain.is_file() else plain


def enter(folder: str, module: str) -> None:
    """Have this process import modules from a job's folder, with a command line that is that of `python MODULE.py`.

    The arguments that the process was started with are this project's own: code that parses `sys.argv` when it is
    imported must not find them.
    """
    sys.path.insert(0, folder)
    sys.argv = [str(module_file(Path(folder), module))]
