"""How hosts are opened and checked, and their prices; see `Adapter`."""

from __future__ import annotations

from datetime import UTC, datetime

from scavenger.cloud.adapters import Adapter, Opening
from scavenger.cloud.ssh.provider import SshProvider, quota_of
from scavenger.cloud.stock import CatalogEntry, Extras, MachineType, Stock
from scavenger.domain.cost import Price
from scavenger.domain.vm import Quota, VmRequest
from scavenger.domain.vm_settings import SshSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError

_PYTHON_LEAST = (3, 11)


def _open(opening: Opening) -> SshProvider:
    settings = opening.read_settings()
    assert isinstance(settings, SshSettings)
    return SshProvider(opening.region, settings)


def _stock(opening: Opening) -> Stock:
    today, place = datetime.now(UTC).date(), ("ssh", opening.region)
    listings = {
        kind.vm: CatalogEntry(
            MachineType("ssh", kind.vm, kind.cpus, kind.memory_gib, "GPU" if kind.gpus else "", kind.gpus),
            opening.region,
            Price(kind.usd_per_hour, "the settings", today),
        )
        for kind in set(_open(opening).types.values())
    }
    return Stock({place: listings}, extras={place: Extras(disk=Price(0.0, "a host's own disk", today))})


def _share(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    return 1.0 if quota.name == quota_of(vm) else 0.0


class SshInspection:
    """See `Inspection`."""

    def __init__(self, provider: SshProvider) -> None:
        self._provider = provider

    def identity(self) -> str:
        there, silent = self._provider.identity()
        if not there:
            raise CloudUnavailableError(next(iter(silent.values())))
        others = "".join(f"; {words}" for words in silent.values())
        return (
            f"{len(there)} of {len(self._provider.hosts)} hosts let us in: {', '.join(sorted(there))}{others}"
        )

    def denied(self, request: VmRequest) -> tuple[str, ...]:
        return ()

    def image(self, request: VmRequest) -> str:
        """The versions of Python, by which hosts install Scavenger."""
        there, _ = self._provider.identity()
        for name, version in there.items():
            if tuple(map(int, version.split(".")[:2])) < _PYTHON_LEAST:
                raise ConfigurationError(f"host {name} has Python {version}; Scavenger needs 3.11 or later")
        return f"Python {', '.join(sorted(set(there.values())))}"

    def network(self, request: VmRequest) -> str:
        return "the hosts' own; they must reach each other and this machine"


ADAPTER = Adapter(_open, SshInspection, stock=_stock, share=_share)
