"""`AwsProvider` before the server of `aws_server.py`, and the fixtures of its tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from aws_server import REGION, VCPUS, AwsServer

from scavenger.cloud.aws.provider import AwsProvider
from scavenger.testing.provider_conformance import Fact

VM = "c5.large"


class Session(boto3.Session):  # type: ignore[misc]
    """Makes each client once for all tests: building that of EC2 takes longer than a test."""

    def __init__(self) -> None:
        super().__init__(aws_access_key_id="test", aws_secret_access_key="test", aws_session_token="test")
        self._made: dict[tuple[str, int], Any] = {}

    def client(self, service_name: str, **settings: Any) -> Any:
        key = (service_name, settings["config"].read_timeout)
        if key not in self._made:
            self._made[key] = super().client(service_name, **settings)
        return self._made[key]


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[AwsServer, Session]]:
    server = AwsServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield server, Session()
    server.close()


@pytest.fixture
def server(started: tuple[AwsServer, Session]) -> AwsServer:
    started[0].reset()
    return started[0]


@pytest.fixture
def session(started: tuple[AwsServer, Session]) -> Session:
    return started[1]


@dataclass
class AwsWorld:
    """See `World`."""

    server: AwsServer
    provider: AwsProvider
    vm: str = VM
    vm_unknown: str = "c99.large"
    instance_unknown: str = "i-0123456789abcdef0"

    @property
    def faults_fired(self) -> int:
        return self.server.faults_fired

    @property
    def client(self) -> Any:
        """EC2 as anybody has it."""
        return self.provider._ec2

    def stock_out(self, zone: str, *, on: bool = True) -> None:
        (self.server.empty_zones.add if on else self.server.empty_zones.discard)(zone)

    def limit(self, vms: int | None) -> None:
        self.server.vcpus_max = None if vms is None else vms * VCPUS[VM]

    def throttle(self, calls: int) -> None:
        self.server.throttled = calls

    def fail(self, calls: int) -> None:
        self.server.failing = calls

    def deny(self, *, on: bool = True) -> None:
        self.server.denied = {"*"} if on else set()

    def lose_answers(self, calls: int) -> None:
        self.server.lost = calls

    def hide(self, seconds: float) -> None:
        self.server.hidden_s = seconds

    def preempt(self, instance_id: str) -> None:
        self.server.reclaim(instance_id)

    def delete_by_hand(self, instance_id: str) -> None:
        self.server.end_by_hand(instance_id)

    def write_console(self, instance_id: str, text: str) -> None:
        self.server.consoles[instance_id] = text

    def add_foreign(self, zone: str) -> str:
        answer = self.client.run_instances(
            ImageId="ami-1e749f67",
            InstanceType=VM,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": zone},
        )
        return str(answer["Instances"][0]["InstanceId"])

    def advance(self, seconds: float) -> None:
        self.server.advance(seconds)

    def truth(self) -> tuple[Fact, ...]:
        facts = []
        for instance in self.server.instances().values():
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            facts.append(
                Fact(
                    instance.id,
                    tags.get("scavenger-token", ""),
                    tags.get("scavenger-owner", ""),
                    instance.placement.zone,
                    alive=instance.state != "terminated",
                )
            )
        return tuple(facts)


def make_provider(server: AwsServer, session: Session, **settings: Any) -> AwsProvider:
    """A service as it starts, on the server's time."""
    return AwsProvider(
        REGION,
        session,
        page_size=5,
        clock=lambda: server.now_s,
        rng=random.Random(1),
        **{"sleep": lambda seconds: None, **settings},
    )


@pytest.fixture
def aws(server: AwsServer, session: Session) -> AwsWorld:
    return AwsWorld(server, make_provider(server, session))
