"""Runs a script that calls `scavenger.torch` or `scavenger.jax` in a worker, or looks at it up to its first epoch."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

from scavenger.domain.fit import FitFound
from scavenger.domain.script import Script
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.frames import frames_of
from scavenger.sdk import script as sdk
from scavenger.sdk.script import Reached, ScriptRun

_LIBRARIES = {"torch": "PyTorch", "jax": "JAX"}
"""By module of `scavenger` that a script can call, the library that it is for."""


_UNNAMED = (
    "elastic.log(**...) names no metric for a target: write the names, as elastic.log(val_accuracy=...)"
)


def is_prepared(tree: ast.Module) -> bool:
    """Whether a script imports `scavenger.torch` or `scavenger.jax`."""
    return bool(_names(tree))


def library_of(tree: ast.Module) -> str:
    """The module of `scavenger` for the library that a script imports, `torch` or `jax`; empty for another one."""
    imported = [
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return next((name for name in _LIBRARIES if name in imported), "")


def to_make_elastic(library: str) -> str:
    """What a script of a library misses that has none of the calls."""
    prepare = {
        "torch": "model, optimizer, loader = elastic.prepare(model, optimizer, loader)` before its loop",
        "jax": "state, loader = elastic.prepare(state, data, batch_size=...)` before its loop, `elastic.step` in it",
    }
    return (
        f"a {_LIBRARIES[library]} script without the calls that make it elastic: `import scavenger.{library} as "
        f"elastic`, `{prepare[library]}, and `elastic.log(val_accuracy=...)` after each epoch"
    )


def logged(tree: ast.Module) -> tuple[str, ...]:
    """The metrics that a script tells by `elastic.log`, as they are written; "" for those that are not."""
    names = _names(tree)
    found = (
        keyword.arg or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_log(node.func, names)
        for keyword in node.keywords
    )
    return tuple(dict.fromkeys(name for name in found if name != "loss"))


def _names(tree: ast.Module) -> set[str]:
    """What a script calls `scavenger.torch` or `scavenger.jax`, and functions of it, as `log=`."""
    modules, found = {f"scavenger.{name}" for name in _LIBRARIES}, set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.asname or one.name for one in names if one.name in modules}
            case ast.ImportFrom(module="scavenger", names=names):
                found |= {one.asname or one.name for one in names if one.name in _LIBRARIES}
            case ast.ImportFrom(module=module, names=names) if module in modules:
                found |= {f"{one.name}={one.asname or one.name}" for one in names}
    return found


def _is_log(function: ast.expr, names: set[str]) -> bool:
    match function:
        case ast.Name(id=name):
            return f"log={name}" in names
        case ast.Attribute(value=value, attr="log"):
            return ast.unparse(value) in names
        case _:
            return False


def metrics_of(run: ScriptRun) -> tuple[str, ...]:
    """The metrics that a script tells, and modules of its folder that it has imported."""
    return tuple(dict.fromkeys(name for tree in run.trees for name in logged(tree) if name))


def _environment(run: ScriptRun, port: int) -> dict[str, str]:
    """What torchrun would set: a script that makes a process group has the processes of its worker in it."""
    found = {
        "RANK": str(run.rank),
        "LOCAL_RANK": str(run.rank),
        "WORLD_SIZE": str(run.processes),
        "LOCAL_WORLD_SIZE": str(run.processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if run.processes > 1:  # the store is there; nothing is to be reached from another machine
        found |= {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "=lo",
        }
    return found


def run_script(script: Script, run: ScriptRun, port: int = 0) -> None:
    """Run a script as `python SCRIPT ARGUMENTS` would; in a worker, it ends by `scavenger.sdk.loop.Left`.

    Args:
        port: Of the store by which the processes of a worker meet, if it has several.

    Raises:
        TrainingCodeError: If it ends itself, or never calls `elastic.prepare`.
        Reached: If it is only looked at, where its first epoch begins.
    """
    path = Path(run.path)
    tree = _tree(path)
    module = types.ModuleType("__main__")
    module.__file__ = run.path
    setattr(module, sdk.RUN, run)
    sys.path.insert(0, str(path.parent))
    sys.argv = [run.path, *script.arguments]
    sys.modules["__main__"] = module
    os.environ.update(_environment(run, port))
    os.environ.setdefault("MPLBACKEND", "Agg")  # a window would wait for somebody
    sdk.begin(run)
    try:
        exec(run.compiled(tree, run.path), module.__dict__)  # noqa: S102
    except SystemExit as error:
        if error.code not in (None, 0):
            raise TrainingCodeError(
                f"{script.path}: the script ended itself ({error}): is an argument missing? They follow `--`: "
                f"scavenger optimize {script.path} -- --name value"
            ) from error
    except RuntimeError as error:
        samples = getattr(getattr(run.prepared, "script", run.prepared), "at_once", 0)
        if type(error).__name__ != "OutOfMemoryError" or samples < 2:
            raise
        *_, at = (
            one for one in frames_of(error, run.folder) if one.file and not Path(one.file).is_absolute()
        )
        raise TrainingCodeError(
            f"{at.file}:{at.line}: the device's memory does not hold {samples} samples at once: write "
            f"elastic.prepare(..., at_once={samples // 2})"
        ) from error
    if run.prepared is None:
        raise TrainingCodeError(f"{script.path}: the script has ended without a call of elastic.prepare")
    if not run.looped and run.library_epochs is None:
        raise TrainingCodeError(
            f"{script.path}: the script never loops over the loader that elastic.prepare returns"
        )
    run.prepared.leave()


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise TrainingCodeError(f"{path.name}: {error}") from error


def _notes(run: ScriptRun) -> Iterator[str]:
    """What the user of a script should know of how it becomes a job."""
    if any("" in logged(tree) for tree in run.trees):
        yield _UNNAMED
    if run.outside:
        lines = ", ".join(str(run.loops[number].line) for number in run.outside)
        yield f"elastic.prepare is called in the loop of line {lines}: the job trains what its first round does"


def look_at(script: Script, folder: str, seed: int) -> FitFound:
    """Run a script as far as its first epoch; returns what it would train.

    Raises:
        NotSupportedError, TrainingCodeError: If it cannot be a job; says where.
    """
    began = time.monotonic()
    run = ScriptRun(folder, str(Path(folder, script.path)), seed=seed, looks=True)
    with contextlib.suppress(Reached):
        run_script(script, run)
    if run.epochs is None:
        raise NotSupportedError(
            f"{run.prepared_at}: how many epochs the loop around the loader has is not known: write `for epoch in "
            "range(...)` there"
        )
    from scavenger.sdk.script_loop import ScriptLoop

    found = getattr(run.prepared, "script", run.prepared)  # a trainer's, or the script's own
    assert isinstance(found, ScriptLoop)
    batches, described = found.batches, found.described()
    return FitFound(
        place=run.prepared_at,
        model=described.model,
        weights=described.weights,
        samples=batches.samples,
        validation_samples=0,
        batch_size=min(batches.batch_size, batches.samples),
        epochs=run.epochs,
        optimizer=described.optimizer,
        metrics=metrics_of(run),
        callbacks=(),
        notes=(*described.notes, *_notes(run)),
        start_s=time.monotonic() - began,
    )
