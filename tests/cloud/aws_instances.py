"""moto's EC2 instances, given a life in time.

Pending, running, shutting-down, terminated, forgotten; reclaimed by the cloud, or ended by the time limit in their user
data, which is read as cloud-init would read it.
"""

from __future__ import annotations

import base64
import email
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aws_imds import Imds
from identity_documents import Signer, identity_document
from moto.ec2.models import ec2_backends

ACCOUNT, REGION = "123456789012", "us-east-1"
FORGET_S = 3_600.0
STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@dataclass(slots=True)
class Life:
    """When what happens to an instance, in seconds of the server."""

    born_s: float
    limit_s: float | None
    asked_s: float | None = None
    """When it began to shut down."""
    interrupted_s: float | None = None
    """When a spot VM is taken back, once that is announced."""
    rebalance_s: float | None = None
    """When a rebalance was recommended."""


class Instances:
    """Of one account in one region.

    Attributes:
        now_s, began: The cloud's time since it began, and when that was.
        boot_s, stop_s: How long a VM takes to be up, and to be gone.
    """

    boot_s, stop_s = 40.0, 50.0

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lives: dict[str, Life] = {}
        self._forgotten: dict[str, Any] = {}
        self._roles: dict[str, str] = {}  # of VMs with an instance profile, which has the name of its role
        self.clear()

    def clear(self) -> None:
        """None, at time 0. moto's own reset takes longer than a test: it makes every default image and network."""
        backend = ec2_backends[ACCOUNT][REGION]
        backend.reservations.clear()
        backend.volumes.clear()
        backend.key_pairs.clear()
        for groups in backend.groups.values():
            for key, group in list(groups.items()):
                if group.name != "default":
                    del groups[key]
        self.now_s = 0.0
        self.began = datetime.now(UTC).replace(microsecond=0)
        self._lives.clear()
        self._forgotten.clear()

    def advance(self, seconds: float) -> None:
        """Let time go by, in which every VM lives on."""
        with self._lock:
            self.now_s += seconds
            self._settle()

    def instances(self) -> dict[str, Any]:
        """moto's instances by id, the forgotten ones with them."""
        with self._lock:
            self._settle()
            return {**self._forgotten, **self._known()}

    def volumes(self) -> list[Any]:
        """moto's disks."""
        return list(ec2_backends[ACCOUNT][REGION].volumes.values())

    def life(self, instance_id: str) -> Life:
        """When what happened to an instance."""
        return self._lives[instance_id]

    def grounds(self) -> tuple[str, ...]:
        """Security groups and keys that somebody made, and disks."""
        backend = ec2_backends[ACCOUNT][REGION]
        groups = [group for by_id in backend.groups.values() for group in by_id.values()]
        return (
            *(f"security group {group.name}" for group in groups if group.name != "default"),
            *(f"key {name}" for name in backend.key_pairs),
            *(f"disk {disk.id}" for disk in self.volumes()),
        )

    def reclaim(self, instance_id: str) -> None:
        """Take a spot VM back."""
        self._shut_down(instance_id, "Server.SpotInstanceTermination", "Spot instance termination")

    def end_by_hand(self, instance_id: str) -> None:
        """End a VM as from the console."""
        self._shut_down(instance_id, "Client.UserInitiatedShutdown", "User initiated shutdown")

    def interrupt(self, instance_id: str, *, in_s: float = 120.0) -> None:
        """Announce to a spot VM that it is taken back, and do so then."""
        self._lives[instance_id].interrupted_s = self.now_s + in_s

    def recommend_rebalance(self, instance_id: str) -> None:
        """Tell a VM that it is at risk."""
        self._lives[instance_id].rebalance_s = self.now_s

    def imds(self, instance_id: str, host: str = "127.0.0.1") -> Imds:
        """The metadata service as this VM sees it; the caller closes it."""
        life = self._lives[instance_id]

        def at(moment_s: float | None) -> datetime | None:
            return None if moment_s is None else self._at(moment_s)

        return Imds(
            self.now,
            lambda: at(life.interrupted_s),
            lambda: at(life.rebalance_s),
            host,
            lambda: identity_document(Signer.of_tests(), self._identity(instance_id)),
            self._roles.get(instance_id, ""),
        )

    def _identity(self, instance_id: str) -> dict[str, Any]:
        instance = self._known()[instance_id]
        return {
            "accountId": ACCOUNT,
            "architecture": "x86_64",
            "availabilityZone": instance.placement.zone,
            "billingProducts": None,
            "imageId": instance.image_id,
            "instanceId": instance_id,
            "instanceType": instance.instance_type,
            "pendingTime": f"{self._at(self._lives[instance_id].born_s):%Y-%m-%dT%H:%M:%SZ}",
            "privateIp": str(instance.private_ip),
            "region": REGION,
            "version": "2017-09-30",
        }

    def _known(self) -> dict[str, Any]:
        backend = ec2_backends[ACCOUNT][REGION]
        return {
            instance.id: instance
            for reservation in backend.reservations.values()
            for instance in reservation.instances
        }

    def now(self) -> datetime:
        """The cloud's time."""
        return self._at(self.now_s)

    def _at(self, now_s: float) -> datetime:
        return self.began + timedelta(seconds=now_s)

    def _settle(self) -> None:
        backend = ec2_backends[ACCOUNT][REGION]
        for instance_id, instance in self._known().items():
            life = self._lives.setdefault(instance_id, Life(self.now_s, None))
            up_s = life.born_s + self.boot_s
            if life.asked_s is None and life.limit_s is not None and self.now_s >= up_s + life.limit_s:
                if instance.instance_initiated_shutdown_behavior == "terminate":
                    self._shut_down(
                        instance_id, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"
                    )
                    life.asked_s = up_s + life.limit_s
                else:
                    _set_state(instance, "stopped")
                    continue
            if life.asked_s is None and life.interrupted_s is not None and self.now_s >= life.interrupted_s:
                self._shut_down(instance_id, "Server.SpotInstanceTermination", "Spot instance termination")
                life.asked_s = life.interrupted_s
            if life.asked_s is None:
                _set_state(instance, "running" if self._is_up(instance_id, life) else "pending")
                continue
            over = self._is_over(instance_id, life)
            _set_state(instance, "terminated" if over else "shutting-down")
            if over and self.now_s >= life.asked_s + self.stop_s + FORGET_S:
                self._forgotten[instance_id] = instance
                for key, reservation in list(backend.reservations.items()):
                    if reservation.instances == [instance]:
                        del backend.reservations[key]

    def _begin(self, instance: Any, user_data: str) -> None:
        """A new VM's life; `user_data` in base64."""
        self._lives[instance.id] = Life(self.now_s, limit_s(user_data))

    def _is_up(self, instance_id: str, life: Life) -> bool:
        return self.now_s >= life.born_s + self.boot_s

    def _is_over(self, instance_id: str, life: Life) -> bool:
        """Of one that is asked to end."""
        assert life.asked_s is not None
        return self.now_s >= life.asked_s + self.stop_s

    def _shut_down(self, instance_id: str, code: str, message: str) -> None:
        with self._lock:
            instance = self._known()[instance_id]
            life = self._lives[instance_id]
            if life.asked_s is None:
                instance.terminate()
                life.asked_s = self.now_s
            instance.state_reason.code, instance.state_reason.message = code, f"{code}: {message}"
            by = "User" if code.startswith("Client.User") else "Service"
            instance._reason = f"{by} initiated ({self._at(life.asked_s):%Y-%m-%d %H:%M:%S} GMT)"
            self._settle()


def _set_state(instance: Any, name: str) -> None:
    instance._state.name, instance._state.code = name, STATES[name]


def limit_s(encoded: str) -> float | None:
    """The time limit in the user data, if cloud-init would run what sets it."""
    archive = email.message_from_bytes(base64.b64decode(encoded))
    for part in archive.walk():
        if part.get_content_type() == "text/cloud-boothook":
            text = part.get_payload(decode=True)
            assert isinstance(text, bytes)
            timers = re.findall(rb"^timer (\S+) '.*' (\d+)$", text, re.MULTILINE)
            started = text[text.index(b"systemctl start") :].split()
            return min((float(seconds) for timer, seconds in timers if timer in started), default=None)
    return None
