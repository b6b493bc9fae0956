"""`gc`: ends VMs that no running job uses, but that cost money."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, cast

from rich.text import Text

from scavenger.cloud.base import AdmittingProvider
from scavenger.control.leading.record import Leaders
from scavenger.control.leading.renting import LeaderVm
from scavenger.control.provisioning import providers
from scavenger.control.provisioning.clean_up import CleanUp, Leftover
from scavenger.errors import CleanupError, CloudError, ConfigurationError
from scavenger.presentation.formatting import clean, plural, when
from scavenger.store import Store
from scavenger_cli.ui import console, render

__all__ = ["collect"]


def collect(
    regions: list[str],
    *,
    yes: bool,
    dry_run: bool,
    quarantined: bool = False,
    store_url: str | None,
    as_json: bool,
) -> int:
    """List the VMs of this installation that no running job uses, and end them after asking.

    Args:
        regions: Such as `gcp/us-central1`, in addition to all regions in which the store ever asked for VMs.
        quarantined: Whether VMs in quarantine are ended, too; see `Leftover`.

    Returns:
        0, or 8 if something is left, or may be: stderr has a line for each.

    Raises:
        ConfigurationError: There are VMs to end, and neither `yes` nor a terminal to ask on.
    """
    with Store.open(store_url) as store, ExitStack() as opened:
        wanted = sorted({*store.vm_regions(), *map(_region, regions)})
        found: list[Leftover] = []
        left: list[str] = []
        clearings: list[tuple[CleanUp, tuple[Leftover, ...]]] = []
        checked: list[tuple[str, str]] = []
        for provider, region in wanted:
            try:
                clearing = CleanUp(store, providers.open_provider(provider, region))
                clearings.append((clearing, clearing.find()))
            except (CloudError, ConfigurationError) as error:
                left.append(f"{provider}/{region} cannot be checked: {error}")
                continue
            checked.append((provider, region))
            found += clearings[-1][1]
        for clearing, leftovers in _of_leaders(store, opened, left):
            clearings.append((clearing, leftovers))
            found += leftovers
        if found:
            _tell(store, found)
        if not as_json:
            _show(found, checked, none_asked=not wanted)
        kept = [one for one in found if one.quarantined and not quarantined]
        ending = [one for one in found if one not in kept]
        agreed = not dry_run and (not ending or yes or _agreed(ending))
        if agreed:
            for clearing, leftovers in clearings:
                left += clearing.end([one for one in leftovers if one not in kept])
    if as_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "dry_run": dry_run,
                "regions": [f"{provider}/{region}" for provider, region in wanted],
                "leftovers": [_row(one) for one in found],
                "ended": agreed,
                "left": left,
            }
        )
    elif agreed and ending and not left:
        console.emit(Text(f"ended {plural(len(ending), 'VM')}"))
    if kept:
        console.note(f"in quarantine, and not ended: {plural(len(kept), 'VM')}; --quarantined ends them, too")
    for line in left:
        console.note(f"left behind: {line}")
    return CleanupError.exit_code if left else 0


def _tell(store: Store, found: list[Leftover]) -> None:
    """Queue a notification: whoever runs this at fixed times sees no output."""
    from scavenger.control.notifying.settings import tell
    from scavenger.policy.notifying import leftover_notification

    vms = [
        {
            "provider": one.provider,
            "region": one.region,
            "instance_id": one.vm.instance_id,
            "vm": one.vm.vm,
            "reason": one.reason,
        }
        for one in found
    ]
    tell(store, leftover_notification(vms, datetime.now(UTC)))


def _of_leaders(
    store: Store, opened: ExitStack, left: list[str]
) -> Iterator[tuple[CleanUp, tuple[Leftover, ...]]]:
    """What leaders' VMs have left that lead no job any more, or never did."""
    leaders = Leaders.beside(store)
    for record in leaders.all():
        try:
            provider = cast(AdmittingProvider, providers.open_provider(record.provider, record.region))
            vm = LeaderVm(opened.enter_context(leaders.open_store(record)), provider, inform=console.note)
            if (found := vm.leftovers(used=bool(record.job_id))) is not None:
                yield found
        except (CloudError, ConfigurationError) as error:
            left.append(f"the VMs of the leader of job {record.name} cannot be checked: {error}")


def _region(text: str) -> tuple[str, str]:
    provider, slash, region = text.partition("/")
    if not (provider and slash and region):
        raise ConfigurationError(f"--in {text}: write CLOUD/REGION, such as gcp/us-central1")
    return provider, region


def _agreed(found: list[Leftover]) -> bool:
    vms = plural(len(found), "VM")
    if not console.is_interactive():
        raise ConfigurationError(f"there is no terminal to ask on: use --yes to end {vms}")
    if console.ask(f"End {vms}?"):
        return True
    console.note("nothing was ended")
    return False


def _row(leftover: Leftover) -> dict[str, Any]:
    """The JSON document of a leftover; the tags of its VM are among the VM's other fields."""
    row: dict[str, Any] = console.plain(leftover)
    vm = row["vm"]
    first = {name: vm.pop(name) for name in ("instance_id", "vm", "zone", "spot", "state")}
    return {**row, "vm": {**first, **vm.pop("tags"), **vm}}


def _show(found: list[Leftover], checked: list[tuple[str, str]], *, none_asked: bool) -> None:
    """Print what is left over, or that nothing is; nothing is said of regions that could not be checked."""
    if none_asked:
        console.emit(Text("No VM is left over: no job in this store has asked for VMs."))
        return
    if not found:
        looked = ", ".join(f"{provider}/{region}" for provider, region in checked)
        if looked:
            console.emit(Text(f"No VM is left over in {looked}."))
        return
    grid = render.table(
        ("VM", "left"), ("type", "left"), ("zone", "left"), ("since", "left"), ("why it is left over", "left")
    )
    for one in found:
        since = "-" if one.vm.launched_at is None else when(one.vm.launched_at)
        grid.add_row(
            clean(one.vm.instance_id), clean(one.vm.vm), clean(one.vm.zone), since, clean(one.reason)
        )
    console.emit(grid)
