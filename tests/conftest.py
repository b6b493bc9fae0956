"""What every test needs: TensorFlow without its banner; and what an ordinary run leaves out."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long proofs are left to `make proofs`, so that an ordinary run stays short."""
    if os.environ.get("SCAVENGER_EVERYTHING"):
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="long: SCAVENGER_EVERYTHING=1 tries it"))
