"""What a leader is sent by its command: `leader.json`, the job file for that machine, and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from scavenger.cloud.boot.boot import PACKAGE_VARIABLE
from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE, PROJECT_VARIABLE
from scavenger.control.leading.start import LeaderStart
from scavenger.control.places.launching import ADDRESS_VARIABLE, IMAGE_VARIABLE, UNPROVEN_VARIABLE
from scavenger.control.provisioning.leader_meter import LEADER_VARIABLE
from scavenger.control.provisioning.prices import PRICES_VARIABLE
from scavenger.domain.job import JobSpec
from scavenger.domain.vm_settings import CloudSettings

PASSED_ON = (
    PACKAGE_VARIABLE,
    IMAGE_VARIABLE,
    UNPROVEN_VARIABLE,
    PROJECT_VARIABLE,
    ENDPOINT_VARIABLE,
    *(f"AWS_ENDPOINT_URL{service}" for service in ("", "_EC2", "_SSM", "_SERVICE_QUOTAS", "_S3")),
)
"""Environment variables that a leader has from its command; none of them is a secret."""
CONFIGURATION, DOCUMENT, TOKEN, PRICES = "leader.json", "job.yaml", "token", "prices.yaml"
"""Files that a leader is sent: what it is told, the job file, its API's token, and the user's prices."""
PACKED_JOB, CERTIFICATE, KEY = "job.tar.gz.base64", "certificate.pem", "key.pem"
"""Those of a pod alone: the job's folder, and what its API speaks TLS with."""
_IDENTITY_FILES = {
    "identity_certificate": "identity_certificate.pem",
    "identity_certificates": "identity_certificates.json",
}
"""Settings that name a file, and what the file is called beside `leader.json`."""


class LeaderConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the leader is told.

    Attributes:
        owner: Tag of the VMs that it rents, which its own VM has, too.
        port: Of the API: on the loopback of a VM; of a pod, where it speaks TLS.
        idle_s: Ends after so long without anything to do.
        environment: Variables of itself and its jobs.
        recover: URL of the checkpoints of a job that goes on; empty for none.
        folder: For the job, the store and the outputs; empty for that of `leader.json`.
        hosts: Names under which the API server addresses a pod; empty on a VM.
    """

    owner: str
    port: int
    idle_s: float = 0.0
    environment: dict[str, str] = {}
    recover: str = ""
    folder: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def in_pod(self) -> bool:
        """Whether a pod leads, whose processes all end with the first, and which ends with its secret."""
        return bool(self.hosts)


def sent_files(
    start: LeaderStart,
    told: LeaderConfiguration,
    environment: Mapping[str, str],
    *,
    address: str,
    leader: str,
    folder: str,
    token: str,
) -> dict[str, bytes]:
    """What a leader is sent beside the job's folder, by the names of files.

    Args:
        start: The job.
        told: Whose it is and where it serves; the rest is filled in from the job.
        environment: The command's.
        address, leader: See `environment_there`.
        folder: Where the files are there.
        token: Of its API.
    """
    job, settings = start.prepared.job, start.resources.settings
    prices = environment.get(PRICES_VARIABLE)
    configuration = msgspec.structs.replace(
        told,
        idle_s=job.limits.leader,
        environment=environment_there(
            environment, address=address, leader=leader, folder=folder, prices=bool(prices)
        ),
        recover=start.recover,
    )
    document = job_there(job, settings, folder=folder, aside_usd=start.aside_usd)
    return {
        CONFIGURATION: msgspec.json.encode(configuration),
        DOCUMENT: msgspec.json.encode(document),
        TOKEN: token.encode(),
        **({PRICES: Path(prices).read_bytes()} if prices else {}),
        **{name: path.read_bytes() for name, path in identity_files(settings).items()},
    }


def environment_there(
    environment: Mapping[str, str], *, address: str, leader: str, folder: str, prices: bool
) -> dict[str, str]:
    """Environment variables of a leader.

    Args:
        environment: The command's.
        address: At which VMs reach the leader; empty for one that its pod says.
        leader: Its type, price and time of launch, see `leader_text`.
        folder: Where its files are.
        prices: Whether the user's prices are among them.
    """
    passed = {name: environment[name] for name in PASSED_ON if environment.get(name)}
    own = {**({ADDRESS_VARIABLE: address} if address else {}), LEADER_VARIABLE: leader}
    return {**passed, **own, **({PRICES_VARIABLE: f"{folder}/{PRICES}"} if prices else {})}


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
