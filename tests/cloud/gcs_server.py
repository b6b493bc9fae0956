"""Google Cloud Storage on this machine: the emulator of PyPI behind the check of who asks.

The emulator knows buckets, objects, resumable uploads, listings by prefix and batches. What the real service does
before any of these is added: a request without a valid token is 401 for a writer and 403 for one who may not.
"""

from __future__ import annotations

from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage
from served import Served


class GcsServer:
    """A bucket in memory, at `url`.

    Attributes:
        bucket: Its name.
        token: The token that requests must carry; None for any or none.
        forbidden: Methods that the account may not use, as `DELETE`.
        requests: Method and path of every request.
    """

    def __init__(self, bucket: str, token: str | None = None) -> None:
        outer = self
        self.bucket, self.token = bucket, token
        self.forbidden: set[str] = set()
        self.requests: list[tuple[str, str]] = []

        class Handler(RequestHandler):  # type: ignore[misc]
            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                outer.requests.append((self.command, self.path))
                if outer.token is not None and self.headers.get("Authorization") != f"Bearer {outer.token}":
                    return self._refuse(401, "Anonymous caller does not have storage.objects access")
                if self.command in outer.forbidden:
                    return self._refuse(403, "vm@job does not have storage.objects access")
                return True

            def _refuse(self, status: int, message: str) -> bool:
                body = f'{{"error": {{"code": {status}, "message": "{message}"}}}}'.encode()
                self.close_connection = True
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return False

        storage: Any = Storage(use_memory_fs=True)
        create_bucket(bucket, storage)
        self._served = Served(ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, storage)))
        self.url = self._served.url

    def close(self) -> None:
        """End the server and its thread."""
        self._served.close()
