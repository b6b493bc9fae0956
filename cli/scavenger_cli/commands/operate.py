"""`scale`, `migrate` and `stop`: send a request to the process that runs a job, and wait for its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.api.operations import outcome_document
from scavenger.domain.operation import Operation, describe
from scavenger.errors import ConfigurationError, TransientError
from scavenger.presentation.formatting import clean
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord, OperationRecord


def operate(
    key: str, operation: Operation, *, wait: bool, timeout: str, store_url: str | None, as_json: bool
) -> int:
    """Request an operation, and wait for its result.

    Returns:
        0 if it was done, or if `wait` is false; 2 if it was refused, 3 if it failed.

    Raises:
        ConfigurationError: There is no such job, or it is not running.
        TransientError: The job is busy with another operation, did not answer in time, or has gone silent.
    """
    from scavenger.api.asking import Asking
    from scavenger.api.opening import open_source
    from scavenger.control.job_file.yaml_loader import read_scalar
    from scavenger.domain.forms import parse_duration

    try:
        timeout_s = parse_duration(read_scalar(timeout))
    except ValueError as error:
        raise ConfigurationError(f"--timeout {error}") from None
    with open_source(store_url) as source:
        asking = Asking(source, key, console.note)
        record = asking.carry_out(operation, timeout_s) if wait else asking.request(operation)
        job = asking.job()
    _show(job, record, as_json=as_json)
    return {"refused": ConfigurationError.exit_code, "failed": TransientError.exit_code}.get(record.state, 0)


def _show(job: JobRecord, record: OperationRecord, *, as_json: bool) -> None:
    request = describe(record.operation)
    if as_json:
        console.emit_json(outcome_document(job, record))
    if record.state in ("refused", "failed"):
        console.error(f"{job.name} ({job.id[:8]}), asked to {request}: {record.state}: {record.message}")
    elif not as_json:
        answer = f": {record.message}" if record.message else ""
        state = "requested" if record.state == "pending" else record.state
        line = f"{clean(job.name)} ({job.id[:8]}), asked to {clean(request)}: {state}{clean(answer)}"
        console.emit(Text(line, no_wrap=True, overflow="ignore"))
