"""Modules that Keras and TensorFlow import and few jobs use: their code is run once something of them is asked for.

They are a quarter of what importing Keras takes: TensorFlow Lite, and scikit-learn and Matplotlib if installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


@contextmanager
def later() -> Iterator[None]:
    """Within the block, modules of `LATER` that are imported for the first time run no code yet."""
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)
