"""Why a VM did not come: the cloud's own reason and the VM's console in, a cause with its fix out.

The first row that fits:

==========================================  =============================================================
sign                                        cause
==========================================  =============================================================
the coordinator refuses the agent           the VM has another version of Scavenger
no answer from the coordinator              address, port or firewall
Scavenger cannot be installed               no such package, no way to the index, or no space on the disk
no time limit, kernel panic, no space       the image or its disk
a code of the cloud                         `VolumeLimitExceeded` and others
nothing on the console                      the image does not boot, or has no cloud-init
==========================================  =============================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scavenger.domain.boot import (
    MARK,
    NO_ANSWER,
    NO_TIME_LIMIT,
    NOT_INSTALLED,
    REACHED,
    REFUSED,
    RETRYING,
    STARTED,
)

FailureKind = Literal["configuration", "quota", "transient"]
"""Who can help: the user, the cloud's support, or time."""

REPEATED = 2
"""Failures by the same cause after which another VM would fail too."""

_HICCUPS = 3
_LINE_CHARACTERS = 160
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\s*(\[\s*\d+\.\d+\])?\s*(\w[\w.-]*\[\d+\]:)?\s*")
"""What the kernel's log and cloud-init write before a line."""


@dataclass(frozen=True, slots=True)
class BootFailure:
    """Why a VM did not join.

    Attributes:
        cause: The same for all failures that another VM would repeat.
        words: What happened, as the predicate of a sentence about the VM.
        fix: What the user can do.
    """

    cause: str
    words: str
    fix: str
    kind: FailureKind = "configuration"


_CODES: dict[str, tuple[str, str, FailureKind]] = {
    "VolumeLimitExceeded": (
        "was ended by the cloud, since the account's limit on the total size of disks is reached",
        "delete disks that nobody needs, or ask for more (Service Quotas, Amazon EBS)",
        "quota",
    ),
    "InvalidSnapshot.NotFound": (
        "was ended by the cloud, since the snapshot of its image cannot be found",
        "name another image, or share the snapshot of this one with the account",
        "configuration",
    ),
    "Client.InternalError": (
        "was ended by the cloud as it started; the usual cause is a disk whose encryption key may not be used",
        "allow the account to use the KMS key of the disk or image",
        "configuration",
    ),
    "InsufficientInstanceCapacity": (
        "was ended by the cloud for lack of capacity",
        "another zone, region or VM type may have some",
        "transient",
    ),
    "Server.InternalError": (
        "was ended by the cloud after a fault of its own",
        "try again later, or in another zone",
        "transient",
    ),
}


def diagnose(reason: str, console: str, *, endpoint: str, image: str = "", package: str = "") -> BootFailure:
    """Find out why a VM did not join.

    Args:
        reason: Why it ended, in the cloud's or the reconciler's words; empty if it has not.
        console: The end of its console; empty if there is none.
        endpoint: Where it was to join.
        image: Its image; empty for the default.
        package: What it was to install.
    """
    return (
        _of_agent(console)
        or _of_network(console, endpoint)
        or _of_installation(console, package)
        or _of_image(console, image)
        or _of_cloud(reason)
        or _of_silence(reason, console, image)
    )


def last_words(console: str, lines: int = 3) -> tuple[str, ...]:
    """The last lines of a console that say something, without what terminals and the kernel's log add."""
    found = [_PREFIX.sub("", _ESCAPES.sub("", line)).strip() for line in console.splitlines()]
    told = ["".join(sign if sign.isprintable() else " " for sign in line) for line in found if line]
    return tuple(line[:_LINE_CHARACTERS] for line in told[-lines:])


def repeated(failures: Sequence[BootFailure]) -> BootFailure | None:
    """The failure that VMs repeat: by its cause the latest `REPEATED` or more of them failed.

    Args:
        failures: Of VMs since one last joined, oldest first.
    """
    for failure in reversed(failures):
        if sum(other.cause == failure.cause for other in failures) >= REPEATED:
            return failure
    return None


def _line_with(console: str, *signs: str) -> str:
    """The last line with one of these signs; empty if there is none."""
    found = [line for line in console.splitlines() if any(sign in line for sign in signs)]
    return last_words(found[-1], 1)[0] if found else ""


def _of_agent(console: str) -> BootFailure | None:
    if not (line := _line_with(console, REFUSED)):
        return None
    return BootFailure(
        "refused",
        f"was refused: {line.partition(f'{REFUSED}: ')[2] or line}",
        "let VMs install the version that runs here, or build the image again",
    )


def _of_installation(console: str, package: str) -> BootFailure | None:
    if NOT_INSTALLED not in console and not _fails_again(console):
        return None
    line = _line_with(console, "ERROR:", "E: ", "error:")
    words = f"could not install {package or 'Scavenger'}{f': {line}' if line else ''}"
    if _line_with(console, "No space left on device"):
        return BootFailure("disk", words, "take a larger disk or a smaller package")
    if _line_with(
        console, "name resolution", "Network is unreachable", "Connection timed out", "ConnectTimeout"
    ):
        fix = "VMs need a way to the package index (a public address or a NAT), or an image with scavenger-vm"
        return BootFailure("index", words, fix)
    return BootFailure(
        "package", words, "check SCAVENGER_PACKAGE, or take an image that contains scavenger-vm"
    )


def _fails_again(console: str) -> bool:
    """Whether an installation that goes on has failed thrice, so that it is no hiccup of the index."""
    return console.count(f"{MARK}{RETRYING}") >= _HICCUPS and f"{MARK}{STARTED}" not in console


def _of_network(console: str, endpoint: str) -> BootFailure | None:
    if NO_ANSWER not in console or f"{MARK}{REACHED}" in console:
        return None
    line = _line_with(console, f"{NO_ANSWER} at ")
    why = line.rpartition(": ")[2] if line else ""
    return BootFailure(
        "unreachable",
        f"cannot reach this machine at {endpoint.removeprefix('tcp://')}{f' ({why})' if why else ''}",
        "SCAVENGER_ADDRESS must be an address that VMs reach, and firewalls must let them in at that port and the next",
    )


def _of_image(console: str, image: str) -> BootFailure | None:
    name = image or "the default image"
    if NO_TIME_LIMIT in console:
        return BootFailure(
            "image",
            f"has no time limit: {name} does not run boothooks",
            "take an image with cloud-init and systemd",
        )
    if line := _line_with(console, "Kernel panic", "Unable to mount root", "grub rescue"):
        return BootFailure("image", f"does not boot from {name}: {line}", "take another image")
    if line := _line_with(console, "No space left on device"):
        return BootFailure(
            "disk", f"has no space on its disk: {line}", "take a larger disk or a smaller image"
        )
    return None


def _of_cloud(reason: str) -> BootFailure | None:
    for code, (words, fix, kind) in _CODES.items():
        if code in reason:
            return BootFailure(code, f"{words} ({reason})", fix, kind)
    return None


def _of_silence(reason: str, console: str, image: str) -> BootFailure:
    why = f" ({reason})" if reason else ""
    if not console.strip():
        fix = f"check that {image or 'the image'} boots and has cloud-init"
        return BootFailure("silent", f"has written nothing to its console{why}", fix)
    if MARK not in console:
        fix = f"check that {image or 'the image'} has cloud-init"
        return BootFailure("silent", f"has not begun Scavenger's boot script{why}", fix)
    return BootFailure("unknown", f"has not joined{why}", "look at its console", "transient")
