"""`scale`, `migrate` and `stop` send a request to the process that runs a job, and wait for its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from scavenger.api.opening import open_source
from scavenger.api.operating import migration, scaling
from scavenger.api.operations import JobHead, OperationAnswer, OperationDocument
from scavenger.api.values import gathered, plain
from scavenger.domain.operation import Operation, StopJob, describe
from scavenger.errors import ConfigurationError, TransientError
from scavenger.presentation.formatting import clean
from scavenger_cli.options import Output, OutputOption, RunningJob, StoreOption, TimeoutOption, WaitOption
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord


TIMEOUT = "15m"
"""Default of `--timeout`: on a cloud, starting and warming up a new worker takes minutes."""


def scale(
    job: RunningJob,
    workers: Annotated[
        int | None, typer.Option("--workers", "-k", metavar="N", min=1, help="Train with N workers.")
    ] = None,
    add: Annotated[int | None, typer.Option(metavar="N", min=1, help="Add N workers.")] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Remove this worker. Repeat for several, or separate them by commas."
        ),
    ] = None,
    aggregators: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Have the first N of its aggregators hold the model."),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Change how many workers a running job has, or how many aggregators hold its model."""
    operation = scaling(workers, add, _split(remove), aggregators)
    return operate(job, operation, Waiting(wait, timeout, store_url, output.is_json))


def migrate(
    job: RunningJob,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Replace only this worker. Repeat for several, or separate them by commas."
        ),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Replace the workers of a running job by new ones."""
    return operate(job, migration(_split(worker)), Waiting(wait, timeout, store_url, output.is_json))


def stop(
    job: RunningJob,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Save the model as trained so far.")] = True,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Stop a running job, and save its model."""
    return operate(job, StopJob(save), Waiting(wait, timeout, store_url, output.is_json))


def _split(names: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for name in names or () for part in name.split(","))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether and how long a command waits, and how it answers."""

    wait: bool
    timeout: str
    store_url: str | None
    as_json: bool


def operate(key: str, operation: Operation, how: Waiting) -> int:
    """Request an operation, and wait for its result.

    Returns:
        0 if it was done, or if `wait` is false; 2 if it was refused, 3 if it failed.

    Raises:
        ConfigurationError: There is no such job, or it is not running.
        TransientError: The job is busy with another operation, did not answer in time, or has gone silent.
    """
    from scavenger.api.asking import Asking
    from scavenger.control.job_file.yaml_loader import read_scalar
    from scavenger.domain.forms import parse_duration

    try:
        timeout_s = parse_duration(read_scalar(how.timeout))
    except ValueError as error:
        raise ConfigurationError(f"--timeout {error}") from None
    with open_source(how.store_url) as source:
        asking = Asking(source, key, console.note)
        record = asking.carry_out(operation, timeout_s) if how.wait else asking.request(operation)
        job = asking.job()
    _show(job, record, as_json=how.as_json)
    return {"refused": ConfigurationError.exit_code, "failed": TransientError.exit_code}.get(record.state, 0)


def _show(job: JobRecord, record: OperationDocument, *, as_json: bool) -> None:
    request = describe(record.asked)
    if as_json:
        console.emit_json(plain(OperationAnswer(job=gathered(JobHead, job), operation=record)))
    if record.state in ("refused", "failed"):
        console.error(f"{job.name} ({job.id[:8]}), asked to {request}: {record.state}: {record.message}")
    elif not as_json:
        answer = f": {record.message}" if record.message else ""
        state = "requested" if record.state == "pending" else record.state
        line = f"{clean(job.name)} ({job.id[:8]}), asked to {clean(request)}: {state}{clean(answer)}"
        console.emit(Text(line, no_wrap=True, overflow="ignore"))
