"""VMs for tests: agents as processes of this machine, each with the powers of a VM's and none of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from waiting import eventually

from scavenger.domain.boot import NODE
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.values import Role

AGENT = """
import signal, sys
from pathlib import Path
from scavenger.train.engines.vm.agent import Agent, read_ticket
import os, scavenger.train.engines.vm.agent
if "AGENT_ADDRESS" in os.environ:  # this machine has many, of which the way to the leader shows one alone
    scavenger.train.engines.vm.agent.address_towards = lambda endpoint: os.environ["AGENT_ADDRESS"]
agent = Agent(
    read_ticket(Path(sys.argv[1])), Path(sys.argv[2]), silent_s=float(sys.argv[3]), poweroff_s=float(sys.argv[4]),
    identify=lambda public_key: os.environ.get("AGENT_IDENTITY", ""),
)
signal.signal(signal.SIGTERM, lambda *_: agent.end("its VM is being shut down"))
def fail(*_):
    def wait(*others, timeout_s):
        del agent._leader.wait
        raise RuntimeError("out of order")
    agent._leader.wait = wait
signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGUSR2, lambda *_: agent.report_preemption(120.0, "the cloud takes its VM back"))
sys.exit(agent.run())
"""
SOME_TYPE = "c5.large"
_POISON = """
import os, sys
def watch(event, args):
    if any(isinstance(arg, str) and arg.startswith({folder!r}) for arg in args):
        os.write(2, f"touched what is not on this machine: {{event}} {{args[0]}}".encode())
        os._exit(99)
sys.addaudithook(watch)
"""


class Stage:
    """A leader's VMs.

    Args:
        folder: For the files of all.
        job_dir: What VMs get; an empty one unless told.
        silent_s, poweroff_s, lost_s: See `Agent` and `AgentServer`.
        beyond: A folder that is not on VMs: a process there that touches it ends at once.
        address: Of this machine, by which VMs reach it.
        verified: Whether VMs join only after their identity was verified.
        within: What the command of a VM's agent begins with, to run elsewhere than beside the leader.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job_dir: Path | None = None,
        silent_s: float = 120.0,
        poweroff_s: float = 300.0,
        lost_s: float = 15.0,
        beyond: Path | None = None,
        address: str = "127.0.0.1",
        within: Sequence[str] = (),
        verified: bool = False,
    ) -> None:
        self._within = within
        self.folder, self._limits = folder, (silent_s, poweroff_s)
        folder.mkdir(parents=True, exist_ok=True)
        empty = folder / "nothing"
        empty.mkdir()
        self.hosts = AgentServer(address, job_dir or empty, lost_s=lost_s, verified=verified)
        self.hosts.start()
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._env = dict(os.environ)
        if beyond is not None:
            poison = folder / "poison"
            poison.mkdir()
            (poison / "sitecustomize.py").write_text(_POISON.format(folder=str(beyond)))
            self._env["PYTHONPATH"] = os.pathsep.join([str(poison), os.environ.get("PYTHONPATH", "")])

    def ticket(self, intent: str, secret: str, **more: str) -> Path:
        """A join file, as user data writes it."""
        path = self.folder / f"{intent}.json"
        path.write_text(
            json.dumps(
                {
                    "endpoint": self.hosts.endpoint,
                    "server_key": self.hosts.server_key,
                    "intent": intent,
                    "secret": secret,
                    "provider": "local",
                    "renew": f"touch {self.folder}/{intent}.renewed",
                    "poweroff": f"touch {self.folder}/{intent}.off",
                    **more,
                }
            )
        )
        return path

    def expect(self, intent: str, role: Role = "worker", vm: str = SOME_TYPE, places: int = 8) -> str:
        return self.hosts.expect(intent, role=role, vm=vm, threads=places, slots=places)

    def add(
        self,
        intent: str,
        role: Role = "worker",
        *,
        vm: str = SOME_TYPE,
        places: int = 8,
        address: str = "",
        identity: str = "",
        node: str = "",
        within: Sequence[str] | None = None,
        **more: str,
    ) -> None:
        """Have a VM boot, with `within` of its own if given; `joined` waits until it has."""
        ticket = self.ticket(intent, self.expect(intent, role, vm, places), **more)
        place = self.folder / f"{intent}.tmp"
        place.mkdir()
        with (self.folder / f"{intent}.out").open("wb") as output:
            self.agents[intent] = subprocess.Popen(
                [
                    *(self._within if within is None else within),
                    sys.executable,
                    "-c",
                    AGENT,
                    str(ticket),
                    str(place),
                    *map(str, self._limits),
                ],
                start_new_session=True,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **self._env,
                    **({"AGENT_ADDRESS": address} if address else {}),
                    "AGENT_IDENTITY": identity,
                    **({NODE: node} if node else {}),
                },
            )

    def joined(self, *intents: str) -> None:
        """Wait until these VMs have joined."""
        assert eventually(lambda: set(intents) <= set(self.names()), within_s=60.0), self.hosts.vms()

    def names(self) -> Sequence[str]:
        return [vm.spec.intent for vm in self.hosts.vms() if vm.joined]

    def kill(self, intent: str) -> None:
        """The VM is gone from one moment to the next."""
        self.agents[intent].kill()
        self.agents[intent].wait()

    def said(self, intent: str) -> str:
        """What an agent has written to its output."""
        return (self.folder / f"{intent}.out").read_text()

    def close(self) -> None:
        self.hosts.close()
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        for agent in self.agents.values():
            try:
                agent.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.kill(agent.pid, signal.SIGKILL)
                agent.wait()
                raise
