"""A script that a worker runs from its first line: where its loop over epochs is, and what it has prepared.

Each worker runs the whole script. One that joins in epoch 7 has to begin there: its `for` statements are made to catch
`Skipped`, which the loader raises as long as the script is behind the job. So a skipped epoch runs as far as the loop
over the loader, and no further.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scavenger.errors import NotSupportedError, TrainingCodeError

__all__ = ["Loop", "Prepared", "Reached", "ScriptRun", "Skipped", "begin", "current", "with_epochs"]

RUN = "__scavenger__"
"""The name by which a script's `for` statements reach its `ScriptRun`."""
_PROCESS = "SCAVENGER_SCRIPT_PROCESS"
"""The environment variable with the process of the script, which processes that it starts find, too."""
_NOT_EPOCHS = ("forward", "__iter__", "__next__", "__getitem__", "__len__")
"""Functions that hold no loop over epochs, and may be compiled."""


class Skipped(BaseException):
    """Ends an epoch that the job has behind it."""


class Reached(BaseException):
    """Ends a script that is only looked at, where its first epoch begins."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` statement of a script.

    Attributes:
        line: Of the statement.
        first, last: Lines of its body.
    """

    line: int
    first: int
    last: int


class Prepared(Protocol):
    """Model, optimizer and loader of a script in a worker."""

    objects: tuple[Any, ...]

    def log(self, metrics: Mapping[str, float]) -> None:
        """See `scavenger.torch.log`."""
        ...

    def end(self, why: str) -> None:
        """Tell the job that the script's epochs are over, before the job's are."""
        ...

    def leave(self) -> None:
        """Tell the job that the script has left its loop over epochs, as one that stops early does."""
        ...


class ScriptRun:
    """One run of a script, in a worker or in a process that looks at it.

    Args:
        folder: The job's folder, absolute; places in the script are told relative to it.
        path: Of the script.
        seed: Of the job, for the order of the samples.
        by_samples: Whether a schedule that is stepped in each batch counts samples, not steps.
        looks: Whether the script is to end where its first epoch begins.
        rank: Number of this process among those of its worker.
        processes: Of a worker, which divide its samples, and the model.

    Attributes:
        folder: See the arguments.
        prepared: What it has prepared; None before.
        lengths: By loop, the number of its rounds, where it is known.
        epochs: Rounds of the outermost loop around the one over the loader; None before that loop, or if it is not
            known; 1 without one.
        looped: Whether an epoch has begun.
        library_epochs: Rounds of a loop over epochs that is a library's, which skips those that the job has behind it;
            None if it is the script's own.
    """

    Skipped = Skipped

    def __init__(
        self,
        folder: str,
        path: str,
        *,
        seed: int = 0,
        by_samples: bool = True,
        looks: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.folder, self.path, self.seed = folder, path, seed
        self.by_samples, self.looks = by_samples, looks
        self.rank, self.processes = rank, processes
        self.loops: Sequence[Loop] = ()
        self.lengths: dict[int, int] = {}
        self.prepared: Prepared | None = None
        self.prepared_at = ""
        self.epochs: int | None = None
        self.looped = False
        self.library_epochs: int | None = None
        self._epochs: set[int] = set()
        """Loops around the loop over the loader."""
        self._thread = threading.get_ident()
        """That of the script; PyTorch computes gradients of a device in another one."""

    def refuse_several(self, what: str) -> None:
        """Raise if a worker has several processes.

        Raises:
            NotSupportedError: Says what cannot be.
        """
        if self.processes > 1:
            raise NotSupportedError(
                f"{self.place()}: {what} in a worker of {self.processes} processes: leave elastic.processes out of the "
                "job file"
            )

    # ---- the script's calls --------------------------------------------------------------------------------

    def prepare(self, make: Callable[[], Prepared]) -> Any:
        """Have something prepared, and return what the script gets; see `scavenger.torch.prepare`."""
        place = self.place()
        if self.prepared is not None:
            raise TrainingCodeError(
                f"{place}: elastic.prepare is called again, after {self.prepared_at}: a job trains one model"
            )
        self.prepared_at = place
        self.prepared = make()
        found = self.prepared.objects
        return found if len(found) != 1 else found[0]

    def ready(self, call: str) -> Any:
        """What the script has prepared, for a call that comes after `elastic.prepare`."""
        if self.prepared is None:
            raise TrainingCodeError(f"{self.place()}: elastic.{call} comes after elastic.prepare")
        return self.prepared

    # ---- its loops -----------------------------------------------------------------------------------------

    def over(self, loop: int, items: Any) -> Any:
        """Note how many rounds a loop has; returns what it goes over."""
        if isinstance(items, Sized):
            self.lengths[loop] = len(items)
        return items

    def ended(self, loop: int) -> None:
        """Note that a loop has gone over all of its items."""
        if loop in self._epochs and self.prepared is not None and not list(self._enclosing()):
            self.prepared.end(f"the loop of line {self.loops[loop].line} has ended")

    def epoch_begins(self) -> bool:
        """Note the loops around the one over the loader, which begins; returns whether there is one.

        Raises:
            Reached: If the script is only looked at.
        """
        around = list(self._enclosing()) if self.library_epochs is None else []
        self._epochs.update(around)
        self.looped, self.epochs = True, self.library_epochs or 1
        if around:
            self.epochs = self.lengths.get(around[-1])
        if self.looks:
            raise Reached
        return bool(around) or self.library_epochs is not None

    def _enclosing(self) -> Iterator[int]:
        """Loops of the script within which it is now, the innermost first."""
        for frame in self._frames():
            if frame.f_code.co_filename == self.path:
                line = frame.f_lineno
                yield from (
                    number
                    for number, loop in sorted(enumerate(self.loops), key=lambda pair: -pair[1].line)
                    if loop.first <= line <= loop.last and loop.line != line
                )

    # ---- places --------------------------------------------------------------------------------------------

    def place(self) -> str:
        """The line of the user's that is being run, as `train.py:31`."""
        frame = next(self._frames(), None)
        if frame is None:
            return Path(self.path).name
        path = Path(frame.f_code.co_filename)
        return f"{path.relative_to(self.folder)}:{frame.f_lineno}"

    def _frames(self) -> Iterator[types.FrameType]:
        frame: types.FrameType | None = sys._getframe(1)
        if threading.get_ident() != self._thread:
            frame = sys._current_frames().get(self._thread)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(self.folder) and "site-packages" not in file.parts:
                yield frame
            frame = frame.f_back


_run: ScriptRun | None = None


def begin(run: ScriptRun | None) -> None:
    """Have the calls of `scavenger.torch` and `scavenger.jax` here be those of a run; None for the end of it."""
    global _run
    _run = run
    if run is None:
        os.environ.pop(_PROCESS, None)
    else:
        os.environ[_PROCESS] = str(os.getpid())


def current() -> ScriptRun | None:
    """The run of a script in this process; None outside of a job.

    Raises:
        TrainingCodeError: If the script of a job has started or forked this process.
    """
    if _PROCESS in os.environ and os.environ[_PROCESS] != str(os.getpid()):
        raise TrainingCodeError(
            "elastic.prepare is called in a process that the script has started: call it in the script itself, without "
            "torch.multiprocessing; the job starts a process for each worker"
        )
    return _run


def with_epochs(tree: ast.Module) -> list[Loop]:
    """Have the `for` statements of a script tell `ScriptRun` of their rounds, and catch `Skipped`; returns them."""
    found = _EpochLoops()
    found.visit(tree)
    ast.fix_missing_locations(tree)
    return found.loops


class _EpochLoops(ast.NodeTransformer):
    """Makes `for x in items: body else: rest` into::

    for x in __scavenger__.over(number, items):
        try:
            body
        except __scavenger__.Skipped:
            continue
    else:
        __scavenger__.ended(number)
        rest
    """

    def __init__(self) -> None:
        self.loops: list[Loop] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if node.decorator_list or node.name in _NOT_EPOCHS else self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        number, last = len(self.loops), node.body[-1].end_lineno or node.lineno
        self.loops.append(Loop(node.lineno, node.body[0].lineno, last))
        self.generic_visit(node)
        node.iter = ast.copy_location(_call("over", [ast.Constant(number), node.iter]), node.iter)
        skip = ast.ExceptHandler(type=_attribute("Skipped"), name=None, body=[ast.Continue()])
        body = ast.Try(body=node.body, handlers=[skip], orelse=[], finalbody=[])
        ended = ast.Expr(_call("ended", [ast.Constant(number)]))
        node.body = [ast.copy_location(body, node.body[0])]
        ended = ast.copy_location(ended, node)
        ended.end_lineno, ended.end_col_offset = (
            node.lineno,
            node.col_offset,
        )  # its call is on that line alone
        node.orelse = [ended, *node.orelse]
        return node


def _attribute(name: str) -> ast.expr:
    return ast.Attribute(value=ast.Name(id=RUN, ctx=ast.Load()), attr=name, ctx=ast.Load())


def _call(name: str, args: list[ast.expr]) -> ast.expr:
    return ast.Call(func=_attribute(name), args=args, keywords=[])
