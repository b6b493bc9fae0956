"""A coordinator keeps state only of present workers, however many there have been."""

from __future__ import annotations

import pytest

from scavenger.elastic import membership
from scavenger.elastic.view import Position, View
from scavenger.train.coordinator.coordinator import Coordinator
from scavenger.train.names import SUPERVISOR
from scavenger.train.transport import messages as m


class StubHub:
    """A connection to the hub that only records what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, m.Message]] = []

    def send_to(self, target: str, message: m.Message) -> None:
        self.sent.append((target, message))

    @property
    def rosters(self) -> list[m.Roster]:
        return [message for _, message in self.sent if isinstance(message, m.Roster)]


BRIEF = m.Brief(1, ("w0",), ("aggregator-0",), 60.0, 60.0, None, None, None, 0, 0, (), (), ())


def led(hub: StubHub) -> Coordinator:
    boot = m.ProcessConfiguration(
        "coordinator", "coordinator-1", "tcp://127.0.0.1:9", "", "", "", memory_fd=-1, token=1
    )
    coordinator = Coordinator(boot, hub)  # type: ignore[arg-type]
    coordinator._take(SUPERVISOR, BRIEF)
    coordinator._take("w0", m.Ready())
    coordinator._take(SUPERVISOR, m.ResizeMembers(1, 2, 8, "start"))
    return coordinator


def install(coordinator: Coordinator, hub: StubHub) -> None:
    """The sequencer puts the newest view into effect."""
    newest = [message.view for _, message in hub.sent if isinstance(message, m.Announcement)][-1]
    view = View(newest.number, 1, newest.global_batch_size, newest.members, Position())
    coordinator._take("aggregator-0", m.ViewInstalled(view))


def test_workers_that_are_gone_are_forgotten_everywhere() -> None:
    hub = StubHub()
    coordinator = led(hub)
    install(coordinator, hub)
    rounds = 3 * membership._GONE_KEPT
    for index in range(1, rounds):
        name = f"w{index}"
        coordinator._take(SUPERVISOR, m.Launched(name))
        coordinator._take(name, m.Present(_MANIFEST, True, True, True, "here"))
        install(coordinator, hub)
        coordinator._expel(name, "was silent")
        coordinator._take(SUPERVISOR, m.ProcessEnded(name))
        install(coordinator, hub)
        coordinator._publish()

    few = membership._GONE_KEPT + 2
    assert len(hub.rosters[-1].states) <= few
    assert hub.rosters[-1].states["w0"] == "training"
    leaving, launched = coordinator._roster.leaving, coordinator._starts._launched_at
    books = (coordinator._present, launched, coordinator._expelled, leaving)
    assert max(map(len, books)) <= few
    assert f"w{rounds - 1}" in hub.rosters[-1].forgotten, "the supervisor may give its slots to another"


def test_heartbeats_alone_bring_no_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = StubHub()
    coordinator = led(hub)
    coordinator._publish()
    monkeypatch.setattr(
        coordinator._membership, "workers", lambda *states: pytest.fail("all workers were walked")
    )

    coordinator._take("w0!", m.Beat(1, 1))
    coordinator._publish()


_MANIFEST = m.Manifest((), (), "", "", 0, 1, 0, 1, ())
