"""A supervisor without processes: what it launches is only noted, and dies when a test says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from manifests import manifest_of

from scavenger.train.engines.base import Engine, Exit, PreemptionNotice
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m


class StubEngine:
    """Holds names for processes."""

    leader_host = "127.0.0.1"
    leader_port = 0
    socket_dir = None
    in_doubt = False
    sharing = None

    def __init__(self) -> None:
        self.names: list[str] = []
        self.exits: list[Exit] = []

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self.names)

    def launch(self, boot: m.ProcessConfiguration, **_: Any) -> int:
        self.names.append(boot.name)
        return 0

    def die(self, name: str) -> None:
        self.names.remove(name)
        self.exits.append(Exit(name, -9))

    def poll(self) -> list[Exit]:
        exits, self.exits = self.exits, []
        return exits

    def kill(self, name: str) -> None:
        """It does not die of that: a test says when."""

    def pid(self, name: str) -> int:
        return 1

    def preemption_notices(self) -> tuple[PreemptionNotice, ...]:
        return ()

    def host(self, name: str) -> str:
        return self.leader_host

    def reachable(self, url: str) -> str:
        return url

    def log(self, name: str) -> Path:
        return Path(f"{name}.log")

    def idle_s(self, name: str) -> float:
        return math.inf

    def sample_memory(self) -> dict[str, int]:
        return {}

    def cap_logs(self) -> None: ...

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = 0.0) -> None: ...

    def close(self) -> None: ...


def manifest(rows: int = 2) -> m.Manifest:
    return manifest_of(
        (m.TensorSpec("kernel", (rows, 3), "float32", "trainable"),),
        '{"class_name": "SGD", "config": {"learning_rate": 0.1}}',
        metrics=((2,),),
        parameters=3 * rows,
    )


@contextmanager
def stub_supervisor(
    folder: Path, *, workers: int, aggregators: int = 1
) -> Iterator[tuple[Supervisor, StubEngine]]:
    """A supervisor whose first worker has said what the model is."""
    engine = StubEngine()
    supervisor = Supervisor.open(
        JobSource("train:job", folder, 1, threads=1),
        work_dir=folder,
        timeouts=Timeouts(60.0, 60.0),
        aggregators=aggregators,
        engine=lambda log_dir, fd: cast(Engine, engine),
    )
    try:
        supervisor.start(workers)
        hello = m.Hello(manifest())
        supervisor._incoming.from_process("w0", hello)
        yield supervisor, engine
    finally:
        supervisor.close()
