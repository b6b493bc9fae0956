"""`models`: the fitted models in the store."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from scavenger.api import models as calls
from scavenger.api.opening import open_source
from scavenger.api.values import plain
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, plural, when
from scavenger_cli.options import (
    DryRunOption,
    ModelKey,
    OutOption,
    Output,
    OutputOption,
    StoreOption,
    YesOption,
)
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.store.records import ModelRecord

IMPORT_MAX_BYTES = 64 * 2**20
"""Ten thousand models take a few MiB; a larger file is not an export of models."""


def list_models(store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """List the fitted models."""
    with open_source(store_url) as source:
        found = calls.list_models(source)
    models = found.models
    if output.is_json:
        console.emit_json(plain(found))
    elif not models:
        console.emit(
            Text("No models yet: a finished job stores one, and `scavenger models import` adds others.")
        )
    else:
        grid = render.table(
            ("id", "left"),
            ("job", "left"),
            ("VM", "left"),
            ("params", "right"),
            ("goal", "left"),
            ("measured", "right"),
            ("runs", "right"),
            ("", "left"),
        )
        for model in models:
            mark = ("" if model.origin == "local" else model.origin) if model.intact else "TAMPERED"
            grid.add_row(
                model.id[:8],
                clean(model.job_name or "-"),
                clean(model.fingerprint.vm),
                f"{model.fingerprint.parameters:,}",
                clean(model.fingerprint.goal) or "-",
                str(model.measurements),
                str(model.runs),
                mark,
            )
        console.emit(grid)
    for model in models:
        if not model.intact:
            console.note(
                f"warning: model {model.id[:8]} was changed after it was written and is not used; "
                f"remove it: scavenger models rm {model.id[:8]}"
            )
    return 0


def _evidence(model: ModelRecord) -> str:
    return f"{plural(model.measurements, 'measurement')}, {plural(model.runs, 'run')}"


def show_model(model: ModelKey, store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show what a model was fitted for."""
    with open_source(store_url) as source:
        answer = calls.show_model(source, model)
    if output.is_json:
        console.emit_json(plain(answer))
        return 0
    found = answer.model
    grid = render.table(("Model", "left"), (found.id, "left"))
    for name, value in console.plain(found.fingerprint).items():
        shown = f"{value:,}" if isinstance(value, int) else clean(value) or "-"
        grid.add_row(name.replace("_", " "), shown)
    grid.add_row("evidence", _evidence(found))
    grid.add_row("origin", f"{found.origin}, {when(found.created_at)}")
    grid.add_row(
        "intact", "yes" if found.intact else "no: it was changed after it was written and is not used"
    )
    console.emit(grid)
    return 0


def remove_model(
    model: ModelKey,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete a model."""
    with open_source(store_url) as source:
        found = calls.show_model(source, model).model
        if not dry_run:
            if not yes and not console.is_interactive():
                raise ConfigurationError("there is no terminal to ask on: use --yes to delete the model")
            if not yes and not console.ask(f"Delete model {found.id[:8]} ({_evidence(found)})?"):
                console.note("nothing was deleted")
                return 0
            calls.delete_model(source, found.id)
    words = "would delete" if dry_run else "deleted"
    if output.is_json:
        document = {"schema_version": console.SCHEMA_VERSION, "deleted": [] if dry_run else [found.id]}
        console.emit_json({**document, "dry_run": dry_run, "would_delete": [found.id] if dry_run else []})
    else:
        console.emit(Text(f"{words} model {found.id}"))
    return 0


def export_models(
    model: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Ids of models. Default: all models.")
    ] = None,
    out: OutOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.JSON,
) -> int:
    """Write models as one JSON document, to be imported elsewhere."""
    with open_source(store_url) as source:
        document = calls.export_models(source, model or [])
    if out is None:
        console.emit_json(document)
        return 0
    try:
        out.write_text(json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{out}: {error.strerror or error}") from error
    console.note(f"written: {out}")
    return 0


def import_models(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The exported document; - reads standard input.")
    ],
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Import exported models; a document that was changed is refused."""
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as stream:
            raw = stream.read(IMPORT_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from error
    if len(raw) > IMPORT_MAX_BYTES:
        raise ConfigurationError(f"{file}: larger than {IMPORT_MAX_BYTES >> 20} MiB: not an export of models")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{file}: not an export of models: the document is not an object")
    with open_source(store_url) as source:
        try:
            found = calls.import_models(source, document)
        except ConfigurationError as error:
            raise ConfigurationError(f"{file}: {error}") from error
    if output.is_json:
        console.emit_json(plain(found))
    else:
        console.emit(Text(f"imported {plural(len(found.imported), 'model')}"))
    return 0
