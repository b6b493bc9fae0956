"""What the doctor says of GPUs."""

from __future__ import annotations

from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from scavenger_cli.commands import doctor

from scavenger.domain.check import Check
from scavenger.errors import ScavengerError
from scavenger.train import devices
from scavenger.train.devices import Devices, Gpu

L4 = Gpu("NVIDIA L4", 22 << 30)


def seen(monkeypatch: pytest.MonkeyPatch, found: Devices | ScavengerError) -> Check:
    def look() -> Devices:
        if isinstance(found, ScavengerError):
            raise found
        return found

    monkeypatch.setattr(devices, "has_driver", lambda: True)
    monkeypatch.setattr(devices, "find_devices", look)
    return doctor.gpus()


def test_without_a_driver_tensorflow_is_not_even_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVERS", ("/no/such/file",))
    monkeypatch.setattr(devices, "find_devices", None)

    assert doctor.gpus() == Check("GPUs", "ok", "none (no NVIDIA driver)")


def test_what_tensorflow_sees_is_told_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    check = seen(monkeypatch, Devices("2.21.0", True, (L4, L4)))

    assert (check.status, check.found) == (
        "ok",
        "TensorFlow 2.21.0 sees NVIDIA L4 (22 GiB), NVIDIA L4 (22 GiB)",
    )


@pytest.mark.parametrize(
    ("found", "words", "fix"),
    [
        (Devices("2.21.0", False, ()), "built for processors alone", "tensorflow[and-cuda]"),
        (Devices("2.21.0", True, ()), "sees no GPU", "nvidia-smi"),
        (ScavengerError("TensorFlow does not tell: ImportError"), "ImportError", "tensorflow[and-cuda]"),
    ],
)
def test_a_gpu_that_tensorflow_cannot_use_is_told_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, found: Devices | ScavengerError, words: str, fix: str
) -> None:
    check = seen(monkeypatch, found)

    assert check.status == "warn"
    assert words in check.found
    assert fix in check.fix


@pytest.mark.parametrize(
    ("build", "status", "words"),
    [
        ("True", "ok", "tensorflow 2.21.0, for GPUs, installed over tensorflow-cpu 2.21.0"),
        ("False", "warn", "tensorflow-cpu 2.21.0 and tensorflow 2.21.0 write the same files"),
    ],
)
def test_two_builds_of_tensorflow_in_one_place_are_told_apart(
    build: str, status: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "tensorflow"
    (folder / "python" / "platform").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "python" / "platform" / "build_info.py").write_text(
        f"build_info = [('is_cuda_build', {build})]"
    )
    monkeypatch.setattr(doctor, "_version", lambda package: "2.21.0")
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: spec_from_file_location(name, folder / "__init__.py")
    )

    (check,) = (check for check in doctor._training() if check.name == "TensorFlow")

    assert check.status == status
    assert words in check.found
