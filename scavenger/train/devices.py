"""The GPUs of this machine: those that TensorFlow sees, and those that the driver lists, whatever computes on them.

TensorFlow is asked in a child process, which prints them as JSON: looking initialises CUDA, which takes memory on each
GPU until the process ends, and importing TensorFlow takes seconds.
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
from scavenger.train.engines.gpus import visible_in

_ANSWER_S = 120.0
_LIST = ("nvidia-smi", "--query-gpu=uuid,memory.total,name", "--format=csv,noheader,nounits")
_PREFIX = "devices: "
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""Of NVIDIA's driver, on Linux and in Windows' subsystem for it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        name: The maker's name, such as `NVIDIA L4`.
        memory_bytes: Its memory; as TensorFlow sees it, what that may use of it. 0 if that is not known.
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


def driver_gpus(environment: Mapping[str, str] = os.environ) -> dict[str, Gpu]:
    """Ask the driver, by `nvidia-smi`, for the GPUs that a process of this environment reaches; leaves CUDA alone.

    Returns:
        By the name that CUDA has for each: its UUID, since CUDA's numbers need not follow those of the driver; or as
        `CUDA_VISIBLE_DEVICES` lists it.

    Raises:
        ScavengerError: If there is no `nvidia-smi`, or it does not answer.
    """
    try:
        answer = subprocess.run(
            _LIST, env=dict(environment), capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ScavengerError(f"nvidia-smi does not tell what GPUs there are: {error}") from error
    if answer.returncode:
        words = (answer.stderr or answer.stdout).strip().splitlines()[-1:] or [
            f"exit status {answer.returncode}"
        ]
        raise ScavengerError(f"nvidia-smi does not tell what GPUs there are: {words[0]}")
    gpus = {}
    rows = (line.split(", ", 2) for line in answer.stdout.splitlines())
    for uuid, memory, name in (
        row for row in rows if len(row) == 3
    ):  # else it says in words that there is none
        gpus[uuid] = Gpu(name, int(memory) << 20 if memory.isdigit() else 0)
    if not (listed := visible_in(environment)):
        return gpus
    found = {}
    for number in listed:
        uuid = next((u for n, u in enumerate(gpus) if str(n) == number or u.startswith(number)), "")
        if not uuid:  # CUDA reads the list up to the first that does not exist
            break
        found[number] = gpus[uuid]
    return found


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
