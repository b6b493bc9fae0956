"""Sends heartbeats from a separate thread, so that a process in a long computation does not count as dead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from scavenger.elastic.liveness import HEARTBEAT_S
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.transport.messages import Beat
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import Dealer


class Heartbeat:
    """Sends the process's heartbeats, with its step and view, from `start` until `close`.

    Args:
        context: The ZeroMQ context.
        status: Returns the heartbeat to send; called from the thread.
    """

    def __init__(self, context: Any, config: ProcessConfiguration, status: Callable[[], Beat]) -> None:
        self._context, self._config, self._status = context, config, status
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread, which has its own socket."""
        self._thread.start()

    def _run(self) -> None:
        config = self._config
        keys = (config.public_key.encode(), config.secret_key.encode())
        name = config.name + HEARTBEAT_SUFFIX
        socket = Dealer(self._context, name, config.coordinator, config.server_key.encode(), keys)
        while not self._ended.wait(HEARTBEAT_S):
            socket.send(self._status())
        socket.close()

    def close(self) -> None:
        """End the thread; does nothing if it was not started."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
