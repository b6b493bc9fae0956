"""A coordinator keeps what it needs of the workers that are there, however many there have been."""

from __future__ import annotations

from typing import Any

import pytest

from scavenger.elastic import membership
from scavenger.train.coordinator.coordinator import Coordinator
from scavenger.train.names import SUPERVISOR
from scavenger.train.transport import messages as m


class Place:
    """A seat at a hub that leads nowhere."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, m.Message]] = []

    def send_to(self, target: str, message: m.Message) -> None:
        self.sent.append((target, message))

    @property
    def rosters(self) -> list[m.Roster]:
        return [message for _, message in self.sent if isinstance(message, m.Roster)]


BRIEF = m.Brief(1, ("w0",), ("aggregator-0",), 60.0, 60.0, None, None, None, 0, 0, False, (), ())


def led(place: Place) -> Coordinator:
    boot = m.ProcessConfiguration(
        "coordinator", "coordinator-1", "tcp://127.0.0.1:9", "", "", "", memory_fd=-1, token=1
    )
    coordinator = Coordinator(boot, place)  # type: ignore[arg-type]
    coordinator._take(SUPERVISOR, BRIEF)
    coordinator._take("w0", m.Ready())
    coordinator._take(SUPERVISOR, m.Resize(1, 2, 8, "start"))
    return coordinator


def install(coordinator: Coordinator, place: Place) -> None:
    """The sequencer puts the newest view into effect."""
    newest: Any = [message for _, message in place.sent if isinstance(message, m.Announcement)][-1]
    view = m.ViewBody(newest.number, 1, newest.global_batch_size, newest.members, 0, 0, 1.0, "")
    coordinator._take("aggregator-0", m.ViewInstalled(view))


def test_workers_that_are_gone_are_forgotten_by_all_its_books() -> None:
    place = Place()
    coordinator = led(place)
    install(coordinator, place)
    rounds = 3 * membership._GONE_KEPT
    for index in range(1, rounds):
        name = f"w{index}"
        coordinator._take(SUPERVISOR, m.Launched(name))
        coordinator._take(name, m.Present(_MANIFEST, True, True, True, "here"))
        install(coordinator, place)
        coordinator._expel(name, "was silent")
        coordinator._take(SUPERVISOR, m.Ended(name))
        install(coordinator, place)
        coordinator._publish()

    few = membership._GONE_KEPT + 2
    assert len(place.rosters[-1].states) <= few
    assert place.rosters[-1].states["w0"] == "training"
    books = (coordinator._present, coordinator._launched_at, coordinator._expelled, coordinator._leaving)
    assert max(map(len, books)) <= few
    assert f"w{rounds - 1}" in place.rosters[-1].forgotten, "the supervisor may give its slots to another"


def test_heartbeats_alone_bring_no_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    coordinator = led(place)
    coordinator._publish()
    monkeypatch.setattr(
        coordinator._membership, "workers", lambda *states: pytest.fail("all workers were walked")
    )

    coordinator._take("w0!", m.Beat(1, 1))
    coordinator._publish()


_MANIFEST = m.Manifest((), (), "", "", 0, 1, 0, 1, ())
