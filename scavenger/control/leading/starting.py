"""Begins leaders: rents the machine, makes it a leader, and submits the job there."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from scavenger.client import Client
from scavenger.control.jobs.variables import secrets_of
from scavenger.control.leading.configuration import DOCUMENT
from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.record import LeaderRecord, Leaders, job_id_of
from scavenger.control.leading.seat import Seat
from scavenger.control.leading.seats import seat_of
from scavenger.control.leading.start import LeaderStart
from scavenger.domain.access import TOKEN_PREFIX
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import TransientError
from scavenger.presentation.formatting import duration
from scavenger.store import Store

_READY_S = 300.0
"""Longest time until a leader that was started serves."""
_LOOK_S, _STATE_S = 0.5, 10.0
"""Between two tries to reach it; how often its cloud is asked whether the machine is still there meanwhile."""


def start_leader(
    start: LeaderStart,
    leaders: Leaders,
    books: Store,
    *,
    inform: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> LeaderRecord:
    """Rent the machine, make it the leader, and submit the job to it; if that fails, everything is ended again.

    Args:
        start: The job.
        leaders: Records of leaders on this machine.
        books: This machine's store, whose ledger gets what the machine has cost.
        inform: Shows progress to the user.
        environment: Environment variables of the command.

    Returns:
        The record of the leader, which needs this machine no more.

    Raises:
        ScavengerError: The job cannot be led there; nothing is left, or a line says what is.
    """
    seat = _seat(start, leaders, _record(start), inform, environment)
    begin = seat.prepare(start)
    record = seat.change()
    with seat.open_store() as store:
        store.adopt_installation(f"{books.installation()}-{record.id[:8]}")  # a policy allows what begins so
        spec = start.prepared.job.written()
        store.create_job(record.name, spec=spec, job_file=record.job_file, job_id=record.id)
    try:
        inform(seat.beginning)
        job_id = job_id_of(first_answer(seat, begin, _submission(seat, start))["submission"]["id"])
    except BaseException:
        inform(f"the leader's {seat.kind} is ended, as its job could not be started")
        for line in LeaderSession(seat).end(books, there=True):
            inform(f"left behind: {line}; `scavenger gc` ends it")
        raise
    inform(f"job {record.name} ({job_id[:8]}) is led there, and goes on without this machine")
    return seat.change(job_id=job_id)


def restart_leader(
    start: LeaderStart,
    leaders: Leaders,
    record: LeaderRecord,
    *,
    inform: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Start a leader again whose folder was kept; its job goes on.

    Raises:
        ScavengerError: It cannot be started; what there is stays.
    """
    seat = _seat(start, leaders, record, inform, environment)
    inform(f"{seat.beginning} again")
    first_answer(seat, seat.prepare(start), lambda client: client.get(f"jobs/{record.job_id}"))
    inform(f"job {record.name} ({record.job_id[:8]}) goes on there")


def _seat(
    start: LeaderStart,
    leaders: Leaders,
    record: LeaderRecord,
    inform: Callable[[str], None],
    environment: Mapping[str, str],
) -> Seat:
    return seat_of(leaders, record, inform=inform, environment=environment, provider=start.resources.provider)


def _record(start: LeaderStart) -> LeaderRecord:
    prepared, resources = start.prepared, start.resources
    provider, settings = resources.provider, resources.settings
    checkpoint = prepared.job.checkpoint
    namespace, claim = "", ""
    if isinstance(settings, KubernetesSettings):
        namespace, claim = settings.namespace, settings.leader_claim
    return LeaderRecord(
        id=str(uuid.uuid4()),
        name=prepared.job.name,
        job_file=os.path.realpath(prepared.job_file),
        provider=provider.name,
        region=provider.region,
        host_key="",
        output=str((prepared.folder / prepared.job.output).resolve()),
        checkpoints="" if checkpoint is None else checkpoint.path,
        checkpoint_every_s=600.0 if checkpoint is None else checkpoint.every,
        namespace=namespace,
        claim=claim,
        before_usd=start.led_usd,
    )


def _submission(seat: Seat, start: LeaderStart) -> Callable[[Client], dict[str, Any]]:
    """Submits the job, or lets it go on; once, however often it is called."""
    again = str(uuid.uuid4())
    own = secrets_of(start.prepared.job, seat.environment)
    asked = {"audit": start.audit, "environment": dict(own)}

    def submit(client: Client) -> dict[str, Any]:
        if start.job_id:
            return client.post(f"jobs/{start.job_id}/resume", asked, key=again)
        job = {"job_file": f"{seat.folder}/job/{DOCUMENT}", "priority": start.priority}
        return client.post("jobs", {**asked, **job}, key=seat.record.id)

    return submit


def first_answer(
    seat: Seat, begin: Callable[[str], None], ask: Callable[[Client], dict[str, Any]]
) -> dict[str, Any]:
    """Have a leader begin, with a new token of its API; returns its first answer, once it serves.

    Raises:
        TransientError: Its machine ended, or it does not serve in time.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    begin(token)
    seat.leaders.put_token(seat.record, token)
    begun_s = asked_s = seat.clock()
    with seat.api() as client:
        while True:
            try:
                return ask(client)
            except TransientError as error:
                now_s = seat.clock()
                if now_s - begun_s > _READY_S:
                    late = f"the leader's {seat.kind} does not serve after {duration(_READY_S)}"
                    raise TransientError(f"{late}: {error}") from error
                if now_s - asked_s >= _STATE_S:
                    asked_s = now_s
                    if seat.state() == "gone":
                        raise TransientError(
                            f"the leader's {seat.kind} ended before it served: {error}"
                        ) from error
                seat.sleep(_LOOK_S)
