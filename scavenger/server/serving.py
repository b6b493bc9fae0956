"""Serves the application at an address, in a thread of the process that also runs jobs."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from scavenger.errors import ConfigurationError, TransientError
from scavenger.policy.admission import QueueLimits
from scavenger.server.app import create_app
from scavenger.server.connections import LOOP, Connections
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger.tracing import tracing

log = logging.getLogger(__name__)

_START_S = 60.0
_GRACE_S = 3
"""How long connections may take to end with the server; streams of events do not end by themselves."""


def first_token(store: Store) -> str | None:
    """A token for the account that runs the server, as admin, if no admin has one yet; else None.

    Whoever can read the store can make another: `scavenger api token`.
    """
    if store.has_admin_token():
        return None
    user = this_process().user
    store.set_user(user, "admin")
    _, text = store.new_token(user, "made at the first start")
    return text


@contextmanager
def serving(
    store: Store,
    settings: ServerSettings,
    *,
    is_ready: Callable[[], bool] = lambda: True,
    limits: QueueLimits | None = None,
    connections: Connections | None = None,
) -> Iterator[str]:
    """Serve the API within the block; yields its address, as `http://127.0.0.1:8765`. See `create_app`.

    Args:
        store, settings, is_ready, limits: See `create_app`.
        connections: Bounds on connections; None: by the descriptors of this process.

    Raises:
        ConfigurationError: The address is in use, is not of this machine, or the certificate cannot be read.
        TransientError: The server did not start in time.
    """
    with _bound(settings) as listening, tracing("scavenger-server") as provider:
        address = settings.url(listening.getsockname()[1])
        connections = connections or Connections()
        app = create_app(store, settings, is_ready=is_ready, tracer_provider=provider, limits=limits)
        try:
            config = uvicorn.Config(
                connections.app(app),
                http=connections.protocol(),
                loop=LOOP,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=_GRACE_S,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
            )
            config.load()
        except OSError as error:
            raise ConfigurationError(f"the certificate cannot be used: {error}") from error
        server = _Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), name="api", daemon=True)
        thread.start()
        try:
            _await_start(server, thread)
            log.info("the API is served at %s", address)
            yield address
        finally:
            server.should_exit = True
            thread.join(timeout=2 * _GRACE_S)


_REMEDIES = {
    errno.EADDRINUSE: "`--port 0` takes one that is free, and `scavenger api info` tells which servers run",
    errno.EACCES: "take a port from 1024 on, with --port",
    errno.EADDRNOTAVAIL: "--host takes an address of this machine",
}


class _Server(uvicorn.Server):
    """Leaves signals to the process, whose main thread handles them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "see --host and --port")
        raise ConfigurationError(
            f"the server cannot listen at {settings.host}:{settings.port}: {reason}; {remedy}"
        ) from error
    return listening


def _await_start(server: uvicorn.Server, thread: threading.Thread) -> None:
    until_s = time.monotonic() + _START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until_s:
            raise TransientError("the server did not start; see its log")
        time.sleep(0.01)
