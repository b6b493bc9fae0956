"""The pod of a leader: started with all that it needs in one secret, and reached through the API server.

The secret owns the pod, and is named to it as the owner of all that it starts: deleting the secret ends all of it, by
the cluster's own garbage collection. A pod whose folder is on a volume that was kept can be started again, and goes on
with it.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scavenger.cloud.kubernetes.adapter import POD_OWNER
from scavenger.control.leading.configuration import (
    CERTIFICATE,
    CONFIGURATION,
    KEY,
    PACKED_JOB,
    LeaderConfiguration,
    sent_files,
)
from scavenger.control.leading.pod_tunnel import POD_PORT, PodTunnel, through_api_server
from scavenger.control.leading.record import LeaderRecord
from scavenger.control.leading.seat import Seat, job_archive
from scavenger.control.leading.start import LeaderStart
from scavenger.control.provisioning import providers
from scavenger.control.provisioning.clean_up import Leftover
from scavenger.control.provisioning.leader_meter import leader_text
from scavenger.control.settings import cloud_settings
from scavenger.domain.elastic_job import LEADER, ROLE_LABEL
from scavenger.domain.vm import VmSeen
from scavenger.errors import ConfigurationError, GoneError, StockOutError, TransientError

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

SECRET_BYTES_MAX = 1_000_000
"""Of a secret, of which the API server takes 1 MiB."""
FILES = "/run/scavenger-leader"
"""Where the secret is mounted."""
_COMMAND = ("python3", "-P", "-m", "scavenger.server.on_leader")
_LOOK_S, _GONE_S = 0.5, 90.0


def pod_name(record: LeaderRecord) -> str:
    """The name of a leader's pod, and of its secret."""
    return f"scavenger-leader-{record.id}"


class PodSeat(Seat):
    """The pod of one leader."""

    kind = "pod"
    beginning = "starting the leader's pod"
    leading_states = ("pending", "running", "stopping")
    """One that is being ended leads until it is gone: it may be writing the job's last checkpoint."""

    @property
    def folder(self) -> str:
        from scavenger.cloud.kubernetes.leader import LEADER_FOLDER

        return f"{LEADER_FOLDER}/leaders/{self.record.id}"

    @cached_property
    def provider(self) -> KubernetesProvider:
        """The cluster, with the namespace of the pod."""
        if self._provider is not None:
            return cast("KubernetesProvider", self._provider)
        record = self.record
        settings = cloud_settings(record.provider, self.environment)
        settings = settings.model_copy(update={"namespace": record.namespace})
        found = providers.open_provider(record.provider, record.region, self.environment, settings)
        return cast("KubernetesProvider", found)

    @property
    def _name(self) -> str:
        return pod_name(self.record)

    # ---- its beginning -------------------------------------------------------------------------------------

    def prepare(self, start: LeaderStart) -> Callable[[str], None]:
        with closing(job_archive(start)) as archive:
            packed = gzip.compress(archive.read(0, archive.bytes), mtime=0)

        def begin(token: str) -> None:
            with self.open_store() as store:
                owner = store.installation()
            files = self._files(start, packed, owner, token)
            self.provider.drop_secret(self._name)  # with all that an earlier pod of the record has left
            secret = self.provider.keep_secret(self._name, files, owner=owner)
            self.provider.keep_pod(self._body(start, secret, owner))
            self._await_running(start.prepared.job.limits.vms)

        return begin

    def _files(self, start: LeaderStart, packed: bytes, owner: str, token: str) -> dict[str, str]:
        """All that the pod is told.

        Raises:
            ConfigurationError: It is too large.
        """
        plan, host = start.resources.leader, self.provider.api.configuration.host
        assert plan is not None
        now_s = datetime.datetime.now(datetime.UTC).timestamp()
        hosts = ((urlsplit(host).hostname or "").lower(),)
        sent = sent_files(
            start,
            LeaderConfiguration(owner, POD_PORT, folder=self.folder, hosts=hosts),
            self.environment,
            address="",
            leader=leader_text(plan.offer.vm, plan.usd_per_hour, now_s),
            folder=FILES,
            token=token,
        )
        certificate, key = _certificate()
        files = {
            **{name: data.decode() for name, data in sent.items()},
            PACKED_JOB: base64.b64encode(packed).decode(),
            CERTIFICATE: certificate,
            KEY: key,
        }
        size = sum(map(len, files.values()))
        if size > SECRET_BYTES_MAX:
            raise ConfigurationError(
                f"the job's folder takes {size // 1000} kB when it is packed, and a leader's pod is sent at most "
                f"{SECRET_BYTES_MAX // 1000}: keep data in an object store or in the image, and code beside the job "
                "file",
                key="leader",
            )
        return files

    def _body(self, start: LeaderStart, secret_uid: str, tag: str) -> dict[str, Any]:
        from scavenger.cloud.kubernetes.leader import LeaderPod, Mounted, leader_pod
        from scavenger.cloud.kubernetes.pods import leader_labels
        from scavenger.cloud.kubernetes.shapes import PodShape

        plan = start.resources.leader
        assert plan is not None
        owner = {"apiVersion": "v1", "kind": "Secret", "name": self._name, "uid": secret_uid}
        _, template = start.resources.leader_placement
        body = leader_pod(
            LeaderPod(
                name=self._name,
                command=(*_COMMAND, f"{FILES}/{CONFIGURATION}"),
                image=template.image,
                service_account=start.resources.leader_identity,
                labels={ROLE_LABEL: LEADER, **leader_labels(tag, plan.offer.vm, template.run_max_s)},
                owner=owner,
                variables={POD_OWNER: json.dumps(owner)},
                mounted=(Mounted(FILES, "secret", self._name),),
                claim=self.record.claim,
                shape=PodShape.parse(plan.offer.vm),
            ),
            self.provider.settings,
        )
        body["spec"]["activeDeadlineSeconds"] = int(template.run_max_s)
        return body

    def _await_running(self, wait_max_s: float) -> None:
        """Wait until the pod runs.

        Raises:
            StockOutError: No node has room for it in time.
            TransientError: It ends at once.
        """
        until_s = self.clock() + wait_max_s
        while True:
            phase, why = self.provider.phase_of(self._name)
            if phase == "Running":
                return
            if phase != "Pending":
                raise TransientError(f"the leader's pod has ended: {why or phase}")
            if self.clock() > until_s:
                raise StockOutError(f"the leader's pod: {why or 'it does not begin'}")
            self.sleep(_LOOK_S)

    # ---- while it leads ------------------------------------------------------------------------------------

    def tunnel(self, *, here: int = 0) -> AbstractContextManager[PodTunnel]:
        return through_api_server(self.provider.api, self.record.namespace, self._name, here=here)

    def look(self) -> Literal["there", "gone"]:
        try:
            phase, _ = self.provider.phase_of(self._name)
        except GoneError:
            return "gone"
        return "there" if phase in ("Pending", "Running") else "gone"

    # ---- its end -------------------------------------------------------------------------------------------

    def is_leader(self, vm: VmSeen) -> bool:
        return vm.instance_id == self._name

    def listed(self, owner: str) -> tuple[VmSeen, ...]:
        rented = self.provider.list_owned(owner)
        try:
            return (*rented, self.provider.describe(self._name, ""))
        except GoneError:
            return rented

    def clear(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        return self.end() if leftovers else ()  # all of them, as its secret owns them

    def end(self) -> tuple[str, ...]:
        with self.open_store() as store:
            owner = store.installation()
        self.provider.end_pod(self._name)
        for seen in self.provider.list_owned(owner):
            self.provider.terminate(seen.instance_id, seen.zone)
        self.provider.drop_secret(self._name)
        until_s = self.clock() + _GONE_S
        while True:
            left = [seen.instance_id for seen in self.provider.list_owned(owner) if seen.state != "gone"]
            left += [self._name] if self.look() == "there" else []
            if not left:
                self.provider.remove_leftovers(owner)
                return ()
            if self.clock() > until_s:
                return tuple(f"pod {name} in {self.record.namespace}" for name in left)
            self.sleep(_LOOK_S)


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
