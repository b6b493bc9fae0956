"""A cloud whose VMs really run (`tests/cloud/machines.py`), as the tests of whole jobs see it, whichever it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aws_live import LiveAws
from aws_server import REGION as AWS_REGION
from gcp_live import LiveGcp
from gcp_state import PROJECT
from gcp_state import REGION as GCP_REGION
from identity_documents import Signer
from machines import Machine, Machines

from scavenger.cloud.gcp.names import tags_of

BILLED_LEAST_S = 60.0
BOOT_S = 1.5
"""Long enough that a job has looked at its VMs once before they join, as it always has with real ones."""
CORES_PER_VCPU = 0.5
"""Two small VMs are two processors, so that a run is over within a minute or so on a machine with no more."""


@dataclass(frozen=True)
class RentedVm:
    """What the cloud itself knows of a VM.

    Attributes:
        token: Of the launch: the id of an intent.
        slot: Of its job.
        began_s, ended_s: On the cloud's clock; None: it has not ended.
    """

    id: str
    token: str
    slot: int
    vm: str
    zone: str
    spot: bool
    began_s: float
    ended_s: float | None
    alive: bool

    @property
    def billed_s(self) -> float:
        """Both clouds bill seconds, and a minute at least."""
        assert self.ended_s is not None, f"{self} is paid for still"
        return max(BILLED_LEAST_S, self.ended_s - self.began_s)


class Rented(Protocol):
    """The cloud's side.

    Attributes:
        small, large: VM types of 2 and 4 vCPUs, the second twice as fast.
        prices: US dollars per hour by VM type: on demand, spot.
    """

    name: str
    region: str
    small: str
    large: str
    prices: Mapping[str, tuple[float, float]]
    machines: Machines

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""

    def settings_file(self, folder: Path) -> Path:
        """A settings file, written into the folder, that trusts this cloud's signatures."""

    def vms(self) -> tuple[RentedVm, ...]:
        """All that there ever were since `clear`."""

    def machine(self, instance_id: str) -> Machine:
        """What a VM is on this machine."""

    def interrupt(self, instance_id: str, in_s: float) -> None:
        """Announce to a spot VM that it is taken back, and do so then."""

    def leftovers(self) -> tuple[str, ...]:
        """What there is beside VMs that costs money or is ours."""

    def clear(self) -> None:
        """An empty account without faults."""

    def sell_out(self, zone: str) -> None:
        """A zone has no VM to give from now on."""

    def limit_vcpus(self, vcpus: int) -> None:
        """The account may have no more VMs than fit, the small type taken."""

    def deny(self) -> None:
        """Nothing is allowed from now on."""

    def lose_launches(self, count: int) -> None:
        """The next launches are carried out and not answered."""


def _written(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


class AwsRented:
    """See `Rented`.

    Attributes:
        profile: Instance profile that the settings name; empty for none.
    """

    name, region, small, large = "aws", AWS_REGION, "c5.large", "c5.xlarge"
    prices = {"c5.large": (0.085, 0.034), "c5.xlarge": (0.17, 0.068)}  # noqa: RUF012 - never changed

    def __init__(self, server: LiveAws, machines: Machines) -> None:
        self.server, self.machines = server, machines
        self.profile = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.server.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_DEFAULT_REGION": self.region,
        }

    def settings_file(self, folder: Path) -> Path:
        (folder / "certificate.pem").write_text(Signer.of_tests().certificate)
        profile = f'instance_profile = "{self.profile}"\n' if self.profile else ""
        return _written(folder, f'[aws]\nidentity_certificate = "{folder}/certificate.pem"\n{profile}')

    def vms(self) -> tuple[RentedVm, ...]:
        return tuple(self._vm(each) for each in self.server.instances().values())

    def _vm(self, instance: Any) -> RentedVm:
        life = self.server.life(instance.id)
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        return RentedVm(
            instance.id,
            tags.get("scavenger-token", ""),
            int(tags.get("scavenger-slot", "-1")),
            instance.instance_type,
            instance.placement.zone,
            instance.lifecycle == "spot",
            life.born_s,
            life.asked_s,
            alive=instance.state != "terminated",
        )

    def machine(self, instance_id: str) -> Machine:
        return self.server.vm(instance_id)

    def interrupt(self, instance_id: str, in_s: float) -> None:
        self.server.interrupt(instance_id, in_s=in_s)

    def leftovers(self) -> tuple[str, ...]:
        return self.server.grounds()

    def clear(self) -> None:
        self.server.reset()

    def sell_out(self, zone: str) -> None:
        self.server.empty_zones.add(zone)

    def limit_vcpus(self, vcpus: int) -> None:
        self.server.vcpus_max = vcpus

    def deny(self) -> None:
        self.server.denied = {"*"}

    def lose_launches(self, count: int) -> None:
        self.server.lost = count


class GcpRented:
    """See `Rented`."""

    name, region, small, large = "gcp", GCP_REGION, "e2-standard-2", "e2-standard-4"
    prices = {"e2-standard-2": (0.067, 0.027), "e2-standard-4": (0.134, 0.054)}  # noqa: RUF012 - never changed

    def __init__(self, server: LiveGcp, machines: Machines) -> None:
        self.server, self.machines = server, machines

    @property
    def environment(self) -> dict[str, str]:
        return {"SCAVENGER_GCP_ENDPOINT": self.server.endpoint, "GOOGLE_CLOUD_PROJECT": PROJECT}

    def settings_file(self, folder: Path) -> Path:
        signer = Signer.of_tests()
        (folder / "certificates.json").write_text(json.dumps({signer.key_id: signer.certificate}))
        account = f"vms@{PROJECT}.iam.gserviceaccount.com"
        return _written(
            folder,
            f'[gcp]\nservice_account = "{account}"\nidentity_certificates = "{folder}/certificates.json"\n',
        )

    def vms(self) -> tuple[RentedVm, ...]:
        project = self.server.live
        with project.lock:
            alive = {each.id for each in project.alive()}
            return tuple(
                RentedVm(
                    str(each.id),
                    tags_of(each.body.get("labels", {})).token,
                    tags_of(each.body.get("labels", {})).slot,
                    each.body["machineType"].rpartition("/")[2],
                    each.zone,
                    each.body.get("scheduling", {}).get("provisioningModel") == "SPOT",
                    each.created_at,
                    each.off_at or (each.ends_at if each.ends_at < float("inf") else None),
                    alive=each.id in alive,
                )
                for each in project.machines.values()
                if each.id in project.vms
            )

    def machine(self, instance_id: str) -> Machine:
        return self.server.vm(instance_id)

    def interrupt(self, instance_id: str, in_s: float) -> None:
        self.server.interrupt(instance_id, in_s=in_s)

    def leftovers(self) -> tuple[str, ...]:
        project = self.server.live
        with project.lock:
            here = {each.name for each in project.alive()}
            rules = [f"firewall rule {name}" for name in project.firewalls if name.startswith("scavenger-")]
            return (*(f"disk {name}" for name in project.disks if name in here), *rules)

    def clear(self) -> None:
        assert self.server.faults_of_ours == []
        self.server.clear()

    def sell_out(self, zone: str) -> None:
        self.server.live.stock_out.add(zone)

    def limit_vcpus(self, vcpus: int) -> None:
        self.server.live.vms_max = vcpus // 2

    def deny(self) -> None:
        self.server.faults.denied = True

    def lose_launches(self, count: int) -> None:
        self.server.faults.plan("lose", count, "instances.insert")


@contextmanager
def rented(name: str, **image: Any) -> Iterator[Rented]:
    """A cloud of its own, with nothing in it; at the end it and all its VMs are no more.

    Args:
        name: Which cloud.
        image: What is on its VMs, see `Machines`.
    """
    with Machines(boot_s=BOOT_S, **image) as machines:
        if name == "aws":
            with closing(LiveAws(machines, cores_per_vcpu=CORES_PER_VCPU)) as server:
                yield AwsRented(server, machines)
        else:
            with LiveGcp(machines, cores_per_vcpu=CORES_PER_VCPU) as project:
                yield GcpRented(project, machines)
