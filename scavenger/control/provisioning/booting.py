"""Gives each VM its own join information: the address of its coordinator and a one-time key.

The user data of an intent is the same for all VMs of a job and contains no secret. The key is derived when the VM is
launched, so that a repeated launch is identical to the byte, and any process that acts for the region can make it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from scavenger.cloud.boot.boot import Join, boot_script
from scavenger.cloud.boot.pod import pod_script
from scavenger.domain.providers import capabilities_of
from scavenger.domain.vm import VmPackage, VmRequest
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


def booting(store: Store, provider: str, region: str) -> Callable[[VmRequest], VmRequest]:
    """Replaces the `boot_document` of a launch by the script that a VM or a pod runs.

    Returns:
        Takes the request of an intent and returns the one that the cloud gets. Raises `CloudUnavailableError` if the
        job wants no VMs any more, which the reconciler's next iteration notices, and `ConfigurationError` if the user
        data is not a boot document.
    """

    def booted(request: VmRequest) -> VmRequest:
        key = store.boot_key(request.tags.job_id, provider, region)
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
        return with_script(request, script)

    return booted


def with_script(request: VmRequest, script: str) -> VmRequest:
    """The request with what its VM runs."""
    return replace(request, template=replace(request.template, user_data=script))
