"""After every command with a store: deletes VMs that have powered themselves off, as their disks still cost money."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import typer

from scavenger.errors import ScavengerError
from scavenger.presentation.formatting import plural
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store import Store

__all__ = ["delete_powered_off", "with_store"]

AGAIN_S = 600.0
"""Time between two attempts: a cloud that does not answer must not slow every command down."""


def with_store(context: typer.Context, store_url: str | None) -> str | None:
    """Callback of the option `--store`: VMs of that store are looked at when the command has ended."""
    if not context.resilient_parsing and context.info_name != "gc":
        context.call_on_close(lambda: delete_powered_off(store_url))
    return store_url


def delete_powered_off(store_url: str | None) -> None:
    """Delete the VMs that powered themselves off after the process of their job had ended; never raises an error.

    Args:
        store_url: As `--store`. Nothing is done if there is no such store yet.
    """
    with contextlib.suppress(Exception):  # the command itself is done
        from scavenger.store import Store
        from scavenger.store.database import is_there

        if not is_there(store_url):
            return
        with Store.open(store_url, migrate=False) as store:
            from scavenger.control.provisioning.clean_up import abandoned_regions

            for provider, region in abandoned_regions(store):
                if _is_due(f"{provider}-{region}"):
                    _delete(store, provider, region)


def _delete(store: Store, provider: str, region: str) -> None:
    from scavenger.control.provisioning.clean_up import CleanUp
    from scavenger.control.provisioning.providers import open_provider

    try:
        count = CleanUp(store, open_provider(provider, region)).end_powered_off()
    except ScavengerError as error:
        console.note(
            f"disks of VMs that no job uses may be left in {provider}/{region}: {error}; `scavenger gc` removes them"
        )
        return
    if count:
        vms = plural(count, "powered-off VM")
        console.note(f"deleted {vms} in {provider}/{region} that no job uses, with boot disks")


def _is_due(name: str) -> bool:
    """Whether the last attempt is long enough ago; notes this one."""
    from platformdirs import user_cache_path

    mark = user_cache_path("scavenger") / f"{name}.looked"
    with contextlib.suppress(OSError):
        if 0 <= time.time() - mark.stat().st_mtime < AGAIN_S:
            return False
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True
