"""Follows a led job, over whatever networks this machine is in; fetches its result, and ends the leader."""

from __future__ import annotations

import math
import os
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from scavenger.client import Client
from scavenger.control.leading.record import LeaderRecord, job_id_of, not_ended
from scavenger.control.leading.seat import Presence, Seat
from scavenger.control.leading.spent import book_leader
from scavenger.control.leading.unpacking import unpack_outputs
from scavenger.control.provisioning.bill import LEADER_ITEM, VmCost, with_vms
from scavenger.domain.cost import LedgerEntry
from scavenger.errors import ConfigurationError, GoneError, NotFoundError, ScavengerError, TransientError
from scavenger.presentation.formatting import plural
from scavenger.private_files import make_private_folder
from scavenger.store import Store
from scavenger.store.record_file import read_record

_AGAIN_S, _AGAIN_MAX_S = 1.0, 30.0
_BREAK_S = 5.0
"""How long events may stay away before the port is forwarded anew."""
_QUIET = ("progress",)
"""Kinds of events that are not shown."""
_VMS_MAX = 20
"""Most VMs of a job that are named in its bill here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
        state: See `JobState`, or that of its submission if it never began.
        exit_code: Of the command.
        error: One line; empty unless it failed.
        folder: The job's outputs on this machine; None if it has none.
    """

    state: str
    exit_code: int
    error: str
    folder: Path | None


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a leader tells of its job's cost.

    Attributes:
        leader_usd: What the job has counted of the leader's VM.
        vms: The VMs that the job rented there.
    """

    leader_usd: float = 0.0
    vms: tuple[VmCost, ...] = ()

    @property
    def vm_s(self) -> float:
        """Billed time of these VMs, seconds."""
        return sum(vm.billed_s for vm in self.vms)

    def __str__(self) -> str:
        named = ", ".join(f"{vm.instance_id} ({vm.vm}, {vm.zone})" for vm in self.vms[:_VMS_MAX])
        more = f" and {len(self.vms) - _VMS_MAX} others" if len(self.vms) > _VMS_MAX else ""
        return f"{plural(len(self.vms), 'VM')}: {named}{more}" if self.vms else ""


def _bill_of(document: Mapping[str, Any]) -> _Bill:
    """Read the cost document of a leader.

    Raises:
        ConfigurationError: It tells no cost: a leader that is not ours may say anything.
    """
    try:
        cost = document["job"]
        led = [float(item["usd"]) for item in cost["items"] if item["name"] == LEADER_ITEM]
        bill = _Bill(sum(led), msgspec.convert(cost["vms"], tuple[VmCost, ...]))
        if not all(0.0 <= one < math.inf for one in (bill.leader_usd, bill.vm_s)):
            raise ValueError(bill)
        return bill
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        raise ConfigurationError(
            f"what the job has cost cannot be read from its leader: {str(document)[:80]}"
        ) from None


class LeaderSession:
    """What a command has to do with one leader.

    Args:
        seat: Its machine.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat, self._told, self._bill = seat, 0, _Bill()

    @property
    def record(self) -> LeaderRecord:
        """Of the leader, as it was written last."""
        return self._seat.record

    # ---- while the job runs --------------------------------------------------------------------------------

    def follow(self, show: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Show events until the job has ended, through every failure of the network; returns the job's document.

        Args:
            show: Receives the events.

        Raises:
            GoneError: The leader's machine is gone.
            ConfigurationError: The leader refuses.
        """
        times = 0
        while True:
            try:
                with self._seat.api() as client:
                    document = self._followed(client, show)
                    if document is not None:
                        return document
                    times = 0
            except TransientError as error:
                times += 1
                if times == 1:
                    self._seat.inform(f"the leader is not reached, and its job goes on: {error}")
                self.readmit()
            self._seat.sleep(min(_AGAIN_MAX_S, _AGAIN_S * 2.0 ** min(times, 5)))

    def _followed(self, client: Client, show: Callable[[Mapping[str, Any]], None]) -> dict[str, Any] | None:
        document = client.get(f"jobs/{self.record.job_id}")
        submission = document.get("submission") or {}
        if document.get("job") is None:
            return document if submission.get("state") not in ("queued", "running") else None
        for event in client.follow_events(self.record.job_id, self._told, patience_s=_BREAK_S):
            self._told = int(event["id"])
            if event["kind"] not in _QUIET:
                show(event)
        document = client.get(f"jobs/{self.record.job_id}")
        # a job whose runner died is resumed by the leader: its submission tells
        if (document.get("submission") or {}).get("state") in ("queued", "running"):
            return None
        self._bill = _bill_of(client.get(f"jobs/{self.record.job_id}/cost"))
        return document

    def connect(self, ready: Callable[[int], None]) -> NoReturn:
        """Forward the API at one port of this machine, through every failure of the network.

        Args:
            ready: Receives the port, once.

        Raises:
            GoneError: The leader's machine is gone.
            TransientError: It cannot be reached at first.
        """
        here, times = 0, 0
        self.readmit()
        while True:
            try:
                with self._seat.tunnel(here=here) as tunnel:
                    if here:
                        self._seat.inform("connected again")
                    else:
                        ready(tunnel.port)
                    here, times = tunnel.port, 0
                    tunnel.wait()
            except TransientError as error:
                if not here:
                    raise
                times += 1
                if times == 1:
                    self._seat.inform(f"the job goes on, and the connection is made again: {error}")
                self.readmit()
            self._seat.sleep(min(_AGAIN_MAX_S, _AGAIN_S * 2.0 ** min(times, 5)))

    def readmit(self) -> None:
        """Let this machine in from its present address, if the leader's is there.

        Raises:
            GoneError: The leader's machine is gone.
        """
        try:
            self._seat.let_in()
        except GoneError:
            raise
        except ScavengerError as error:
            # without a network, the cloud is not reached either: the next attempt asks again
            self._seat.inform(f"the leader's {self._seat.kind} cannot be looked at now: {error}")

    # ---- afterwards ----------------------------------------------------------------------------------------

    def outcome(self, document: Mapping[str, Any], store: Store) -> Outcome:
        """Fetch the job's outputs and its record, for commands on this machine.

        Args:
            document: What `follow` has returned.
            store: This machine's.

        Raises:
            TransientError, ConfigurationError: They cannot be fetched, or are not of this leader's job.
        """
        job = document.get("job")
        if job is None:
            submission = document["submission"]
            return Outcome(submission["state"], ConfigurationError.exit_code, str(submission["reason"]), None)
        self._check_job(str(job["id"]), store)
        folder = self._fetched(self.record.job_id)
        record = read_record(folder)
        there = f"{self._seat.folder}/job/.scavenger/{record.id}"
        self._seat.change(counted_usd=self._bill.leader_usd)
        store.recover_job(
            replace(
                record,
                job_file=self.record.job_file,
                model_path=_here(record.model_path, there, folder),
                measurements_path=_here(record.measurements_path, there, folder),
                checkpoint=_here(record.checkpoint, there, folder, stored=self.record.checkpoints),
                report=with_vms(record.report, self._bill.vms),
            ),
            LedgerEntry(self._bill.vm_s, record.cost_usd or 0.0, str(self._bill)),
        )
        code = job["exit_code"]
        return Outcome(
            str(job["state"]),
            TransientError.exit_code if code is None else int(code),
            str(job["error"]),
            folder,
        )

    def _check_job(self, told: str, store: Store) -> None:
        """Check that what is fetched takes no other job's place.

        Raises:
            ConfigurationError: It would.
        """
        job_id = job_id_of(self.record.job_id)
        with suppress(NotFoundError):
            if store.job(job_id).job_file != self.record.job_file:
                told = ""
        if told != job_id:
            raise ConfigurationError(
                f"the leader of job {self.record.name} answers with another job's id; nothing is fetched from it"
            )

    def _fetched(self, job_id: str) -> Path:
        output = Path(self.record.output)
        make_private_folder(output)
        with tempfile.TemporaryFile(prefix="scavenger-") as file:
            self._seat.fetch(job_id, file)
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                unpack_outputs(tar, job_id, output)
        return output / job_id

    def end(self, store: Store, *, there: bool | None = None) -> tuple[str, ...]:
        """End the leader's machine and what it rented; returns a line for each that may be left.

        What could not be ended stays on record, for `scavenger gc`.

        Args:
            store: This machine's, whose ledger gets what the machine has cost.
            there: Whether the machine is there; None: as the cloud tells.
        """
        if there is None:
            there = self._seat.state() == "there"
        try:
            self._seat.change(ending=True)
        except OSError as error:  # it is ended all the same
            name = self.record.name
            self._seat.inform(f"the record of the leader of job {name} cannot be written: {error}")
        self.book(store, there=there)
        try:
            left = self._seat.end()
        except ScavengerError as error:
            left = (not_ended(self.record, error),)
        self.book(store, there=False)
        if not left:
            self._seat.leaders.remove(self.record)
        return left

    def book(self, store: Store, *, there: bool) -> None:
        """Book what the leader's machine has cost until now; where that fails, a line says so."""
        seat, now = self._seat, datetime.now(UTC)
        try:
            seat.record = book_leader(store, seat.leaders, seat.record, now, there=there)
        except (ScavengerError, OSError) as error:
            seat.inform(f"what the leader's VM of job {seat.record.name} costs cannot be booked: {error}")

    def state(self) -> Presence:
        """Whether the leader's machine is there, as far as the cloud tells."""
        return self._seat.state()


def _here(path: str | None, there: str, folder: Path, *, stored: str = "") -> str | None:
    """Where on this machine a file of the leader's is.

    Args:
        path: On the leader, or a URL.
        there: The folder of the job's outputs on the leader.
        folder: That on this machine.
        stored: Where the job file has checkpoints; a path below it is the same from everywhere.

    Returns:
        The path here; None for any other: a leader names no file of this machine.
    """
    if path is None:
        return None
    if "://" in stored and path.startswith(f"{stored.rstrip('/')}/"):
        return path
    inside = os.path.relpath(path, there) if path.startswith(f"{there}/") else ".."
    return None if inside.split("/")[0] == ".." else str(folder / inside)
