"""Checks everything that a job on a cloud's VMs needs, before it needs it; starts nothing and pays for nothing."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import uuid4

from scavenger.cloud.adapters import adapter_of
from scavenger.cloud.base import Inspection
from scavenger.cloud.boot.boot import PACKAGE_VARIABLE
from scavenger.cloud.boot.package import own_package
from scavenger.control.places.cluster_inspection import (
    check_quotas,
    checked,
    failure,
    inspect_cluster,
    inspect_leader,
)
from scavenger.control.places.launching import (
    ADDRESS_VARIABLE,
    DISK_GIB,
    IMAGE_VARIABLE,
    address_of,
)
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.provisioning.providers import open_provider
from scavenger.control.settings import settings_of
from scavenger.domain.check import Check
from scavenger.domain.infra import Infra
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmSettings, VmTags
from scavenger.errors import (
    ConfigurationError,
    JobFileError,
    NotSupportedError,
    ScavengerError,
)
from scavenger.presentation.formatting import plural

_CONSOLE = ("ec2:GetConsoleOutput", "compute.instances.getSerialPortOutput")
"""Permissions without which jobs run, but do not tell why a VM failed."""
_SOMEWHERE = "192.0.2.1/32"
_PIP_MAX_S = 60.0
_DOCS = "docs/clouds.md lists what is needed"


def inspect_infra(infra: Infra, environment: Mapping[str, str]) -> Iterator[Check]:
    """Check credentials, permissions, VM type, image, network, quotas, the coordinator's address and the package.

    Args:
        infra: As in a job file; for this machine and for clouds that are not supported there is nothing to check.
        environment: Environment variables, which may set the address, the image and the package.
    """
    if infra.capabilities.pods:
        yield from inspect_cluster(infra, environment)
    else:
        yield from _cloud_checks(infra, environment)
    yield _leader(infra, environment) or _address(environment)
    yield _package(environment)


def _cloud_checks(infra: Infra, environment: Mapping[str, str]) -> Iterator[Check]:
    try:
        settings = settings_of(infra, environment)
        provider = open_provider(infra.provider, infra.region, environment, settings)
        inspect = adapter_of(infra.provider).inspect
    except NotSupportedError as error:
        yield Check("cloud", "fail", str(error))
        return
    except JobFileError as error:
        yield Check("settings", "fail", str(error))
        return
    except ScavengerError as error:
        yield failure("credentials", error)
        return
    if inspect is None:
        yield Check("cloud", "warn", f"not checked: the provider {infra.provider} tells nothing for checks")
        return
    inspection = inspect(provider)
    credentials = checked("credentials", inspection.identity)
    yield credentials
    if credentials.status != "ok":
        return
    try:
        catalog = CatalogCloud(infra.provider, infra.region, environment=environment, settings=settings)
        offer = catalog.offers_for(None, workers=(1, 1)).offers[0]
    except ConfigurationError as error:
        yield Check("VM type", "fail", str(error))
        return
    own = settings.launch_settings()
    if settings.leader_identity:  # so that what lets a command in to a leader's VM is checked, too
        own = replace(own, logins_from=(_SOMEWHERE,))
    zones = checked(
        "VM type", lambda: f"{offer.vm} in {', '.join(provider.zones(offer.vm, own))}", "name another region"
    )
    yield zones
    if zones.status != "ok":
        return
    zone = infra.zone or provider.zones(offer.vm, own)[0]
    request = _request(offer.vm, zone, environment, own)
    yield _permissions(inspection, request)
    yield checked("image", lambda: inspection.image(request), f"name another one in {IMAGE_VARIABLE}")
    yield checked("network", lambda: inspection.network(request), "see docs/clouds.md")
    yield check_quotas(
        provider,
        offer.vm,
        offer.cpus,
        lambda count: f"room for {plural(count, 'VM')} {offer.vm}",
        unknown=Check("quotas", "warn", "not known: the account may not read them", _DOCS),
        fix="a job needs two VMs: end others, or ask the cloud for more",
    )


def _request(vm: str, zone: str, environment: Mapping[str, str], settings: VmSettings) -> VmRequest:
    image = environment.get(IMAGE_VARIABLE, "")
    template = LaunchTemplate(3600.0, image=image, disk_gib=DISK_GIB, settings=settings)
    return VmRequest(VmTags("scavenger-doctor", str(uuid4()), "doctor", 0, 0), vm, zone, False, template)


def _permissions(inspection: Inspection, request: VmRequest) -> Check:
    try:
        denied = inspection.denied(request)
    except ConfigurationError as error:
        return Check("permissions", "warn", f"not checked: {error}")
    except ScavengerError as error:
        return Check("permissions", "warn", f"not checked: {error}", _DOCS)
    if not denied:
        return Check("permissions", "ok", "all that jobs need")
    if set(denied) <= set(_CONSOLE):
        found = f"no {', '.join(denied)}: jobs cannot tell why a VM failed"
        return Check("permissions", "warn", found, "allow it")
    return Check("permissions", "fail", f"no {', '.join(denied)}", f"allow them; {_DOCS}")


def _leader(infra: Infra, environment: Mapping[str, str]) -> Check | None:
    """Whether jobs are led by VMs of their own, or by pods; None if they are led by this machine."""
    if environment.get(ADDRESS_VARIABLE) or not infra.capabilities.leads:
        return None
    if infra.capabilities.pods:
        return inspect_leader(infra, environment)
    try:
        identity = settings_of(infra, environment).leader_identity
    except JobFileError:
        return None
    if not identity:
        return None
    if shutil.which("ssh") is None:
        return Check("leader", "fail", "there is no ssh", "install OpenSSH's client")
    return Check("leader", "ok", f"jobs are led by a VM of their own, as {identity}")


def _address(environment: Mapping[str, str]) -> Check:
    try:
        address, port = address_of(environment)
    except ConfigurationError as error:
        return Check(
            "address",
            "fail",
            str(error),
            f"set {ADDRESS_VARIABLE}, or see `leader: vm` in docs/clouds.md; on Kubernetes, "
            "leader_service_account in docs/kubernetes.md",
        )
    ports = f"ports {port} and {port + 1}" if port else "any two free ports"
    found = f"VMs join at {address}, {ports}"
    if ipaddress.ip_address(address).is_loopback:
        return Check("address", "warn", found, "VMs cannot reach a loopback address")
    if ipaddress.ip_address(address).is_private:
        found += "; it is private, so VMs must be in the same network"
    return Check("address", "ok", found)


def _package(environment: Mapping[str, str]) -> Check:
    """Whether this code can be packed for VMs; or pip can get what the user has named, where this machine looks."""
    requirement = environment.get(PACKAGE_VARIABLE, "")
    if not requirement:
        try:
            return Check("package", "ok", own_package().name)
        except ConfigurationError as error:
            return Check("package", "fail", str(error), "install Scavenger again")
    with tempfile.TemporaryDirectory(prefix="scavenger-doctor-") as folder:
        command = [
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--dest",
            folder,
            requirement,
        ]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", *command],
                capture_output=True,
                text=True,
                timeout=_PIP_MAX_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Check("package", "warn", f"{requirement}: not checked: {error}")
    if done.returncode == 0:
        return Check("package", "ok", requirement)
    if "No module named pip" in done.stderr:
        return Check("package", "warn", f"{requirement}: not checked, since there is no pip here")
    words = [line for line in done.stderr.splitlines() if line.strip()]
    why = words[-1].removeprefix("ERROR: ") if words else f"pip ended with status {done.returncode}"
    return Check(
        "package",
        "fail",
        f"{requirement}: {why}",
        f"name another one in {PACKAGE_VARIABLE}, or an image that has it",
    )
