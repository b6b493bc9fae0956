"""`explain`: why a job was put where it is, what is uncertain of it, and what would narrow that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.api.curves import report_with_curve
from scavenger.api.jobs import job_of
from scavenger.api.opening import open_source
from scavenger.domain.curve import Choice
from scavenger.errors import ConfigurationError, StoreError
from scavenger_cli.commands.curves import latest_with_curve
from scavenger_cli.options import JobKey, StoreOption
from scavenger_cli.ui import console, render
from scavenger_cli.ui.why import doubt_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scavenger.api.calls import Source
    from scavenger.store.records import JobRecord


def explain(job: JobKey = None, store_url: StoreOption = None) -> int:
    """Tell all of a job's plan: why this choice, what is uncertain of it, and what would narrow that."""
    with open_source(store_url) as source:
        found = latest_with_curve(source) if job is None else job_of(source, job)
        report = report_with_curve(found)
        doubts = list(_doubts(source, found, report.choice)) if isinstance(report.choice, Choice) else []
    console.emit(*render.report_text(report, verbose=True))
    if doubts:
        console.emit("", *doubts)
    return 0


def _doubts(source: Source, job: JobRecord, choice: Choice) -> Iterator[RenderableType]:
    """What is uncertain of the prediction of the choice; nothing where only the ratios of times are known."""
    from scavenger.api.why import show_why

    chosen = choice.configuration
    try:
        answer = show_why(source, job.id, chosen.workers, chosen.global_batch_size)
    except (ConfigurationError, StoreError) as error:  # its model was removed, or cannot be read
        yield Text(f"what is uncertain cannot be told: {error}")
        return
    for why in answer.predictions:
        if why.vm == chosen.vm and not why.relative_only:
            yield from doubt_lines(why, job.id)
