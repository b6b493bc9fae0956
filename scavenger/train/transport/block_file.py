"""Creates, opens and identifies the anonymous file of a job's shared-memory block (`shared_memory`)."""

from __future__ import annotations

import os
import re
import stat
import tempfile

from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["block_path", "create_block", "memory_id", "open_block", "same_block"]

_BLOCK_PATH = re.compile(r"/proc/[1-9][0-9]*/fd/[0-9]+")


def create_block() -> int:
    """Create an empty anonymous block and return its descriptor, which the caller closes."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("scavenger", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked at once, so it has no name, like a memfd
        return os.dup(file.fileno())


def open_block(config: ProcessConfiguration) -> int:
    """Open the block that a process works on: the inherited one, the one at the configured path, or a new one.

    Raises:
        OSError: If the configured path does not exist, or is no job's block of this user.
    """
    if config.memory_fd >= 0:
        return config.memory_fd
    return _open_other(config.memory) if config.memory else create_block()


def block_path(fd: int) -> str:
    """Return the path by which another process of this user on this host can open a block of this process.

    It is the value of `ProcessConfiguration.memory`.
    """
    return f"/proc/{os.getpid()}/fd/{fd}"


def _open_other(path: str) -> int:
    if not _BLOCK_PATH.fullmatch(path):
        raise PermissionError(f"{path!r} is not the path of a process's file descriptor")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)  # if it is a pipe, the call must not wait
    found = os.fstat(fd)
    # accept only what `create_block` makes: a file of this user that has no name in any file system
    if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"{path} is not a shared-memory block of this user")
    return fd


def same_block(path: str, fd: int) -> bool:
    """Whether the block that was opened at a `block_path` is still there: its owner lives and has not closed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def memory_id(fd: int) -> str:
    """Return the identity of a block, which two processes compare to know whether they share one."""
    found = os.fstat(fd)
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            host = file.read().strip()
    except OSError:
        host = os.uname().nodename
    return f"{host}:{found.st_dev}:{found.st_ino}"
