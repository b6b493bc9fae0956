"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scavenger.domain.overrides import ObjectiveName, Strategy
from scavenger_cli.leftovers import with_store


class Output(StrEnum):
    """The format of a command's answer."""

    TEXT = "text"
    JSON = "json"

    @property
    def is_json(self) -> bool:
        """Whether the answer is one JSON document."""
        return self is Output.JSON


JSON = "scavenger.answers_as_json"
"""Key of a context's `meta`: whether an error, too, is answered as one JSON document."""


def _note_output(context: typer.Context, output: Output) -> Output:
    context.meta[JSON] = output.is_json
    return output


OutputOption = Annotated[
    Output,
    typer.Option("-o", "--output", callback=_note_output, help="Answer as text, or as one JSON document."),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        callback=with_store,
        help="Database. Default: $SCAVENGER_STORE, else a file in your home.",
    ),
]
InfraOption = Annotated[
    str | None,
    typer.Option(
        "--infra", metavar="CLOUD/REGION", help="Also check what jobs there need, such as aws/us-east-1."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--in",
        metavar="kubernetes/CONTEXT",
        help="Of ElasticJobs in this cluster, read with your own rights there.",
    ),
]
LeasesOption = Annotated[
    str | None,
    typer.Option(
        "--lease-namespace",
        metavar="NAME",
        help="With --in: where its operator's leases are. Default: scavenger-system.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer every question with yes.")]
AuditOption = Annotated[
    bool, typer.Option("--audit", help="Record which worker trained on which samples, in audit.jsonl.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="Submit the job, to be run without this command, and return.")
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Run it in this pool of the server, with --detach; as infra: pool/NAME."
    ),
]
PriorityOption = Annotated[int, typer.Option(metavar="N", help="Jobs of a higher priority begin first.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Show only warnings while the job runs.")]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show every event, and all that is known.")
]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
JobFileOrScript = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="The job file, or a script that calls fit, scavenger.torch or scavenger.jax."
    ),
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENT", help="Arguments of the script, after --.")
]
JobKey = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB", help="The job's id, the start of its id, or its name. Default: the latest job."
    ),
]
ListedJobKey = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB", help="The job's id, the start of its id, or its name. Default: list the latest jobs."
    ),
]
ModelKey = Annotated[str, typer.Argument(metavar="MODEL", help="The model's id, or the start of its id.")]
ObjectiveOption = Annotated[
    ObjectiveName | None, typer.Option(help="What to optimise for, instead of the job file's objective.")
]
StrategyOption = Annotated[
    Strategy | None, typer.Option(help="What to profile, instead of the job file's search.strategy.")
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES", help="Numbers of workers, such as 4, 1..4 or 1,2,4, instead of the job file's."
    ),
]
BatchSizesOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="Global batch sizes, such as 32,64, or 32..256 (doubling), instead of the job file's.",
    ),
]
EpochsFixedOption = Annotated[
    bool | None,
    typer.Option(
        "--epochs-fixed",
        help="Without a target: compare as many epochs of every batch size, not as many as make equal progress.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC=NUMBER",
        help="When training is done, such as val_accuracy=0.98, instead of goal.target.",
    ),
]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="$", help="Highest cost in US dollars, such as 20 or $0.50.")
]
DeadlineOption = Annotated[str | None, typer.Option(metavar="TIME", help="Longest time, such as 8h or 90m.")]
StepTimesOption = Annotated[
    Path | None,
    typer.Option(
        "--step-times",
        metavar="FILE",
        help="CSV file with the columns workload, workers, batch size, step_time_s, ...",
    ),
]
ConvergenceOption = Annotated[
    Path | None,
    typer.Option(
        "--convergence",
        metavar="FILE",
        help="CSV file with the columns workload, global_batch_size, epochs, ...",
    ),
]
CurvesOption = Annotated[
    Path | None,
    typer.Option(
        "--curves",
        metavar="FILE",
        help="CSV file of learning curves: workload, run, step, metric, mode, value, ...",
    ),
]
WorkloadOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which workload to use, if the files hold several.")
]
PriceOption = Annotated[
    float | None, typer.Option(metavar="$", help="Price of one node, US dollars per hour.")
]
DatasetSizeOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Samples in an epoch. Leave it out if the column `epochs` counts samples."
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of standard output.")
]
RunningJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's id, the start of its id, or its name (the latest job of that name)."
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the job has carried out the request.")
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Longest time to wait. A request that the job has not started by then is withdrawn.",
    ),
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options that every command which runs a job has.

    Attributes:
        store_url: The database; None for the default.
        as_json: Whether the answer is a JSON document.
        yes: Whether every question is answered with yes.
        verbose: Whether every event is shown while the job runs, and everything known in its report.
        quiet: Whether only warnings are shown while the job runs.
    """

    store_url: str | None
    as_json: bool
    yes: bool = False
    verbose: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Detach:
    """How a job is submitted.

    Attributes:
        priority: Higher ones begin first.
        follow: Whether to show its log until it has ended.
    """

    priority: int = 0
    follow: bool = False
