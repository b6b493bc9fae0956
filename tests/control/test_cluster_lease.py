"""Of several operators one acts, whatever their clocks say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scavenger.control.cluster.lease import DURATION_S, LeaderElection

RENEW_S = 4.0


class Server:
    """Keeps one lease, and refuses to write a version that is not the present one."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def write(self, body: dict[str, Any], *, fresh: bool) -> bool:
        if fresh != (self.lease is None):
            return False
        if self.lease is not None and body["metadata"]["resourceVersion"] != str(self.version):
            return False
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return True


@pytest.mark.parametrize("seed", range(100))
def test_no_two_operators_act_at_once_and_a_dead_one_is_followed(seed: int) -> None:
    """They stall, die and come back; reads and writes of one may be far apart."""
    chance, server = random.Random(seed), Server()
    candidates = [LeaderElection(f"operator-{number}") for number in range(3)]
    offsets = [chance.uniform(0, 1e6) for _ in candidates]  # their clocks differ
    held_until = [-1.0] * 3
    pending: list[tuple[int, float, dict[str, Any], bool]] = []
    acting_s, now = 0.0, 0.0
    awake = [0.0] * 3
    while now < 600.0:
        now += 0.5
        for number, candidate in enumerate(candidates):
            if now < awake[number]:
                continue
            if chance.random() < 0.01:
                awake[number] = now + chance.uniform(1, 60)
                continue
            mine = [one for one in pending if one[0] == number]
            if mine:
                pending.remove(mine[0])
                _, began, body, fresh = mine[0]
                if server.write(body, fresh=fresh):
                    held_until[number] = began + DURATION_S
            elif chance.random() < 0.5:
                lease = server.lease
                if candidate.look(lease, now + offsets[number]) != "wait":
                    written = candidate.written(lease, "here", "operator")
                    pending.append((number, now, written, lease is None))
        acting = [number for number in range(3) if now < held_until[number]]
        assert len(acting) <= 1
        acting_s += 0.5 * len(acting)

    assert acting_s > 300.0


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    server, first, second = Server(), LeaderElection("first"), LeaderElection("second")
    assert first.look(None, 0.0) == "take"
    assert server.write(first.written(None, "here", "operator"), fresh=True)
    assert second.look(server.lease, 1.0) == "wait"
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = ""

    assert second.look(server.lease, 2.0) == "take"
