"""`gc`: ends VMs that no running job uses, but that cost money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from scavenger.api.calls import Source
from scavenger.api.leftovers import LeftoverDocument, SweepAnswer, end_all, list_leftovers
from scavenger.api.leftovers import keep as keep_vm
from scavenger.api.opening import open_source
from scavenger.api.values import plain
from scavenger.control.sweep import region_of
from scavenger.errors import CleanupError, ConfigurationError
from scavenger.presentation.formatting import clean, plural, when
from scavenger_cli.commands.other_leaders import OtherLeaders
from scavenger_cli.options import DryRunOption, Output, OutputOption, StoreOption, YesOption
from scavenger_cli.ui import console, render


def gc(
    regions: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="CLOUD/REGION", help="Look in this region too. Repeat for several."),
    ] = None,
    quarantined: Annotated[
        bool,
        typer.Option(
            "--quarantined",
            help="End VMs, too, that the store does not know since it was restored from a backup.",
        ),
    ] = False,
    kept: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="ID", help="Keep this VM in quarantine for good. Repeat for several."),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--leader",
            metavar="VM",
            help="End this live leader's VM of another machine, too, with its job's VMs. Repeat for several.",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """End VMs that no running job uses, but that cost money."""
    if kept:
        return _keep(kept, store_url)
    asked = regions or []
    for one in asked:
        region_of(one)
    with open_source(store_url) as source:
        found = list_leftovers(source, asked)
        others = OtherLeaders.find(source, found.checked, other or ())
        if not output.is_json:
            _show(found)
            others.show()
        staying = [one for one in found.leftovers if one.quarantined and not quarantined]
        ending = [one for one in found.leftovers if one not in staying]
        count = len(ending) + len(others.ending)
        agreed = not dry_run and (not count or yes or _agreed(count))
        left = (_ended(source, asked, found, ending) if agreed else found.left) + others.left
        if agreed:
            left += others.end()
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "dry_run": dry_run,
                "regions": list(found.regions),
                "leftovers": plain(found.leftovers),
                "other_leaders": others.rows(),
                "ended": agreed,
                "left": list(left),
            }
        )
    elif agreed and count and not left:
        console.emit(Text(f"ended {plural(count, 'VM')}"))
    if staying:
        console.note(
            f"in quarantine, and not ended: {plural(len(staying), 'VM')}; --quarantined ends them, too, "
            "--keep ID keeps one for good"
        )
    for line in left:
        console.note(f"left behind: {line}")
    return CleanupError.exit_code if left else 0


def _ended(
    source: Source, regions: list[str], found: SweepAnswer, ending: Sequence[LeftoverDocument]
) -> tuple[str, ...]:
    """End them, and remove what belongs to no VM any more; nothing is asked of clouds that were never used."""
    if not found.regions and not found.leftovers:
        return found.left
    return end_all(source, regions, [one.key for one in ending])


def _keep(vms: list[str], store_url: str | None) -> int:
    """Have VMs in quarantine stay.

    Args:
        vms: As `gcp/us-central1/ID`, or their ids.

    Raises:
        NotFoundError: No such VM is in quarantine.
    """
    with open_source(store_url) as source:
        known = {one.vm.instance_id: one.key for one in list_leftovers(source).leftovers if one.quarantined}
        for vm in vms:
            [kept] = keep_vm(source, known.get(vm, vm)).vms
            console.emit(Text(f"{clean(kept.instance_id)} stays, and is no leftover any more"))
    return 0


def _agreed(count: int) -> bool:
    vms = plural(count, "VM")
    if not console.is_interactive():
        raise ConfigurationError(f"there is no terminal to ask on: use --yes to end {vms}")
    if console.ask(f"End {vms}?"):
        return True
    console.note("nothing was ended")
    return False


def _show(found: SweepAnswer) -> None:
    """Print what is left over, or that nothing is; nothing is said of regions that could not be checked."""
    if not (found.regions or found.leftovers):
        console.emit(Text("No VM is left over: no job in this store has asked for VMs."))
        return
    if not found.leftovers:
        if found.checked:
            console.emit(Text(f"No VM is left over in {', '.join(found.checked)}."))
        return
    grid = render.table(
        ("VM", "left"), ("type", "left"), ("zone", "left"), ("since", "left"), ("why it is left over", "left")
    )
    for one in found.leftovers:
        since = "-" if one.vm.launched_at is None else when(one.vm.launched_at)
        grid.add_row(
            clean(one.vm.instance_id), clean(one.vm.vm), clean(one.vm.zone), since, clean(one.reason)
        )
    console.emit(grid)
