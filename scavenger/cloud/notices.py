"""Preemption notices: what a cloud announces to a VM about its end, read on that VM.

EC2 shows an interruption two minutes ahead, and a recommendation to rebalance at some time before, on pages of its
instance metadata service that are missing until then [1]_. Compute Engine turns a value of its metadata server to TRUE
some 30 seconds ahead, and holds a request open until it does [2]_. Neither is guaranteed: a VM that ends without a
notice is detected by its missing heartbeats.

References:
    .. [1] "Spot Instance interruption notices", Amazon EC2 User Guide; version 2 of the service, with session tokens.
    .. [2] "Create and use Spot VMs: Handle preemption", Compute Engine documentation.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol
from urllib.parse import quote

from scavenger.cloud.metadata import (
    ANSWER_MAX_S,
    Ec2Metadata,
    Transport,
    address_of_service,
    gce_page,
    good,
    http_transport,
)
from scavenger.domain.providers import capabilities_of
from scavenger.domain.vm import Notice
from scavenger.errors import CloudUnavailableError, NotSupportedError

NOTICE_DELAY_MAX_S = 3.0
"""Longest delay from the cloud's notice to ours, while the metadata service answers."""
_POLL_S = 1.0
_HANG_S = 20
"""How long the server holds a request open; a watch may take this long to end."""
_HANG_GRACE_S = 5.0
_REPEAT_S = 1.0
"""Pause between two requests, in case the server does not hold them."""
_FAILURES_MAX = 60
"""Number of consecutive failures after which a watch raises an error."""
_GCE_NOTICE = timedelta(seconds=30)
_INTERRUPTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_PREEMPTED = "/computeMetadata/v1/instance/preempted"


class _Source(Protocol):
    """One cloud's notices; `pause_s` from the start of one look to that of the next."""

    pause_s: float

    def look(self) -> tuple[Notice, ...]:
        """The current notices; raises `OSError` or `HTTPException` if the service does not answer."""


class _Ec2:
    """Notices of EC2: polled."""

    pause_s = _POLL_S

    def __init__(self, transport: Transport, now: Callable[[], datetime]) -> None:
        self._service = Ec2Metadata(transport)

    def look(self) -> tuple[Notice, ...]:
        interruption, rebalance = self._service.page(_INTERRUPTION), self._service.page(_REBALANCE)
        return (
            *([Notice("preemption", _time_of(interruption))] if interruption is not None else []),
            *([Notice("rebalance")] if rebalance is not None else []),
        )


class _Gce:
    """Notices of Compute Engine: the server holds a request until the value changes; the first returns at once."""

    pause_s = _REPEAT_S

    def __init__(self, transport: Transport, now: Callable[[], datetime]) -> None:
        self._ask, self._now = transport, now
        self._version = ""
        self._notice: Notice | None = None

    def look(self) -> tuple[Notice, ...]:
        path, answer_max_s = _PREEMPTED, ANSWER_MAX_S
        if self._version:
            path += f"?wait_for_change=true&timeout_sec={_HANG_S}&last_etag={quote(self._version, safe='')}"
            answer_max_s = _HANG_S + _HANG_GRACE_S
        reply = good(gce_page(self._ask, path, answer_max_s))
        self._version = reply.headers.get("etag", "")
        if reply.body.strip() == "TRUE" and self._notice is None:
            self._notice = Notice("preemption", self._now() + _GCE_NOTICE)
        return (self._notice,) if self._notice else ()


_SOURCES: Mapping[str, Callable[[Transport, Callable[[], datetime]], _Source]] = {"ec2": _Ec2, "gce": _Gce}


def watch(
    provider: str,
    *,
    stopped: Callable[[], bool],
    transport: Transport | None = None,
    environment: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Notice]:
    """Yield every notice to this VM once, within `NOTICE_DELAY_MAX_S`; blocks, so run it in a thread of its own.

    Args:
        provider: The VM's cloud.
        stopped: Called before each request; returns whether to stop.
        transport: Transport to the metadata service; by default HTTP to its address.
        environment: Environment variables, which may set that address as for the clouds' own libraries:
            `AWS_EC2_METADATA_SERVICE_ENDPOINT` and `GCE_METADATA_HOST`.
        clock, now, sleep: Monotonic clock in seconds, the time of day, and the function that waits.

    Raises:
        NotSupportedError: At once, if the provider sends no notices to its VMs.
        ConfigurationError: At once, if the variable for the address holds no address.
        CloudUnavailableError: From the iterator, after some 60 consecutive failures: this VM is not at that cloud, or
            will receive no notices.
    """
    service = capabilities_of(provider).metadata
    if not service:
        raise NotSupportedError(f"VMs of {provider!r} have no service that tells them of preemptions")
    source = _SOURCES[service](transport or http_transport(*address_of_service(service, environment)), now)
    return _watched(provider, source, stopped, clock, sleep)


def _watched(
    provider: str,
    source: _Source,
    stopped: Callable[[], bool],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Notice]:
    yielded: set[Notice] = set()
    failures = 0
    while not stopped():
        began_s = clock()
        try:
            standing = source.look()
            failures = 0
        except (OSError, http.client.HTTPException) as error:
            standing = ()
            failures += 1
            if failures >= _FAILURES_MAX:
                raise CloudUnavailableError(
                    f"the metadata service of {provider} does not answer ({error}); this VM will receive no "
                    "preemption notices"
                ) from error
        for notice in standing:
            if notice not in yielded:
                yielded.add(notice)
                yield notice
        sleep(max(0.0, source.pause_s - (clock() - began_s)))


def _time_of(page: str) -> datetime | None:
    """Time of an interruption; None if its page, which is itself a notice, does not give it."""
    try:
        at = datetime.fromisoformat(json.loads(page)["time"])
    except (ValueError, TypeError, KeyError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
