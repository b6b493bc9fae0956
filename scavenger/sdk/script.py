"""A script that a worker runs from its first line: where its loop over epochs is, and what it has prepared.

Each worker runs the whole script. One that joins in epoch 7 has to begin there: the `for` statements of the script, and
of modules beside it, are made to catch `Skipped`, which the loader raises as long as the script is behind the job. So a
skipped epoch runs as far as the loop over the loader, and no further.
"""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Protocol

from scavenger.errors import NotSupportedError, TrainingCodeError

__all__ = ["Loop", "Prepared", "Reached", "ScriptRun", "Skipped", "begin", "current"]

RUN = "__scavenger__"
"""The name by which a script's `for` statements reach its `ScriptRun`."""
_PROCESS = "SCAVENGER_SCRIPT_PROCESS"
"""The environment variable with the process of the script, which processes that it starts find, too."""
_NOT_EPOCHS = ("forward", "__iter__", "__next__", "__getitem__", "__len__")
"""Functions that hold no loop over epochs, and may be compiled."""
_COMPILED = ("jit", "compile", "pmap", "vectorize")
"""Parts of the names of decorators whose functions are compiled."""
_OWN = Path(__file__).parents[1]


class Skipped(BaseException):
    """Ends an epoch that the job has behind it."""


class Reached(BaseException):
    """Ends a script that is only looked at, where its first epoch begins."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` statement of the user's, or a `while` that is not counted.

    Attributes:
        path: Of its file.
        line: Of the statement.
        first, last: Lines of its body.
    """

    path: str
    line: int
    first: int
    last: int
    counted: bool = True


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
        loops, trees: Of the script, and of modules of the folder that it has imported.
        prepared: What it has prepared; None before.
        outside: Loops around its call, of which the job is one round, the innermost first.
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
        self.loops: list[Loop] = []
        self.trees: list[ast.Module] = []
        self.lengths: dict[int, int] = {}
        self.prepared: Prepared | None = None
        self.prepared_at = ""
        self.epochs: int | None = None
        self.looped = False
        self.library_epochs: int | None = None
        self._epochs: set[int] = set()
        """Loops around the loop over the loader."""
        self.outside: dict[int, None] = {}
        self._batches, self._number = 0, 0
        """Batches that the script has begun, and the number of this one in its epoch."""
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
        self.prepared_at, self.outside = place, dict.fromkeys(self._enclosing())
        self.prepared = make()
        found = self.prepared.objects
        return found if len(found) != 1 else found[0]

    def ready(self, call: str) -> Any:
        """What the script has prepared, for a call that comes after `elastic.prepare`."""
        if self.prepared is None:
            raise TrainingCodeError(f"{self.place()}: elastic.{call} comes after elastic.prepare")
        return self.prepared

    # ---- its loops -----------------------------------------------------------------------------------------

    def compiled(self, tree: ast.Module, path: str) -> types.CodeType:
        """The code of a file of the user's, whose loops tell of themselves; for a module with this object as `RUN`."""
        self.trees.append(tree)
        tree = _EpochLoops(path, self.loops).visit(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def is_users(self, file: Path) -> bool:
        """Whether a file is of the folder, and of no library that is installed there."""
        of_others = "site-packages" in file.parts or file.is_relative_to(_OWN)
        return file.is_relative_to(self.folder) and not of_others

    def enumerate(self, items: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
        """As Python's; the number of a batch is that of all workers, also at one that has joined in mid-epoch."""
        # a sequence is no loader, and may be gone over in a function that is compiled
        return (
            enumerate(items, start) if hasattr(type(items), "__getitem__") else self._numbered(items, start)
        )

    def _numbered(self, items: Iterable[Any], start: int) -> Iterator[tuple[int, Any]]:
        iterator = iter(items)
        for number in itertools.count(start):
            before = self._batches
            try:
                item = next(iterator)
            except StopIteration:
                return
            yield number if self._batches == before else start + self._number, item

    def batch_begins(self, number: int) -> None:
        """Note that the script gets a batch, which has this number in its epoch."""
        self._batches, self._number = self._batches + 1, number

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
            TrainingCodeError: If that is no `for` statement, or a loop around it is none in which an epoch can be
                skipped.
            Reached: If the script is only looked at.
        """
        around: list[int] = []
        if self.library_epochs is None:
            self._check_loop()
            loops = list(self._enclosing())
            around = [number for number in loops if self.loops[number].counted]
            if loops and not around:
                loop = self.loops[loops[-1]]
                raise TrainingCodeError(
                    f"{self._line(loop.path, loop.line)}: the loop over epochs is a `while`, which a worker that joins "
                    "could not begin in the right epoch: write `for epoch in range(...)`"
                )
        self._epochs.update(around)
        self.looped, self.epochs = True, self.library_epochs or 1
        if around:
            self.epochs = self.lengths.get(around[-1])
        if self.looks:
            raise Reached
        return bool(around) or self.library_epochs is not None

    def _check_loop(self) -> None:
        """Refuse what takes batches otherwise than by a `for` statement, as the job may have other numbers of them."""
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            frame.f_code.co_flags & inspect.CO_GENERATOR
            or frame.f_code.co_name in ("__next__", "epoch_begins")
        ):
            frame = frame.f_back
        path = Path(frame.f_code.co_filename)
        place = self._line(str(path), frame.f_lineno) if self.is_users(path) else self.place()
        if not _iterates(frame):
            raise TrainingCodeError(
                f"{place}: a batch of the loader of elastic.prepare is taken by next(...): write `for batch in "
                "loader:` within `for epoch in range(...):`, as the job chooses how many batches an epoch has; look at "
                "a batch before elastic.prepare"
            )
        if not self.is_users(path) and not list(self._enclosing()):
            raise TrainingCodeError(
                f"{place}: the loop over the loader is in {path}, outside of the script's folder, and the one over "
                "epochs is not known: write `for epoch in range(...):` in the script, around the call for one epoch"
            )

    def _enclosing(self) -> Iterator[int]:
        """Loops of the user's within which the script is now, the innermost first; without those around `prepare`."""
        for frame in self._frames():
            path, line = frame.f_code.co_filename, frame.f_lineno
            yield from (
                number
                for number, loop in sorted(enumerate(self.loops), key=lambda pair: -pair[1].line)
                if loop.path == path and loop.first <= line <= loop.last and loop.line != line
                if number not in self.outside
            )

    # ---- places --------------------------------------------------------------------------------------------

    def place(self) -> str:
        """The line of the user's that is being run, as `train.py:31`."""
        frame = next(self._frames(), None)
        if frame is None:
            return Path(self.path).name
        return self._line(frame.f_code.co_filename, frame.f_lineno)

    def _line(self, path: str, line: int) -> str:
        return f"{Path(path).relative_to(self.folder)}:{line}"

    def _frames(self) -> Iterator[types.FrameType]:
        frame: types.FrameType | None = sys._getframe(1)
        if threading.get_ident() != self._thread:
            frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if self.is_users(Path(frame.f_code.co_filename)):
                yield frame
            frame = frame.f_back


_run: ScriptRun | None = None


def begin(run: ScriptRun | None) -> None:
    """Have the calls of `scavenger.torch` and `scavenger.jax` here be those of a run; None for the end of it."""
    global _run
    _run = run
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _UsersModules)]
    if run is None:
        os.environ.pop(_PROCESS, None)
    else:
        os.environ[_PROCESS] = str(os.getpid())
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _UsersModules(run))


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


class _UsersModules:
    """Finds modules as `PathFinder` does; loops of the user's own tell of themselves."""

    def __init__(self, run: ScriptRun) -> None:
        self._run = run

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        own = None if spec is None else spec.loader
        if spec is not None and type(own) is SourceFileLoader and self._run.is_users(Path(own.path)):
            spec.loader = _UsersModule(self._run, own)
        return spec


class _UsersModule(SourceFileLoader):
    """Loads a module of the user's, whose code is not kept in a file."""

    def __init__(self, run: ScriptRun, own: SourceFileLoader) -> None:
        super().__init__(own.name, own.path)
        self._run = run

    def get_code(self, fullname: str) -> types.CodeType:
        return self._run.compiled(ast.parse(self.get_data(self.path)), self.path)

    def exec_module(self, module: types.ModuleType) -> None:
        setattr(module, RUN, self._run)
        super().exec_module(module)


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

    and `enumerate` in `items` into `__scavenger__.enumerate`; adds the loops to those that are known.
    """

    def __init__(self, path: str, loops: list[Loop]) -> None:
        self._path, self._loops = path, loops
        self._in_model = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Whatever a model calls may be compiled, for which batches have no numbers."""
        before, self._in_model = (
            self._in_model,
            any(ast.unparse(one).endswith("Module") for one in node.bases),
        )
        self.generic_visit(node)
        self._in_model = before
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        compiled = any(_compiles(one) for one in node.decorator_list)
        return node if compiled or node.name in _NOT_EPOCHS else self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        self._note(node, counted=False)
        return self.generic_visit(node)

    def _note(self, node: ast.For | ast.While, *, counted: bool) -> int:
        """Add a loop to those that are known; returns its number."""
        last = node.body[-1].end_lineno or node.lineno
        self._loops.append(Loop(self._path, node.lineno, node.body[0].lineno, last, counted))
        return len(self._loops) - 1

    def visit_For(self, node: ast.For) -> ast.AST:
        number = self._note(node, counted=True)
        self.generic_visit(node)
        for part in () if self._in_model else ast.walk(node.iter):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "enumerate":
                part.func = ast.copy_location(_attribute("enumerate"), part.func)
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


def _compiles(decorator: ast.expr) -> bool:
    """Whether a decorator compiles its function, as `jax.jit` and `partial(jax.jit, ...)` do."""
    named = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    named = ast.unparse(decorator) if named.endswith("partial") else named
    return any(part in named for part in _COMPILED)


def _iterates(frame: types.FrameType) -> bool:
    """Whether a frame is at a `for` statement, whose next item it waits for."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and dis.opname[code[at]] == "CACHE":  # of an instruction before
        at -= 2
    return dis.opname[code[at]] == "FOR_ITER"
