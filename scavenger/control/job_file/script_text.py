"""What the text of a script that calls `fit` tells without running it, and the job file of such a script."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from scavenger.control.job_file.yaml_loader import read_scalar
from scavenger.domain.script import KERAS_BATCH_SIZE, Script
from scavenger.errors import ConfigurationError

_OF_FIT = frozenset(
    {"epochs", "batch_size", "validation_data", "validation_split", "callbacks", "steps_per_epoch"}
)
"""Arguments that Keras's `fit` has, and that of no estimator of scikit-learn."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./ =,+-]*")
_START_S, _START_TIMES = 60.0, 5
"""A start that takes longer than this alone may take so many times as long beside other workers."""
_WORKERS_MAX = 4


@dataclass(frozen=True, slots=True)
class WrittenFit:
    """A call of `fit` as it is written.

    Attributes:
        line: Its first line.
        batch_size: Samples of a step.
    """

    line: int
    epochs: int
    batch_size: int


def job_file_of(script: Path) -> Path:
    """The job file of a script, beside it: `train.job.yaml` of `train.py`."""
    return script.with_suffix(".job.yaml")


def job_name(text: str) -> str:
    """A name for a job, made of other text; empty if nothing of it may be in one."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return name if isinstance(read_scalar(name), str) else ""


def no_notebook(path: Path) -> None:
    """Refuse a notebook.

    Raises:
        ConfigurationError: If the path is one of.
    """
    if path.suffix == ".ipynb":
        script = path.with_suffix(".py")
        raise ConfigurationError(
            f"{path}: this is a notebook; `jupyter nbconvert --to script {path}` writes {script}, which "
            f"`scavenger optimize {script}` takes"
        )


def missing_words(path: Path, kinds: tuple[str, ...]) -> str:
    """Say that there is no such file, with the one that may be meant, or how to begin.

    Args:
        kinds: Ends of the names that may be meant.
    """
    beside: dict[str, str] = {}
    with contextlib.suppress(OSError):  # a folder that is not there, or may not be read
        beside = {one.stem: one.name for one in path.parent.iterdir() if one.name.endswith(kinds)}
    near = get_close_matches(path.stem, beside, n=1)
    return "there is no such file; " + (
        f"did you mean {beside[near[0]]}?" if near else "`scavenger init` writes one to start from"
    )


def read_script(path: Path) -> ast.Module:
    """The syntax tree of a script.

    Raises:
        ConfigurationError: If there is none, or it is no Python.
    """
    no_notebook(path)
    try:
        tree = ast.parse(path.read_bytes())
        if not tree.body:
            raise ConfigurationError(
                f"{path}: the script is empty; `scavenger init` writes one to start from"
            )
        return tree
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path}: {missing_words(path, ('.py',))}") from error
    except IsADirectoryError as error:
        raise ConfigurationError(f"{path}: this is a folder; name the script in it") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigurationError(f"{path.name}{line}: {error.args[0]}") from error


def fits_in(tree: ast.Module) -> list[ast.Call]:
    """The calls of Keras's `fit` in a script, in the order of their lines."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "fit"
        and _OF_FIT & {keyword.arg for keyword in node.keywords}
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def other_fits(tree: ast.Module, line: int) -> str:
    """What of a script's training is not in its first call of `fit`, as the end of a sentence; empty for nothing.

    Args:
        line: Of the first call.
    """
    later = [call.lineno for call in fits_in(tree) if call.lineno > line]
    said = [f"the fit of line {', '.join(map(str, later))}"] if later else []
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    if any(node.lineno <= line <= (node.end_lineno or 0) for node in loops):
        said.append("further rounds of the loop around it")
    return " and ".join(said)


def written_fit(path: Path) -> WrittenFit:
    """The first call of `fit` in a script, as far as the text tells.

    Raises:
        ConfigurationError: If there is none, or its epochs or batch size are known only when it runs.
    """
    tree = read_script(path)
    fits = fits_in(tree)
    run = f"`scavenger optimize {path}` runs it as far as that"
    if not fits:
        raise ConfigurationError(f"{path.name}: no call of fit with epochs is written in it; {run}")
    call, known = fits[0], _Known(tree)
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    names = ("x", "y", "batch_size", "epochs")
    for name, value in zip(names, call.args, strict=False):
        named.setdefault(name, value)
    unknown = f"{path.name}:{call.lineno}: "
    if None in named or any(isinstance(one, ast.Starred) for one in call.args):
        raise ConfigurationError(f"{unknown}the arguments of fit are known only when it runs; {run}")
    epochs = known.number(named["epochs"]) if "epochs" in named else 1
    if epochs is None:
        text = ast.unparse(named["epochs"])
        raise ConfigurationError(f"{unknown}epochs={text} is known only when it runs; {run}")
    size: int | None = KERAS_BATCH_SIZE
    if "batch_size" in named:
        size = known.number(named["batch_size"])
    elif "y" not in named:
        size = known.batch_of_data()
    if size is None:
        raise ConfigurationError(f"{unknown}its batch size is known only when it runs; {run}")
    return WrittenFit(call.lineno, max(epochs, 1), max(size, 1))


class _Known:
    """Numbers of a script that have one value, and defaults of its options."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        stored = Counter(_bound(tree))
        self._values = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and stored[target.id] == 1
        }
        self._options = dict(_options(tree))

    def number(self, node: ast.expr, depth: int = 0) -> int | None:
        """The value of an expression; None if it is not known."""
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in self._values and depth < 8:
                return self.number(self._values[name], depth + 1)
            case ast.Attribute(attr=name) if name in self._options:
                return self.number(self._options[name], depth + 1)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                values = self.number(left, depth), self.number(right, depth)
                if values[0] is None or values[1] is None or (isinstance(op, ast.FloorDiv) and not values[1]):
                    return None
                return _OPERATORS[type(op)](values[0], values[1])
            case _:
                return None

    def batch_of_data(self) -> int | None:
        """The number of all calls of `.batch` in the script, if they agree."""
        sizes = {
            self.number(node.args[0])
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "batch"
            and node.args
        }
        return sizes.pop() if len(sizes) == 1 else None


def _bound(tree: ast.Module) -> Iterator[str]:
    """Each binding of a name to a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _options(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Options of `argparse` with their defaults."""
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            continue
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        flags = [one.value for one in node.args if isinstance(one, ast.Constant)]
        dest = named.get("dest")
        long = [flag for flag in flags if isinstance(flag, str) and flag.startswith("--")]
        name = dest.value if isinstance(dest, ast.Constant) else long[0].lstrip("-") if long else ""
        if "default" in named:
            yield str(name).replace("-", "_"), named["default"]


def job_text(
    script: Script,
    place: str,
    *,
    epochs: int,
    batch_size: int,
    processors: int,
    start_s: float = 0.0,
    of: str = "fit",
) -> str:
    """The text of a script's job file.

    Args:
        place: Of the call of `fit`, or of `prepare`.
        processors: Of this machine.
        start_s: Time until a process has reached the call.
        of: What the batch size is of.
    """
    line = str(script)
    workers = min(max(processors, 2), _WORKERS_MAX, batch_size)
    name = job_name(Path(script.path).stem) or "my-job"
    minutes = math.ceil(start_s * _START_TIMES / 60)
    return f"""\
# What {place} trains: as many epochs, with as many samples in a step.
#   scavenger optimize {Path(script.path).with_suffix(".job.yaml")}
# `scavenger schema job` prints all keys.
version: 1
name: {name}
train: {line if _PLAIN.fullmatch(line) and " #" not in line else json.dumps(line)}
infra: local                    # or aws/us-east-1, gcp/us-central1, kubernetes
search:
  workers: 1{f"..{workers}" if workers > 1 else ""}
  batch_size: {batch_size}                # that of {of}; with a target, {{min: 32, max: 256}} searches the best
objective: knee                 # time | cost | knee
goal:
  max_epochs: {epochs}
  # metric: val_accuracy        # with these two, training ends when the target is reached
  # target: 0.95
profile: {{steps: 20, max_time: 2m}}
{f"limits: {{start: {minutes}m}}" + chr(10) if start_s > _START_S else ""}"""
