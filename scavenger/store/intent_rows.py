"""Conversion of rows of leases, fleet specs and intents to values, and the cost of intents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from scavenger.domain.cost import VmExtras
from scavenger.domain.intent import (
    FleetSpec,
    Intent,
    IntentHistory,
    Lease,
    PlacementOption,
    VmCharges,
    VmSlot,
    VmTimes,
)
from scavenger.domain.vm import DEFAULT_SETTINGS, LaunchTemplate, VmRequest, VmSettings, VmTags
from scavenger.errors import StoreError
from scavenger.store.schema import FleetSpecRow, IntentRow, JobRow, LeaseRow

HEALTH_LAST = 32
"""Number of a job's latest VMs whose health is reported; decisions use fewer."""

BILLED_MIN_S = 60.0
"""Minimum billed time: Google Cloud and AWS bill by the second, and at least a minute."""

_MACHINES = ("avoided", "drained")
"""Names of machines among a template's fields, which are kept only where there are any."""

SHORTAGES = "told"
"""Key in a fleet spec's document under which the lease holder reports what keeps the job from having its VMs."""

_UNHEALTHY = ("never_joined", "died")

_TAGS, _TEMPLATE, _CHARGES, _EXTRAS, _TIMES, _PLAIN = (
    tuple(one.name for one in fields(kind) if one.name not in ("request", "charges", "extras", "times"))
    for kind in (VmTags, LaunchTemplate, VmCharges, VmExtras, VmTimes, Intent)
)
"""Fields of an intent's parts, and of the intent itself, that are columns or keys of the same name and type."""

_NOTHING = VmExtras()
_DISK_S = IntentRow.billed_s + IntentRow.disk_after_s
DISK_USD = _DISK_S / 3600.0 * func.coalesce(IntentRow.disk_usd_per_hour, 0.0)
ADDRESS_USD = IntentRow.billed_s / 3600.0 * IntentRow.address_usd_per_hour
USD_PER_HOUR = (
    IntentRow.price_usd_per_hour
    + func.coalesce(IntentRow.disk_usd_per_hour, 0.0)
    + IntentRow.address_usd_per_hour
)
COST_USD = IntentRow.spent_usd + DISK_USD + ADDRESS_USD
"""What the disk, the public address, and all of a VM have cost as counted so far; see `VmCharges.cost_usd`."""


def settle(row: IntentRow, before_s: float = 0.0) -> None:
    """Replace the counted seconds by the cloud's own if it reports them, at the mean price that was charged.

    If it does not, the counted seconds remain, or a minute if that is more.

    Args:
        before_s: For how long other jobs had the VM before.
    """
    seconds = row.billed_s
    if row.launched_at is not None and row.ended_at is not None:
        seconds = (row.ended_at - row.launched_at).total_seconds()
    seconds = max(0.0, BILLED_MIN_S - before_s, seconds)
    mean = row.spent_usd / row.billed_s if row.billed_s > 0 else row.price_usd_per_hour / 3600.0
    row.billed_s, row.spent_usd = seconds, mean * seconds


def past_of(session: Session, job_id: str, attempt: int, provider: str, region: str) -> IntentHistory:
    """Read a job's history in addition to its live intents in this region."""
    of_job = IntentRow.job_id == job_id
    last = select(IntentRow.slot, func.max(IntentRow.generation)).where(of_job).group_by(IntentRow.slot)
    sums = (
        select(
            IntentRow.state,
            IntentRow.provider,
            IntentRow.region,
            func.sum(COST_USD).label("spent"),
            func.sum(IntentRow.reserved_usd).label("reserved"),
        )
        .where(of_job)
        .group_by(IntentRow.state, IntentRow.provider, IntentRow.region)
    )
    latest = (
        select(IntentRow.acks)
        .where(of_job, IntentRow.attempt == attempt)
        .where((IntentRow.acks > 0) | IntentRow.ending.in_(_UNHEALTHY))
        .order_by(IntentRow.number.desc())
        .limit(HEALTH_LAST)
    )
    drained = (
        select(IntentRow.id)
        .where(of_job, IntentRow.attempt == attempt, IntentRow.ending == "budget")
        .limit(1)
    )
    pulse = session.scalar(select(JobRow.heartbeat_at).where(JobRow.id == job_id))
    return IntentHistory(
        generations={row.slot: row[1] for row in session.execute(last)},
        spent_usd=sum(
            row.spent + (0.0 if row.state == "GONE" else row.reserved)
            for row in session.execute(sums)
            if row.state == "GONE" or (row.provider, row.region) != (provider, region)
        ),
        health=tuple(acks > 0 for acks in session.scalars(latest)),
        pulse=str(pulse),
        drained=session.scalar(drained) is not None,
    )


def lease_of(row: LeaseRow | None) -> Lease | None:
    """Convert a row to a lease; None if there is no row."""
    return None if row is None else Lease(row.name, row.holder, row.token, row.beats)


def fleet_spec_of(row: FleetSpecRow) -> FleetSpec:
    """The value of a row.

    Raises:
        StoreError: Its document is not of this version.
    """
    try:
        given = {name: value for name, value in row.document.items() if name != SHORTAGES}
        budget = given.pop("budget_usd")
        return FleetSpec(
            job_id=row.job_id,
            provider=row.provider,
            region=row.region,
            slots=tuple(_slot_of(one) for one in given.pop("wishes")),
            options=_options_of(given.pop("places")),
            template=_template_from(given),
            budget_usd=float("inf") if budget is None else budget,
            **given,
        )
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"what job {row.job_id[:8]} wants cannot be read: {error}") from error


def _slot_of(given: Mapping[str, Any]) -> VmSlot:
    return VmSlot(given["slot"], given.get("generation", 0), _options_of(given.get("places", ())))


def _options_of(given: Collection[Mapping[str, Any]]) -> tuple[PlacementOption, ...]:
    return tuple(
        PlacementOption(
            **{name: value for name, value in one.items() if name not in _EXTRAS},
            extras=VmExtras(**{name: one[name] for name in _EXTRAS if name in one}),
        )
        for one in given
    )


def _option_document(option: PlacementOption) -> dict[str, Any]:
    """A placement option; the prices of what a VM has beside its type only where they are known."""
    document = asdict(option)
    extras = document.pop("extras")
    return document | {name: usd for name, usd in extras.items() if usd != getattr(_NOTHING, name)}


def _template_from(given: dict[str, Any]) -> LaunchTemplate:
    """Take the launch parameters out of a flat document."""
    found = {name: given.pop(name) for name in _TEMPLATE if name in given}
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in found.pop("settings", {}).items()
    }
    labels = _pairs(found.pop("labels", ()))
    avoided, drained = (tuple(found.pop(key, ())) for key in _MACHINES)
    return LaunchTemplate(
        **found, labels=labels, settings=VmSettings(**settings), avoided=avoided, drained=drained
    )


def _template_document(template: LaunchTemplate) -> dict[str, Any]:
    """The launch parameters as keys of a flat document; settings and names of machines only where there are any."""
    document = asdict(template)
    if template.settings == DEFAULT_SETTINGS:
        del document["settings"]
    for key in _MACHINES:
        if not document[key]:
            del document[key]
    return document


def fleet_spec_document(spec: FleetSpec) -> dict[str, Any]:
    """The document of a fleet spec's row; flat, under the names of its first version."""
    options = [_option_document(one) for one in spec.options]
    slots = [
        {"slot": one.number, "generation": one.generation, "places": list(map(_option_document, one.options))}
        for one in spec.slots
    ]
    return {
        "wishes": slots,
        "places": options,
        "vms_max": spec.vms_max,
        "budget_usd": None if spec.budget_usd == float("inf") else spec.budget_usd,
        "drain_s": spec.drain_s,
        "boot_key": spec.boot_key,
        "attempt": spec.attempt,
        "register_s": spec.register_s,
        **({} if spec.launches else {"launches": False}),
        **({"pool": spec.pool, "pool_vms_max": spec.pool_vms_max} if spec.pool else {}),
        **_template_document(spec.template),
    }


def intent_of(row: IntentRow) -> Intent:
    """The value of a row.

    Raises:
        StoreError: Its request is not of this version.
    """
    try:
        request = _request_of(dict(row.request))
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"intent {row.id} cannot be read: {error}") from error
    return Intent(
        request=request,
        charges=VmCharges(
            **{name: getattr(row, name) for name in _CHARGES},
            extras=VmExtras(**{name: getattr(row, name) for name in _EXTRAS}),
        ),
        times=VmTimes(**{name: getattr(row, name) for name in _TIMES}),
        **{name: getattr(row, name) for name in _PLAIN},
    )


def _request_of(given: dict[str, Any]) -> VmRequest:
    tags = VmTags(**{name: given.pop(name) for name in _TAGS})
    return VmRequest(tags=tags, template=_template_from(given), **given)


def row_of(intent: Intent, created_at: datetime) -> IntentRow:
    """The row of a new intent; its request is stored as a flat document."""
    request = asdict(intent.request)
    del request["template"]
    times = {name: getattr(intent.times, name) for name in _TIMES} | {"created_at": created_at}
    return IntentRow(
        id=intent.id,
        job_id=intent.job_id,
        slot=intent.slot,
        generation=intent.generation,
        request=request.pop("tags") | _template_document(intent.request.template) | request,
        **{name: getattr(intent.charges, name) for name in _CHARGES} | {"charged_at": created_at},
        **asdict(intent.charges.extras),
        **times,
        **{name: getattr(intent, name) for name in _PLAIN},
    )


def _pairs(found: Collection[Collection[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in found)
