"""How fast an agent starts a process on its VM, compared with a Ray node; and how fast it transfers checkpoints."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.train.engines.vm.agent import Ticket
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.transport.messages.values import ProcessConfiguration

_CHECKPOINT_BYTES = 100_000_000
_WORK = [sys.executable, "-c", "import sys, time; sys.stdin.readline(); time.sleep(600)"]
_WRITE = """
import os, sys, time
sys.stdin.readline()
from scavenger.train.checkpoints.files import open_files
data = os.urandom({size})
for url in {urls}:
    files, begin = open_files(url), time.perf_counter()
    files.write("part", "weights", [data])
    print(time.perf_counter() - begin, flush=True)
"""
_RAY = """
import time
begin = time.perf_counter()
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=1, object_store_memory=80 << 20)
@ray.remote
class Worker:
    def up(self): return True
ray.get(Worker.remote().up.remote())
print(time.perf_counter() - begin, flush=True)
import psutil
print(sum(p.memory_full_info().uss for p in psutil.Process().children(recursive=True)), flush=True)
"""


@contextlib.contextmanager
def _agent(hosts: AgentServer, intent: str, role: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A VM's agent as a process of this machine."""
    secret = hosts.expect(
        intent, role="worker" if role == "worker" else "aggregator", vm=intent, threads=1, slots=1
    )
    ticket = Ticket(hosts.endpoint, hosts.server_key, intent, secret, "local", "true", "true")
    path = folder / f"{intent}.json"
    path.write_bytes(msgspec.json.encode(ticket))
    program = (
        "import sys; from pathlib import Path; from scavenger.train.engines.vm.agent import Agent, read_ticket\n"
        "sys.exit(Agent(read_ticket(Path(sys.argv[1])), Path(sys.argv[2])).run())"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(folder)], stdout=subprocess.DEVNULL
    )
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()


def _joins(repetitions: int, hosts: AgentServer, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds from an agent's start until a process runs there, and the agent's own memory."""
    times, sizes = [], []
    engine = HostEngine(folder / "logs", hosts, command=_WORK)
    try:
        for index in range(repetitions):
            engine.launch(
                ProcessConfiguration("worker", f"w{index}", "", "", "", "", memory_fd=-1), vm=f"vm{index}"
            )
            begin = time.perf_counter()
            with _agent(hosts, f"vm{index}", "worker", folder) as agent:
                while not engine.pid(f"w{index}"):
                    engine.poll()
                    time.sleep(0.005)
                times.append(time.perf_counter() - begin)
                sizes.append(float(psutil.Process(agent.pid).memory_full_info().uss))
                engine.stop([f"w{index}"], grace_s=0.2)
    finally:
        engine.close()
    return times, sizes


def _checkpoints(repetitions: int, hosts: AgentServer, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds to write a part of a checkpoint by the line, and to this machine's disk as its aggregator would."""
    saved = folder / "saved"
    urls = [f"leader://{saved}", str(folder / "here")] * repetitions
    program = _WRITE.format(size=_CHECKPOINT_BYTES, urls=urls)
    engine = HostEngine(folder / "logs", hosts, command=[sys.executable, "-c", program])
    try:
        engine.reachable(str(saved))
        engine.launch(ProcessConfiguration("aggregator", "aggregator-0", "", "", "", "", memory_fd=-1))
        with _agent(hosts, "keeper", "aggregator", folder):
            while not engine.poll():
                time.sleep(0.02)
        lines = [float(line) for line in engine.log("aggregator-0").read_text().split()]
    finally:
        engine.close()
    return lines[::2], lines[1::2]


def _ray(repetitions: int) -> tuple[list[float], list[float]]:
    """The same of a node of Ray, with what its processes hold for themselves."""
    times, sizes = [], []
    for _ in range(repetitions):
        out = subprocess.run([sys.executable, "-c", _RAY], check=True, capture_output=True, text=True).stdout
        took, held = map(float, out.split()[-2:])
        times.append(took)
        sizes.append(held)
    return times, sizes


def run(repetitions: int, work_dir: Path) -> Result:
    """Join so many times; three nodes of Ray."""
    code = work_dir / "code"
    code.mkdir()
    hosts = AgentServer("127.0.0.1", code)
    hosts.start()
    try:
        joined, own = _joins(repetitions, hosts, work_dir)
        far, near = _checkpoints(repetitions, hosts, work_dir)
    finally:
        hosts.close()
    ray_s, ray_bytes = _ray(min(3, repetitions))
    spreads = {
        "agent_s": Spread.of(joined),
        "ray_s": Spread.of(ray_s),
        "agent_bytes": Spread.of(own),
        "ray_bytes": Spread.of(ray_bytes),
        "line_s": Spread.of(far),
        "disk_s": Spread.of(near),
    }
    megabytes = _CHECKPOINT_BYTES / 1e6
    names = {
        "agent_s": ("agent: from its start until a process runs", 1.0, "s"),
        "ray_s": ("Ray: from the start of a node until an actor runs", 1.0, "s"),
        "agent_bytes": ("agent: memory of its own", 1e-6, "MB"),
        "ray_bytes": ("Ray: memory of a node's processes", 1e-6, "MB"),
        "line_s": (f"{megabytes:.0f} MB of a checkpoint, by the agent's line, on disk", 1.0, "s"),
        "disk_s": (f"{megabytes:.0f} MB of a checkpoint, to this disk", 1.0, "s"),
    }
    rows = tuple(
        (name, str(spreads[key].count), f"{spreads[key].text(scale, 2 if unit == 's' else 0)} {unit}")
        for key, (name, scale, unit) in names.items()
    )
    ratio = {what: spreads[f"ray_{what}"].median / spreads[f"agent_{what}"].median for what in ("s", "bytes")}
    return Result(
        headers=("what", "n", "median (least – greatest)"),
        rows=rows,
        verdict=f"an agent is there {ratio['s']:.0f} times sooner than a node of Ray and takes "
        f"{ratio['bytes']:.0f} times less memory; by its line a checkpoint takes "
        f"{spreads['line_s'].median / spreads['disk_s'].median:.1f} times as long as to a local disk",
        figures=dict(spreads),
        remarks=(
            "loopback: a network between VMs has its own speed, which bounds the line; the agent encrypts",
            "without TensorFlow, which every worker starts for itself",
        ),
    )


BENCHMARK = Benchmark("agents", 5, run)
