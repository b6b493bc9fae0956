"""The record of a leader on this machine: a private folder with a store of its own, which holds the record of its VM.

The store is not that of this machine's jobs: the VMs that a leader rents bear its tag, so that only its own command,
and the garbage collection, ever look at them, and no other job's reconciler takes them for VMs that nobody knows.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from scavenger.control.leading.keys import LOGIN_KEY
from scavenger.control.leading.ssh import SshTarget, known_host
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.private_files import make_private_folder, private_opener
from scavenger.store import Store

_RECORD, _TOKEN = "leader.json", "token"


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """A leader on a VM of its own.

    Attributes:
        id: Of the record; also what its host key is filed under.
        name: Of its job.
        job_file: On this machine.
        provider, region: Where its VM is.
        host_key: Public host key of its VM.
        output: Folder of the job's outputs on this machine, absolute.
        checkpoints: Where the job's checkpoints are, as its file says; empty for the leader's own disk.
        checkpoint_every_s: Time between two of them, seconds.
        job_id: Of the job, once it was submitted.
        address: Where its VM is reached; empty before there is one.
        ending: Whether its VM was to be ended; the record stays until all of it is gone.
        namespace, claim: Of a leader's pod, where it keeps its folder; empty for a VM.
        before_usd: What the ledger had of its job's leaders before this one.
        counted_usd: What its job's record, as it was fetched, has of its VM.
        seen_usd: What its VM had cost when it was looked at last.
    """

    id: str
    name: str
    job_file: str
    provider: str
    region: str
    host_key: str
    output: str
    checkpoints: str = ""
    checkpoint_every_s: float = 600.0
    job_id: str = ""
    address: str = ""
    ending: bool = False
    namespace: str = ""
    claim: str = ""
    before_usd: float = 0.0
    counted_usd: float = 0.0
    seen_usd: float = 0.0


def job_id_of(told: object) -> str:
    """The id of a job, as a leader has told it: it names a folder on this machine.

    Raises:
        ConfigurationError: It is no such id.
    """
    try:
        if str(uuid.UUID(str(told))) == told:
            return told
    except ValueError:  # refused below
        pass
    raise ConfigurationError(f"the leader answers with a job that has no id: {str(told)[:80]!r}")


def not_ended(record: LeaderRecord, error: Exception) -> str:
    """The line about VMs whose end could not be asked for."""
    where = f"{record.provider}/{record.region}"
    return f"the leader's VM of job {record.name} in {where}, and what it has rented: {error}"


class Leaders:
    """All leaders of an installation.

    Args:
        folder: Private folder of theirs, made when it is first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def beside(cls, store: Store) -> Leaders:
        """Those of a store: in a folder beside its file, or in the user's data folder if it is on a server."""
        beside = store.path.parent if store.path is not None else user_data_path("scavenger", appauthor=False)
        return cls(Path(beside) / "leaders")

    def put(self, record: LeaderRecord) -> None:
        """Write a record, new or changed."""
        folder = self.folder / record.id
        make_private_folder(folder)
        fresh = folder / f"{_RECORD}.new"
        with open(fresh, "w", opener=private_opener) as file:
            json.dump(asdict(record), file)
        os.replace(fresh, folder / _RECORD)
        with open(folder / "known_hosts", "w", opener=private_opener) as file:
            file.write(known_host(record.id, record.host_key))

    def change(self, record: LeaderRecord, **fields: Any) -> LeaderRecord:
        """The record with other values, which are written."""
        changed = replace(record, **fields)
        self.put(changed)
        return changed

    def all(self) -> Iterator[LeaderRecord]:
        """Every record, in no order."""
        for path in sorted(self.folder.glob(f"*/{_RECORD}")):
            yield LeaderRecord(**json.loads(path.read_text()))

    def find(self, key: str) -> LeaderRecord:
        """The one leader whose job has this id, the beginning of it, or this name.

        Raises:
            NotFoundError: There is none, or more than one.
        """
        known = list(self.all())
        found = [one for one in known if key and (one.job_id.startswith(key) or one.id.startswith(key))]
        found = found or [one for one in known if one.name == key]
        if len(found) != 1:
            words = "no leader's VM" if not found else f"{len(found)} leaders' VMs"
            raise NotFoundError(f"{words} for job {key}; `scavenger leader list` shows all")
        return found[0]

    def open_store(self, record: LeaderRecord) -> Store:
        """The store with the record of its VM."""
        return Store.open(f"sqlite:///{self.folder / record.id / 'store.db'}")

    def target(self, record: LeaderRecord) -> SshTarget:
        """Its VM as SSH sees it."""
        folder = self.folder / record.id
        return SshTarget(record.address, record.id, self.folder / LOGIN_KEY, folder / "known_hosts")

    def put_token(self, record: LeaderRecord, token: str) -> None:
        """Keep the token of its API, in a private file."""
        with open(self.folder / record.id / _TOKEN, "w", opener=private_opener) as file:
            file.write(token)

    def token(self, record: LeaderRecord) -> str:
        """The token of its API.

        Raises:
            NotFoundError: Its job was never submitted.
        """
        try:
            return (self.folder / record.id / _TOKEN).read_text()
        except FileNotFoundError:
            raise NotFoundError(
                f"the leader's VM of job {record.name} was never set up; `scavenger leader end {record.name}` ends it"
            ) from None

    def remove(self, record: LeaderRecord) -> None:
        """Forget a leader whose VM has ended."""
        shutil.rmtree(self.folder / record.id)
