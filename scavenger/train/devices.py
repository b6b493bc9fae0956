"""The GPUs that TensorFlow sees on this machine: `python -m scavenger.train.devices` prints them as JSON.

TensorFlow is asked in a child process: looking initialises CUDA, which takes memory on each GPU until the process ends,
and importing TensorFlow takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from scavenger.errors import ScavengerError

_ANSWER_S = 120.0
_PREFIX = "devices: "
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""Of NVIDIA's driver, on Linux and in Windows' subsystem for it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as TensorFlow sees it.

    Attributes:
        name: The maker's name, such as `NVIDIA L4`.
        memory_bytes: Memory that TensorFlow may use of it.
    """

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Devices:
    """What TensorFlow says of this machine.

    Attributes:
        version: TensorFlow's version.
        cuda: Whether it was built for CUDA.
        gpus: In CUDA's order.
    """

    version: str
    cuda: bool
    gpus: tuple[Gpu, ...]


def has_driver() -> bool:
    """Whether this machine has NVIDIA's driver, without which there is no GPU to compute on."""
    return any(Path(path).exists() for path in _DRIVERS)


def find_devices(environment: Mapping[str, str] = os.environ) -> Devices:
    """Ask TensorFlow, in a child process, which GPUs it sees; takes some seconds.

    Args:
        environment: Environment of the child process.

    Raises:
        ScavengerError: If TensorFlow cannot be imported, or does not answer within two minutes.
    """
    try:
        answer = subprocess.run(
            [sys.executable, "-m", __name__],
            env={**environment, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ScavengerError(f"TensorFlow does not tell what GPUs it sees: {error}") from error
    lines = [line for line in answer.stdout.splitlines() if line.startswith(_PREFIX)]
    if answer.returncode or not lines:
        words = answer.stderr.strip().splitlines()[-1:] or [f"exit status {answer.returncode}"]
        raise ScavengerError(f"TensorFlow does not tell what GPUs it sees: {words[0]}")
    found = json.loads(lines[-1].removeprefix(_PREFIX))
    return Devices(found["version"], found["cuda"], tuple(Gpu(**gpu) for gpu in found["gpus"]))


def _look() -> Devices:
    import tensorflow as tf
    from tensorflow.python.client import device_lib

    found = device_lib.list_local_devices() if tf.config.list_physical_devices("GPU") else []
    gpus = tuple(
        Gpu(_name_in(device.physical_device_desc), int(device.memory_limit))
        for device in found
        if device.device_type == "GPU"
    )
    return Devices(tf.__version__, bool(tf.test.is_built_with_cuda()), gpus)


def _name_in(description: str) -> str:
    """Find the name in `device: 0, name: NVIDIA L4, pci bus id: 0000:00:03.0, compute capability: 8.9`."""
    names = [part.removeprefix("name: ") for part in description.split(", ") if part.startswith("name: ")]
    return names[0] if names else description


if __name__ == "__main__":
    print(_PREFIX + json.dumps(asdict(_look())))
