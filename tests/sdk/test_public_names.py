"""The public names: all there, none of them costly before it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PUBLIC = {
    "scavenger": [
        "AsyncClient",
        "Client",
        "Job",
        "KerasJob",
        "Plan",
        "Run",
        "RunningJob",
        "ScavengerError",
        "Study",
        "Trial",
        "__version__",
        "run_loop",
    ],
    "scavenger.sdk": [
        "FromGenerator",
        "KerasJob",
        "LoopJob",
        "ParquetFiles",
        "TFRecords",
        "loop",
        "sample_seed",
    ],
}
COSTLY = ("tensorflow", "keras", "sqlalchemy", "boto3", "google.cloud", "ray", "zmq", "numpy")


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)

    assert sorted(module.__all__) == sorted(PUBLIC[package])
    assert dir(module) == sorted(PUBLIC[package])
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize("package", PUBLIC)
def test_a_name_that_is_not_public_is_refused_as_python_does(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Crew'"):
        _ = importlib.import_module(package).Crew


@pytest.mark.slow
def test_importing_the_packages_imports_no_costly_library() -> None:
    program = f"import sys, scavenger, scavenger.sdk; print([n for n in {COSTLY!r} if n in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == "[]"
