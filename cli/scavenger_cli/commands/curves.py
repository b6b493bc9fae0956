"""`curves`: the predicted time and cost of every configuration, as text, picture or data."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scavenger.domain.curve import Choice
from scavenger.domain.document import curve_from_document, report_from_document
from scavenger.errors import ConfigurationError, StoreError
from scavenger_cli import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scavenger.control.search.imported import ImportOptions
    from scavenger.store.records import JobRecord
    from scavenger.store.store import Store
    from scavenger_cli.commands.pricing import Sizes

__all__ = [
    "FORMATS",
    "Limits",
    "plot_width",
    "refuse_limits_of_a_job",
    "show",
    "show_imported",
    "shown_or_text",
]

FORMATS = ("terminal", "svg", "html", "csv", "json")
RECENT = 50
"""Jobs looked through for the latest that has a curve."""


def show(
    key: str | None, *, form: str, out: Path | None, store_url: str | None, sizes: Sizes | None = None
) -> int:
    """Write one job's curve to `out`, or stdout; priced as `sizes` says.

    Raises:
        ConfigurationError: No such job, no curve, or `out` cannot be written; or what sizes cost is not known.
    """
    from scavenger.store import Store

    with Store.open(store_url) as store:
        job = _latest(store) if key is None else store.job(key)
    document = job.report
    if document is None or document.get("curve") is None:
        raise ConfigurationError(f"job {job.name} ({job.id[:8]}) has no curve: it is {job.state}")
    try:
        return _put(_text(document, form, to_file=out is not None, sizes=sizes), out)
    except ValueError as error:
        raise StoreError(f"the stored report of job {job.id[:8]} cannot be read: {error}") from error


def show_imported(
    paths: list[Path],
    terms: ImportOptions,
    limits: Limits,
    *,
    form: str,
    out: Path | None,
    sizes: Sizes | None = None,
) -> int:
    """Write the curve of past measurements to `out`, or stdout; priced as `sizes` says.

    Raises:
        ConfigurationError: As `read_sources`, or `out` cannot be written.
    """
    from scavenger.control.jobs.outcome import NOTHING_SEARCHED
    from scavenger.control.search.imported import read_sources
    from scavenger.domain.document import report_document
    from scavenger.domain.report import RunReport
    from scavenger.search.choose import choose
    from scavenger.search.curve import build_curve

    imported = read_sources(paths, terms)
    deadline_s, budget_usd = limits.deadline_s, limits.budget_usd
    curve = build_curve(imported.model, imported.space, deadline_s=deadline_s, budget_usd=budget_usd)
    report = RunReport(
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
    return _put(_text(report_document(report), form, to_file=out is not None, sizes=sizes), out)


@dataclass(frozen=True, slots=True)
class Limits:
    """What to choose by, for curves that no job file speaks of; nothing where nothing is said."""

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


def refuse_limits_of_a_job(limits: Limits) -> None:
    """A job's curve is as its job file had it drawn.

    Raises:
        ConfigurationError: If something else is asked for.
    """
    if limits != Limits():
        raise ConfigurationError(
            "--objective, --budget and --deadline go with --from; for a job: `scavenger plan JOB.yaml --objective ...`"
        )


def _put(text: str | None, out: Path | None) -> int:
    if out is None:
        if text is not None:
            console.write(sys.stdout, text)
        return 0
    _write(out, text or "")
    console.note(f"written: {out}")
    return 0


def _latest(store: Store) -> JobRecord:
    for listed in store.jobs(RECENT):
        job = store.job(listed.id)  # listings come without reports
        if job.report is not None and job.report.get("curve") is not None:
            return job
    raise ConfigurationError(f"{store.name} holds no job with a curve: run `scavenger plan JOB.yaml` first")


def _text(document: dict[str, Any], form: str, *, to_file: bool, sizes: Sizes | None) -> str | None:
    """The file's content; None when it went to the terminal as it was drawn."""
    if sizes is not None:
        from scavenger_cli.commands.pricing import priced_text

        return priced_text(document, sizes, form, to_file=to_file)
    if form == "json":
        import json

        kept = ("schema_version", "job", "choice", "infeasible", "curve", "curve_info", "predicted", "actual")
        chosen = {name: document.get(name) for name in kept}
        return json.dumps(chosen, ensure_ascii=True, allow_nan=False, indent=1) + "\n"
    if form == "csv":
        from scavenger_cli.curve_files import curve_csv

        return curve_csv(document["curve"])
    report, curve = report_from_document(document), curve_from_document(document)
    choice = report.choice if isinstance(report.choice, Choice) else None
    if form == "svg":
        from scavenger_cli.plots import curve_svg

        return curve_svg(curve, choice, title=f"{report.job_name}: predicted time and cost")
    if form == "html":
        from scavenger_cli.curve_files import curve_html

        return curve_html(report, curve)
    from scavenger_cli import render
    from scavenger_cli.terminal_plot import terminal_plot

    parts = [
        terminal_plot(curve, choice, width=plot_width(to_file=to_file)),
        "",
        *render.curve_table(curve, choice),
        "",
        *render.choice_lines(report.choice, relative_only=curve.relative_only),
    ]
    return shown_or_text(parts, to_file=to_file)


def plot_width(*, to_file: bool) -> int:
    """Columns of a plot."""
    return console.PLAIN_WIDTH if to_file else console.console(sys.stdout).width


def shown_or_text(parts: Sequence[RenderableType], *, to_file: bool) -> str | None:
    """Print to the terminal, or give as text for a file."""
    if not to_file:
        console.emit(*parts)
        return None
    import io

    buffer = io.StringIO()
    console.emit(*parts, stream=buffer)
    return buffer.getvalue()


def _write(out: Path, text: str) -> None:
    """Whole or not at all: a picture half written looks like a picture."""
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigurationError(f"{out}: {error.strerror or error}") from error
