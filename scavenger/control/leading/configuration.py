"""What a leader's VM is told by its command: `leader.json`, the job file for that machine, and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scavenger.cloud.boot.boot import PACKAGE_VARIABLE
from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE
from scavenger.control.provisioning.cloud_resources import ADDRESS_VARIABLE, IMAGE_VARIABLE, UNPROVEN_VARIABLE
from scavenger.control.provisioning.leader_meter import LEADER_VARIABLE
from scavenger.control.provisioning.providers import GCP_PROJECT
from scavenger.domain.job import JobSpec
from scavenger.domain.vm_settings import CloudSettings

PASSED_ON = (
    PACKAGE_VARIABLE,
    IMAGE_VARIABLE,
    UNPROVEN_VARIABLE,
    GCP_PROJECT,
    ENDPOINT_VARIABLE,
    *(f"AWS_ENDPOINT_URL{service}" for service in ("", "_EC2", "_SSM", "_SERVICE_QUOTAS", "_S3")),
)
"""Environment variables that a leader has from its command; none of them is a secret."""
PRICES = "prices.yaml"
"""The user's prices, beside `leader.json`."""
_IDENTITY_FILES = {
    "identity_certificate": "identity_certificate.pem",
    "identity_certificates": "identity_certificates.json",
}
"""Settings that name a file, and what the file is called beside `leader.json`."""


class LeaderConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the leader is told.

    Attributes:
        owner: Tag of the VMs that it rents, which its own VM has, too.
        port: Of the API, on the loopback.
        idle_s: Ends after so long without anything to do.
        environment: Variables of itself and its jobs.
        recover: URL of the checkpoints of a job that goes on; empty for none.
    """

    owner: str
    port: int
    idle_s: float
    environment: dict[str, str]
    recover: str = ""


class _PodFiles(NamedTuple):
    configuration: str = "leader.json"
    job: str = "job.tar.gz.base64"
    document: str = "job.yaml"
    environment: str = "environment.json"
    token: str = "token"  # noqa: S105 - a file's name
    certificate: str = "certificate.pem"
    key: str = "key.pem"


POD_FILES = _PodFiles()
"""Keys of the secret of a leader's pod, and files where it is mounted."""
POD_VARIABLE = "SCAVENGER_LEADER_FILES"
"""Environment variable of a leader's pod: the folder where its secret is mounted."""


class PodLeaderConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a leader's pod is told.

    Attributes:
        id: Of its record; also the key by which its job is submitted once.
        owner, port, idle_s, recover: See `LeaderConfiguration`; the port is of the pod, and speaks TLS.
        hosts: Names under which the API server is addressed, which it passes on.
        job_id: The job that goes on from `recover`; empty for a new one.
        audit, priority: See `new_submission`.
    """

    id: str
    owner: str
    port: int
    idle_s: float
    hosts: tuple[str, ...]
    recover: str = ""
    job_id: str = ""
    audit: bool = False
    priority: int = 0


def environment_there(
    environment: Mapping[str, str], *, address: str, leader: str, folder: str, prices: bool
) -> dict[str, str]:
    """Environment variables of a leader.

    Args:
        environment: The command's.
        address: Of the leader's VM among VMs.
        leader: Its type, price and time of launch, see `leader_text`.
        folder: Where its files are.
        prices: Whether the user's prices are among them.
    """
    passed = {name: environment[name] for name in PASSED_ON if environment.get(name)}
    own = {ADDRESS_VARIABLE: address, LEADER_VARIABLE: leader}
    return {**passed, **own, **({"SCAVENGER_PRICES": f"{folder}/{PRICES}"} if prices else {})}


def identity_files(settings: CloudSettings) -> dict[str, Path]:
    """The files that settings name by which VMs prove who they are: where they are here, by their names there."""
    named = {name: str(getattr(settings, key, "")) for key, name in _IDENTITY_FILES.items()}
    return {name: Path(path).expanduser() for name, path in named.items() if path}


def job_there(
    job: JobSpec, settings: CloudSettings, *, folder: str, aside_usd: float = 0.0
) -> dict[str, Any]:
    """The job file on a leader's VM, which holds all settings, has no other place to write to, and leads there.

    Args:
        job: As the command has it, with the options of the command line.
        settings: Those of its VMs: the job's own over those of the settings file.
        folder: Where the leader's files are.
        aside_usd: What of the budget is set aside for the time after the end of the job, which no bill there counts.
    """
    document = {key: value for key, value in job.written().items() if key not in ("leader", "output")}
    given = settings.model_dump(mode="json", exclude_unset=True)
    for key in ("leader_profile", "leader_service_account", "leader_claim"):
        given.pop(key, None)
    given |= {key: f"{folder}/{name}" for key, name in _IDENTITY_FILES.items() if given.get(key)}
    place = job.infra.provider if job.infra.capabilities.pods else str(job.infra)  # a pod is in its cluster
    checkpoint = document.get("checkpoint")
    if checkpoint and "://" not in str(checkpoint.get("path", "")):
        document["checkpoint"] = {**checkpoint, "path": "./checkpoints"}
    if job.constraints.budget is not None:
        budget = job.constraints.budget - aside_usd
        document["constraints"] = {**document["constraints"], "budget": budget}
    return {**document, "infra": {"at": place, **given} if given else place, "leader": "here"}
