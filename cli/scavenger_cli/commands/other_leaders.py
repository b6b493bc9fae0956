"""`gc`: leaders' VMs that other machines or stores have rented in the same account."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from rich.text import Text

from scavenger.api.calls import Local, Source
from scavenger.cloud.base import AdmittingProvider
from scavenger.control.leading.record import Leaders
from scavenger.control.leading.sweep import OtherLeader, end_other_leader, other_leaders
from scavenger.control.places.launching import DISK_GIB
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.provisioning import providers
from scavenger.control.sweep import region_of
from scavenger.domain.providers import capabilities_of
from scavenger.errors import CloudError, ConfigurationError
from scavenger.presentation.formatting import clean, duration, money
from scavenger_cli.ui import console, render

_STATES = {"live": "live", "overdue": "should have ended itself", "off": "powered off"}


@dataclass(frozen=True, slots=True)
class OtherLeaders:
    """What was found in the regions that were looked at.

    Attributes:
        ending: Those to end: by their state, or since they were named.
        left: A line for each region that cannot be checked.
    """

    ending: tuple[OtherLeader, ...]
    kept: tuple[OtherLeader, ...]
    left: tuple[str, ...]

    @classmethod
    def find(cls, source: Source, regions: Sequence[str], named: Sequence[str]) -> OtherLeaders:
        """Look for them, with this machine's own credentials: none are found through a server.

        Args:
            source: Of the command.
            regions: Such as `gcp/us-central1`.
            named: Ids of VMs to end even if they are live.

        Raises:
            ConfigurationError: There is no such VM.
        """
        if not isinstance(source, Local):
            if named:
                raise ConfigurationError("--leader does not go through a server: unset SCAVENGER_SERVER")
            return cls((), (), ())
        own = {source.store.installation()}
        leaders = Leaders.beside(source.store)
        for record in leaders.all():
            with closing(leaders.open_store(record)) as records:
                own.add(records.installation())
        found: list[OtherLeader] = []
        left = []
        for provider, region in map(region_of, regions):
            if not capabilities_of(provider).leads:
                continue
            try:
                found += other_leaders(
                    _opened(provider, region),
                    own,
                    now=datetime.now(UTC),
                    usd_per_hour=partial(_usd_per_hour, provider, region),
                )
            except (CloudError, ConfigurationError) as error:
                left.append(f"leaders' VMs in {provider}/{region} cannot be checked: {error}")
        if unknown := sorted(set(named) - {one.vm.instance_id for one in found}):
            raise ConfigurationError(
                f"--leader {unknown[0]}: no other machine's leader has this VM in the regions that were looked at; "
                "name its region with --in, and end this machine's own by `scavenger leader end`"
            )
        ending = tuple(one for one in found if one.state != "live" or one.vm.instance_id in named)
        return cls(ending, tuple(one for one in found if one not in ending), tuple(left))

    def show(self) -> None:
        """Print them; nothing if there are none."""
        found = (*self.ending, *self.kept)
        if not found:
            return
        names = ("leader's VM of another machine", "type", "region", "owner", "age", "cost", "state")
        grid = render.table(*((name, "left") for name in names))
        for one in found:
            grid.add_row(
                clean(one.vm.instance_id),
                clean(one.vm.vm),
                f"{one.provider}/{one.region}",
                clean(one.vm.tags.owner),
                "-" if one.age_s is None else duration(one.age_s),
                "-" if one.cost_usd is None else money(one.cost_usd),
                _STATES[one.state],
            )
        console.emit(grid)
        if self.kept:
            console.emit(
                Text("Live ones may lead jobs and are not ended; --leader VM ends one, with its job's VMs.")
            )

    def end(self) -> tuple[str, ...]:
        """End those to end; returns a line for each VM that may be left."""
        return tuple(
            line for one in self.ending for line in end_other_leader(_opened(one.provider, one.region), one)
        )

    def rows(self) -> list[dict[str, Any]]:
        """For the JSON document."""
        return [
            {
                "provider": one.provider,
                "region": one.region,
                "instance_id": one.vm.instance_id,
                "vm": one.vm.vm,
                "zone": one.vm.zone,
                "owner": one.vm.tags.owner,
                "launched_at": None if one.vm.launched_at is None else one.vm.launched_at.isoformat(),
                "age_s": one.age_s,
                "cost_usd": one.cost_usd,
                "state": one.state,
                "to_end": one in self.ending,
            }
            for one in (*self.ending, *self.kept)
        ]


def _opened(provider: str, region: str) -> AdmittingProvider:
    return cast(AdmittingProvider, providers.open_provider(provider, region))


def _usd_per_hour(provider: str, region: str, vm: str) -> float:
    cloud = CatalogCloud(provider, region)
    return cloud.price_usd_per_hour(vm, spot=False) + cloud.extras(DISK_GIB, spot=False).usd_per_hour
