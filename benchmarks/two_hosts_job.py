"""A job with its leader and aggregator on this host and its workers on another, for `benchmarks.two_hosts`.

`python -m benchmarks.two_hosts_job FOLDER ADDRESS SPACE TRAIN WORKERS BATCH STEPS` runs in the network of the leader.
The workers' agent runs in the network namespace SPACE. Prints a line of JSON: step, computing and updating time of each
step after the first ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.elastic_supervisor import ROOT, Training
from scavenger.train.engines.vm.agent import Ticket
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.engines.vm.values import Role

_WARM_UP_STEPS = 3
_VM = "c5.large"


@contextlib.contextmanager
def agent(
    agents: AgentServer, intent: str, role: Role, folder: Path, *, slots: int = 1, within: Sequence[str] = ()
) -> Iterator[None]:
    """A VM's agent as a process of this machine, in another network with `within`."""
    secret = agents.expect(intent, role=role, vm=_VM, threads=slots, slots=slots)
    ticket = Ticket(agents.endpoint, agents.server_key, intent, secret, "local", "true", "true")
    path = folder / f"{intent}.json"
    path.write_bytes(msgspec.json.encode(ticket))
    own = folder / intent
    own.mkdir()
    program = (
        "import sys; from pathlib import Path; from scavenger.train.engines.vm.agent import Agent, read_ticket\n"
        "sys.exit(Agent(read_ticket(Path(sys.argv[1])), Path(sys.argv[2])).run())"
    )
    process = subprocess.Popen(
        [*within, sys.executable, "-c", program, str(path), str(own)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    folder, address, space, train = Path(sys.argv[1]), *sys.argv[2:5]
    workers, batch, steps = map(int, sys.argv[5:8])
    code = folder / "code"
    code.mkdir(parents=True)
    agents = AgentServer(address, code)
    agents.start()
    with (
        contextlib.closing(agents),
        agent(agents, "near", "aggregator", folder),
        agent(agents, "far", "worker", folder, slots=workers, within=("ip", "netns", "exec", space)),
        Training(
            train, folder / "job", job_dir=code, engine=lambda log_dir, _: HostEngine(log_dir, agents)
        ) as training,
    ):
        training.begin(workers, batch)
        training.go_on(_WARM_UP_STEPS)
        seen = training.go_on(steps)
        lost = [one.worker for one in training.lost]
    if lost:
        raise RuntimeError(f"{lost} were lost during the benchmark; measure again")
    print(json.dumps([[step.step_time_s, step.compute_s, step.update_s] for step in seen]))


if __name__ == "__main__":
    main()
