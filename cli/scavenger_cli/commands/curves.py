"""`curves` loads a report, prices its curve, draws it and writes it."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scavenger.api.curves import report_with_curve
from scavenger.api.jobs import job_of, jobs_of
from scavenger.api.opening import open_source
from scavenger.api.values import document
from scavenger.domain.report import ReportedJob, RunReport
from scavenger.errors import ConfigurationError
from scavenger_cli.commands.pricing import Pricing, SizePricing, priced
from scavenger_cli.options import (
    BudgetOption,
    DatasetSizeOption,
    DeadlineOption,
    JobKey,
    ObjectiveOption,
    OutOption,
    Output,
    OutputOption,
    PriceOption,
    StoreOption,
    VerboseOption,
    WorkloadOption,
)
from scavenger_cli.ui import console
from scavenger_cli.ui.drawing import BINARY, ENDINGS, FORMATS, CurveFormat, Drawing

if TYPE_CHECKING:
    from scavenger.api.calls import Source
    from scavenger.api.why import WhyAnswer
    from scavenger.control.search.imported import Imported
    from scavenger.store.records import JobRecord

RECENT = 50
"""Number of jobs among which the latest with a curve is looked for."""


FromOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", metavar="FILE", help="Past measurements instead of a job: CSV, or from `models fit`."
    ),
]
WorkerSizesOption = Annotated[
    str | None,
    typer.Option(metavar="SIZES", help="With --from: workers to predict, such as 1..64 or 1,2,4."),
]
BatchSizesOption = Annotated[
    str | None,
    typer.Option(metavar="SIZES", help="With --from: global batch sizes to predict, such as 64,128,256."),
]
WhyOption = Annotated[
    tuple[int, int] | None,
    typer.Option(
        metavar="K B",
        help="Where the prediction of K workers and batch B comes from: law, points, parts.",
    ),
]
PricingOption = Annotated[
    Pricing | None,
    typer.Option(help="Price workers per VM, by their size (vCPU and GiB), or both side by side."),
]
RatesOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATES", help="Pricing by size: cpu=$,gib=$ per hour, or a Google Cloud family (e2)."
    ),
]
WorkerCpusOption = Annotated[
    float | None, typer.Option(metavar="N", help="Pricing by size: vCPUs of a worker, if unknown.")
]
WorkerMemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="GIB[+GIB]",
        help="Pricing by size: memory of a worker, and of each sample, if not measured.",
    ),
]


def curves(
    job: JobKey = None,
    form: Annotated[
        CurveFormat | None,
        typer.Option("--format", "-f", help="Output format. Default: by the ending of FILE, else terminal."),
    ] = None,
    sources: FromOption = None,
    workload: WorkloadOption = None,
    price: PriceOption = None,
    dataset_size: DatasetSizeOption = None,
    workers: WorkerSizesOption = None,
    batch_size: BatchSizesOption = None,
    why: WhyOption = None,
    objective: ObjectiveOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    pricing: PricingOption = None,
    rates: RatesOption = None,
    cpus: WorkerCpusOption = None,
    memory: WorkerMemoryOption = None,
    out: OutOption = None,
    verbose: VerboseOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Draw predicted times and costs of a job or of past runs."""
    wanted = form_of("json" if output.is_json else form, out)
    limits = CurveLimits.of(objective, budget, deadline)
    sizes = SizePricing.of(pricing, rates, cpus, memory, price)
    if why is not None:
        _refuse_drawing_of_why(wanted, sizes)
    if sources:
        from scavenger.control.search.imported import ImportOptions, parse_sizes, read_sources

        asked = [None if text is None else parse_sizes(text) for text in (workers, batch_size)]
        imported = read_sources(sources, ImportOptions(price, workload, dataset_size, *asked))
        report = _imported(imported, limits)
        if why is None:
            return _write(_drawing(report, limits, sizes), wanted, out, verbose=verbose)
        from scavenger.api.why import explanation

        return _write_why(explanation(report, imported.model, *why), wanted, out)
    refuse_limits_of_a_job(limits)
    refuse_sizes_of_a_job(workers, batch_size)
    with open_source(store_url) as source:
        found = latest_with_curve(source) if job is None else job_of(source, job)
        if why is not None:
            from scavenger.api.why import show_why

            return _write_why(show_why(source, found.id, *why), wanted, out)
    return _write(
        _drawing(report_with_curve(found), CurveLimits.of_job(found), sizes), wanted, out, verbose=verbose
    )


def _refuse_drawing_of_why(form: str, sizes: SizePricing | None) -> None:
    """Refuse to draw an explanation, or to price it.

    Raises:
        ConfigurationError: If that was asked for.
    """
    if form not in ("terminal", "json"):
        raise ConfigurationError(f"--why is text or JSON, not {form}: leave out --why to draw the curve")
    if sizes is not None:
        raise ConfigurationError("--why is about the curve's own prices: leave out --pricing and its options")


def _write_why(answer: WhyAnswer, form: str, out: Path | None) -> int:
    from scavenger_cli.ui.why import why_lines

    if form == "json":
        content = json.dumps(document(answer), ensure_ascii=True, allow_nan=False, indent=1) + "\n"
    else:
        text = io.StringIO()
        console.emit(*why_lines(answer), stream=text)
        content = text.getvalue()
    if out is None and form == "terminal":
        console.emit(*why_lines(answer))
    elif out is None:
        console.write(sys.stdout, content)
    else:
        _replace(out, content.encode())
        console.note(f"written: {out}")
    return 0


def _imported(imported: Imported, limits: CurveLimits) -> RunReport:
    """A report without a job: the curve of past measurements and the choice from it."""
    from scavenger.control.search.outcome import NOTHING_SEARCHED
    from scavenger.search.choose import choose
    from scavenger.search.curve import build_curve

    deadline_s, budget_usd = limits.deadline_s, limits.budget_usd
    curve = build_curve(imported.model, imported.space, deadline_s=deadline_s, budget_usd=budget_usd)
    return RunReport(
        job=ReportedJob("", imported.name, "planned"),
        search=NOTHING_SEARCHED,
        curve=curve,
        choice=choose(curve, limits.objective or "knee", deadline_s=deadline_s, budget_usd=budget_usd),
    )


def _drawing(report: RunReport, limits: CurveLimits, sizes: SizePricing | None) -> Drawing:
    deadline_s, budget_usd = limits.deadline_s, limits.budget_usd
    if sizes is None:
        return Drawing(report, deadline_s=deadline_s, budget_usd=budget_usd)
    terms = {
        "usd_per_cpu_hour": sizes.rates.usd_per_cpu_hour,
        "usd_per_gib_hour": sizes.rates.usd_per_gib_hour,
        "rates": sizes.rates_from,
    }
    # the budget was compared with other prices
    return Drawing(report, priced=priced(report, sizes), rates=terms, deadline_s=deadline_s)


@dataclass(frozen=True, slots=True)
class CurveLimits:
    """Objective, deadline and budget of a curve; None where none is given."""

    objective: str | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None

    @classmethod
    def of(cls, objective: str | None, budget: str | None, deadline: str | None) -> CurveLimits:
        """Parse the options of the command line.

        Raises:
            ConfigurationError: If one is not an amount of money or a duration.
        """
        from scavenger.control.job_file.yaml_loader import read_scalar
        from scavenger.domain.forms import parse_duration, parse_money

        try:
            return cls(
                objective,
                None if deadline is None else parse_duration(read_scalar(deadline)),
                # shells eat a `$`, so it may be left out here
                None if budget is None else parse_money(f"${budget.removeprefix('$')}"),
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    @classmethod
    def of_job(cls, job: JobRecord) -> CurveLimits:
        """Deadline and budget from a stored job's job file; its objective is in its report."""
        from scavenger.domain.job import JobSpec

        try:
            constraints = JobSpec.model_validate(job.spec).constraints
        except ValueError:  # written by another version: its report can be drawn all the same
            return cls()
        return cls(None, constraints.deadline, constraints.budget)


def refuse_limits_of_a_job(limits: CurveLimits) -> None:
    """Refuse an objective or limits for a stored job: its curve was made with those of its job file.

    Raises:
        ConfigurationError: If one was given.
    """
    if limits != CurveLimits():
        raise ConfigurationError(
            "--objective, --budget and --deadline go with --from; for a job: `scavenger plan JOB.yaml --objective ...`"
        )


def refuse_sizes_of_a_job(*sizes: str | None) -> None:
    """Refuse other sizes for a stored job: its curve covers the search of its job file.

    Raises:
        ConfigurationError: If some were given.
    """
    if any(size is not None for size in sizes):
        raise ConfigurationError(
            "--workers and --batch-size go with --from; for a job: `scavenger plan JOB.yaml --workers ...`"
        )


def latest_with_curve(source: Source) -> JobRecord:
    """The latest job that has a curve.

    Raises:
        ConfigurationError: If none of the recent ones has.
    """
    for listed in jobs_of(source, RECENT):
        job = job_of(source, listed.id)  # listings come without reports
        if job.report is not None and job.report.get("curve") is not None:
            return job
    raise ConfigurationError(f"{source.name} holds no job with a curve: run `scavenger plan JOB.yaml` first")


def form_of(form: str | None, out: Path | None) -> str:
    """The output format: the one that was named, else by the ending of the file, else text.

    Raises:
        ConfigurationError: If the file's ending belongs to another format, or to no known format.
    """
    ending = "" if out is None else out.suffix.removeprefix(".").lower()
    by_ending = "terminal" if ending in ("", "txt") else ending
    if form is None:
        if by_ending not in FORMATS:
            raise ConfigurationError(
                f"{out}: no curve is written as .{ending}: use {', '.join(ENDINGS)}, or name a format with -f"
            )
        return by_ending
    if by_ending in BINARY and form != by_ending:
        raise ConfigurationError(f"{out}: the file's name says {ending}, and -f {form}: give one of them")
    return form


def _write(drawing: Drawing, form: str, out: Path | None, *, verbose: bool) -> int:
    """Write the drawing to the file, or to stdout."""
    if out is None:
        if form == "terminal":
            console.emit(*drawing.text(verbose=verbose))
        elif form in BINARY:
            if sys.stdout.isatty():
                raise ConfigurationError(f"a terminal cannot show {form}: name a file with --out")
            sys.stdout.buffer.write(drawing.content(form))
        else:
            console.write(sys.stdout, drawing.content(form).decode())
        return 0
    _replace(out, drawing.content(form, verbose=verbose))
    console.note(f"written: {out}")
    return 0


def _replace(out: Path, content: bytes) -> None:
    """Write the file completely or not at all: a half-written picture looks like a picture."""
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigurationError(f"{out}: {error.strerror or error}") from error
