"""VMs that no job uses, as `scavenger gc` and the server show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.domain.restore import Quarantine

if TYPE_CHECKING:
    from scavenger.control.provisioning.clean_up import Leftover
    from scavenger.control.sweep import Sweep
    from scavenger.store import Store


def leftover_row(leftover: Leftover) -> dict[str, Any]:
    """A leftover; the tags of its VM are among the VM's other fields."""
    row: dict[str, Any] = plain(leftover)
    vm = row["vm"]
    first = {name: vm.pop(name) for name in ("instance_id", "vm", "zone", "spot", "state")}
    return {**row, "vm": {**first, **vm.pop("tags"), **vm}}


def sweep_document(found: Sweep) -> dict[str, Any]:
    """What a look at the clouds has found."""
    return {
        "schema_version": SCHEMA_VERSION,
        "regions": list(found.regions),
        "checked": list(found.checked),
        "leftovers": [leftover_row(one) for one in found.leftovers],
        "left": list(found.left),
    }


def left_document(lines: Sequence[str]) -> dict[str, Any]:
    """What may be left after VMs were ended."""
    return {"schema_version": SCHEMA_VERSION, "left": list(lines)}


def quarantine_of(store: Store) -> Quarantine:
    """What a store knows of VMs in quarantine."""
    restore = store.last_restore()
    awaits_look = restore is not None and restore.looked_at is None and bool(store.vm_regions())
    return Quarantine(restore, store.quarantined_vms(), awaits_look)


def quarantine_document(quarantine: Quarantine) -> dict[str, Any]:
    """VMs in quarantine, as of the last look at their clouds."""
    return {
        "schema_version": SCHEMA_VERSION,
        "restore": plain(quarantine.restore),
        "vms": [{"key": one.key, **plain(one)} for one in quarantine.vms],
        "awaits_look": quarantine.awaits_look,
    }
