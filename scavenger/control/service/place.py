"""The folder of a leader, with its job and its store; one container has it at a time, by a lock.

The lock lasts until the container's processes end. So who has it knows of all that had it before, and that cannot be
seen from here, that it has ended. It is for the first process of a container, with which all others end; a server that
ends before its runners cannot have it again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from scavenger.errors import TransientError
from scavenger.private_files import make_private_folder, private_opener
from scavenger.store import Store
from scavenger.store.births import PLACE_VARIABLE

logger = logging.getLogger(__name__)

WAIT_S = 60.0
"""How long another may take to end: the node of a pod that was deleted at once ends its processes within seconds."""
_LOCK = "leader.lock"
_LOOK_S = 0.1


@contextmanager
def sole_in(folder: Path, *, wait_s: float = WAIT_S) -> Iterator[tuple[int, ...]]:
    """Have a folder alone within the block: for this process, and those that are given the descriptors.

    Within the block, they bear the folder's own place in the records of processes (`births.Birth`).

    Args:
        folder: It is there.
        wait_s: How long to wait for another that has it.

    Returns:
        Descriptors that hold it, for processes that are started; none where the file system has no locks.

    Raises:
        TransientError: Another process has it.
    """
    with open(folder / _LOCK, "a+", opener=private_opener) as file:
        try:
            _lock(file.fileno(), folder, wait_s)
        except OSError as error:
            logger.warning("%s cannot be locked: %s", folder, error.strerror)
            yield ()
            return
        file.seek(0)
        place = file.read().strip()
        if not place:
            place = str(uuid.uuid4())
            file.write(place)
            file.flush()
            os.fsync(file.fileno())
        before = os.environ.get(PLACE_VARIABLE)
        os.environ[PLACE_VARIABLE] = place
        try:
            yield (file.fileno(),)
        finally:
            os.environ.pop(PLACE_VARIABLE)
            if before is not None:
                os.environ[PLACE_VARIABLE] = before


def _lock(descriptor: int, folder: Path, wait_s: float) -> None:
    left_s = wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if left_s <= 0:
                raise TransientError(f"another leader has {folder}, and has not ended yet") from None
        time.sleep(_LOOK_S)
        left_s -= _LOOK_S


def job_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The job's folder; a job keeps what it was begun with, so nothing is written a second time.

    Args:
        folder: The leader's.
        fill: Writes the job's files into an empty folder, if no leader has done so before.
    """
    job, fresh = folder / "job", folder / "job.new"
    if not job.is_dir():
        shutil.rmtree(fresh, ignore_errors=True)
        make_private_folder(fresh)
        fill(fresh)
        os.replace(fresh, job)
    return job


@contextmanager
def led_store(folder: Path, *, alone: bool, url: str = "") -> Iterator[tuple[Store, tuple[int, ...]]]:
    """Have the store of a leader open within the block.

    Args:
        folder: The leader's.
        alone: Whether all processes of the folder end with this one, as those of a container do; see `sole_in`.
        url: Of the store; empty for one in the folder.

    Returns:
        The store, and descriptors for the server's runners.

    Raises:
        ScavengerError: It cannot be opened, or another process has the folder.
    """
    make_private_folder(folder / "store")
    with (
        sole_in(folder) if alone else nullcontext(()) as held,
        Store.open(url or f"sqlite:///{folder / 'store' / 'scavenger.db'}") as store,
    ):
        yield store, held
