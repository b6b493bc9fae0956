"""The pod that leads a job: started with all that it needs in one secret, looked at, and ended with what it started.

The secret owns the pod, and is named to it as the owner of all that it starts: deleting the secret ends all of it, by
the cluster's own garbage collection. As long as the secret is there, the same pod can be started again, and goes on
with its folder if that is on a volume that was kept.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scavenger.control.jobs.variables import secrets_of
from scavenger.control.leading.configuration import (
    POD_FILES,
    POD_VARIABLE,
    PodLeaderConfiguration,
    environment_there,
    job_there,
)
from scavenger.control.leading.pod_tunnel import POD_PORT
from scavenger.control.leading.record import LeaderRecord
from scavenger.control.leading.start import Start
from scavenger.control.provisioning.clean_up import Leftover
from scavenger.control.provisioning.leader_meter import leader_text
from scavenger.control.provisioning.providers import POD_OWNER
from scavenger.domain.access import TOKEN_PREFIX
from scavenger.domain.elastic_job import LEADER, ROLE_LABEL
from scavenger.domain.vm import VmSeen
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError, GoneError, StockOutError, TransientError
from scavenger.store import Store
from scavenger.train.engines.vm.job_archive import Archive

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

SECRET_BYTES_MAX = 1_000_000
"""Of a secret, of which the API server takes 1 MiB."""
_COMMAND = ("python3", "-P", "-m", "scavenger.server.on_leader_pod")
_FILES = "/run/scavenger-leader"
_LOOK_S, _GONE_S = 0.5, 90.0


def pod_name(record: LeaderRecord) -> str:
    """The name of a leader's pod, and of its secret."""
    return f"scavenger-leader-{record.id}"


def leader_secret(
    start: Start, record: LeaderRecord, environment: Mapping[str, str], *, owner: str, host: str
) -> tuple[dict[str, str], str]:
    """All that a leader's pod is told, by the names of files, and the token of its API.

    Args:
        start: The job.
        environment: Of the command, which has the job's secrets.
        owner: Tag of what it starts.
        host: The API server's URL.

    Raises:
        ConfigurationError: If the job's folder is too large.
    """
    prepared, token = start.prepared, TOKEN_PREFIX + secrets.token_urlsafe(32)
    configuration = PodLeaderConfiguration(
        id=record.id,
        owner=owner,
        port=POD_PORT,
        idle_s=prepared.job.limits.leader,
        hosts=((urlsplit(host).hostname or "").lower(),),
        recover=start.recover,
        job_id=start.job_id,
        audit=start.audit,
        priority=start.priority,
    )
    document = job_there(prepared.job, start.resources.settings, folder=_FILES, aside_usd=start.aside_usd)
    certificate, key = _certificate()
    files = {
        POD_FILES.configuration: msgspec.json.encode(configuration).decode(),
        POD_FILES.job: _packed(prepared.folder, prepared.folder / prepared.job.output),
        POD_FILES.document: json.dumps(document),
        POD_FILES.environment: json.dumps(secrets_of(prepared.job, environment)),
        POD_FILES.token: token,
        POD_FILES.certificate: certificate,
        POD_FILES.key: key,
    }
    size = sum(map(len, files.values()))
    if size > SECRET_BYTES_MAX:
        raise ConfigurationError(
            f"the job's folder takes {size // 1000} kB when it is packed, and a leader's pod is sent at most "
            f"{SECRET_BYTES_MAX // 1000}: keep data in an object store or in the image, and code beside the job file",
            key="leader",
        )
    return files, token


def _packed(folder: Path, output: Path) -> str:
    archive = Archive(folder, leave_out=(output,))
    try:
        return base64.b64encode(gzip.compress(archive.read(0, archive.bytes), mtime=0)).decode()
    finally:
        archive.close()


def _certificate() -> tuple[str, str]:
    """A certificate that nobody looks at, with its key: what the API server sends a pod is sealed by it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scavenger-leader")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


@dataclass(frozen=True, slots=True)
class PodsCleanUp:
    """Ends what a leader's pod has left, as `CleanUp` does for VMs."""

    pod: LeaderOfPods
    owner: str

    def end(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        """End all of it, if any is to be ended; returns a line for each pod that may be left."""
        return self.pod.end(self.owner) if leftovers else ()


class LeaderOfPods:
    """The pod of one leader.

    Args:
        provider: The cluster, with the namespace of its pods.
        sleep: How to wait, seconds.
    """

    def __init__(
        self,
        provider: KubernetesProvider,
        record: LeaderRecord,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._provider, self._record, self._sleep = provider, record, sleep
        self._name = pod_name(record)

    def start(
        self, start: Start, files: Mapping[str, str], environment: Mapping[str, str], *, owner: str
    ) -> None:
        """Create the secret and the pod, or find them, and wait until the pod runs.

        Args:
            start: The job.
            files: See `leader_secret`.
            environment: Of the command.
            owner: Tag of what the leader starts.

        Raises:
            StockOutError: No node has room for it within `limits.vms`.
            TransientError: It ends at once.
        """
        secret = self._provider.keep_secret(self._name, dict(files), owner=owner)
        self._provider.keep_pod(self._body(start, secret, environment, owner))
        until_s = time.monotonic() + start.prepared.job.limits.vms
        while True:
            phase, why = self._provider.phase_of(self._name)
            if phase == "Running":
                return
            if phase != "Pending":
                raise TransientError(f"the leader's pod has ended: {why or phase}")
            if time.monotonic() > until_s:
                raise StockOutError(f"the leader's pod: {why or 'it does not begin'}")
            self._sleep(_LOOK_S)

    def _body(
        self, start: Start, secret_uid: str, environment: Mapping[str, str], tag: str
    ) -> dict[str, Any]:
        from scavenger.cloud.kubernetes.leader import LeaderPod, Mounted, leader_pod
        from scavenger.cloud.kubernetes.pods import leader_labels
        from scavenger.cloud.kubernetes.shapes import PodShape

        resources = start.resources
        plan, settings = resources.leader, resources.settings
        assert plan is not None
        assert isinstance(settings, KubernetesSettings)
        owner = {"apiVersion": "v1", "kind": "Secret", "name": self._name, "uid": secret_uid}
        leader = leader_text(
            plan.offer.vm, plan.usd_per_hour, datetime.datetime.now(datetime.UTC).timestamp()
        )
        variables = environment_there(environment, address="", leader=leader, folder=_FILES, prices=False)
        variables.pop("SCAVENGER_ADDRESS", None)  # the pod's own
        _, template = resources.leader_placement
        body = leader_pod(
            LeaderPod(
                name=self._name,
                command=_COMMAND,
                image=template.image,
                service_account=resources.leader_identity,
                labels={ROLE_LABEL: LEADER, **leader_labels(tag, plan.offer.vm, template.run_max_s)},
                owner=owner,
                variables={**variables, POD_VARIABLE: _FILES, POD_OWNER: json.dumps(owner)},
                mounted=(Mounted(_FILES, "secret", self._name),),
                claim=self._record.claim,
                shape=PodShape.parse(plan.offer.vm),
            ),
            self._provider.settings,
        )
        body["spec"]["activeDeadlineSeconds"] = int(template.run_max_s)
        return body

    def state(self) -> Literal["there", "gone"]:
        """Whether the pod is there.

        Raises:
            CloudError: The cluster does not tell.
        """
        try:
            phase, _ = self._provider.phase_of(self._name)
        except GoneError:
            return "gone"
        return "there" if phase in ("Pending", "Running") else "gone"

    def leftovers(
        self, store: Store, *, used: bool, ending: bool
    ) -> tuple[PodsCleanUp, tuple[Leftover, ...]] | None:
        """What no job uses of the pod and of those that it started; None while it leads a job, or is about to.

        A pod that is being ended leads until it is gone: it may be writing the job's last checkpoint.

        Args:
            store: Of this leader alone.
            used: Whether a job was submitted to it.
            ending: Whether it was to be ended before.

        Raises:
            CloudError: The cluster does not list them.
        """
        owner, leader = store.installation(), self._seen()
        if not ending and ((leader is not None and used) or store.running_jobs()):
            return None
        reason = "its leader is gone" if leader is None else "it leads no job"
        vms = [*self._provider.list_owned(owner), *(() if leader is None else (leader,))]
        here = (self._provider.name, self._provider.region)
        found = tuple(
            Leftover(*here, vm, "its end had failed" if ending else reason)
            for vm in vms
            if vm.state != "gone"
        )
        return PodsCleanUp(self, owner), found

    def _seen(self) -> VmSeen | None:
        """The pod; None if it is gone, or has ended."""
        try:
            seen = self._provider.describe(self._name, "")
        except GoneError:
            return None
        return None if seen.state == "gone" else seen

    def end(self, owner: str) -> tuple[str, ...]:
        """End the pod and all that it has started; returns a line for each pod that may be left.

        Raises:
            CloudError: The cluster does not answer.
        """
        self._provider.end_pod(self._name)
        for seen in self._provider.list_owned(owner):
            self._provider.terminate(seen.instance_id, seen.zone)
        self._provider.drop_secret(self._name)
        until_s = time.monotonic() + _GONE_S
        while True:
            left = [seen.instance_id for seen in self._provider.list_owned(owner) if seen.state != "gone"]
            left += [self._name] if self.state() == "there" else []
            if not left:
                self._provider.remove_leftovers(owner)
                return ()
            if time.monotonic() > until_s:
                return tuple(f"pod {name} in {self._record.namespace}" for name in left)
            self._sleep(_LOOK_S)
