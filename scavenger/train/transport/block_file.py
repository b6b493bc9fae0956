"""Creates, opens and identifies the anonymous file of a job's shared-memory block (`shared_memory`)."""

from __future__ import annotations

import os
import tempfile

from scavenger.train.transport.messages.values import ProcessConfiguration


def create_block() -> int:
    """Create an empty anonymous block and return its descriptor, which the caller closes."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("scavenger", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked at once, so it has no name, like a memfd
        return os.dup(file.fileno())


def open_block(config: ProcessConfiguration) -> int:
    """Return the block that a process works on: the inherited one, or a new one."""
    return config.memory_fd if config.memory_fd >= 0 else create_block()


def memory_id(fd: int) -> str:
    """Return the identity of a block, which two processes compare to know whether they share one."""
    found = os.fstat(fd)
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            host = file.read().strip()
    except OSError:
        host = os.uname().nodename
    return f"{host}:{found.st_dev}:{found.st_ino}"
