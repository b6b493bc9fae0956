"""What commands with a store have in common.

Those that do not go through a server are refused while one is named; after every other one, VMs that have powered
themselves off are deleted, as their disks still cost money.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from scavenger.domain.access import SERVER
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.presentation.formatting import plural
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store import Store

BY_SERVER = (
    "optimize",
    "plan",
    "demo",
    "status",
    "hosts",
    "logs",
    "scale",
    "migrate",
    "stop",
    "resume",
    "curves",
    "explain",
    "cost",
    "jobs launch",
    "jobs queue",
    "jobs logs",
    "jobs cancel",
    "simulate",
    "pool explain",
    "pool what-if",
    "pool pause",
    "pool drain",
    "models list",
    "models show",
    "models rm",
    "models fit",
    "models export",
    "models import",
    "jobs rm",
    "gc",
    "api info",
    "api token",
    "api revoke",
)
"""Commands that ask the server which the environment names, if it names one."""
OF_THIS_MACHINE = (
    "serve",
    "doctor",
    "api systemd",
    "leader list",
    "leader follow",
    "leader connect",
    "leader end",
    "aggregators serve",
)
"""Commands about this machine, whatever server is named."""
WHY_NOT = {
    "policy": "VMs have the tag of the database that is there",
    "catalog refresh": "it asks the clouds with the credentials of the machine whose prices it renews",
    "store backup": "a backup is made beside the database",
    "store restore": "a backup is restored beside the database",
    "store recover": "records are read from folders of the machine that has the database",
}
"""Why the other commands do not go through a server, in words that follow `as`."""
AGAIN_S = 600.0
"""Time between two attempts: a cloud that does not answer must not slow every command down."""


def with_store(context: typer.Context, store_url: str | None) -> str | None:
    """Callback of the option `--store`: VMs of that store are looked at when the command has ended."""
    if context.resilient_parsing:
        return store_url
    if store_url is None and os.environ.get(SERVER, "").strip():
        command = context.command_path.partition(" ")[2]
        if command not in (*BY_SERVER, *OF_THIS_MACHINE):
            raise not_by_server(command)
        return store_url
    if context.info_name != "gc":
        context.call_on_close(lambda: delete_powered_off(store_url))
    return store_url


def not_by_server(command: str) -> ConfigurationError:
    """The error of a command that works on this machine only, while a server is named."""
    why = f", as {WHY_NOT[command]}" if command in WHY_NOT else ""
    return ConfigurationError(
        f"`scavenger {command}` does not go through the server that {SERVER} names{why}; run it on the server's "
        f"machine, or unset {SERVER}"
    )


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
        if 0 <= datetime.now(UTC).timestamp() - mark.stat().st_mtime < AGAIN_S:
            return False
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True


def here_only(command: str) -> None:
    """Refuse a command without a store that works on this machine only.

    Raises:
        ConfigurationError: The environment names a server.
    """
    if os.environ.get(SERVER, "").strip():
        raise not_by_server(command)
