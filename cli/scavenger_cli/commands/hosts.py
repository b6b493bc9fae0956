"""`hosts`: where the workers of a job are, in the form of the discovery scripts of Elastic Horovod."""

from __future__ import annotations

from rich.text import Text

from scavenger.api.jobs import hosts_document, hosts_of, show_job
from scavenger.api.opening import open_source
from scavenger.presentation.formatting import clean
from scavenger_cli.options import Output, OutputOption, RunningJob, StoreOption
from scavenger_cli.ui import console


def hosts(job: RunningJob, store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Print where the workers of a running job are, as HOST:SLOTS lines; none for a job that does not run."""
    with open_source(store_url) as source:
        status = show_job(source, job)
        found = hosts_of(status)
        if output.is_json:
            console.emit_json(hosts_document(source.name, status.begun.id, found))
        elif found:
            console.emit(*(Text(f"{clean(host)}:{slots}") for host, slots in found.items()))
    return 0
