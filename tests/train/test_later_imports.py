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
heavy = ("sklearn", "matplotlib", "tensorflow.lite.python.lite")
assert not [name for name in heavy if name in sys.modules]
import keras, tensorflow as tf
from keras.visualization import plot_image_gallery
assert keras.wrappers.SKLearnClassifier and tf.lite.TFLiteConverter and tf.compat.v1.lite.TFLiteConverter
assert not [name for name in heavy if name not in sys.modules]
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


@pytest.mark.long
def test_what_keras_and_tensorflow_have_besides_is_there_when_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", _REAL], check=True)
