"""A real Kubernetes control plane on the loopback interface: etcd, API server, controllers and scheduler.

Nodes and pods are played by `kubelet.py`. Every certificate is made for the run. Nothing listens on another address.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tests.cluster.binaries import folder

HOST = "127.0.0.1"
ADMIN, GROUP = "admin", "system:masters"
_UP_MAX_S = 90.0
_SERVICES = "10.231.0.0/16"
_ADDRESS_IN_CLUSTER = "10.231.0.1"
_DAY = datetime.timedelta(days=1)


@dataclass
class Certificates:
    """An authority of the run, and what it signs."""

    where: Path
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    _made: x509.Certificate | None = None

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        builder = self._builder(name, name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._made = builder.sign(self._key, hashes.SHA256())
        self._write("ca.crt", self._made.public_bytes(serialization.Encoding.PEM))

    def sign(
        self, user: str, group: str = "", *, server: bool = False, names: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """A certificate and its key, of a user in a group or of a server on the loopback interface, with more names."""
        assert self._made is not None
        key = ec.generate_private_key(ec.SECP256R1())
        words = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        words += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
        builder = self._builder(x509.Name(words), self._made.subject, key)
        use = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if server:
            addresses = [ipaddress.ip_address(one) for one in (HOST, _ADDRESS_IN_CLUSTER)]
            known = [x509.DNSName(name) for name in ("localhost", *names)]
            alternatives = x509.SubjectAlternativeName([*known, *map(x509.IPAddress, addresses)])
            builder = builder.add_extension(alternatives, critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        stem = user.replace(":", "-")
        return (
            self._write(f"{stem}.crt", made.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{stem}.key", _private(key)),
        )

    def _builder(self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )

    def account_key(self) -> Path:
        """The key by which tokens of service accounts are signed."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return self._write("accounts.key", _private(key))

    def _write(self, name: str, content: bytes) -> Path:
        path = self.where / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def _private(key: Any) -> bytes:
    kind = serialization.PrivateFormat.TraditionalOpenSSL
    return bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))


class ControlPlane:
    """The processes of one control plane; `running_control_plane` makes one.

    Attributes:
        url: Of the API server.
        certificates: Sign further users.
    """

    def __init__(self, where: Path) -> None:
        self._where, self.certificates = where, Certificates(where)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self.port = 0
        self.url = ""

    def start(self) -> None:
        """Start all, and wait until the API server answers.

        Raises:
            RuntimeError: If one of them ends.
        """
        etcd, peer, self.port, controlling, scheduling = _free_ports(5)
        self.url = f"https://{HOST}:{self.port}"
        signed, key = self.certificates.sign("server", server=True)
        accounts = self.certificates.account_key()
        authority = self._where / "ca.crt"
        etcd_url = f"http://{HOST}:{etcd}"
        self._run(
            "etcd",
            "etcd",
            f"--data-dir={self._where / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://{HOST}:{peer}",
            "--unsafe-no-fsync",  # what is written is lost with the test: nothing needs to be on the disk
            "--log-level=error",
            "--logger=zap",
        )
        self._run(
            "kube-apiserver",
            str(folder() / "kube-apiserver"),
            f"--etcd-servers={etcd_url}",
            f"--bind-address={HOST}",
            f"--secure-port={self.port}",
            f"--advertise-address={HOST}",
            "--insecure-port=0",
            f"--tls-cert-file={signed}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={authority}",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--service-account-issuer=https://tests.invalid",
            f"--service-cluster-ip-range={_SERVICES}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self._where}",
            "--profiling=false",
            "--event-ttl=1h",
        )
        self._until_ready()
        common = ("--leader-elect=false", f"--bind-address={HOST}", "--port=0", f"--cert-dir={self._where}")
        self._run(
            "kube-controller-manager",
            str(folder() / "kube-controller-manager"),
            *common,
            f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
            f"--secure-port={controlling}",
            "--controllers=*,-nodeipam,-cloud-node-lifecycle,-route,-service,-persistentvolume-binder",
            f"--service-account-private-key-file={accounts}",
            f"--root-ca-file={authority}",
            "--use-service-account-credentials=false",
            "--node-monitor-period=500ms",
            "--node-monitor-grace-period=4s",  # a node is lost within seconds, not minutes
            "--pod-eviction-timeout=2s",
            "--resource-quota-sync-period=2s",
            "--horizontal-pod-autoscaler-sync-period=1s",
        )
        self._run(
            "kube-scheduler",
            str(folder() / "kube-scheduler"),
            *common,
            f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}",
            f"--secure-port={scheduling}",
        )
        _until(
            lambda: self.core().read_namespaced_service_account("default", "default"), "the default account"
        )

    def _until_ready(self) -> None:
        def ready() -> object:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {self.log(name)[-2000:]}")
            return self.core().list_namespace()

        _until(ready, "the API server")

    def kubeconfig(
        self, user: str = ADMIN, group: str = GROUP, *, context: str = "tests", url: str = ""
    ) -> Path:
        """A file by which a user of a group reaches the API server."""
        signed, key = self.certificates.sign(user, group)
        path = self._where / f"{user.replace(':', '-')}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "contexts": [
                {"name": context, "context": {"cluster": "tests", "user": user, "namespace": "default"}}
            ],
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {
                        "server": url or self.url,
                        "certificate-authority-data": _text(self._where / "ca.crt"),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate-data": _text(signed), "client-key-data": _text(key)},
                }
            ],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    def api(self, user: str = ADMIN, group: str = GROUP) -> client.ApiClient:
        """A client of the API server."""
        from kubernetes import config

        return config.new_client_from_config(str(self.kubeconfig(user, group)))

    def core(self) -> client.CoreV1Api:
        """The administrator's client of the core API."""
        if not hasattr(self, "_core"):
            self._core = client.CoreV1Api(self.api())
        return self._core

    def stop(self, name: str) -> None:
        """End one of the programs, as with its machine."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        """What a program has written."""
        return (self._where / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """End all."""
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def _run(self, name: str, *command: str) -> None:
        self._commands[name] = command
        with (self._where / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "GOMAXPROCS": "2", "ETCD_UNSUPPORTED_ARCH": "arm64"},
                start_new_session=True,
            )


@contextlib.contextmanager
def running_control_plane(where: Path) -> Iterator[ControlPlane]:
    """A control plane for a while, with its files in a folder."""
    plane = ControlPlane(where)
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


def _until(ask: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _UP_MAX_S
    while True:
        try:
            ask()
            return
        except (ApiException, HTTPError, OSError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} is not there after {_UP_MAX_S:g} s: {error}") from error
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
