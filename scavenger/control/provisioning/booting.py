"""Gives each VM its own join information: the address of its coordinator and a one-time key.

The user data of an intent is the same for all VMs of a job and contains no secret. The key is derived when the VM is
launched, so that a repeated launch is identical to the byte, and any process that acts for the region can make it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec

from scavenger.cloud.base import Provider
from scavenger.cloud.boot.boot import Join, boot_script
from scavenger.cloud.boot.pod import pod_script
from scavenger.domain.providers import capabilities_of
from scavenger.domain.vm import DEFAULT_SETTINGS, Quota, VmPackage, VmRequest, VmSeen, VmSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError
from scavenger.store import Store
from scavenger.train.engines.vm.values import one_time_keys


class Boot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the VMs of a record reach their coordinator, and what they install."""

    endpoint: str
    server_key: str
    provider: str
    package: VmPackage


def boot_document(endpoint: str, server_key: str, provider: str, package: VmPackage) -> str:
    """The user data of a job's intents: how its VMs reach its coordinator, and what they install."""
    return msgspec.json.encode(Boot(endpoint, server_key, provider, package)).decode()


def read_boot(user_data: str) -> Boot | None:
    """Read a boot document; None for other user data."""
    try:
        return msgspec.json.decode(user_data, type=Boot)
    except msgspec.DecodeError:
        return None


def boot_way(user_data: str) -> tuple[str, str]:
    """What has to work for VMs with these user data to join: the coordinator's host and the package.

    Ports and keys are left out, since each run may have others. Empty for user data that are no boot document.
    """
    boot = read_boot(user_data)
    return ("", "") if boot is None else (boot.endpoint.rpartition(":")[0], boot.package.name)


class BootingProvider(Provider):
    """A provider that replaces the `boot_document` of each launch by the script that a VM or a pod runs."""

    def __init__(self, provider: Provider, store: Store) -> None:
        self._provider, self._store = provider, store
        self.name, self.region = provider.name, provider.region
        self.visibility_s, self.remembers_s = provider.visibility_s, provider.remembers_s

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        return self._provider.zones(vm, settings)

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`.

        Raises:
            CloudUnavailableError: Also if the job wants no VMs any more, which the reconciler's next iteration notices.
            ConfigurationError: Also if the user data is not a boot document.
        """
        key = self._store.boot_key(request.tags.job_id, self.name, self.region)
        if not key:
            raise CloudUnavailableError(f"job {request.tags.job_id[:8]} wants no VMs any more")
        try:
            boot = msgspec.json.decode(request.template.user_data, type=Boot)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"intent {request.tags.token} does not say how to join: {error}"
            ) from error
        _, secret = one_time_keys(bytes.fromhex(key), request.tags.token)
        join = Join(boot.endpoint, boot.server_key, request.tags.token, secret, boot.provider)
        proxy = request.template.settings.proxy
        machines = capabilities_of(boot.provider)
        if machines.in_image:
            script = ""  # Ray starts the agent (`scavenger.train.engines.ray.pods`)
        elif machines.pods or machines.as_user:
            script = pod_script(join, boot.package, life_s=request.life_s, proxy=proxy)
        else:
            script = boot_script(join, boot.package, proxy=proxy)
        template = replace(request.template, user_data=script)
        return self._provider.launch(replace(request, template=template))

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        return self._provider.describe(instance_id, zone)

    def terminate(self, instance_id: str, zone: str) -> None:
        self._provider.terminate(instance_id, zone)

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        return self._provider.list_owned(owner)

    def console(self, instance_id: str, zone: str) -> str:
        return self._provider.console(instance_id, zone)

    def quotas(self) -> tuple[Quota, ...]:
        return self._provider.quotas()

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        return self._provider.impaired(instance_ids)

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        return self._provider.spot_prices(vms)

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        return self._provider.remove_leftovers(owner)
