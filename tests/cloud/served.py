"""An HTTP server of a test, in a thread of it."""

from __future__ import annotations

import threading
from http.server import HTTPServer


class Served:
    """Serves until `close`.

    Attributes:
        url: Its address.
        port: Its port.
    """

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        host, self.port = str(server.server_address[0]), server.server_port
        self.url = f"http://{host}:{self.port}"
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the server and its thread."""
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()
