"""`store backup` and `store restore`: the whole database as one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, plural, when
from scavenger_cli.options import Output, OutputOption, StoreOption
from scavenger_cli.ui import console

_TOLD = (("jobs", "job"), ("models", "model"), ("intents", "VM"), ("submissions", "submission"))
"""Tables whose rows are counted for the user, with their word."""


FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]


def backup(file: FileArgument, store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Write the whole database to a new file, which only you can read; jobs and servers go on."""
    from scavenger.store import Store

    with Store.open(store_url) as store:
        made, name = store.backup(file), store.name
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "store": name,
                "file": str(file),
                "backup": made.header.model_dump(mode="json"),
                "rows": dict(made.rows),
                "masked": made.masked,
            }
        )
        return 0
    console.emit(Text(f"backup of {clean(name)}: {clean(file)} ({_counts(made.rows)})"))
    if made.masked:
        console.note(f"masked in it, as they looked like secrets: {plural(made.masked, 'text')}")
    return 0


def restore(
    file: FileArgument,
    keep_tokens: Annotated[
        bool | None,
        typer.Option(
            "--keep-tokens/--revoke-tokens",
            help="Whether tokens are valid again, also those revoked since the backup. Default: asks.",
        ),
    ] = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Restore a backup into an empty database, of either kind: --store names it.

    Jobs that ran when the backup was made are to be resumed. VMs that were rented since are not known: they are kept in
    quarantine, where `scavenger gc` shows them. Sessions in browsers end.
    """
    from scavenger.store import Store
    from scavenger.store.backup import check_backup

    tokens = check_backup(file).rows.get("tokens", 0)
    if keep_tokens is None:
        keep_tokens = tokens > 0 and _keeps_tokens(tokens)
    found = Store.restore(store_url, file, keep_tokens=keep_tokens)
    backup = found.backup
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "backup": backup.header.model_dump(mode="json"),
                "rows": dict(backup.rows),
                "to_resume": [{"id": job_id, "name": name} for name, job_id in found.to_resume],
                "tokens_kept": keep_tokens,
            }
        )
        return 0
    console.emit(Text(f"restored the backup of {when(backup.header.made_at)} ({_counts(backup.rows)})"))
    if tokens and not keep_tokens:
        console.emit(Text("no token is valid: `scavenger api token` makes new ones"))
    for name, job_id in found.to_resume:
        console.emit(Text(f"to be resumed: {clean(name)}, scavenger resume {job_id[:8]}"))
    if backup.rows.get("intents"):
        console.emit(
            Text(
                "VMs that this store does not know are in quarantine: `scavenger gc` looks for them, and ends none"
            )
        )
    return 0


def _keeps_tokens(count: int) -> bool:
    """Ask whether tokens are to be valid again.

    Raises:
        ConfigurationError: Nobody can be asked.
    """
    told = f"{plural(count, 'token')} of the backup would be valid again, also those that were revoked since then"
    if not console.is_interactive():
        raise ConfigurationError(f"{told}: say --keep-tokens, or --revoke-tokens and make new ones")
    return console.ask(f"{told[0].upper()}{told[1:]}. Keep them? (No: all are revoked)")


def _counts(rows: Mapping[str, int]) -> str:
    return ", ".join(plural(rows.get(table, 0), word) for table, word in _TOLD)
