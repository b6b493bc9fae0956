"""Pool of aggregator processes that several jobs share: a parameter service.

A pool process serves one model shard of each job assigned to it, in a thread that has sockets, keys and a view of a
shared-memory block of that job alone. One job's shard can neither see nor name another's. The thread ends when its job
asks for it, or when the job's owner is gone or has closed its block. When the process dies, every job that it served
restores its shard from its block (`scavenger.train.aggregation.aggregator`).
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
    """The main object of a pool process: runs one thread per job."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def serve(self, line: bytes) -> None:
        """Serve one more job, given its encoded process configuration."""
        config = msgspec.json.decode(line, type=m.ProcessConfiguration)
        threading.Thread(target=self._run, args=(config,), name=config.name, daemon=True).start()

    def _run(self, config: m.ProcessConfiguration) -> None:
        from scavenger.train.aggregation.aggregator import Aggregator

        keys = (config.public_key.encode(), config.secret_key.encode())
        control = Dealer(self._context, config.name, config.coordinator, config.server_key.encode(), keys)
        try:
            Aggregator(self._context, config, control).run()
        except Exception as error:  # noqa: BLE001 - an error in one job must not end the others
            control.send(m.Failed("internal", f"{type(error).__name__}: {error}"))
        finally:
            control.close()


class AggregatorPool:
    """Aggregator processes on this machine, for any number of jobs.

    Args:
        processes: Number of processes; shards are assigned to them in turn.
        work_dir: Folder for logs.
    """

    def __init__(self, processes: int, work_dir: Path) -> None:
        if processes < 1:
            raise ValueError("a pool needs at least one process")
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
        """The engine that runs the pool's processes."""
        return self._engine

    def next_process(self) -> str:
        """Return the process for the next shard."""
        name = self._names[self._next % len(self._names)]
        self._next += 1
        return name

    def serve(self, process: str, config: m.ProcessConfiguration) -> None:
        """Make a process serve a shard."""
        self._engine.send_line(process, msgspec.json.encode(config))

    def poll(self) -> None:
        """Restart processes that have died, and notify the jobs; every job calls this."""
        for ended in self._engine.poll():
            self._launch(ended.name)
            for client in self.clients:
                client.process_died(ended.name)

    def close(self) -> None:
        """End every process; jobs that still use the pool lose their aggregators."""
        self._engine.kill_all()
        self._engine.close()


class PooledEngine(ProcessEngine):
    """Engine of one job whose aggregators run in a shared pool.

    Args:
        log_dir: See `ProcessEngine`.
        memory_fd: File descriptor of the job's block, which the pool's processes open too.
        pool: The pool, shared with other jobs.
    """

    def __init__(self, log_dir: Path, memory_fd: int, *, pool: AggregatorPool) -> None:
        super().__init__(log_dir, memory_fd)
        self._pool, self._memory = pool, block_path(memory_fd)
        self._assigned: dict[str, str] = {}
        self._gone: set[str] = set()
        self._dead: list[Exit] = []
        pool.clients.append(self)

    def launch(
        self,
        config: m.ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """See `Engine.launch`."""
        if config.role != "aggregator":
            return super().launch(config, env=env, host=host)
        process = self._assigned.setdefault(config.name, self._pool.next_process())
        self._gone.discard(config.name)
        self._pool.serve(process, msgspec.structs.replace(config, memory_fd=-1, memory=self._memory))
        return self._pool.engine.pid(process)

    def process_died(self, process: str) -> None:
        """Record the death of a pool process, which the pool has replaced."""
        for name in [name for name, at in self._assigned.items() if at == process and name not in self._gone]:
            self._gone.add(name)
            self._dead.append(Exit(name, -signal.SIGKILL, "died with the pool's process"))

    def poll(self) -> list[Exit]:
        """See `Engine.poll`."""
        self._pool.poll()
        dead, self._dead = self._dead, []
        return dead + super().poll()

    @property
    def running(self) -> tuple[str, ...]:
        """See `Engine.running`."""
        return super().running + tuple(name for name in self._assigned.copy() if name not in self._gone)

    def pid(self, name: str) -> int:
        """See `Engine.pid`."""
        return self._pool.engine.pid(self._assigned[name]) if name in self._assigned else super().pid(name)

    def host(self, name: str) -> str:
        """See `Engine.host`."""
        return self._pool.engine.host(self._assigned[name]) if name in self._assigned else super().host(name)

    def log(self, name: str) -> Path:
        """See `Engine.log`."""
        return self._pool.engine.log(self._assigned[name]) if name in self._assigned else super().log(name)

    def kill(self, name: str) -> None:
        """See `Engine.kill`; killing an aggregator kills its pool process, and the pool starts another."""
        if name in self._assigned:
            self._pool.engine.kill(self._assigned[name])
        else:
            super().kill(name)

    def show_stack(self, name: str) -> None:
        """See `Engine.show_stack`."""
        if name in self._assigned:
            self._pool.engine.show_stack(self._assigned[name])
        else:
            super().show_stack(name)

    def kill_all(self) -> None:
        """See `Engine.kill_all`; the pool belongs to other jobs too and keeps running."""
        for name in super().running:
            super().kill(name)

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """See `Engine.stop`; the pool's processes keep running."""
        chosen = super().running if names is None else names
        super().stop([name for name in chosen if name not in self._assigned], grace_s=grace_s)

    def close(self) -> None:
        """See `Engine.close`."""
        if self in self._pool.clients:
            self._pool.clients.remove(self)
        super().close()
