"""What processes of tests have besides: a Keras that imports less, and fork servers of a process that is warm.

Importing scikit-learn and matplotlib is a third of Keras's import.

Keras imports them for `keras.wrappers` and `keras.visualization` if it finds them, which no test uses. What imports
them itself has them. `tests/conftest.py` puts this folder on the path that processes inherit.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_LEFT_OUT = {"sklearn", "matplotlib"}


class _LeanKeras:
    """Finds nothing, and refuses the modules that Keras can do without while Keras is imported."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        keras_begins = getattr(getattr(sys.modules.get("keras"), "__spec__", None), "_initializing", False)
        # PyTorch, as Keras's backend, asks whether there is such a module, and expects an answer
        if name in _LEFT_OUT and keras_begins and "torch" not in sys.modules:
            raise ImportError(f"{name} is left out while Keras is imported")
        return None


sys.meta_path.insert(0, _LeanKeras)


class _WarmForkServers:
    """Has `warm_servers` change the class of fork servers when its module is imported; found by name alone."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "scavenger.train.engines.process":
            return None
        sys.meta_path.remove(_WarmForkServers)
        from warm_servers import lead_to_warm_process

        lead_to_warm_process()
        return importlib.util.find_spec(name)


if "SCAVENGER_TEST_WARM" in os.environ:
    sys.meta_path.insert(0, _WarmForkServers)
