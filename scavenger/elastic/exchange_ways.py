"""By which way the workers of a loop form the mean of their gradients: their leader, or a process group of theirs.

A group is of the members of a view. It is made beside the training, and has the mean of a step only if all of them have
it; in all other steps, the leader forms the mean::

    none   --all members could have a group--> making
    making --each has told that it has it--> in use; by `auto` in turns with the leader's way, until one is the faster
    in use --the leader's way is the faster--> none, for this number of members
    any    --a member joins, leaves or is lost--> none
    any    --it could not be made, or failed though nobody was lost--> none, for the rest of the job
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass

from scavenger.domain.elastic import GradientExchange
from scavenger.errors import ConfigurationError

TRIES = 6
"""Steps by each way until the faster one is kept; the first of each does not count."""
ON_A_GPU = "cuda "
"""What a device begins with that is a GPU; what follows tells which."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its number, and its members in the order of their ranks."""

    number: int
    members: tuple[str, ...]


class ExchangeWays:
    """Decides by which way each step's mean is formed.

    Args:
        wanted: The job file's `elastic.exchange`. `auto` tries groups of workers that have a GPU each.

    Attributes:
        group: The newest group; None if there is none.
    """

    def __init__(self, wanted: GradientExchange) -> None:
        self._wanted = wanted
        self.group: Group | None = None
        self._devices: dict[str, str] = {}
        self._made: set[str] = set()
        """Members that have the newest group."""
        self._number = self._turn = 0
        self._took_s: tuple[list[float], list[float]] = ([], [])
        """Of the steps that were tried, by the leader and by the group."""
        self._faster: dict[int, bool] = {}
        """By number of members, whether a group is the faster way."""
        self._failed: tuple[Group, str] | None = None
        """A group that has failed, and why; whether a member was lost is not known yet."""
        self._given_up = self._used = False
        self._said: list[str] = []

    def said(self) -> list[str]:
        """What is to be told to the user since the last call."""
        said, self._said = self._said, []
        return said

    def pushed(self, worker: str, device: str, made: int, failure: str) -> None:
        """Note what a worker tells with a gradient.

        Args:
            device: Where it could have a group; empty if its training code has none.
            made: Number of the newest group that it has made, or could not make.
            failure: Why it could not; else empty.

        Raises:
            ConfigurationError: If a group is wanted, and the training code has none.
        """
        if self._wanted == "process_group" and not device:
            raise ConfigurationError(
                "elastic.exchange: process_group is for PyTorch loops and scripts whose model is on one GPU or on "
                "processors, with a PyTorch that has torch.distributed; leave it out",
                key="elastic.exchange",
            )
        self._devices[worker] = device
        group = self.group
        if group is None or worker not in group.members or made != group.number:
            return
        self._made.add(worker)
        if failure:
            self.failed(f"{worker} could not make it: {failure}")

    def failed(self, why: str) -> None:
        """Note that the newest group cannot be used any more."""
        if self.group is not None:
            self._failed, self.group = (self.group, why), None

    def to_make(self, members: tuple[str, ...]) -> Group | None:
        """The group that members are to make from now on, if any; to be asked at each boundary, before `by_group`."""
        if self._failed is not None:
            failed, why = self._failed
            self._failed = None
            if failed.members == members:  # so none of them was lost
                self._given_up = True
                self._said.append(
                    f"gradients are averaged by the leader, as a process group has failed: {why}"
                )
        if self.group is not None and self.group.members == members:
            return None
        self.group, self._turn, self._took_s = None, 0, ([], [])
        if self._given_up or not self._faster.get(len(members), True) or not self._could(members):
            return None
        self._number += 1
        self._made.clear()
        self.group = Group(self._number, members)
        return self.group

    def _could(self, members: Collection[str]) -> bool:
        """Whether members could have a group: each on a GPU of its own, or if one is wanted, all on processors."""
        devices = [self._devices.get(member, "") for member in members]
        if self._wanted == "leader" or len(devices) < 2 or not all(devices):
            return False
        if all(device.startswith(ON_A_GPU) for device in devices):
            return len(set(devices)) == len(devices)
        return self._wanted == "process_group" and len(set(devices)) == 1

    def by_group(self) -> int:
        """Number of the group that is to form the mean of the next step; 0 if the leader is."""
        group = self.group
        if group is None or not self._made.issuperset(group.members):
            return 0
        if self._wanted == "process_group":
            self._said += [] if self._used else ["gradients are averaged by process groups"]
            self._used = True
            return group.number
        if len(group.members) in self._faster:
            return group.number
        self._turn += 1
        return group.number if self._turn % 2 else 0

    def stepped(self, *, by_group: bool, exchange_s: float) -> None:
        """Note how long an exchange has taken; once both ways were tried often enough, the faster one is kept."""
        group = self.group
        if self._wanted != "auto" or group is None or len(group.members) in self._faster or not self._turn:
            return
        self._took_s[by_group].append(exchange_s)
        if min(map(len, self._took_s)) < TRIES:
            return
        leader_s, group_s = (statistics.median(took[1:]) for took in self._took_s)
        faster = group_s < leader_s
        self._faster[len(group.members)] = faster
        own, other = ("a process group", "the leader") if faster else ("the leader", "a process group")
        ratio = max(leader_s, group_s) / max(min(leader_s, group_s), 1e-9)
        self._said.append(
            f"gradients of {len(group.members)} workers are averaged by {own}, {ratio:.2f} times as fast as by {other} "
            f"({1e3 * min(leader_s, group_s):.3g} and {1e3 * max(leader_s, group_s):.3g} ms)"
        )
        if not faster:
            self.group = None
