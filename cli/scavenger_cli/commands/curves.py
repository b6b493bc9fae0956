"""`curves`: a report is loaded, priced, drawn and written, each by a function of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.domain.document import report_from_document
from scavenger.domain.report import RunReport
from scavenger.errors import ConfigurationError, StoreError
from scavenger_cli.commands.pricing import priced
from scavenger_cli.ui import console
from scavenger_cli.ui.drawing import BINARY, ENDINGS, FORMATS, Drawing

if TYPE_CHECKING:
    from scavenger.control.search.imported import ImportOptions
    from scavenger.store.records import JobRecord
    from scavenger.store.store import Store
    from scavenger_cli.commands.pricing import Sizes

__all__ = ["Limits", "form_of", "refuse_limits_of_a_job", "show", "show_imported"]

RECENT = 50
"""Jobs looked through for the latest that has a curve."""


def show(
    key: str | None, *, form: str, out: Path | None, store_url: str | None, sizes: Sizes | None, verbose: bool
) -> int:
    """Write one job's curve to `out`, or stdout; priced as `sizes` says.

    Raises:
        ConfigurationError: No such job, no curve, or `out` cannot be written; or what sizes cost is not known.
    """
    from scavenger.store import Store

    with Store.open(store_url) as store:
        job = _latest(store) if key is None else store.job(key)
    if job.report is None or job.report.get("curve") is None:
        raise ConfigurationError(f"job {job.name} ({job.id[:8]}) has no curve: it is {job.state}")
    try:
        report = report_from_document(job.report)
    except ValueError as error:
        raise StoreError(f"the stored report of job {job.id[:8]} cannot be read: {error}") from error
    return _write(_drawing(report, Limits.of_job(job), sizes), form, out, verbose=verbose)


def show_imported(
    paths: list[Path],
    terms: ImportOptions,
    limits: Limits,
    *,
    form: str,
    out: Path | None,
    sizes: Sizes | None,
    verbose: bool,
) -> int:
    """Write the curve of past measurements to `out`, or stdout; priced as `sizes` says.

    Raises:
        ConfigurationError: As `read_sources`, or `out` cannot be written.
    """
    return _write(_drawing(_imported(paths, terms, limits), limits, sizes), form, out, verbose=verbose)


def _imported(paths: list[Path], terms: ImportOptions, limits: Limits) -> RunReport:
    """A report of a job that is not: the curve of past measurements and what is chosen of it."""
    from scavenger.control.search.imported import read_sources
    from scavenger.control.search.outcome import NOTHING_SEARCHED
    from scavenger.search.choose import choose
    from scavenger.search.curve import build_curve

    imported = read_sources(paths, terms)
    deadline_s, budget_usd = limits.deadline_s, limits.budget_usd
    curve = build_curve(imported.model, imported.space, deadline_s=deadline_s, budget_usd=budget_usd)
    return RunReport(
        job_id="",
        job_name=imported.name,
        state="planned",
        search=NOTHING_SEARCHED,
        curve=curve,
        choice=choose(curve, limits.objective or "knee", deadline_s=deadline_s, budget_usd=budget_usd),
        predicted=None,
        actual=None,
        metric=None,
        steps=0,
        model_path=None,
        measurements_path=None,
    )


def _drawing(report: RunReport, limits: Limits, sizes: Sizes | None) -> Drawing:
    deadline_s, budget_usd = limits.deadline_s, limits.budget_usd
    if sizes is None:
        return Drawing(report, deadline_s=deadline_s, budget_usd=budget_usd)
    terms = {
        "usd_per_cpu_hour": sizes.rates.usd_per_cpu_hour,
        "usd_per_gib_hour": sizes.rates.usd_per_gib_hour,
        "rates": sizes.rates_from,
    }
    # a budget was held against other prices
    return Drawing(report, priced=priced(report, sizes), rates=terms, deadline_s=deadline_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """What to choose by, and what a job may take; None where nothing is said."""

    objective: str | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None

    @classmethod
    def of(cls, objective: str | None, budget: str | None, deadline: str | None) -> Limits:
        """From the command line's words.

        Raises:
            ConfigurationError: If they are no money or no time.
        """
        from scavenger.domain.forms import parse_duration, parse_money

        try:
            return cls(
                objective,
                None if deadline is None else parse_duration(deadline),
                # shells eat a `$`, so it may be left out here
                None if budget is None else parse_money(f"${budget.removeprefix('$')}"),
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    @classmethod
    def of_job(cls, job: JobRecord) -> Limits:
        """Those of a stored job, as its job file has them; its objective stands in its report."""
        from scavenger.domain.job import JobSpec

        try:
            constraints = JobSpec.model_validate(job.spec).constraints
        except ValueError:  # written by another version: its report can be drawn all the same
            return cls()
        return cls(None, constraints.deadline, constraints.budget)


def refuse_limits_of_a_job(limits: Limits) -> None:
    """A job's curve is as its job file had it drawn.

    Raises:
        ConfigurationError: If something else is asked for.
    """
    if limits != Limits():
        raise ConfigurationError(
            "--objective, --budget and --deadline go with --from; for a job: `scavenger plan JOB.yaml --objective ...`"
        )


def _latest(store: Store) -> JobRecord:
    for listed in store.jobs(RECENT):
        job = store.job(listed.id)  # listings come without reports
        if job.report is not None and job.report.get("curve") is not None:
            return job
    raise ConfigurationError(f"{store.name} holds no job with a curve: run `scavenger plan JOB.yaml` first")


def form_of(form: str | None, out: Path | None) -> str:
    """What to write: the format that was named, else the one that the file's ending names, else text.

    Raises:
        ConfigurationError: If the file's ending is that of another format, or of none that can be written.
    """
    ending = "" if out is None else out.suffix.removeprefix(".").lower()
    meant = "terminal" if ending in ("", "txt") else ending
    if form is None:
        if meant not in FORMATS:
            raise ConfigurationError(
                f"{out}: no curve is written as .{ending}: use {', '.join(ENDINGS)}, or name a format with -f"
            )
        return meant
    if meant in BINARY and form != meant:
        raise ConfigurationError(f"{out}: the file's name says {ending}, and -f {form}: give one of them")
    return form


def _write(drawing: Drawing, form: str, out: Path | None, *, verbose: bool) -> int:
    """Put it into the file, or onto stdout."""
    if out is None:
        if form == "terminal":
            console.emit(*drawing.text(console.console(sys.stdout).width, verbose=verbose))
        elif form in BINARY:
            if sys.stdout.isatty():
                raise ConfigurationError(f"a {form} is no text for a terminal: name a file with --out")
            sys.stdout.buffer.write(drawing.content(form))
        else:
            console.write(sys.stdout, drawing.content(form).decode())
        return 0
    _replace(out, drawing.content(form, verbose=verbose))
    console.note(f"written: {out}")
    return 0


def _replace(out: Path, content: bytes) -> None:
    """Whole or not at all: a picture half written looks like a picture."""
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigurationError(f"{out}: {error.strerror or error}") from error
