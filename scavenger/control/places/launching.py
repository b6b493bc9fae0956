"""Launches of VMs: questions to the cloud before them, image, disk, package, zones, and the address where they join."""

from __future__ import annotations

import ipaddress
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from scavenger.cloud.boot.boot import PACKAGE_VARIABLE
from scavenger.cloud.boot.package import own_package
from scavenger.domain.infra import Infra
from scavenger.domain.vm import LaunchTemplate, VmPackage, VmSettings
from scavenger.domain.vm_settings import CloudSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError, ThrottledError
from scavenger.policy.provisioning.config import Backoff
from scavenger.train.transport.sockets import is_own

ADDRESS_VARIABLE = "SCAVENGER_ADDRESS"
"""Environment variable with the address at which VMs reach this machine: `HOST` or `HOST:PORT`."""
IMAGE_VARIABLE = "SCAVENGER_IMAGE"
"""Environment variable with the cloud's name of the VM image, instead of its newest Ubuntu; it needs cloud-init."""
UNPROVEN_VARIABLE, GPU_VMS = "SCAVENGER_UNPROVEN", "gpu-vms"
"""Environment variable, and its value, by which a user agrees to rent VMs with GPUs before that was proven to work."""
DISK_GIB = 20
"""Size of each VM's boot disk; an Ubuntu with TensorFlow takes 6 GiB."""
GPU_DISK_GIB = 100
"""The same for a job with GPUs: images with a driver are larger, and CUDA's libraries take 6 GiB."""
RUN_MAX_S = 14 * 86_400.0
"""Limit of a VM's lifetime, enforced by the cloud as the last safeguard, if the job has no deadline."""
THROTTLED_S, UNANSWERED_S = 300.0, 60.0
"""How long a question to the cloud is repeated before the first VM is launched, if it is throttled or not answered."""
_ASK_AGAIN = Backoff(1.0, 20.0)
_METADATA = ("169.254.169.254", 80)

Answer = TypeVar("Answer")


class Questions:
    """Asks a cloud, and again while it throttles a call or does not answer.

    Attributes:
        pause: Waits for a number of seconds before a question is repeated.
        warn: Receives a warning when that happens.
    """

    def __init__(self) -> None:
        self.pause: Callable[[float], None] = time.sleep
        self.warn: Callable[[str], None] = lambda message: None

    def ask(self, question: Callable[[], Answer], *, patient: bool = True) -> Answer:
        """Ask, and again if patient.

        Raises:
            CloudError: Any other, or one of these for too long.
        """
        waited_s, times, rng = 0.0, 0, random.Random()  # noqa: S311 - jitter
        while True:
            try:
                return question()
            except (ThrottledError, CloudUnavailableError) as error:
                limit_s = THROTTLED_S if isinstance(error, ThrottledError) else UNANSWERED_S
                if waited_s >= limit_s or not patient:
                    raise
                if not times:
                    self.warn(f"{error}; tried again for up to {limit_s / 60:g} min")
                times += 1
                pause_s = min(_ASK_AGAIN.wait_s(times, rng), limit_s - waited_s)
                self.pause(pause_s)
                waited_s += pause_s


def launch_template(
    settings: CloudSettings,
    environment: Mapping[str, str],
    *,
    run_max_s: float = RUN_MAX_S,
    disk_gib: int = DISK_GIB,
    launched: VmSettings | None = None,
) -> LaunchTemplate:
    """The launch of a VM, without user data.

    Args:
        launched: Network and identity; None for those of the settings.
    """
    return LaunchTemplate(
        run_max_s=run_max_s,
        image=environment.get(IMAGE_VARIABLE, ""),
        disk_gib=disk_gib,
        labels=settings.vm_tags(),
        settings=settings.launch_settings() if launched is None else launched,
    )


def package_of(environment: Mapping[str, str], extras: Collection[str]) -> VmPackage:
    """What VMs install: what the user has named, or else this process's own code with these extras."""
    requirement = environment.get(PACKAGE_VARIABLE)
    return VmPackage(requirement=requirement) if requirement else own_package(extras)


def zones_of(infra: Infra, zones: tuple[str, ...], vm: str) -> tuple[str, ...]:
    """Where VMs of a type may be, of the zones that have it.

    Raises:
        ConfigurationError: If the zone that a job names has none.
    """
    if not infra.zone:
        return zones
    if infra.zone not in zones:
        raise ConfigurationError(
            f"infra: {vm} is not available in {infra.zone}; it is available in {', '.join(zones)}"
        )
    return (infra.zone,)


def address_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """The address at which VMs join, and the first of its two ports; 0 means any free ports.

    Raises:
        ConfigurationError: If no address is set, this machine cannot listen there, or the address belongs to another
            machine (a router that forwards ports to this one) and no port is given.
    """
    text = environment.get(ADDRESS_VARIABLE, "")
    if not text:
        raise ConfigurationError(
            f"VMs must reach this machine: set {ADDRESS_VARIABLE} to its address in their network{_guess()}, with "
            "`:PORT` where only some ports are open (that one and the next are listened at)"
        )
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "0")
    try:
        address, first = str(ipaddress.IPv4Address(socket.gethostbyname(host))), int(port)
        own = is_own(address)
        if not (own or first):
            raise ValueError("it is not this machine's own: name the port that leads here, as HOST:PORT")
        for number in (first, first + 1) if first else (0,):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((address if own else "", number))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{ADDRESS_VARIABLE}={text}: VMs cannot join there: {error}") from None
    return address, first


def _guess() -> str:
    """Guess this machine's address from its route to other networks; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(_METADATA)
            return f" (perhaps {way.getsockname()[0]})"
    except OSError:
        return ""
