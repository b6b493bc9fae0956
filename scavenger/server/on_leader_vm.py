"""The program of a leader's VM: `scavenger-leader CONFIG` serves jobs and the API on the loopback, for its command.

It keeps the VM alive by renewing its time limit, and ends when there has been nothing to do for a while; the VM powers
itself off then. Jobs go on if it is killed: it is started again, and takes them over.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from scavenger import logs
from scavenger.cloud.boot.user_data import RENEW_COMMAND
from scavenger.control.jobs.recovered import record_of_checkpoints
from scavenger.control.leading.configuration import LeaderConfiguration
from scavenger.control.service.server import Server, serve
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.private_files import make_private_folder, private_opener
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.owner import this_process

__all__ = ["lead", "main"]

log = logging.getLogger("scavenger.server.on_leader_vm")  # this module may be `__main__`

RENEW_S = 60.0


def lead(configuration: LeaderConfiguration, folder: Path) -> None:
    """Serve until there has been nothing to do for the configured time.

    Args:
        configuration: From the command.
        folder: For the store and the token.

    Raises:
        ScavengerError: The store or the port cannot be used.
    """
    make_private_folder(folder / "store")
    with Store.open(f"sqlite:///{folder / 'store' / 'scavenger.db'}") as store, _kept_alive():
        store.adopt_installation(configuration.owner)
        if configuration.recover:
            store.recover_job(record_of_checkpoints(configuration.recover, folder / "job" / "job.yaml"))
        _write_token(store, folder / "token")
        with serving(store, ServerSettings(port=configuration.port)) as address:
            serve(Server(store, idle_s=configuration.idle_s, address=address))


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
def _kept_alive() -> Iterator[None]:
    """Renew the VM's time limit within the block."""
    done = threading.Event()

    def renew() -> None:
        while True:
            try:
                subprocess.run(shlex.split(RENEW_COMMAND), check=True, capture_output=True, timeout=RENEW_S)
            except (OSError, subprocess.SubprocessError) as error:
                log.error("the VM's time limit cannot be renewed: %s", error)
            if done.wait(RENEW_S):
                return

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
    try:
        configuration = msgspec.json.decode(path.read_bytes(), type=LeaderConfiguration)
        os.environ.update(configuration.environment)
        logs.set_up("leader", logs.read_settings())
        lead(configuration, path.parent)
    except (OSError, msgspec.DecodeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return ConfigurationError.exit_code
    except ScavengerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
