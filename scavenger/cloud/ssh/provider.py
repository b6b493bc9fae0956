"""Hosts that one has as VMs: a group of them is a region, those of one size are a VM type, and each is one VM at most.

A launch claims a free host; there is nothing to rent. See `scavenger.cloud.ssh.host` for what a claim is. A host that
has not been reached for a while counts as ended: its agent has lost its leader, and ends within its life. Should it be
there again before, it is listed, so that who knows better ends it.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from scavenger.cloud.base import CONSOLE_CHARACTERS
from scavenger.cloud.ssh import connection
from scavenger.domain.vm import DEFAULT_SETTINGS, OwnedMachine, Quota, VmRequest, VmSeen, VmSettings, VmTags
from scavenger.domain.vm_settings import SshHost, SshSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError, GoneError, StockOutError

UNREACHED_S = 60.0
"""How long a host with a VM may be unreachable until the VM counts as gone, while other hosts are reached."""
NONE_REACHED_S = 300.0
"""The same while no host is: this machine's network is probably cut, and agents wait for a leader as long."""
_sizes: dict[tuple[str, str, SshHost], Mapping[str, Any]] = {}
"""What hosts have told of themselves, by the client's configuration, their names and settings; asked once a process."""


@dataclass(frozen=True, slots=True)
class HostType:
    """A host's size and price; hosts for which all of these are the same can stand for each other."""

    vm: str
    cpus: int
    memory_gib: float
    gpus: int
    usd_per_hour: float


def quota_of(vm: str) -> str:
    """Name of the quota that counts the hosts of a type."""
    return f"hosts {vm}"


class SshProvider:
    """See `Provider`.

    Args:
        group: Of the hosts.
        settings: With the hosts.
        clock: Seconds.

    Raises:
        ConfigurationError: If there is no host in the group.
    """

    name = "ssh"
    visibility_s = remembers_s = 0.0

    def __init__(
        self, group: str, settings: SshSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.region, self._settings, self._clock = group, settings, clock
        self.hosts = {name: host for name, host in settings.hosts.items() if host.group == group}
        if not self.hosts:
            known = ", ".join(sorted({host.group for host in settings.hosts.values()})) or "none"
            raise ConfigurationError(
                f"ssh/{group}: the settings have no host of that group; groups are {known}"
            )
        self._silent_since: dict[str, float] = {}
        self._lived: set[str] = set()
        self._asked: dict[str, set[str]] = {}

    @cached_property
    def types(self) -> Mapping[str, HostType]:
        """The types of the hosts, by the hosts' names, without hosts whose size is not known and that do not answer.

        Raises:
            ConfigurationError: If hosts of one type have different sizes or prices.
            CloudUnavailableError: If no host answers.
        """
        found = {name: self._type(name, host) for name, host in self._sized().items()}
        for one in set(found.values()):
            others = [other for other in set(found.values()) if other.vm == one.vm]
            if len(others) > 1:
                names = ", ".join(sorted(name for name, kind in found.items() if kind.vm == one.vm))
                raise ConfigurationError(
                    f"ssh/{self.region}: {names} are all {one.vm} and differ in size or price: give them different vm"
                )
        return found

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """See `Provider.zones`: the racks; the group itself for hosts without one."""
        found = {self._zone(name) for name, kind in self.types.items() if kind.vm == vm}
        if not found:
            known = ", ".join(sorted({kind.vm for kind in self.types.values()}))
            raise ConfigurationError(f"ssh/{self.region} has no host {vm!r}; it has {known}")
        return tuple(sorted(found))

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`: in the order of a hash of token and name, so that two callers begin with one host."""
        names = [name for name in self._hosts_of(request.vm) if self._zone(name) == request.zone]
        if not names:
            raise ConfigurationError(
                f"ssh/{self.region} has no host {request.vm} in the zone {request.zone!r}"
            )
        token, avoided = request.tags.token, request.template.avoided
        names.sort(key=lambda name: (name in avoided, hashlib.sha256(f"{token}{name}".encode()).digest()))
        looked = self._look(names, needed=self._asked.get(token, ()))
        for name, one in looked.items():
            for vm in one["vms"]:
                if vm["token"] == token:
                    return self._living(name, vm)
        drained = request.template.drained
        for name in [name for name, one in looked.items() if not one["held"] and name not in drained]:
            self._asked.setdefault(token, set()).add(name)
            vm = self._ask(name, "launch", vm=_record(request, name), script=request.template.user_data)["vm"]
            if vm is not None:
                self._lived.add(name)
                return self._living(name, vm)
        silent = f", and {len(names) - len(looked)} do not answer" if len(looked) < len(names) else ""
        used = "in use or drained" if drained else "in use"
        raise StockOutError(f"{request.zone}: all {len(looked)} hosts {request.vm} are {used}{silent}")

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        name, token = self._parsed(instance_id)
        looked = self._look([name], needed=[name])
        if name not in looked:
            silent_s = self._clock() - self._silent_since[name]
            reason = f"its host has not been reached for {silent_s:.0f} s"
            return VmSeen(instance_id, "", zone, False, "gone", VmTags(token=token), reason=reason)
        for vm in looked[name]["vms"]:
            if vm["token"] == token:
                return _seen(name, vm)
        raise GoneError(f"host {name} has no VM {instance_id}")

    def terminate(self, instance_id: str, zone: str) -> None:
        try:
            name, token = self._parsed(instance_id)
        except GoneError:
            return
        if name in self._look([name], needed=[name]):
            self._ask(name, "terminate", token=token)

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        """See `Provider.list_owned`.

        Raises:
            CloudUnavailableError: Also if a host where a VM was is not reached, until `UNREACHED_S`.
        """
        looked = self._look(self.hosts, needed=self._lived)
        return tuple(
            _seen(name, vm) for name, one in looked.items() for vm in one["vms"] if vm["owner"] == owner
        )

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        return {}

    def console(self, instance_id: str, zone: str) -> str:
        name, token = self._parsed(instance_id)
        text = self._ask(name, "console", token=token)["text"]
        if text is None:
            raise GoneError(f"host {name} has no VM {instance_id}")
        return str(text)[-CONSOLE_CHARACTERS:]

    def quotas(self) -> tuple[Quota, ...]:
        """See `Provider.quotas`: how many hosts of each type there are; those that do not answer count as used."""
        looked = self._look(self.types, needed=())
        there = Counter(kind.vm for kind in self.types.values())
        free = Counter(self.types[name].vm for name, one in looked.items() if not one["held"])
        return tuple(
            Quota(quota_of(vm), self.region, float(count), float(count - free[vm]))
            for vm, count in sorted(there.items())
        )

    def prices(self, zone: str) -> tuple[float, ...]:
        """See `OwnedMachines.prices`."""
        found = tuple(
            host.usd_per_hour for name, host in self.hosts.items() if zone in ("", self._zone(name))
        )
        if not found:
            raise ConfigurationError(f"ssh/{self.region} has no host in the zone {zone}")
        return found

    def machines(self, zone: str) -> tuple[OwnedMachine, ...]:
        """See `OwnedMachines.machines`."""
        if len(self.types) < len(self.hosts):
            del self.types  # whoever did not answer may now
        names = [name for name in self.types if zone in ("", self._zone(name))]
        try:
            looked = self._look(names, needed=())
        except CloudUnavailableError:  # none of them answers
            looked = {}
        now = self._clock()
        limit_s = UNREACHED_S if looked else NONE_REACHED_S
        found = []
        for name in names:
            kind, one = self.types[name], looked.get(name)
            living = (
                () if one is None else [f"{name}.{vm['token']}" for vm in one["vms"] if vm["state"] != "gone"]
            )
            silent_s = 0.0 if one is not None else now - self._silent_since.get(name, now)
            found.append(
                OwnedMachine(
                    name,
                    kind.vm,
                    kind.cpus,
                    kind.gpus,
                    kind.usd_per_hour,
                    reached=one is not None,
                    lost=silent_s >= limit_s,
                    held=one is not None and one["held"],
                    instance_id=next(iter(living), ""),
                )
            )
        return tuple(found)

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        return {}

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """See `Provider.remove_leftovers`: what is known of VMs that have ended, and their consoles."""
        if any(seen.state != "gone" for seen in self.list_owned(owner)):
            return ()
        removed = connection.each(self.hosts, lambda name: self._ask(name, "forget", owner=owner)["removed"])
        return tuple(
            f"VM {name}.{token}"
            for name, tokens in removed.items()
            if not isinstance(tokens, CloudUnavailableError)
            for token in tokens
        )

    # ---- hosts ------------------------------------------------------------------------------------------------

    def identity(self) -> tuple[dict[str, str], dict[str, str]]:
        """The versions of Python of the hosts that answer, and what is said of the others.

        Raises:
            CredentialsError, ConfigurationError: See `connection.ask`.
        """
        found = connection.each(self.hosts, lambda name: self._ask(name, "size"))
        silent = {name: str(one) for name, one in found.items() if isinstance(one, CloudUnavailableError)}
        return {name: one["python"] for name, one in found.items() if isinstance(one, dict)}, silent

    def _ask(self, name: str, what: str, **given: Any) -> dict[str, Any]:
        return connection.ask(self._settings, name, what, **given)

    def _look(self, names: Iterable[str], *, needed: Collection[str]) -> dict[str, dict[str, Any]]:
        """What hosts tell, of those that answer.

        Raises:
            CloudUnavailableError: None does, or one of the `needed` does not and was not silent for long.
        """
        found, now, errors = connection.each(names, lambda name: self._ask(name, "look")), self._clock(), []
        for name, one in found.items():
            if isinstance(one, CloudUnavailableError):
                self._silent_since.setdefault(name, now)
                continue
            self._silent_since.pop(name, None)
            (self._lived.add if any(vm["state"] != "gone" for vm in one["vms"]) else self._lived.discard)(
                name
            )
        limit_s = UNREACHED_S if self.hosts.keys() - self._silent_since else NONE_REACHED_S
        for name, one in found.items():
            if isinstance(one, CloudUnavailableError):
                if now - self._silent_since[name] < limit_s and (name in needed or len(found) == 1):
                    raise one
                errors.append(one)
        if len(errors) == len(found) > 1:
            raise errors[0]
        return {name: one for name, one in found.items() if isinstance(one, dict)}

    def _sized(self) -> dict[str, SshHost]:
        """The hosts with all that their settings leave out."""

        def sized(name: str) -> SshHost:
            host = self.hosts[name]
            given = {key: getattr(host, key) for key in ("cpus", "memory", "gpus")}
            if None not in given.values():
                return host
            key = (self._settings.config, name, host)
            told = _sizes.get(key) or _sizes.setdefault(key, self._ask(name, "size"))
            return host.model_copy(update={key: told[key] for key, value in given.items() if value is None})

        found = connection.each(self.hosts, sized)
        known = {name: host for name, host in found.items() if isinstance(host, SshHost)}
        for error in found.values():
            if isinstance(error, CloudUnavailableError) and not known:
                raise error
        return known

    @staticmethod
    def _type(name: str, host: SshHost) -> HostType:
        assert host.cpus is not None and host.memory is not None  # noqa: PT018 - see `_sized`
        size = f"{host.cpus}cpu-{host.memory:g}gib" + (f"-{host.gpus}gpu" if host.gpus else "")
        return HostType(host.vm or size, host.cpus, host.memory, host.gpus or 0, host.usd_per_hour)

    def _hosts_of(self, vm: str) -> list[str]:
        return [name for name, kind in self.types.items() if kind.vm == vm]

    def _zone(self, name: str) -> str:
        rack = self.hosts[name].rack
        return f"{self.region}-{rack}" if rack else self.region

    def _parsed(self, instance_id: str) -> tuple[str, str]:
        name, _, token = instance_id.rpartition(".")
        if name not in self.hosts:
            raise GoneError(f"ssh/{self.region} has no host of the VM {instance_id}")
        return name, token

    @staticmethod
    def _living(name: str, vm: dict[str, Any]) -> VmSeen:
        if vm["state"] == "gone":
            raise GoneError(f"the VM of this launch was on host {name}, and has ended: {vm['reason']}")
        return _seen(name, vm)


def _record(request: VmRequest, host: str) -> dict[str, Any]:
    tags = request.tags
    return {
        "host": host,
        "token": tags.token,
        "owner": tags.owner,
        "job_id": tags.job_id,
        "slot": tags.slot,
        "generation": tags.generation,
        "vm": request.vm,
        "zone": request.zone,
        "run_max_s": request.template.run_max_s,
        "run_max_tag": int(request.template.run_max_tag),
    }


def _seen(name: str, vm: dict[str, Any]) -> VmSeen:
    return VmSeen(
        f"{name}.{vm['token']}",
        vm["vm"],
        vm["zone"],
        spot=False,
        state=vm["state"],
        tags=VmTags(vm["owner"], vm["token"], vm["job_id"], vm["slot"], vm["generation"]),
        address=name,
        launched_at=datetime.fromtimestamp(vm["launched_at"], UTC),
        ended_at=None if vm["ended_at"] is None else datetime.fromtimestamp(vm["ended_at"], UTC),
        reason=vm["reason"],
        run_max_s=vm["run_max_tag"],
    )
