"""Requests to one server: repeated where that is safe, with certificates verified, and errors as those of a command."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Self
from urllib.parse import quote

import msgspec
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.util.retry import Retry

from scavenger.client.address import CERTIFICATES, ServerAddress
from scavenger.client.events import read_events
from scavenger.client.problems import error_of
from scavenger.errors import ConfigurationError, NotFoundError, ScavengerError, TransientError
from scavenger.version import __version__

__all__ = ["Client", "path_part"]

log = logging.getLogger(__name__)

CONNECT_S = 10.0
READ_S = 60.0
"""Longest silence within an answer: a stream of events has a sign of life every 15 s."""
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})

PATIENCE_S = 600.0
"""How long a stream of events may be out of reach before following it fails: a network or a server that is back after
a restart is waited for."""
_AGAIN_S = (0.5, 1.0, 2.0, 5.0)


class Client:
    """A server; threads must not share one.

    What changes nothing twice is repeated if no answer comes, or one that says to try again: up to five times within
    some 20 s, but only for 3 s if nobody listens.
    """

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._plain = _session(address, _REPEATABLE)
        self._keyed = _session(address, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._plain.close()
        self._keyed.close()

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The document at a path."""
        return self.ask("get", path, query or {})

    def post(self, path: str, body: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
        """Send a document; returns the answer."""
        return self.ask("post", path, body, body=True, key=key)

    def ask(
        self, method: str, path: str, given: Mapping[str, Any], *, body: bool = False, key: str | None = None
    ) -> dict[str, Any]:
        """Ask a route; returns the answer.

        Args:
            method: Of HTTP.
            path: Of the route.
            given: What it is asked with.
            body: Whether that is sent as a document, not in the query, from which values that are None are left out.
            key: The request may be repeated under this `Idempotency-Key`; None: it is sent once.

        Raises:
            ScavengerError: What the server refuses with; see `error_of`.
            TransientError: No answer comes.
            ConfigurationError: The server's certificate is not trusted.
        """
        sent = msgspec.to_builtins(given)
        if not body:
            sent = {name: str(one).lower() if isinstance(one, bool) else one for name, one in sent.items()}
        session = self._plain if key is None else self._keyed
        headers = {} if key is None else {"Idempotency-Key": key}
        options = {"json": sent} if body else {"params": sent}
        with self._answer(session, method.upper(), path, headers=headers, **options) as answer:
            return _document(answer, self.address.url)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """The lines of an answer as they come, within the block.

        Raises:
            ScavengerError: As of `ask`; `TransientError` also within the block, if the stream breaks off.
        """
        accept = {"Accept": "text/event-stream", "Accept-Encoding": "identity", **headers}
        with self._answer(self._plain, "GET", path, headers=accept, stream=True) as answer:
            yield _lines(answer)

    def fetch_outputs(self, job: str, file: IO[bytes]) -> None:
        """Write a tar archive of a job's outputs to a file.

        Raises:
            ScavengerError: As of `ask`; `TransientError` also if the answer breaks off.
        """
        path, accept = f"jobs/{path_part(job)}/outputs", {"Accept": "*/*"}
        with self._answer(self._plain, "GET", path, headers=accept, stream=True) as answer:
            for data in answer.iter_content(1 << 20):
                file.write(data)

    def follow_events(
        self, job: str, after: int = 0, *, patience_s: float = PATIENCE_S
    ) -> Iterator[dict[str, Any]]:
        """Events of a job as they come, until it has ended; after a break, the stream goes on after the last one.

        Args:
            job: Its id.
            after: Only events with a higher id.
            patience_s: How long the server may be out of reach, seconds.

        Raises:
            TransientError: It was out of reach for longer.
        """
        until_s, failures = time.monotonic() + patience_s, 0
        while True:
            try:
                headers = {"Last-Event-ID": str(after)} if after else {}
                with self.stream(f"jobs/{path_part(job)}/events/stream", headers) as lines:
                    for event in read_events(lines):
                        if event.kind == "end":
                            return
                        after = int(event.id)
                        until_s, failures = time.monotonic() + patience_s, 0
                        yield json.loads(event.data)
            except TransientError as error:
                if time.monotonic() > until_s:
                    raise
                log.info("the stream of events broke off: %s", error)
                time.sleep(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
                failures += 1

    @contextmanager
    def _answer(
        self, session: requests.Session, method: str, path: str, **options: Any
    ) -> Iterator[requests.Response]:
        url = self.address.url
        try:
            with session.request(
                method,
                f"{url}/v1/{path}",
                timeout=(CONNECT_S, READ_S),
                allow_redirects=False,
                **options,
            ) as answer:
                if answer.status_code >= 300:
                    raise error_of(answer.status_code, _decoded(answer), url)
                yield answer
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _unanswered(error, url) from error


def path_part(text: str) -> str:
    """A name as one part of a path.

    Raises:
        NotFoundError: It is one that paths give another meaning.
    """
    if text.strip(".") == "":
        raise NotFoundError(f"there is no job {text!r}; `scavenger status` lists the jobs")
    return quote(text, safe="")


class _Bearer(AuthBase):
    """Sends the token; given as `auth`, so that no entry of ~/.netrc takes its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _session(address: ServerAddress, repeatable: frozenset[str] | None) -> requests.Session:
    session = requests.Session()
    session.auth = _Bearer(address.token)
    session.headers["User-Agent"] = f"scavenger/{__version__}"
    session.verify = address.certificates or True
    session.trust_env = not address.local  # a proxy must not get what is for this machine
    retries = Retry(
        total=5,
        connect=3,
        backoff_factor=0.5,
        backoff_max=8.0,
        backoff_jitter=0.2,
        status_forcelist=(429, 502, 503, 504),
        allowed_methods=repeatable,
        raise_on_status=False,
    )
    session.mount(address.url, HTTPAdapter(max_retries=retries))
    return session


def _decoded(answer: requests.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        return None


def _document(answer: requests.Response, url: str) -> dict[str, Any]:
    found = _decoded(answer)
    if not isinstance(found, dict):
        raise ConfigurationError(f"{url} does not answer as a Scavenger server does; is it one?")
    return found


def _lines(answer: requests.Response) -> Iterator[bytes]:
    """Lines as they come: `iter_lines` waits for whole chunks where the length of the answer is known."""
    partial = b""
    while read := answer.raw.read1(8192):
        *whole, partial = (partial + read).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in whole)


def _unanswered(error: requests.RequestException | urllib3.exceptions.HTTPError, url: str) -> ScavengerError:
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigurationError(
                f"the certificate of {url} is not trusted ({cause.verify_message}); if it is the server's own, name "
                f"its file in {CERTIFICATES}"
            )
    broken = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
    if isinstance(error, broken | urllib3.exceptions.HTTPError):
        told = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
        reason = told[-1] if told else "the connection broke off or nothing came"
        return TransientError(f"{url} does not answer ({reason}); see whether `scavenger serve` runs there")
    return ConfigurationError(f"{url} cannot be asked: {error}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came of, the first last."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        reason = getattr(seen.args[0], "reason", None) if seen.args else None
        seen = reason if isinstance(reason, BaseException) else seen.__cause__ or seen.__context__
