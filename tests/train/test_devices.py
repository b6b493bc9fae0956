"""What TensorFlow says of this machine's GPUs, asked in a child process."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from scavenger.errors import ScavengerError
from scavenger.train.devices import Devices, Gpu, _name_in, find_devices


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
