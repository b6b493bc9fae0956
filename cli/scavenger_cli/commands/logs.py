"""`logs`: the events of a job and the output of its processes, once or as they come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from scavenger.api.logs import LogReader, LogsAnswer, harmless, show_logs
from scavenger.api.opening import open_source
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import when
from scavenger.store.records import LIVE_STATES
from scavenger_cli.options import Output, OutputOption, RunningJob, StoreOption
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.api.calls import Source
    from scavenger.store.records import EventRecord

FOLLOW_S = 0.5
"""Between two polls: faster would not be noticed, and a poll costs a millisecond."""


LINES = 20
"""Default of `--lines`, for each log: they leave room for others on a screen."""


def logs(
    job: RunningJob,
    events: Annotated[bool, typer.Option("--events", help="Show only the events of the job.")] = False,
    process: Annotated[
        str | None, typer.Option(metavar="ID", help="Show only the output of this process.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the job has ended.")
    ] = False,
    lines: Annotated[
        int,
        typer.Option(
            "--lines",
            "-n",
            metavar="N",
            min=0,
            max=100_000,
            help="Show at most N events, and N lines of each process.",
        ),
    ] = LINES,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show the events of a job and the output of its processes."""
    if events and process is not None:
        raise ConfigurationError("give --events or --process, not both; without either both are shown")
    if follow and output.is_json:
        raise ConfigurationError("-f prints without end, and -o json prints one document: give one of them")
    with open_source(store_url) as source:
        if output.is_json:
            found = show_logs(source, job, process, lines, written=not events)
            console.emit_answer(found, "elsewhere", "over")
        else:
            show_lines(source, job, lines, process=process, written=not events, follow=follow)
    return 0


def show_lines(
    source: Source,
    job: str,
    lines: int = LINES,
    *,
    process: str | None = None,
    written: bool = True,
    follow: bool = True,
) -> None:
    """Print the end of each log, and with `follow` new lines until the job has ended or nobody reads them."""
    reader = LogReader(source, job, process=process, written=written)
    read = reader.begin(lines, whole=not follow)
    if written and not read.logs:
        console.note(f"{read.elsewhere}no process has written a log: {read.folder}")
    if not _print(_lines(read, process)) or not follow:
        return
    while True:
        read = reader.more()
        if not _print(_lines(read, process)):
            return
        if read.over:
            ended = read.job.state not in LIVE_STATES
            state = read.job.state.replace("_", " ") if ended else "dead: its process is gone"
            console.note(f"job {read.job.name} ({read.job.id[:8]}) is {state}")
            return
        time.sleep(FOLLOW_S)


def _lines(read: LogsAnswer, process: str | None) -> list[str]:
    printed = [_event_line(event) for event in read.events]
    for name, lines in read.logs.items():
        printed += lines if process is not None else [f"{harmless(name)} | {line}" for line in lines]
    return printed


def _event_line(event: EventRecord) -> str:
    return f"{when(event.at)} {event.level:<7} {harmless(event.kind)}: {harmless(event.message)}"


def _print(lines: list[str]) -> bool:
    return not lines or console.write(sys.stdout, "".join(f"{line}\n" for line in lines))
