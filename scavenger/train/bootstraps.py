"""What each process of a job is told at its start."""

from __future__ import annotations

from collections.abc import Sequence

from scavenger.train import messages as m
from scavenger.train.source import JobSource
from scavenger.train.wire import Keys, new_keys

__all__ = ["Bootstraps"]


class Bootstraps:
    """Those of one job; every process gets keys of its own.

    Args:
        source: The training code, which only those that run it hear of.
        hub: Address that all speak to.
        server_key: The hub's public key.
        memory_fd: Descriptor of the job's block; -1 for none.
        aggregators: Their names; the keys of their data channels stay the same when they are restarted.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        hub: str,
        server_key: bytes,
        memory_fd: int = -1,
        aggregators: Sequence[str] = (),
    ) -> None:
        self._source, self._hub, self._server_key = source, hub, server_key.decode()
        self._memory_fd = memory_fd
        self._indices = {name: index for index, name in enumerate(aggregators)}
        self._data_keys: dict[str, Keys] = {name: new_keys() for name in aggregators}

    def of(self, role: str, name: str, *, token: int = 0) -> m.Bootstrap:
        """For one process. `token`: the newest coordinator's."""
        public, secret = new_keys()
        data = self._data_keys.get(name, (b"", b""))
        return m.Bootstrap(
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
            threads=self._source.threads,
            data_public_key=data[0].decode(),
            data_secret_key=data[1].decode(),
        )
