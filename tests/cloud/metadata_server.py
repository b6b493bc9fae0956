"""An HTTP server on this machine whose answers a function gives, for the metadata services of both clouds."""

from __future__ import annotations

from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from served import Served

Answer = tuple[int, Mapping[str, str], str]


class MetadataServer:
    """A thread of its own; `port` on the host's address. Derived classes answer."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = outer.answer(self.command, self.path, self.headers)
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            do_PUT = do_GET  # noqa: N815 - http.server's name

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._served = Served(ThreadingHTTPServer((host, 0), Handler))
        self.port = self._served.port

    def answer(self, method: str, path: str, headers: Message) -> Answer:
        """Status, headers and body for a request; names of headers are found in any case."""
        raise NotImplementedError

    def close(self) -> None:
        """End the server and its thread."""
        self._served.close()
