"""The end of a record that holds VMs without being a job: those of a pool's nodes, and those that a study keeps."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from scavenger.cloud.base import Provider
from scavenger.control.provisioning.clean_up import LIMIT_S
from scavenger.domain.intent import FleetSpec, Intent
from scavenger.errors import ScavengerError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.store import Store

LOOK_S = 1.0
UNSEEN = "its VMs were not seen to end; run `scavenger gc`"
"""What may be left of a record whose end was interrupted."""

log = logging.getLogger(__name__)


def end_vms_of_record(
    store: Store,
    provider: Provider,
    spec: FleetSpec,
    *,
    config: ProvisioningConfig,
    seen: Callable[[tuple[Intent, ...]], None],
    wake: Callable[[], None],
    before: Iterable[str] = (),
    what: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until all VMs of a record are gone, and remove what they have shared.

    Args:
        store, provider: Where they are on record, and their cloud in the region.
        spec: What was wanted of them until now.
        config: Time limits and intervals.
        seen: Receives the record's intents at each look.
        wake: Has the reconciler look at once.
        before: Ids of earlier records whose VMs are to be gone, too.
        what: What they are called, where not even the store can be read.
        clock, sleep: Monotonic seconds, and how to wait.

    Returns:
        What may be left; empty for nothing.
    """
    job_id, until = spec.job_id, clock() + max(LIMIT_S, 1.5 * config.settle_s)
    nothing = replace(spec, slots=(), boot_key="", template=replace(spec.template, user_data=""))
    intents: tuple[Intent, ...] = ()
    asked, error = False, ""
    while True:
        try:
            if not asked:
                store.want_vms(nothing)
                asked = True
            store.heartbeat(job_id)  # somebody has them until they have ended
            intents = store.intents(job_id)
            seen(intents)
            if all(map(store.is_clean, (job_id, *before))):
                remove_shared(store, provider)
                return ""
        except ScavengerError as failed:
            error = str(failed)
        if clock() > until:
            living = "; ".join(str(one) for one in intents if one.state != "GONE")
            return f"{living or what}: {error or 'they did not end in time'}; run `scavenger gc`"
        wake()
        sleep(min(LOOK_S, config.look.interval_s))


def remove_shared(store: Store, provider: Provider) -> None:
    """Remove what VMs of a region have shared, unless there are some yet.

    Raises:
        StoreError, CloudError: It may be left.
    """
    here = (provider.name, provider.region)
    if not any((one.provider, one.region) == here for one in store.intents(living=True)):
        provider.remove_leftovers(store.installation())


def finish_record(store: Store, job_id: str, left: str, cost_usd: float) -> None:
    """End a record; where that is not possible, the next command does it.

    Args:
        left: What may be left of its VMs; empty for nothing.
        cost_usd: What they have cost.
    """
    if left:
        log.error("VMs may be left: %s", left)
    with contextlib.suppress(ScavengerError):
        store.finish_job(
            job_id,
            state="failed" if left else "stopped",
            report=None,
            error=left,
            exit_code=None,
            cost_usd=cost_usd,
        )
