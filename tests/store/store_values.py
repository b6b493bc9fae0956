"""Values and small tools that the tests of the store share."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from scavenger.domain.configuration import Configuration
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.measurement import Measurement
from scavenger.errors import ScavengerError
from scavenger.store import Store
from scavenger.store.owner import this_process

ANOTHER_MACHINE = replace(this_process(), host="node-7", birth="", installation="of-node-7")
"""A process of another machine."""
FINGERPRINT = Fingerprint(
    architecture="ab" * 32,
    parameters=61_706,
    optimizer="Adam:1f0c",
    dataset_size=1_437,
    sample_bytes=264,
    goal="val_accuracy>=0.97",
    vm="e2-standard-4",
    hardware="Xeon x4",
)
ELSEWHERE = replace(FINGERPRINT, vm="c3-highcpu-8", hardware="Sapphire Rapids x8")
MODEL: dict[str, Any] = {"law": "critical-batch", "e_min": 7.25, "b_star": 310.0, "points": [[1, 64, 0.02]]}


class Clock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def pass_(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def save(
    store: Any, fingerprint: Fingerprint = FINGERPRINT, model: dict[str, Any] = MODEL, **more: Any
) -> Any:
    return store.save_model(
        fingerprint, model, **{"job_id": None, "schema_version": 1, "measurements": 6, "runs": 1, **more}
    )


INT64 = 2**63 - 1
finite = st.floats(allow_nan=False, allow_infinity=False)
not_negative = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)

fingerprints = st.builds(
    Fingerprint,
    architecture=words,
    parameters=st.integers(0, INT64),
    optimizer=words,
    dataset_size=st.integers(1, INT64),
    sample_bytes=st.integers(0, INT64),
    goal=words,
    vm=words,
    hardware=words,
)
configurations = st.builds(
    lambda vm, workers, more: Configuration(vm, workers, workers + more),
    words,
    st.integers(1, 10_000),
    st.integers(0, 1_000_000),
)
measurements = st.builds(
    Measurement,
    configuration=configurations,
    steps=st.integers(1, 10_000),
    step_time_s=positive,
    step_time_spread_s=not_negative,
    compute_s=not_negative,
    sync_s=not_negative,
    gradient_noise=st.none() | finite,
    noise_scale=st.none() | finite,
    memory_bytes=st.integers(0, INT64),
)
documents = st.dictionaries(
    words,
    st.recursive(
        st.none() | st.booleans() | st.integers() | finite | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def dump(path: Path) -> list[str]:
    """The whole database as SQL."""
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def refusal(url: str, kind: type[ScavengerError], place: object) -> str:
    """Open a store that cannot be; the error's one line, which names the place."""
    with pytest.raises(kind) as caught:
        Store.open(url).close()
    assert type(caught.value) is kind
    line = str(caught.value)
    assert "\n" not in line
    assert str(place) in line
    return line


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def run_python(code: str, *arguments: str) -> str:
    output, complaint = start_python(code, *arguments).communicate(timeout=60)
    assert not complaint
    return output
