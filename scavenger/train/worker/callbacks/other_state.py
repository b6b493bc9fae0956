"""State that training code reads besides the variables of the model: in Python, and in variables of TensorFlow.

It is found by what the code names: an attribute, a global or a variable of an enclosing function is state of the
training if a function that a step calls reads something of that name. So what a callback only notes down is no state.
"""

from __future__ import annotations

import argparse
import dis
import functools
import hashlib
import itertools
import json
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scavenger.train.worker.callbacks.state import UnkeepableError, encode

_ENTRIES = frozenset(
    {
        *("call", "__call__", "train_step", "test_step", "compute_loss", "compute_metrics"),
        *("update_state", "result", "__getitem__", "__getitems__", "__iter__", "__next__", "make"),
    }
)
"""Methods that Scavenger and Keras call in a step; of others, those that these name."""

_OF_KERAS = (keras.Layer, keras.Loss, keras.Metric, keras.regularizers.Regularizer)
_BEFORE_STEPS = frozenset({"__init__", "build", "compile", "get_config", "from_config"})
_TENSOR = tf.__internal__.EagerTensor
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_SINGLE = (type(None), bool, int, float, str, np.generic, tf.Variable)
_ITEMS_MAX = 1000
_BYTES_MAX = 4 << 20
"""Larger arrays and longer collections are data, of which a callback cannot have set each part."""


@functools.cache
def _infrastructure() -> frozenset[str]:
    """Attributes that every Keras object has, and that Keras itself changes."""
    return frozenset().union(
        *(vars(made) for made in (keras.Model(), keras.Layer(), keras.Metric(), keras.Loss()))
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is found.

    Attributes:
        owner, key: An object and its attribute, or a collection and its key.
        label: Its name in messages.
        written: Whether what a step calls also writes it.
        of_data: Whether data sets alone read it, whose threads may fill collections at any time.
    """

    owner: Any
    key: Any
    label: str
    written: bool
    of_data: bool

    @property
    def value(self) -> Any:
        """What is there now; the variable of TensorFlow behind one of Keras."""
        value = _value_of(self.owner, self.key)
        return value._value if isinstance(value, keras.Variable) else value


class OtherState:
    """State of a model's training that is not in the model's variables.

    Args:
        model: Built and compiled.
        data: The data sets as the user gives them.
    """

    def __init__(self, model: Any, data: Iterable[Any] = ()) -> None:
        of_metrics = [v for metric in model.metrics for v in metric.variables]  # which evaluations change
        tracked = (*model.variables, *model.optimizer.variables, *of_metrics)
        self._tracked = {v._value.ref() for v in tracked}
        self._names: dict[
            int, frozenset[str]
        ] = {}  # of each object, by its id, those that it was followed with
        self._alive: list[Any] = []  # so that no other object gets an id
        self._places: dict[tuple[int, Any], _Place] = {}
        regularizers = [v.regularizer for v in model.variables if getattr(v, "regularizer", None) is not None]
        sources = [one for given in data for one in _given_in(given)]
        self._of_data = False
        for root in (*model._flatten_layers(), model.loss, *model.metrics, *regularizers):
            self._walk(root, type(root).__name__)
        self._of_data = True
        for root in sources:
            self._walk(root, type(root).__name__)

    def set_by_others(self) -> dict[str, str]:
        """Values, or digests of them, by their names: of what the steps read and do not write themselves."""
        places = (place for place in self._places.values() if not place.written)
        return self._told(p for p in places if not p.of_data or isinstance(p.value, _SINGLE))

    def set_by_steps(self) -> dict[str, str]:
        """The same for single values that the steps read, without tensors, which they keep for use within a step."""
        return self._told(p for p in self._places.values() if not p.of_data and isinstance(p.value, _SINGLE))

    def _told(self, places: Iterable[_Place]) -> dict[str, str]:
        found: dict[str, str] = {}
        for place in places:
            value = place.value
            if isinstance(value, tf.Variable) and value.ref() in self._tracked:
                continue
            if (text := _told(value)) is not None:
                found[place.label] = text
        return found

    # ---- what the code reaches -----------------------------------------------------------------------------

    def _walk(self, value: Any, label: str, names: frozenset[str] = frozenset()) -> None:
        """Follow a value, of which a function that reads these names has hold."""
        if isinstance(value, (str, bytes, int, float, np.ndarray, tf.Variable, _TENSOR)):
            return
        seen = self._names.get(id(value))
        if seen is not None and (names <= seen or isinstance(value, types.FunctionType)):
            return
        self._names[id(value)] = names | (seen or frozenset())
        self._alive.append(value)
        if isinstance(value, functools.partial):
            self._walk([value.func, *value.args, *value.keywords.values()], label, names)
        elif isinstance(value, types.MethodType):
            self._walk([value.__self__, value.__func__], label, names)
        elif isinstance(value, types.FunctionType):
            if is_users(value.__module__):
                self._walk_function(value)
        elif isinstance(value, (list, tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in itertools.islice(items, _ITEMS_MAX):
                if isinstance(item, (tf.Variable, keras.Variable, _TENSOR)):
                    self._add(value, key, f"{label}[{key!r}]", names, written=False)
                else:
                    self._walk(item, f"{label}[{key!r}]", names)
        elif isinstance(value, _OF_KERAS) or is_users(type(value).__module__):
            self._walk_object(value, names, first=seen is None)
        elif isinstance(value, _NAMESPACES):
            for name in sorted(names & vars(value).keys()):
                self._add(vars(value), name, f"{label}.{name}", names, written=False)

    def _walk_object(self, value: Any, names: frozenset[str], *, first: bool) -> None:
        """Follow what the methods of an object, and a function that has hold of it, name of it."""
        kinds = [kind for kind in type(value).__mro__ if kind is not object]
        unread = set(_ENTRIES) if first else set[str]()
        named, written = unread | names, set[str]()
        while unread:
            found = [
                f for kind in kinds for name in unread if (f := _function(vars(kind).get(name))) is not None
            ]
            unread = set[str]()
            for function in found:
                if is_users(function.__module__):
                    self._walk_function(function)
                read, wrote = _named_by(function.__code__)
                unread |= read - named - _BEFORE_STEPS
                written |= wrote
            named |= unread
        left_out = _infrastructure() if isinstance(value, _OF_KERAS) else frozenset[str]()
        own, all_names = getattr(value, "__dict__", {}), frozenset(named)
        for name in sorted(named & own.keys() - left_out):
            self._add(own, name, f"{_name_of(value)}.{name}", all_names, written=name in written)
        for kind in kinds:
            if is_users(kind.__module__):
                for name in sorted(named & vars(kind).keys() - own.keys()):
                    if _function(vars(kind)[name]) is None:
                        self._add(kind, name, f"{kind.__name__}.{name}", all_names, written=name in written)

    def _walk_function(self, function: types.FunctionType) -> None:
        """Follow what a function reads of its module, and of the functions that enclose it."""
        names, written = _named_by(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._add(cell, "cell_contents", name, names, written=name in written)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._walk(default, function.__name__)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if not isinstance(value, (types.ModuleType, type)):
                self._add(function.__globals__, name, name, names, written=name in written)
            elif is_users(value.__name__ if isinstance(value, types.ModuleType) else value.__module__):
                for inner in sorted(names & vars(value).keys()):
                    self._add(value, inner, f"{name}.{inner}", names, written=inner in written)

    def _add(self, owner: Any, key: Any, label: str, names: frozenset[str], *, written: bool) -> None:
        self._places.setdefault((id(owner), key), _Place(owner, key, label, written, self._of_data))
        self._walk(_value_of(owner, key), label, names)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The names of what has another value after than before; without what was or is no value that can be compared."""
    return [name for name, value in after.items() if before.get(name, value) != value]


def _given_in(data: Any) -> Iterable[Any]:
    """A data set of the user's, or the functions and data sets that one of Scavenger's is made of."""
    return vars(data).values() if type(data).__module__.startswith("scavenger.") else (data,)


def _value_of(owner: Any, key: Any) -> Any:
    if isinstance(owner, dict):
        return owner.get(key)
    if isinstance(owner, (list, tuple)):
        return owner[key] if key < len(owner) else None
    try:
        return getattr(owner, key, None)
    except ValueError:  # a variable of an enclosing function that has no value yet
        return None


def _told(value: Any) -> str | None:
    """Return a value as text, or the digest of an array; None for one that is no state in itself."""
    if isinstance(value, (tf.Variable, _TENSOR)):
        if value.dtype in (tf.resource, tf.variant):
            return None
        value = value.numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        if value.nbytes > _BYTES_MAX:
            return None
        data = np.ascontiguousarray(value).tobytes()
        return f"{value.dtype} {value.shape} {hashlib.blake2b(data).hexdigest()}"
    try:
        return json.dumps(encode(value))
    except (UnkeepableError, TypeError, ValueError):
        return None


def _function(value: Any) -> types.FunctionType | None:
    """The function behind an attribute of a class, None if there is none."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, (property, functools.cached_property)):
        value = value.fget if isinstance(value, property) else value.func
    while not isinstance(value, types.FunctionType):
        inner = getattr(value, "__wrapped__", None) or getattr(value, "python_function", None)
        if inner is None or inner is value:
            return None
        value = inner
    return getattr(value, "__wrapped__", value) if isinstance(value, types.FunctionType) else None


@functools.cache
def _named_by(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names of variables and attributes that code reads, and that it writes, also within its inner functions."""
    read, written = set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if isinstance(name, types.CodeType):
            inner_read, inner_written = _named_by(name)
            read |= inner_read
            written |= inner_written
        elif (
            isinstance(name, str) and "_FAST" not in instruction.opname
        ):  # a text that is loaded may be an argument of getattr
            if instruction.opname.startswith("STORE_"):
                written.add(name)
            else:
                read.add(name)
    return frozenset(read), frozenset(written)


@functools.cache
def is_users(module: str | None) -> bool:
    """Whether a module is neither Python's, nor of an installed package, nor Scavenger's."""
    name = (module or "").partition(".")[0]
    if name == "__main__":
        return True  # a script of the user's: what began this process has no state of the training
    if name in ("", "builtins", "scavenger") or name in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    installed = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    return file is None or not file.startswith(tuple(installed))


def _name_of(value: Any) -> str:
    if isinstance(value, keras.Model):
        return "model"
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and isinstance(value, keras.Layer) else type(value).__name__
