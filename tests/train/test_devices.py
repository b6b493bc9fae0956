"""What TensorFlow says of this machine's GPUs, asked in a child process."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from scavenger.errors import ScavengerError
from scavenger.train.devices import Devices, Gpu, _name_in, driver_gpus, find_devices


@pytest.mark.slow
@pytest.mark.long  # imports TensorFlow, for seconds, to find no GPU
def test_tensorflow_without_cuda_says_so() -> None:
    devices = find_devices()

    assert (devices.version, devices.cuda, devices.gpus) == (version("tensorflow-cpu"), False, ())


def test_gpus_are_those_that_tensorflow_tells_of(tmp_path: Path) -> None:
    package = tmp_path / "tensorflow"
    (package / "python" / "client").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "__version__ = '9.9'\n"
        "class config: list_physical_devices = staticmethod(lambda kind: [kind])\n"
        "class test: is_built_with_cuda = staticmethod(lambda: True)\n"
    )
    (package / "python" / "client" / "device_lib.py").write_text(
        "from types import SimpleNamespace as Device\n"
        "GPU = Device(device_type='GPU', physical_device_desc='device: 0, name: NVIDIA L4', memory_limit=7)\n"
        "list_local_devices = lambda: [Device(device_type='CPU'), GPU]\n"
    )

    found = find_devices({**os.environ, "PYTHONPATH": str(tmp_path)})

    assert found == Devices("9.9", True, (Gpu("NVIDIA L4", 7),))


def test_why_it_does_not_answer_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("path")
    (folder / "tensorflow.py").write_text("raise ImportError('libcudart.so.12 is missing')\n")

    with pytest.raises(ScavengerError, match=r"ImportError: libcudart\.so\.12 is missing"):
        find_devices({**os.environ, "PYTHONPATH": str(folder)})


def test_a_gpu_is_called_by_the_name_in_tensorflows_description() -> None:
    described = "device: 0, name: NVIDIA L4, pci bus id: 0000:00:03.0, compute capability: 8.9"

    assert _name_in(described) == "NVIDIA L4"
    assert _name_in("something else") == "something else"


L4, T4 = Gpu("NVIDIA L4", 23034 << 20), Gpu("Tesla T4", 15360 << 20)
_ANSWER = """echo 'GPU-8f6d, 23034, NVIDIA L4'
echo 'GPU-1c2e, 15360, Tesla T4'
echo 'GPU-77aa, [N/A], NVIDIA GB10'
"""


def _with_driver(folder: Path, answer: str, **variables: str) -> dict[str, str]:
    """The environment of a machine whose `nvidia-smi` answers so."""
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = --query-gpu=uuid,memory.total,name ] || exit 9\n{answer}')
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.defpath}", **variables}


@pytest.mark.slow  # starts a process
@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ({}, {"GPU-8f6d": L4, "GPU-1c2e": T4, "GPU-77aa": Gpu("NVIDIA GB10", 0)}),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, {"1": T4, "0": L4}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1c"}, {"GPU-1c": T4}),
        (
            {"CUDA_VISIBLE_DEVICES": "0,7,1"},
            {"0": L4},
        ),  # as CUDA, which reads it up to the first that is none
        ({"CUDA_VISIBLE_DEVICES": "-1"}, {}),
    ],
)
def test_the_driver_tells_of_gpus_whatever_library_computes_on_them(
    visible: dict[str, str], gpus: dict[str, Gpu], tmp_path: Path
) -> None:
    found = driver_gpus(_with_driver(tmp_path, _ANSWER, **visible))

    assert list(found.items()) == list(gpus.items())


@pytest.mark.slow
def test_a_driver_that_does_not_answer_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScavengerError, match=r"nvidia-smi does not tell what GPUs there are: .*No such file"):
        driver_gpus({"PATH": str(tmp_path)})
    broken = _with_driver(
        tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    )
    with pytest.raises(
        ScavengerError, match="there are: Failed to initialize NVML: Driver/library version mismatch"
    ):
        driver_gpus(broken)

    assert driver_gpus(_with_driver(tmp_path, "echo 'No devices were found'\n")) == {}
