"""The provider of Google Cloud before a project in the test's hands."""

from __future__ import annotations

from collections.abc import Iterator

from gcp_server import ComputeServer
from gcp_state import PROJECT, REGION, Clock, Machine

from scavenger.cloud.gcp.names import tags_of
from scavenger.cloud.gcp.provider import ENDPOINT_VARIABLE, GcpProvider
from scavenger.testing.provider_conformance import Fact

ENDS = ("instances.insert", "instances.delete")
DAY_S = 86_400.0
ZONE = "us-central1-a"


class GcpWorld:
    """See `conformance.World`."""

    vm, vm_unknown, instance_unknown = "e2-standard-4", "e2-nonesuch-4", "4242424242424242424"

    def __init__(self, server: ComputeServer, clock: Clock) -> None:
        self.server, self.clock = server, clock
        self.provider = provider_of(server, clock)

    @property
    def faults_fired(self) -> int:
        return self.server.faults.fired

    def stock_out(self, zone: str, *, on: bool = True) -> None:
        (self.server.project.stock_out.add if on else self.server.project.stock_out.discard)(zone)

    def limit(self, vms: int | None) -> None:
        self.server.project.vms_max = vms

    def throttle(self, calls: int) -> None:
        self.server.faults.plan("throttle", calls)

    def fail(self, calls: int) -> None:
        self.server.faults.plan("fail", calls)

    def deny(self, *, on: bool = True) -> None:
        self.server.faults.denied = on

    def lose_answers(self, calls: int) -> None:
        self.server.faults.plan("lose", calls, *ENDS)

    def hide(self, seconds: float) -> None:
        self.server.project.hidden_s = seconds

    def preempt(self, instance_id: str) -> None:
        self.server.project.preempt(int(instance_id))

    def delete_by_hand(self, instance_id: str) -> None:
        machine = self.server.project.machines[int(instance_id)]
        self.server.project.delete(machine.zone, instance_id)

    def write_console(self, instance_id: str, text: str) -> None:
        self.server.project.consoles[int(instance_id)] = text

    def add_foreign(self, zone: str) -> str:
        machine = Machine(99, "somebodys-vm", zone, {"machineType": "x/e2-standard-2"}, self.clock())
        self.server.project.machines[machine.id] = machine
        return str(machine.id)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def truth(self) -> tuple[Fact, ...]:
        alive = {each.id for each in self.server.project.alive()}
        facts = []
        for each in self.server.project.machines.values():
            tags = tags_of(each.body.get("labels", {}))
            facts.append(Fact(str(each.id), tags.token, tags.owner, each.zone, each.id in alive))
        return tuple(facts)


def provider_of(server: ComputeServer, clock: Clock, **options: object) -> GcpProvider:
    return GcpProvider(
        PROJECT,
        REGION,
        environment={ENDPOINT_VARIABLE: server.endpoint},
        clock=clock,
        **({"sleep": clock.advance} | options),  # type: ignore[arg-type]
    )


def world_on(server: ComputeServer) -> Iterator[GcpWorld]:
    """A project of its own for a test, of which the server said nothing that Google could not have said."""
    clock = Clock()
    server.reset(clock)
    yield GcpWorld(server, clock)
    assert server.faults_of_ours == []
