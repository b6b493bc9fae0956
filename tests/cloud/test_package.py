"""The wheel that VMs install: of this code, the same bytes wherever it is packed, and what a job needs with it."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from scavenger import __version__
from scavenger.cloud.boot.package import CONSTRAINTS, extras_of, is_own, own_package, own_wheel
from scavenger.control.provisioning import on_vm
from scavenger.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
PRINTS = "from scavenger.cloud.boot.package import own_wheel; print(own_wheel().name, own_wheel().sha256)"


def test_the_wheel_has_what_an_agent_runs_and_the_projects_versions() -> None:
    with zipfile.ZipFile(io.BytesIO(own_wheel().data)) as content:
        names = content.namelist()
        (metadata,) = (content.read(name).decode() for name in names if name.endswith("METADATA"))
        (scripts,) = (content.read(name).decode() for name in names if name.endswith("entry_points.txt"))

        assert content.read(CONSTRAINTS).decode() == (ROOT / "constraints.txt").read_text()
        assert content.read("scavenger/train/engines/vm/agent.py")
        assert content.read("scavenger/store/migrations/env.py") == (ROOT / "migrations/env.py").read_bytes()
    assert not [name for name in names if "__pycache__" in name or "scavenger_cli" in name or "/." in name]
    assert f"Version: {__version__}+" in metadata
    assert "scavenger-vm = scavenger.control.provisioning.on_vm:main" in scripts
    assert "scavenger-leader = scavenger.server.on_leader:main" in scripts


def test_every_requirement_of_a_vm_has_a_tested_version() -> None:
    with zipfile.ZipFile(io.BytesIO(own_wheel().data)) as content:
        (name,) = (name for name in content.namelist() if name.endswith("METADATA"))
        required = re.findall(r"^Requires-Dist: ([\w-]+)", content.read(name).decode(), re.MULTILINE)
    pinned = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0]) for line in own_wheel().constraints.splitlines()
    }

    assert set(required) <= pinned


def test_an_installation_of_the_project_has_the_versions_where_a_vm_has_them() -> None:
    """Without a checkout beside it, the wheel is packed from there."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]

    assert build["targets"]["wheel"]["force-include"]["constraints.txt"] == CONSTRAINTS


@pytest.mark.slow
def test_an_installed_wheel_packs_itself_to_the_same_bytes(tmp_path: Path) -> None:
    """So an image that was made with it is recognized, on whatever Python and machine."""
    wheel = own_wheel()
    (tmp_path / wheel.name).write_bytes(wheel.data)
    place = tmp_path / "installed"
    install = ["-m", "pip", "install", "--no-deps", "--no-index", "--target", str(place), wheel.name]
    subprocess.run([sys.executable, *install], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    packed = subprocess.run(
        [sys.executable, "-c", PRINTS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert packed.stdout.split() == [wheel.name, wheel.sha256]


def test_a_package_names_the_wheel_by_its_digest_and_pins_what_fetches_it() -> None:
    package = own_package(["parquet"])

    assert package.sha256 == hashlib.sha256(own_wheel().data).hexdigest()
    assert package.extras == ("parquet",)
    assert [one.partition("==")[0] for one in package.tools] == ["msgspec", "pyzmq"]
    assert all(one in own_wheel().constraints.splitlines() for one in package.tools)


def test_an_extra_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no extra 'x; reboot'"):
        own_package(["x; reboot"])


def test_code_is_recognized_by_the_digest_of_its_wheel() -> None:
    package = own_package()

    assert is_own(package.sha256)
    assert not is_own(replace(package, sha256="0" * 64).sha256)


def test_the_program_on_a_vm_tells_whether_it_is_that_of_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["scavenger-vm", *arguments])
        return on_vm.main()

    assert status("--has", own_wheel().sha256) == 0
    assert status("--has", "0" * 64) == 1
    assert status("--has") != 0


def test_an_extra_whose_requirements_are_missing_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def missing(name: str) -> bool:
        asked.append(name)
        return False

    monkeypatch.setattr("scavenger.cloud.boot.package._is_installed", missing)

    assert not is_own(own_wheel().sha256, ["parquet"])
    assert asked == ["pyarrow"]
    asked.clear()
    assert not is_own(own_wheel().sha256, ["keras"])
    assert asked == ["keras"]


def test_only_what_jobs_of_keras_need_brings_tensorflow() -> None:
    with zipfile.ZipFile(io.BytesIO(own_wheel().data)) as content:
        [name] = [name for name in content.namelist() if name.endswith("/METADATA")]
        lines = content.read(name).decode().splitlines()

    of_it = [line for line in lines if line.startswith("Requires-Dist: ") and "tensorflow" in line]
    assert any("tensorflow-cpu" in line for line in of_it)
    assert all(line.endswith(("extra == 'keras'", "extra == 'gpu'")) for line in of_it)


@pytest.mark.parametrize(
    ("file", "text", "extras"),
    [
        ("train.py", "from scavenger.sdk import ParquetFiles\n", ("parquet",)),
        ("lib/data.py", "import pyarrow.parquet as pq\n", ("parquet",)),
        ("settings.yaml", "data: s3://bucket/folder\n", ("aws",)),
        ("train.py", "GCS = 'gs://bucket/x.parquet'\n", ("gcp", "parquet")),
        ("train.py", "from scavenger import KerasJob\n", ("keras",)),
        ("train.py", "import jax\n", ()),
        (".git/parquet.py", "parquet\n", ()),
        ("notes.txt", "parquet\n", ()),
    ],
)
def test_the_extras_of_a_job_follow_from_what_its_code_names(
    tmp_path: Path, file: str, text: str, extras: tuple[str, ...]
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)

    assert extras_of(tmp_path) == extras


def test_checkpoints_in_a_bucket_need_its_client(tmp_path: Path) -> None:
    assert extras_of(tmp_path, "s3://bucket/checkpoints") == ("aws",)
