"""What each process of a job is told at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scavenger.logs import read_settings
from scavenger.train.job_source import JobSource
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import LogSettings
from scavenger.train.transport.sockets import new_keys

__all__ = ["ProcessConfigurations"]


class ProcessConfigurations:
    """Those of one job; every process gets keys of its own.

    Args:
        source: The training code, which only those that run it hear of.
        hub: Address that all speak to.
        server_key: The hub's public key.
        admit: Called with the name and public key of each process, for the hub to let it in.
        memory_fd: Descriptor of the job's block; -1 for none.
        aggregators: Their names. One that is restarted has other keys on its data channel too, so that everybody
            connects to it anew, even where it got the port of the one before, and nothing said to that one arrives.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        hub: str,
        server_key: bytes,
        admit: Callable[[str, str], None] = lambda name, key: None,
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
        """For one process.

        Args:
            token: The newest coordinator's.
            threads: That it computes with; as the source says where None.
        """
        public, secret = new_keys()
        self._admit(name, public.decode())
        data = new_keys() if name in self._indices else (b"", b"")
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
            train=self._source.train if role in ("worker", "loop") else "",
            job_dir=str(self._source.job_dir.resolve()),
            seed=self._source.seed,
            threads=self._source.threads if threads is None else threads,
            data_public_key=data[0].decode(),
            data_secret_key=data[1].decode(),
            logs=self._logs,
        )
