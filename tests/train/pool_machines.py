"""A pool with nodes on other machines, for tests: agents as processes of this machine, started as by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from driving import FaultyEngine, Run
from pools import end_pool
from waiting import eventually

from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.pool import protocol
from scavenger.train.pool.connection import add_node, load_of, wait_for_load
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.pool.protocol import PoolLoad

_SERVE = """
import sys
from pathlib import Path
from scavenger.train.pool.machines import Listen
from scavenger.train.pool.serving import PoolSize, serve
serve(Path(sys.argv[1]), PoolSize(nodes=0), listen=Listen(sys.argv[2]))
"""
PLACE = "local"


class Machines:
    """The machines of a pool.

    Args:
        folder: Of the pool.
        work: For the join files and what agents write.
    """

    def __init__(self, folder: Path, work: Path, address: str) -> None:
        self.folder, self._work, self.address = folder, work, address
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str, *, within: Sequence[str] = (), price: float = 0.0, place: str = PLACE) -> None:
        """Have a machine join as a node, as a user does."""
        added = add_node(self.folder, protocol.AddNode(name, place, price, 8))
        assert added is not None
        assert added.error == ""
        ticket = self._work / f"{name}.json"
        ticket.write_text(added.ticket)
        with (self._work / f"{name}.out").open("wb") as output:
            self.agents[name] = subprocess.Popen(
                [*within, sys.executable, "-m", "scavenger.control.provisioning.on_vm", str(ticket)],
                start_new_session=True,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SCAVENGER_LOG_LEVEL": "info"},
            )

    def joined(self, *names: str) -> None:
        assert eventually(lambda: set(names) <= {one.node.name for one in self.load().nodes}, within_s=60.0)

    def load(self) -> PoolLoad:
        return wait_for_load(self.folder)

    def close(self) -> None:
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.terminate()
            agent.wait(60.0)


@contextmanager
def machines(tmp_path: Path, address: str = "127.0.0.1") -> Iterator[Machines]:
    """A pool without a node of this machine."""
    folder = tmp_path / "pool"
    manager = subprocess.Popen([sys.executable, "-c", _SERVE, str(folder), address])
    with ExitStack() as stack:
        stack.callback(manager.wait)
        stack.callback(end_pool, folder)
        assert eventually(lambda: load_of(folder) is not None, within_s=60.0)
        found = Machines(folder, tmp_path, address)
        stack.callback(found.close)
        yield found


def lodged(train: str, work_dir: Path, pool: Machines, *, aggregators: int = 1) -> Run:
    """A job whose workers are on this machine, and its aggregators on others."""
    job = work_dir.name
    empty = work_dir / "nothing"
    empty.mkdir(parents=True)

    def engine(log_dir: Path, fd: int) -> HostEngine:
        agents = AgentServer(pool.address, empty)
        agents.start()
        join = protocol.PoolJoin(protocol.PROTOCOL, job, job, PLACE)
        local = FaultyEngine(log_dir, fd, faults=(), remote=())
        return HostEngine(log_dir, agents, source=Lodgings(pool.folder, join, workers_here=True), local=local)

    return Run(train, work_dir, aggregators=aggregators, apart=True, engine=engine)
