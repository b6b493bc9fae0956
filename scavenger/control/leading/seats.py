"""The seat of a leader, by where its record says that it is."""

from __future__ import annotations

from typing import Any

from scavenger.control.leading.pod_seat import PodSeat
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.leading.seat import Seat
from scavenger.control.leading.vm_seat import VmSeat
from scavenger.domain.providers import capabilities_of


def seat_of(leaders: Leaders, record: LeaderRecord, **options: Any) -> Seat:
    """The machine of a leader; `options` as of `Seat`."""
    kind = PodSeat if capabilities_of(record.provider).pods else VmSeat
    return kind(leaders, record, **options)
