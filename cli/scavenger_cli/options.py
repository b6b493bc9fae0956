"""The words and options that commands share, and how a command ends."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scavenger.errors import ScavengerError
from scavenger_cli.ui import console

__all__ = [
    "AuditOption",
    "BudgetOption",
    "ConvergenceOption",
    "CurveFormat",
    "DatasetSizeOption",
    "DeadlineOption",
    "DryRunOption",
    "JobFile",
    "JobKey",
    "ModelKey",
    "ObjectiveName",
    "ObjectiveOption",
    "OutOption",
    "Output",
    "OutputOption",
    "PriceOption",
    "Pricing",
    "QuietOption",
    "RunningJob",
    "StepTimesOption",
    "StoreOption",
    "Strategy",
    "StrategyOption",
    "TimeoutOption",
    "VerboseOption",
    "WaitOption",
    "WorkloadOption",
    "YesOption",
    "finish",
]


class Output(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


class ObjectiveName(StrEnum):
    """What to choose."""

    TIME = "time"
    COST = "cost"
    KNEE = "knee"


class Strategy(StrEnum):
    """What to profile."""

    AUTO = "auto"
    FULL = "full"
    PARTIAL = "partial"
    EXTREMES = "extremes"
    NONE = "none"
    UNIVERSAL = "universal"


class Pricing(StrEnum):
    """How workers are priced."""

    VM = "vm"
    SIZE = "size"
    BOTH = "both"


class CurveFormat(StrEnum):
    """What a curve is written as."""

    TERMINAL = "terminal"
    SVG = "svg"
    PNG = "png"
    PDF = "pdf"
    HTML = "html"
    CSV = "csv"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="What to answer with: text, or one JSON document.")
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Database; else SCAVENGER_STORE, else a file of this user."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Agree beforehand: ask nothing.")]
AuditOption = Annotated[
    bool, typer.Option("--audit", help="Write down which worker trained on which samples: audit.jsonl.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="While it runs, show warnings alone.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Show all notes.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
JobKey = Annotated[
    str | None, typer.Argument(metavar="JOB", help="Id, start of the id, or name; the latest if left out.")
]
ModelKey = Annotated[str, typer.Argument(metavar="MODEL", help="A model's id, or the start of it.")]
ObjectiveOption = Annotated[
    ObjectiveName | None, typer.Option(help="Choose by this instead of the job file's objective.")
]
StrategyOption = Annotated[
    Strategy | None, typer.Option(help="Profile by this instead of the job file's strategy.")
]
BudgetOption = Annotated[str | None, typer.Option(metavar="$", help="Highest cost, such as 20 or $0.50.")]
DeadlineOption = Annotated[str | None, typer.Option(metavar="TIME", help="Longest time, such as 8h or 90m.")]
StepTimesOption = Annotated[
    Path | None,
    typer.Option("--step-times", metavar="FILE", help="CSV: workload, workers, batch size, step_time_s, ..."),
]
ConvergenceOption = Annotated[
    Path | None,
    typer.Option("--convergence", metavar="FILE", help="CSV: workload, global_batch_size, epochs, ..."),
]
WorkloadOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which one of the files' workloads, if they have several.")
]
PriceOption = Annotated[float | None, typer.Option(metavar="$", help="Of one node, US dollars per hour.")]
DatasetSizeOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Samples of an epoch; leave it out where the column `epochs` counts samples."
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there, not to stdout.")]
RunningJob = Annotated[
    str, typer.Argument(metavar="JOB", help="Id, start of the id, or name: the latest of that name.")
]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has done it.")]
TimeoutOption = Annotated[
    str, typer.Option(metavar="TIME", help="Longest wait; what nobody has begun by then is withdrawn.")
]


def finish(output: Output, command: Callable[[], int]) -> None:
    """Run a command; where JSON was asked for, errors are a document too."""
    try:
        code = command()
    except Exception as error:
        if output is Output.JSON:
            known = isinstance(error, ScavengerError)
            console.emit_json(
                {
                    "schema_version": console.SCHEMA_VERSION,
                    "error": str(error) if known else f"internal fault: {type(error).__name__}",
                    "exit_code": error.exit_code if isinstance(error, ScavengerError) else 1,
                }
            )
        raise
    raise typer.Exit(code)
