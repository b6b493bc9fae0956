"""A server in the background: `python -m scavenger.control.service`, with the store in the environment.

It is started for a detached job, and ends when there has been nothing to do for a while.
"""

from __future__ import annotations

import os
import sys

_LAST_S = 5.0
"""Longest wait at the end for notifications that are being sent; the next server sends the rest."""


def main() -> int:
    """Leave whoever started this, then serve."""
    if os.fork():
        os._exit(0)
    os.chdir("/")
    from scavenger.control.notifying.settings import notifying
    from scavenger.control.service.server import IDLE_S, Server, configured_limits, serve
    from scavenger.control.sweep import sweeping
    from scavenger.errors import ScavengerError
    from scavenger.logs import read_settings, set_up
    from scavenger.store import Store

    try:
        set_up("server", read_settings())
        limits = configured_limits()
        with Store.open() as store, notifying(store, limits=limits, within_s=_LAST_S), sweeping(store):
            serve(Server(store, limits, idle_s=IDLE_S))
    except ScavengerError as error:  # as if two jobs have started a server at the same moment
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
