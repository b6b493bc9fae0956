"""Traces by OpenTelemetry, where its variables ask for them; else nothing of it is imported.

`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_TRACES_EXPORTER=otlp` ask for traces. The
variables of OpenTelemetry [1]_ apply, as `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`,
`OTEL_TRACES_SAMPLER` and `OTEL_SDK_DISABLED`. Spans are sent by OTLP over HTTP.

References:
    .. [1] OpenTelemetry, "Environment Variable Specification".
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_END_S = 5.0
"""Longest wait at the end for spans that are being sent; those that are left then are lost."""


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether variables of the environment ask for traces."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporters:
        return "otlp" in [one.strip() for one in exporters.split(",")]
    return any(environ.get(name) for name in _ENDPOINTS)


@contextmanager
def tracing(service: str, environ: Mapping[str, str] = os.environ) -> Iterator[TracerProvider | None]:
    """Send spans within the block; what is left of them is sent at its end, for at most five seconds.

    Args:
        service: Name of the service, unless `OTEL_SERVICE_NAME` gives one.
        environ: Variables of the environment.

    Yields:
        Makes tracers; None if no traces are asked for, or the packages of the extra `otel` are missing.
    """
    if not is_wanted(environ):
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("no traces, as %s is missing: pip install 'scavenger-ml[otel]'", error.name)
        yield None
        return
    name = {} if environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    provider = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield provider
    finally:
        ending = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(_END_S)
