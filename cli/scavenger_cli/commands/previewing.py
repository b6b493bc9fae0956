"""Prints what a job would search, profile, choose and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from scavenger.presentation.formatting import clean
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.api.preview import PreviewAnswer


def show_preview(preview: PreviewAnswer, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Print the preview: everything that is checked before a job starts has been checked by now.

    Args:
        preview: Of the job.
        as_json: Whether to print it as one JSON document.
        stream: Where a question follows; None: stdout, with the word that nothing was started.
    """
    if as_json:
        console.emit_answer(preview, "name", "job_file", "rows")
        return
    verb = "optimize" if preview.runs else "plan"
    title = f"Would {verb}" if stream is None else f"About to {verb}"
    grid = render.table((title, "left"), (clean(preview.name), "left"))
    for name, words in preview.rows:
        grid.add_row(name, words)
    if stream is None:
        grid.add_row("", "Nothing was started, and nothing was spent.")
    job_file = render.paths((("job file", preview.job_file),), indent=0, width=len(title))
    console.emit(grid, *job_file, stream=stream)
