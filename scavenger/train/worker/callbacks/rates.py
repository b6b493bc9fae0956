"""The learning rates that a LearningRateScheduler will set, asked beforehand for the forecast of the metric.

Its function is the user's: it is asked for epochs to come only where its code can do nothing but compute, so that what
it does later is what it would have done anyway.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

EPOCHS_MAX = 10_000
"""Epochs that are asked for at most."""

_LEAVE_THE_RATE = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks of Keras that set no learning rate."""

_BUILTINS = frozenset(
    {"abs", "bool", "divmod", "float", "int", "len", "max", "min", "pow", "range", "round", "sum"}
)
_MODULES = frozenset({"math", "numpy"})
# fmt: off
_ATTRIBUTES = frozenset({
    "abs", "arange", "arccos", "array", "asarray", "ceil", "clip", "cos", "e", "exp", "exp2", "expm1",
    "fabs", "float32", "float64", "floor", "fmod", "get", "index", "int32", "int64", "interp", "item",
    "linspace", "log", "log10", "log1p", "log2", "maximum", "mean", "minimum", "pi", "pow", "power",
    "round", "searchsorted", "sign", "sin", "sqrt", "square", "sum", "tanh", "trunc", "where",
})
# fmt: on
"""Names that are looked up in modules, numbers, arrays, lists and dictionaries without changing any of them."""

_CHANGES = (
    "STORE_GLOBAL",
    "STORE_ATTR",
    "STORE_SUBSCR",
    "STORE_SLICE",
    "STORE_DEREF",
    "DELETE_",
    "IMPORT_",
    "YIELD",
)
"""Beginnings of the instructions that change what outlives a call, or suspend it."""


def rates_asked(callbacks: Sequence[Any], rate: float, epochs: int) -> tuple[float, ...]:
    """The learning rate of each epoch; empty where it cannot be known beforehand.

    Args:
        callbacks: All callbacks of the job.
        rate: The learning rate before the first epoch.
        epochs: Epochs that the job trains at most.
    """
    asked = [one for one in callbacks if type(one) not in _LEAVE_THE_RATE]
    if len(asked) != 1 or type(asked[0]) is not keras.callbacks.LearningRateScheduler:
        return ()
    schedule = asked[0].schedule
    if epochs > EPOCHS_MAX or not _only_computes(schedule):
        return ()
    rates: list[float] = []
    for epoch in range(epochs):
        found = _rate(schedule, epoch, rate)
        if found is None or not np.isfinite(found) or found < 0.0:
            break
        # As the optimizer keeps it, and the next call has it.
        rate = float(np.float32(found))
        rates.append(rate)
    return tuple(rates)


def _rate(schedule: Any, epoch: int, rate: float) -> float | None:
    """The rate that Keras's callback takes: functions of the epoch alone are called with nothing else.

    Returns:
        None where the function fails, or answers what Keras refuses: the job need not reach that epoch, and if it does,
        the callback says so there.
    """
    failures = (TypeError, ValueError, ArithmeticError, LookupError)
    found: Any = None
    try:
        found = schedule(epoch, rate)
    except TypeError:
        with contextlib.suppress(*failures):
            found = schedule(epoch)
    except failures:
        return None
    return float(found) if isinstance(found, float | np.float32) else None


def _only_computes(schedule: Any) -> bool:
    """Whether a function does nothing but compute when it is called, and so do those that it calls."""
    reading = _Reading()
    return isinstance(schedule, types.FunctionType) and reading.takes(schedule) and not reading.may_extend


class _Reading:
    """What a function and all that it reads may do.

    Attributes:
        may_extend: Whether a list or dictionary that outlives a call is read, and some operator works in place, as
            `+=` does on a number, which changes nothing else, and on a list, which does.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._in_place = self._changeable = False

    @property
    def may_extend(self) -> bool:
        return self._in_place and self._changeable

    def takes(self, value: Any) -> bool:
        """Whether reading or calling a value does nothing but compute."""
        if id(value) in self._seen:
            return True
        self._seen.add(id(value))
        if isinstance(value, types.FunctionType):
            return self._takes_code(value.__code__) and all(map(self.takes, _read_by(value)))
        self._changeable |= type(value) in {list, dict}
        if type(value) in {list, tuple, dict, frozenset}:
            return all(map(self.takes, [*value, *value.values()] if isinstance(value, dict) else value))
        if isinstance(value, types.ModuleType):
            return value.__name__ in _MODULES
        return value is None or isinstance(value, bool | int | float | str | np.number) or _is_known(value)

    def _takes_code(self, code: types.CodeType) -> bool:
        for instruction in _instructions(code):
            name = instruction.opname
            looks_up = name in {"LOAD_ATTR", "LOAD_METHOD"}
            if name.startswith(_CHANGES) or (looks_up and instruction.argval not in _ATTRIBUTES):
                return False
            self._in_place |= name == "BINARY_OP" and instruction.argrepr.endswith("=")
        return True


class _Unknown:
    """Stands for a name that is not there."""


def _read_by(function: types.FunctionType) -> list[Any]:
    """The values that a function reads besides its arguments."""
    names = {
        str(one.argval)
        for one in _instructions(function.__code__)
        if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"}
    }
    closed = inspect.getclosurevars(function).nonlocals.values()
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    known = {**vars(builtins), **function.__globals__}
    return [*closed, *defaults, *(known.get(name, _Unknown()) for name in sorted(names))]


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a function, and of functions and comprehensions within it."""
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _instructions(inner)


def _is_known(value: Any) -> bool:
    """Whether it is a builtin, or a function of `math` or numpy, that is among those that only compute."""
    name = getattr(value, "__name__", "")
    if getattr(builtins, name, None) is value:
        return name in _BUILTINS
    module = str(getattr(value, "__module__", "")).partition(".")[0]
    return module in _MODULES and name in _ATTRIBUTES
