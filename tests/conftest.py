"""What every test needs: TensorFlow without its banner; and what an ordinary run leaves out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["SCAVENGER_PRICE_REFRESH"] = "never"  # no test asks a real cloud
os.environ["SCAVENGER_PUBLIC_PRICES"] = "http://127.0.0.1:9"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).with_name("lean")), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Machines are shared and busy, so no example has a time limit of its own; pytest-timeout ends what hangs. In CI
# a failure prints what reproduces it, and no database of earlier failures decides what is tried.
settings.register_profile("development", deadline=None)
settings.register_profile(
    "ci", deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "development")


# Files are given to processes in this order; no process waits at the end for one that has begun a long file late.
_LONGEST_FIRST = ("clouds_e2e", "e2e", "train")


def _turn(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of long tests go first; long proofs are left to `make proofs`, so that an ordinary run stays short."""
    items.sort(key=_turn)
    if os.environ.get("SCAVENGER_EVERYTHING"):
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="long: SCAVENGER_EVERYTHING=1 tries it"))
