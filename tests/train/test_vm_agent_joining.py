"""An agent whose leader does not answer."""

from __future__ import annotations

from pathlib import Path

from scavenger.domain.boot import NO_ANSWER
from scavenger.train.engines.vm.agent import Agent, Ticket
from scavenger.train.transport.sockets import new_keys


def test_a_vm_that_nobody_admits_ends_itself_and_says_why(tmp_path: Path) -> None:
    server_key, secret = new_keys()[0].decode(), new_keys()[1].decode()
    ended = tmp_path / "ended"
    # a port at which nothing listens
    ticket = Ticket("tcp://127.0.0.1:9", server_key, "intent", secret, "aws", "true", f"touch {ended}")
    lines: list[str] = []

    status = Agent(ticket, tmp_path, show=lines.append, join_s=0.3).run()

    assert status == 1
    assert ended.exists()
    assert lines == [f"{NO_ANSWER} at tcp://127.0.0.1:9 for 0 s: this VM ends"]
