"""Modules whose code is run later are as any other to who uses them."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from scavenger.train import later_imports
from scavenger.train.later_imports import later

_REAL = """
import sys
import scavenger.train.worker_process
from keras import visualization
heavy = ("sklearn", "matplotlib", "tensorflow.lite.python.lite", "pandas", "requests")
assert not [name for name in (*heavy, "jax", "scipy.sparse", "scavenger.domain.job") if name in sys.modules]
import keras, tensorflow as tf
import numpy as np
from keras.visualization import plot_image_gallery
assert keras.wrappers.SKLearnClassifier and tf.lite.TFLiteConverter and tf.compat.v1.lite.TFLiteConverter
import pandas, requests.adapters, scipy.sparse
assert not [name for name in heavy if name not in sys.modules]
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
frame = pandas.DataFrame({"a": np.zeros(4), "b": np.zeros(4)})
model.compile("sgd", "mse")
model.fit(frame, frame["a"], verbose=0)
assert model.predict(frame, verbose=0).shape == (4, 1)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module that is run later, which appends to a list that it finds."""
    folder = tmp_path / "laters_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("ran = []\nfrom laters_of_tests import heavy as heavy\n")
    (folder / "heavy.py").write_text(
        "import laters_of_tests\nlaters_of_tests.ran.append(__name__)\nvalue = 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(later_imports, "LATER", frozenset({"laters_of_tests.heavy"}))
    for name in ("laters_of_tests", "laters_of_tests.heavy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "laters_of_tests"


def test_its_code_is_run_once_when_something_of_it_is_asked_for(package: str) -> None:
    with later():
        found = importlib.import_module(package)
    heavy = sys.modules[f"{package}.heavy"]

    assert inspect.getmodule(test_its_code_is_run_once_when_something_of_it_is_asked_for) is not None
    assert heavy.__file__ is not None
    assert not hasattr(heavy, "__wrapped__")
    assert found.ran == []  # going through all modules runs none

    assert found.heavy.value == 5
    with pytest.raises(AttributeError):
        _ = found.heavy.other
    exec(f"from {package}.heavy import value; assert value == 5")
    assert found.ran == [f"{package}.heavy"]


def test_outside_of_the_block_modules_run_as_they_are_imported(package: str) -> None:
    with later():
        pass
    assert importlib.import_module(package).ran == [f"{package}.heavy"]


def test_a_library_is_imported_once_what_was_taken_from_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library_of_tests").mkdir()
    (tmp_path / "library_of_tests" / "__init__.py").touch()
    (tmp_path / "library_of_tests" / "frames.py").write_text(
        "class Frame:\n    width = 3\ndef is_frame(one): return isinstance(one, Frame)\n"
    )
    user = "import library_of_tests.frames as own\nfrom library_of_tests.frames import Frame, is_frame\n"
    (tmp_path / "user_of_tests.py").write_text(f"{user}KINDS = (int, Frame)\n")
    (tmp_path / "needs_none_of_tests.py").write_text(
        "try: import none_of_tests\nexcept ImportError: found = 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "library_of_tests.frames"
    monkeypatch.setattr(later_imports, "LIBRARIES", frozenset({name}))
    monkeypatch.setattr(later_imports, "LEFT_OUT", frozenset({"none_of_tests"}))
    for module in ("library_of_tests", name, "user_of_tests"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "none_of_tests.py").touch()
    with later():
        using = importlib.import_module("user_of_tests")
        assert importlib.import_module("needs_none_of_tests").found == 0

    assert not isinstance(
        "text", using.KINDS
    )  # which needs no import: nothing is of a library that is not there
    assert name not in sys.modules
    assert not hasattr(sys.modules["library_of_tests"], "frames")
    assert using.Frame.width == 3
    library = importlib.import_module(name)
    assert isinstance(library.Frame(), using.KINDS)
    assert isinstance(library.Frame(), using.own.Frame)
    assert using.is_frame(using.Frame())
    with pytest.raises(AttributeError):
        _ = using.own.__wrapped__
    importlib.import_module("none_of_tests")


@pytest.mark.long
def test_what_keras_and_tensorflow_have_besides_is_there_when_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", _REAL], check=True)
