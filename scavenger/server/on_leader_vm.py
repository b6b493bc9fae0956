"""The program of a leader's VM: `scavenger-leader CONFIG` serves jobs and the API on the loopback, for its command.

It keeps the VM alive by renewing its time limit, as long as it serves, and ends when there has been nothing to do for a
while; the VM powers itself off then. Jobs go on if it is killed: it is started again, and takes them over. If it cannot
serve any more, since its store is broken or the disk is full, or does not start again, nothing renews the limit.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from scavenger import logs
from scavenger.cloud.boot.user_data import RENEW_COMMAND
from scavenger.control.jobs.recovered import record_of_checkpoints
from scavenger.control.leading.configuration import LeaderConfiguration
from scavenger.control.service.server import Server, serve
from scavenger.errors import ConfigurationError
from scavenger.private_files import make_private_folder, private_opener
from scavenger.server.leader_process import exit_status_of
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.owner import this_process

log = logging.getLogger("scavenger.server.on_leader_vm")  # this module may be `__main__`

RENEW_S = 60.0
SERVED_S = 30.0
"""How long ago the last complete round of a server may be that serves; there are two a second."""


def lead(configuration: LeaderConfiguration, folder: Path) -> None:
    """Serve until there has been nothing to do for the configured time.

    Args:
        configuration: From the command.
        folder: For the store and the token.

    Raises:
        ScavengerError: The store or the port cannot be used.
    """
    make_private_folder(folder / "store")
    with Store.open(f"sqlite:///{folder / 'store' / 'scavenger.db'}") as store:
        store.adopt_installation(configuration.owner)
        if configuration.recover:
            store.recover_job(record_of_checkpoints(configuration.recover, folder / "job" / "job.yaml"))
        _write_token(store, folder / "token")
        with serving(store, ServerSettings(port=configuration.port)) as address:
            server = Server(store, idle_s=configuration.idle_s, address=address)
            with kept_alive(server):
                serve(server)


def _write_token(store: Store, path: Path) -> None:
    """Write the command's token, unless an earlier start has."""
    if path.is_file():
        return
    user = this_process().user
    store.set_user(user, "admin")
    _, text = store.new_token(user, "of the command that rents this VM")
    fresh = path.with_suffix(".new")
    with open(fresh, "w", opener=private_opener) as file:
        file.write(text)
    os.replace(fresh, path)


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
    """Read the configuration, then lead; returns the exit status."""
    if len(sys.argv) != 2:
        print("usage: scavenger-leader CONFIG", file=sys.stderr)
        return ConfigurationError.exit_code
    path = Path(sys.argv[1])

    def begin() -> None:
        configuration = msgspec.json.decode(path.read_bytes(), type=LeaderConfiguration)
        os.environ.update(configuration.environment)
        logs.set_up("leader", logs.read_settings())
        lead(configuration, path.parent)

    return exit_status_of(begin, path)


if __name__ == "__main__":
    sys.exit(main())
