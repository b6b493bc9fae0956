"""Checks whether the process that runs a job is still alive."""

from __future__ import annotations

import os
import pwd
import socket
from datetime import datetime, timedelta
from typing import Any

import psutil
from sqlalchemy import Row

from scavenger.store.births import Birth, Fate, birth_of_this_process, fate_of
from scavenger.store.records import JobRecord, Owner
from scavenger.store.schema import JobRow

HEARTBEAT_STALE = timedelta(seconds=60)
"""Age at which a heartbeat is stale; owners send one every few seconds."""

START_TOLERANCE_S = 2.0
"""Tolerance in comparing start times of records without a birth: they count from the boot, whose time is known to
the second."""


def this_process() -> Owner:
    """The calling process as an owner."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # an account without a name, as containers have it
        user = str(uid)
    birth = birth_of_this_process()
    return Owner(
        os.getpid(), socket.gethostname(), psutil.Process().create_time(), user, uid, str(birth or "")
    )


def owner_of(job: JobRow | Row[Any]) -> Owner:
    """The owner that a job's row names."""
    return Owner(
        job.owner_pid,
        job.owner_host,
        job.owner_started_at_s,
        job.owner_user or "",
        job.owner_uid,
        job.owner_birth or "",
        job.owner_installation or "",
    )


def is_alive(job: JobRecord, *, at: datetime) -> bool:
    """Whether a job has not ended and its owner is alive; see `is_owner_alive`."""
    return not job.ended and is_owner_alive(job.owner, job.heartbeat_at, at=at)


def is_owner_alive(owner: Owner, heartbeat_at: datetime, *, at: datetime) -> bool:
    """Whether the owner of a job is alive: where that can be told by the process, else by its heartbeat."""
    seen = fate(owner)
    return seen == "alive" or (seen == "unseen" and at - heartbeat_at < HEARTBEAT_STALE)


def fate(owner: Owner) -> Fate:
    """What has become of a process; `unseen` if it was one of another host, or of a container that hides it.

    Of a record without a birth, a start time that does not fit means that the pid was used again, or that the clock
    was set: a live process must never be taken for dead.
    """
    renamed = owner.host != socket.gethostname()
    birth = Birth.parse(owner.birth)
    if birth is not None:
        here = birth_of_this_process()
        # within one boot and namespace a host may be renamed; copies of a machine may have the same place
        if renamed and (here is None or (birth.boot, birth.namespace) != (here.boot, here.namespace)):
            return "unseen"
        return fate_of(owner.pid, birth, here)
    if renamed:
        return "unseen"
    try:
        process = psutil.Process(owner.pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "dead"
        same = abs(process.create_time() - owner.started_at_s) < START_TOLERANCE_S
    except psutil.NoSuchProcess:
        return "dead"
    except (psutil.Error, OSError):  # it is another's, or no descriptor is left to look
        return "unseen"
    return "alive" if same else "unseen"
