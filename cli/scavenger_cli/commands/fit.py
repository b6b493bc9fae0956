"""`models fit`: fits models to tables of past measurements."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.text import Text

from scavenger.api.opening import open_source
from scavenger.control.search.imported import Imported, ImportOptions, read_sources
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, plural
from scavenger_cli.options import (
    ConvergenceOption,
    DatasetSizeOption,
    OutOption,
    Output,
    OutputOption,
    PriceOption,
    StepTimesOption,
    StoreOption,
    WorkloadOption,
)
from scavenger_cli.ui import console, render


def fit(
    step_times: StepTimesOption = None,
    convergence: ConvergenceOption = None,
    workload: WorkloadOption = None,
    price: PriceOption = None,
    dataset_size: DatasetSizeOption = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="JOB",
            help="Store the models for jobs like this one; `plan` must have run for it.",
        ),
    ] = None,
    out: OutOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Fit models to past measurements, for `curves --from`."""
    if step_times is None:
        raise ConfigurationError("no measured step times: give --step-times FILE")
    terms = ImportOptions(price, workload, dataset_size)
    imported = read_sources([path for path in (step_times, convergence) if path is not None], terms)
    stored = None if job is None else _store(imported, job, store_url)
    if out is not None:
        try:
            out.write_text(json.dumps(imported.to_dict(), ensure_ascii=True, allow_nan=False) + "\n", "utf-8")
        except OSError as error:
            raise ConfigurationError(f"{out}: {error.strerror or error}") from error
        console.note(f"written: {out}; draw it: scavenger curves --from {out}")
    if stored is not None:
        console.note(f"stored: model {stored[:8]}")
    if output.is_json:
        console.emit_json(imported.to_dict())
    else:
        _show(imported)
    return 0


def _store(imported: Imported, key: str, store_url: str | None) -> str:
    from scavenger.api.models import put_fit

    with open_source(store_url) as source:
        return put_fit(source, key, imported.model.to_dict()).model.id


def _show(imported: Imported) -> None:
    model = imported.model
    grid = render.table(("model", "left"), ("law", "left"), ("fitted to", "left"), ("left over", "right"))
    statistical = model.statistical
    grid.add_row(
        "epochs",
        statistical.law.kind,
        "nothing: ratios only"
        if statistical.relative_only
        else f"batch {statistical.batch_min:g} to {statistical.batch_max:g}",
        f"{100 * statistical.law_log_sd:.0f} %",
    )
    for vm in model.vms:
        fitted = vm.parallel
        configurations = plural(len(fitted.measured), "configuration")
        grid.add_row(
            clean(f"step time, {vm.vm}"),
            fitted.law.kind,
            f"{configurations}, K {fitted.workers_min} to {fitted.workers_max}",
            f"{100 * fitted.residual_log_sd:.0f} %",
        )
    console.emit(Text(clean(imported.name), style="bold"), grid)
    for note in model.all_notes():
        console.note(f"note: {note}")
