"""The configuration that each process of a job gets at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scavenger.logs import read_settings
from scavenger.train.job_source import JobSource
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import LogSettings
from scavenger.train.transport.sockets import new_keys


class ProcessConfigurations:
    """Makes the configurations of one job's processes; every process gets its own key pair.

    Args:
        source: The training code; only processes that run it get its name.
        hub: Address of the hub that all processes connect to.
        server_key: The hub's public key.
        admit: Called with the name and public key of each process, so that the hub accepts it.
        memory_fd: Descriptor of the job's shared-memory block; -1 for none.
        aggregators: Names of the aggregators. A restarted aggregator also gets new keys for its data channel, so that
            every process has to connect again, even if the port is the same, and no message meant for the previous
            process reaches it.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        hub: str,
        server_key: bytes,
        admit: Callable[[str, str], object] = lambda name, key: None,
        memory_fd: int = -1,
        aggregators: Sequence[str] = (),
    ) -> None:
        self._source, self._hub, self._server_key = source, hub, server_key.decode()
        self._memory_fd, self._admit = memory_fd, admit
        chosen = read_settings()
        self._logs = LogSettings(source.job_id, chosen.level, chosen.format)
        self._indices = {name: index for index, name in enumerate(aggregators)}

    def of(
        self, role: str, name: str, *, token: int = 0, threads: int | None = None
    ) -> m.ProcessConfiguration:
        """Make the configuration of one process, and have the hub accept its key.

        Args:
            role: `worker`, `aggregator`, `coordinator`, `loop` or `command`.
            name: The process's name.
            token: The newest coordinator's token.
            threads: Threads that the process computes with; None for the number in the job source.
        """
        public, secret = new_keys()
        self._admit(name, public.decode())
        data = new_keys() if name in self._indices else (b"", b"")
        source = self._source if role in ("worker", "loop") else JobSource("", self._source.job_dir, 0, 1)
        return m.ProcessConfiguration(
            role=role,
            name=name,
            coordinator=self._hub,
            server_key=self._server_key,
            public_key=public.decode(),
            secret_key=secret.decode(),
            memory_fd=self._memory_fd if role != "coordinator" else -1,
            index=self._indices.get(name, 0),
            token=token,
            train=source.train,
            data=source.data,
            params=dict(source.params),
            schedule_batch=source.schedule_batch,
            gradients=source.gradients,
            job_dir=str(self._source.job_dir.resolve()),
            seed=self._source.seed,
            threads=max(1, (self._source.threads if threads is None else threads) // source.processes),
            processes=source.processes,
            data_public_key=data[0].decode(),
            data_secret_key=data[1].decode(),
            logs=self._logs,
            env=dict(self._source.env),
            secrets=dict(self._source.secrets) if role in ("command", "loop", "worker") else {},
        )
