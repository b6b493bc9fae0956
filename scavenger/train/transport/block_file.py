"""The anonymous file that a job's block lies in (`shared_memory`): made, opened elsewhere, and told apart."""

from __future__ import annotations

import os
import re
import stat
import tempfile

from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["block_path", "create_block", "memory_id", "open_block", "same_block"]

_BLOCK_PATH = re.compile(r"/proc/[1-9][0-9]*/fd/[0-9]+")


def create_block() -> int:
    """A descriptor of a new, empty, anonymous block; the caller closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("scavenger", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked at once, so as nameless as a memfd
        return os.dup(file.fileno())


def open_block(boot: ProcessConfiguration) -> int:
    """The block that a process works on: the one that it inherited, one that it was told of, or its own.

    Raises:
        OSError: If there is none where it was told of, or it is no job's block of this user.
    """
    if boot.memory_fd >= 0:
        return boot.memory_fd
    return _open_other(boot.memory) if boot.memory else create_block()


def block_path(fd: int) -> str:
    """Where another process of this user and host can open a block of this one; for `ProcessConfiguration.memory`."""
    return f"/proc/{os.getpid()}/fd/{fd}"


def _open_other(path: str) -> int:
    if not _BLOCK_PATH.fullmatch(path):
        raise PermissionError(f"{path!r} is no descriptor of a process")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe, the open must not wait
    found = os.fstat(fd)
    # as `create_block` makes it: a file of this user, of no name in any file system
    if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"{path} is no block of a job of this user")
    return fd


def same_block(path: str, fd: int) -> bool:
    """Whether what was opened at a `block_path` still is there: its owner lives, and has not closed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def memory_id(fd: int) -> str:
    """What two processes compare to know that they have the same block."""
    found = os.fstat(fd)
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            host = file.read().strip()
    except OSError:
        host = os.uname().nodename
    return f"{host}:{found.st_dev}:{found.st_ino}"
