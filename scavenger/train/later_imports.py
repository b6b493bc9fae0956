"""Modules that Keras and TensorFlow import and few jobs use: their code is run once something of them is asked for.

They are nearly half of what importing Keras takes: TensorFlow Lite, and other projects' libraries if installed, such as
scikit-learn, Matplotlib, pandas and JAX.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_COMPATIBLE = (".compat.v1", ".compat.v2")
LATER = frozenset(
    (
        *("keras.wrappers", "keras.visualization", "keras.src.visualization"),
        *("tensorflow._api.v2.lite", *(f"tensorflow._api.v2{one}.lite" for one in _COMPATIBLE)),
        *(f"tensorflow._api.v2{one}{two}.lite" for one in _COMPATIBLE for two in _COMPATIBLE),
    )
)
"""Their names; each is a part of the public interface that does nothing by being imported."""


class _Later(Loader):
    """Runs a module's code when a name of it is looked up that it does not have yet (PEP 562).

    What a module is known by, as its file, is there from the beginning: whoever goes through all modules runs none.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def look_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            if vars(module).pop("__getattr__", None) is not None:
                self._loader.exec_module(module)
            return getattr(sys.modules[module.__name__], name)  # TensorFlow puts another one in its place

        vars(module)["__getattr__"] = look_up


LIBRARIES = frozenset(("pandas", "requests", "scipy.sparse", "googleapiclient.discovery"))
"""Libraries for which Keras and TensorFlow keep a stand-in, that imports the library when it is used."""
LEFT_OUT = frozenset(("jax",))
"""Libraries that Keras does not get: it asks for JAX to add a function that only old releases lack, for Orbax."""


class _Part:
    """A class or function of a library that was not imported when it was asked for."""

    def __init__(self, library: str, name: str) -> None:
        self._of, self._name = library, name

    def __instancecheck__(self, instance: object) -> bool:
        # what is of a library's class is there only once the library is
        return self._of in sys.modules and isinstance(instance, self._found())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._found()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def _found(self) -> Any:
        return getattr(import_module(self._of), self._name)


class _StandIn(Loader):
    """Makes what modules that are imported in the block get in a library's place; nobody else gets it."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: _part(spec.name, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _part(library: str, name: str) -> _Part:
    if name.startswith("__"):
        raise AttributeError(f"module {library!r} has no attribute {name!r}")
    return _Part(library, name)


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in LEFT_OUT:
            raise ModuleNotFoundError(f"{name} is left out while Keras is imported", name=name)
        spec = PathFinder.find_spec(name, path, target) if name in LATER or name in LIBRARIES else None
        if spec is None or spec.loader is None:
            return None
        return ModuleSpec(name, _StandIn()) if name in LIBRARIES else _with(spec, _Later(spec.loader))


def _with(spec: ModuleSpec, loader: Loader) -> ModuleSpec:
    spec.loader = loader
    return spec


@contextmanager
def later() -> Iterator[None]:
    """Within the block, modules of `LATER` and `LIBRARIES` that are imported for the first time run no code yet."""
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)
        for name in LIBRARIES & sys.modules.keys():
            spec = sys.modules[name].__spec__
            if spec is not None and isinstance(spec.loader, _StandIn):
                stand_in = sys.modules.pop(name)
                package, _, module = name.rpartition(".")
                if package and vars(sys.modules[package]).get(module) is stand_in:
                    delattr(sys.modules[package], module)
