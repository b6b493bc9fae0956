"""The program of a leader: `scavenger-leader CONFIG` serves the jobs of a store, and its API for the command.

It is the same on a VM, in a pod and, without `CONFIG`, in the pod of an ElasticJob.

On a VM it renews the VM's time limit as long as it serves, and ends when there has been nothing to do for a while; the
VM powers itself off then. Jobs go on if it is killed there: it is started again, and takes them over. If it cannot
serve any more, since its store is broken or the disk is full, or does not start again, nothing renews the limit. In a
pod all processes end with it; the next pod of its record goes on with the folder, if that is on a volume. An
ElasticJob, which the environment names, has no command, and so no API.
"""

from __future__ import annotations

import base64
import gzip
import io
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from scavenger import logs
from scavenger.cloud.boot.user_data import RENEW_COMMAND
from scavenger.control.jobs.recovered import record_of_checkpoints
from scavenger.control.leading.configuration import (
    CERTIFICATE,
    DOCUMENT,
    KEY,
    PACKED_JOB,
    TOKEN,
    LeaderConfiguration,
)
from scavenger.control.service.place import job_folder, led_store
from scavenger.control.service.server import Server, serve
from scavenger.domain.elastic_job import JOB_VARIABLE
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.store import Store
from scavenger.store.owner import this_process

log = logging.getLogger("scavenger.server.on_leader")  # this module may be `__main__`

RENEW_S = 60.0
SERVED_S = 30.0
"""How long ago the last complete round of a server may be that serves; there are two a second."""


def lead(told: LeaderConfiguration, sent: Path) -> None:
    """Serve until there has been nothing to do for the configured time.

    Args:
        told: From the command.
        sent: Folder with what the command has sent.

    Raises:
        ScavengerError: The store or the port cannot be used, or the checkpoints cannot be read.
    """
    from scavenger.server.serving import serving
    from scavenger.server.settings import ServerSettings

    folder = Path(told.folder) if told.folder else sent
    with led_store(folder, alone=told.in_pod) as (store, held):
        job = job_folder(folder, lambda fresh: _unpack(sent, fresh))
        store.adopt_installation(told.owner)
        _take_token(store, (sent / TOKEN).read_text())
        if told.recover and not store.submissions(1):
            store.recover_job(record_of_checkpoints(told.recover, job / DOCUMENT))
        settings = ServerSettings(port=told.port)
        if told.in_pod:
            settings = ServerSettings(
                host="0.0.0.0",  # noqa: S104 - of a pod, which policies of the network guard
                port=told.port,
                allowed_hosts=told.hosts,
                certificate=sent / CERTIFICATE,
                key=sent / KEY,
            )
        with serving(store, settings) as address:
            server = Server(store, idle_s=told.idle_s, address=address, held=held)
            with nullcontext() if told.in_pod else kept_alive(server):
                serve(server)


def _unpack(sent: Path, fresh: Path) -> None:
    """Lay out the job's folder as a pod is sent it; a VM's is sent as it is."""
    packed = gzip.decompress(base64.b64decode((sent / PACKED_JOB).read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(fresh, filter="data")
    shutil.copyfile(sent / DOCUMENT, fresh / DOCUMENT)


def _take_token(store: Store, text: str) -> None:
    """Let the command in by the token that it has made, unless an earlier start has."""
    if store.caller(text) is None:
        user = this_process().user
        store.set_user(user, "admin")
        store.new_token(user, "of the command that has started this leader", text=text)


@contextmanager
def kept_alive(server: Server, *, every_s: float = RENEW_S, served_s: float = SERVED_S) -> Iterator[None]:
    """Renew the VM's time limit within the block, as long as the server serves.

    Args:
        server: Has the store open, and is about to serve.
        every_s: Time between two renewals, seconds.
        served_s: How long ago its last complete round may be, seconds.
    """
    done = threading.Event()

    def renew() -> None:
        told = False
        while not done.wait(every_s):
            if time.monotonic() - server.served_at > served_s:
                if not told:
                    log.error("the server does not serve any more, so the VM's time limit is not renewed")
                told = True
                continue
            told = False
            try:
                subprocess.run(shlex.split(RENEW_COMMAND), check=True, capture_output=True, timeout=RENEW_S)
            except (OSError, subprocess.SubprocessError) as error:
                log.error("the VM's time limit cannot be renewed: %s", error)

    thread = threading.Thread(target=renew, name="renew", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(RENEW_S)


def main() -> int:
    """Lead what the argument or the environment names; returns the exit status. What ends it is one line."""
    if len(sys.argv) == 2:
        return _status(lambda: _begin(Path(sys.argv[1])), sys.argv[1])
    if os.environ.get(JOB_VARIABLE):
        from scavenger.control.cluster.leading import lead_elastic_job

        logs.set_up("leader", logs.read_settings())
        return _status(lead_elastic_job, JOB_VARIABLE)
    print("usage: scavenger-leader CONFIG", file=sys.stderr)
    return ConfigurationError.exit_code


def _begin(path: Path) -> None:
    told = msgspec.json.decode(path.read_bytes(), type=LeaderConfiguration)
    os.environ.update(told.environment)
    logs.set_up("leader", logs.read_settings())
    lead(told, path.parent)


def _status(lead: Callable[[], None], told_by: str) -> int:
    try:
        lead()
    except (OSError, msgspec.DecodeError) as error:
        print(f"{told_by}: {error}", file=sys.stderr)
        return ConfigurationError.exit_code
    except ScavengerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
