"""`hosts`: where the workers of a job are, in the form of the discovery scripts of Elastic Horovod."""

from __future__ import annotations

from rich.text import Text

from scavenger.api.jobs import hosts_document, hosts_of
from scavenger.presentation.formatting import clean
from scavenger_cli.ui import console


def show_hosts(key: str, *, store_url: str | None, as_json: bool) -> int:
    """Print a line `HOST:SLOTS` for each host of a running job's live workers; none for a job that does not run.

    Args:
        key: The job.
        store_url: The database; None for the default.
        as_json: Whether the answer is a JSON document.

    Raises:
        ConfigurationError: There is no such job.
    """
    from scavenger.api.opening import open_source

    with open_source(store_url) as source:
        status = source.status(key)
        hosts = hosts_of(status)
        if as_json:
            console.emit_json(hosts_document(source.name, status.job.id, hosts))
        elif hosts:
            console.emit(*(Text(f"{clean(host)}:{slots}") for host, slots in hosts.items()))
    return 0
