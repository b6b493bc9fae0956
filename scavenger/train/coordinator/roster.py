"""The coordinator's report on the workers, made only when something may have changed."""

from __future__ import annotations

from scavenger.elastic.membership import Membership, WorkerState
from scavenger.train.transport.messages.coordination import Roster

_STATES = {
    WorkerState.STARTING: "starting",
    WorkerState.STANDBY: "ready",
    WorkerState.TRAINING: "training",
    WorkerState.GONE: "gone",
}


class RosterReport:
    """Makes a `Roster` of a membership.

    Attributes:
        changed: Whether something may have changed since the last roster.
        leaving: Workers that were released.
    """

    def __init__(self) -> None:
        self.changed = True
        self.leaving: set[str] = set()
        self._last: Roster | None = None

    def update(self, membership: Membership, command: int) -> Roster | None:
        """Return the roster if it differs from the last one, else None.

        Args:
            membership: The workers.
            command: The number of the last command that was carried out.
        """
        if not self.changed:
            return None
        self.changed = False
        names = membership.workers(*WorkerState)
        roster = Roster(
            command=command,
            states={
                name: "leaving" if name in self.leaving else _STATES[membership.state(name)] for name in names
            },
            settled=membership.settled,
            number=membership.number,
            forgotten=tuple(name for name in names if membership.forgotten(name)),
        )
        if roster == self._last:
            return None
        self._last = roster
        self.leaving &= roster.states.keys()
        return roster
