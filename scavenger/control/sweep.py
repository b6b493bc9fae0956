"""VMs that cost money and that no job uses: found in every region that the store knows, told, and ended when asked.

A server looks for them at fixed times; `scavenger gc` looks when it is run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from scavenger.control.notifying.settings import tell
from scavenger.control.provisioning import providers
from scavenger.control.provisioning.clean_up import CleanUp, Leftover, abandoned_regions
from scavenger.errors import CloudError, ConfigurationError, ScavengerError
from scavenger.policy.notifying import leftover_notification
from scavenger.store import Store

log = logging.getLogger(__name__)

EVERY_S = 3600.0
"""Time between two sweeps of a server."""
FIRST_S = 60.0
"""Time from a server's start to its first sweep: jobs that are resumed have taken their VMs by then."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a look at the clouds has found.

    Attributes:
        regions: Where VMs may be, as `gcp/us-central1`.
        checked: Those of them whose cloud has answered.
        leftovers: VMs that no job uses.
        left: A line for each place that could not be checked.
    """

    regions: tuple[str, ...]
    checked: tuple[str, ...]
    leftovers: tuple[Leftover, ...]
    left: tuple[str, ...]


def region_of(text: str) -> tuple[str, str]:
    """Cloud and region of a text such as `gcp/us-central1`.

    Raises:
        ConfigurationError: It does not name both.
    """
    provider, slash, region = text.partition("/")
    if not (provider and slash and region):
        raise ConfigurationError(f"--in {text}: write CLOUD/REGION, such as gcp/us-central1")
    return provider, region


def find_leftovers(store: Store, regions: Iterable[str] = ()) -> SweepResult:
    """Look for VMs that no job uses, and have what is found told to webhooks.

    Args:
        regions: Such as `gcp/us-central1`, in addition to all in which the store ever asked for VMs.

    Raises:
        ConfigurationError: A region is not written as CLOUD/REGION.
    """
    return _look(store, regions)[0]


def end_leftovers(
    store: Store,
    regions: Iterable[str],
    keys: Collection[str],
    *,
    limit_s: float | None = None,
) -> tuple[str, ...]:
    """End VMs, and remove what belongs to no VM any more; a VM that a job has come to use since it was found is left.

    Args:
        store: As of `find_leftovers`.
        regions: As of `find_leftovers`.
        keys: `Leftover.key` of those to end.
        limit_s: Longest wait in a region until they are gone, seconds; see `CleanUp.end`.

    Returns:
        A line for each resource that may be left behind; empty if everything was removed.
    """
    found, clearings = _look(store, regions, told=True)
    left = list(found.left)
    for clear, leftovers in clearings:
        left += clear([one for one in leftovers if one.key in keys], limit_s=limit_s)
    return tuple(left)


class Clear(Protocol):
    """Ends leftovers of one place; see `CleanUp.end`."""

    def __call__(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        """End them."""


Clearings = list[tuple[Clear, tuple[Leftover, ...]]]


def _look(store: Store, regions: Iterable[str], *, told: bool = False) -> tuple[SweepResult, Clearings]:
    wanted = sorted({*store.vm_regions(), *map(region_of, regions)})
    clearings: Clearings = []
    checked: list[str] = []
    left: list[str] = []
    for provider, region in wanted:
        try:
            clean_up = CleanUp(store, providers.open_provider(provider, region))
            clearings.append((clean_up.end, clean_up.find()))
        except (CloudError, ConfigurationError) as error:
            left.append(f"{provider}/{region} cannot be checked: {error}")
            continue
        checked.append(f"{provider}/{region}")
    names = [f"{provider}/{region}" for provider, region in wanted]
    for place, clearing in _of_leaders(store, left):
        names += [] if place in names else [place]
        checked += [] if place in checked else [place]
        clearings += clearing
    found = tuple(one for _, leftovers in clearings for one in leftovers)
    if found and not told:
        tell(store, leftover_notification([_told(one) for one in found], datetime.now(UTC)))
    return SweepResult(tuple(names), tuple(checked), found, tuple(left)), clearings


def _told(one: Leftover) -> dict[str, str]:
    return {
        "provider": one.provider,
        "region": one.region,
        "instance_id": one.vm.instance_id,
        "vm": one.vm.vm,
        "reason": one.reason,
    }


def _of_leaders(store: Store, left: list[str]) -> Iterator[tuple[str, Clearings]]:
    """What leaders have left that lead no job any more, or never did: where, and at most one clean-up."""
    from scavenger.control.leading.following import LeaderSession
    from scavenger.control.leading.record import Leaders
    from scavenger.control.leading.seats import seat_of

    leaders = Leaders.beside(store)
    for record in leaders.all():
        seat = seat_of(leaders, record, inform=log.info)
        try:
            found = seat.leftovers()
        except (CloudError, ConfigurationError) as error:
            left.append(f"the VMs of the leader of job {record.name} cannot be checked: {error}")
            continue
        LeaderSession(seat).book(store, there=seat.state() == "there")
        yield f"{record.provider}/{record.region}", [] if found is None else [(seat.clear, found)]


def sweep_once(store: Store) -> SweepResult:
    """One sweep of a server: VMs that have powered themselves off are deleted, the others only told.

    Raises:
        StoreError: The store cannot be used.
    """
    for provider, region in abandoned_regions(store):
        try:
            count = CleanUp(store, providers.open_provider(provider, region)).end_powered_off()
        except (CloudError, ConfigurationError) as error:  # the other regions are swept all the same
            log.warning("powered-off VMs may be left in %s/%s: %s", provider, region, error)
            continue
        if count:
            log.info("deleted %d powered-off VMs in %s/%s that no job uses", count, provider, region)
    found = find_leftovers(store)
    for line in found.left:
        log.warning("%s", line)
    for one in found.leftovers:
        log.warning("no job uses %s; `scavenger gc` ends it", one)
    return found


@contextmanager
def sweeping(store: Store, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> Iterator[None]:
    """Sweep at fixed times within the block, in a thread; nothing that fails is raised."""
    stop = threading.Event()

    def work() -> None:
        wait_s = first_s
        while not stop.wait(wait_s):
            wait_s = every_s
            try:
                sweep_once(store)
            except ScavengerError as error:
                log.warning("no sweep: %s", error)
            except Exception as error:
                log.exception("no sweep: internal fault, %s", type(error).__name__)

    thread = threading.Thread(target=work, name="sweep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=1.0)
