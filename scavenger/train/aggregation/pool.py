"""Aggregators that several jobs share: the processes of a parameter service.

A pool's process serves a part of each job that was given to it, in a thread with sockets, keys and a view of a
block of that job alone. One job's part can neither see nor name another's. A seat is given up when its job says so,
or when the job's owner is gone or has closed its block. When the process dies, every job that
it served takes up its part where its block says it stood (`scavenger.train.aggregation.aggregator`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scavenger.train.engines.base import GRACE_S, Engine, Exit
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import block_path
from scavenger.train.transport.sockets import Dealer

__all__ = ["AggregatorPool", "PooledEngine", "PooledShards"]

_ROLE = "pool"


class PooledShards:
    """What runs in a pool's process: a thread for each job that it serves."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def serve(self, line: bytes) -> None:
        """Serve one more job, told by its bootstrap."""
        boot = msgspec.json.decode(line, type=m.ProcessConfiguration)
        threading.Thread(target=self._run, args=(boot,), name=boot.name, daemon=True).start()

    def _run(self, boot: m.ProcessConfiguration) -> None:
        from scavenger.train.aggregation.aggregator import Aggregator

        keys = (boot.public_key.encode(), boot.secret_key.encode())
        control = Dealer(self._context, boot.name, boot.coordinator, boot.server_key.encode(), keys)
        try:
            Aggregator(self._context, boot, control).run()
        except Exception as error:  # noqa: BLE001 - one job's fault ends nobody else's part
            control.send(m.Failed("internal", f"{type(error).__name__}: {error}"))
        finally:
            control.close()


class AggregatorPool:
    """Aggregator processes on this machine, for any number of jobs.

    Args:
        processes: How many; a job's parts go to them in turn.
        work_dir: For logs.
    """

    def __init__(self, processes: int, work_dir: Path) -> None:
        if processes < 1:
            raise ValueError("a pool needs a process")
        self._engine = ProcessEngine(work_dir / "logs", -1)
        self._names = tuple(f"pool-{index}" for index in range(processes))
        self.clients: list[PooledEngine] = []
        self._next = 0
        for name in self._names:
            self._launch(name)

    def _launch(self, name: str) -> None:
        self._engine.launch(
            m.ProcessConfiguration(
                role=_ROLE,
                name=name,
                coordinator="",
                server_key="",
                public_key="",
                secret_key="",
                memory_fd=-1,
            )
        )

    @property
    def engine(self) -> Engine:
        return self._engine

    def place(self) -> str:
        """The process that the next part goes to."""
        name = self._names[self._next % len(self._names)]
        self._next += 1
        return name

    def serve(self, process: str, boot: m.ProcessConfiguration) -> None:
        """Have a process serve a part."""
        self._engine.tell(process, msgspec.json.encode(boot))

    def poll(self) -> None:
        """Start again what has died, and tell the jobs; each of them looks, so nobody else has to."""
        for ended in self._engine.poll():
            self._launch(ended.name)
            for client in self.clients:
                client.died(ended.name)

    def close(self) -> None:
        """End every process; jobs that still use them lose their aggregators."""
        self._engine.kill_all()
        self._engine.close()


class PooledEngine(ProcessEngine):
    """A job's own engine, but for its aggregators, which are a pool's.

    Args:
        log_dir: As of `ProcessEngine`.
        memory_fd: The job's block, which the pool's processes open too.
        pool: Shared with other jobs.
    """

    def __init__(self, log_dir: Path, memory_fd: int, *, pool: AggregatorPool) -> None:
        super().__init__(log_dir, memory_fd)
        self._pool, self._memory = pool, block_path(memory_fd)
        self._places: dict[str, str] = {}
        self._gone: set[str] = set()
        self._dead: list[Exit] = []
        pool.clients.append(self)

    def launch(
        self,
        boot: m.ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """See `Engine.launch`."""
        if boot.role != "aggregator":
            return super().launch(boot, env=env, host=host)
        place = self._places.setdefault(boot.name, self._pool.place())
        self._gone.discard(boot.name)
        self._pool.serve(place, msgspec.structs.replace(boot, memory_fd=-1, memory=self._memory))
        return self._pool.engine.pid(place)

    def died(self, place: str) -> None:
        """A process of the pool has died, and another has taken its place."""
        for name in [name for name, at in self._places.items() if at == place and name not in self._gone]:
            self._gone.add(name)
            self._dead.append(Exit(name, -signal.SIGKILL, "died with the pool's process"))

    def poll(self) -> list[Exit]:
        """See `Engine.poll`."""
        self._pool.poll()
        dead, self._dead = self._dead, []
        return dead + super().poll()

    @property
    def running(self) -> tuple[str, ...]:
        return super().running + tuple(name for name in self._places.copy() if name not in self._gone)

    def pid(self, name: str) -> int:
        return self._pool.engine.pid(self._places[name]) if name in self._places else super().pid(name)

    def host(self, name: str) -> str:
        return self._pool.engine.host(self._places[name]) if name in self._places else super().host(name)

    def log(self, name: str) -> Path:
        return self._pool.engine.log(self._places[name]) if name in self._places else super().log(name)

    def kill(self, name: str) -> None:
        """See `Engine.kill`; with an aggregator goes its process, and the pool starts another."""
        if name in self._places:
            self._pool.engine.kill(self._places[name])
        else:
            super().kill(name)

    def show_stack(self, name: str) -> None:
        if name in self._places:
            self._pool.engine.show_stack(self._places[name])
        else:
            super().show_stack(name)

    def kill_all(self) -> None:
        """See `Engine.kill_all`; the pool is not this job's to kill."""
        for name in super().running:
            super().kill(name)

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """See `Engine.stop`; the pool's processes stay."""
        chosen = super().running if names is None else names
        super().stop([name for name in chosen if name not in self._places], grace_s=grace_s)

    def close(self) -> None:
        """See `Engine.close`."""
        if self in self._pool.clients:
            self._pool.clients.remove(self)
        super().close()
