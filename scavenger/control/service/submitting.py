"""Submits a job, and makes sure that a server is there to run it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_log_path

from scavenger.control.jobs.prepared import PreparedJob
from scavenger.domain.job import JobSpec
from scavenger.domain.submission import GivenEnvironment, NewSubmission, ServerRecord, Submission
from scavenger.errors import ConfigurationError, TransientError
from scavenger.private_files import make_private_folder, private_opener
from scavenger.store import Store
from scavenger.store.births import PLACE_VARIABLE
from scavenger.store.owner import this_process
from scavenger.store.records import JobRecord
from scavenger.train.engines.reaper import VARIABLE

_START_S = 60.0
"""How long a new server may take to begin: its machine may be busy."""
_LOOK_S = 0.1
_STORE = "SCAVENGER_STORE"
_OF_THIS_PROCESS = frozenset({VARIABLE, PLACE_VARIABLE, _STORE, "_", "OLDPWD", "PWD", "SHLVL"})
"""Variables that say something of a process itself, which is not true of a runner."""


def new_submission(
    prepared: PreparedJob,
    *,
    user: str | None = None,
    audit: bool = False,
    priority: int = 0,
    idempotency_key: str | None = None,
    run: bool = True,
    study_workers: int | None = None,
    environment: GivenEnvironment | None = None,
) -> NewSubmission:
    """A submission of a prepared job, to be run on this machine under this account.

    Args:
        prepared: The job; its overrides are kept, its file is not read again.
        user: Who submits it; None for the account's name.
        audit: Whether its runner records which worker computed which samples.
        priority: Higher ones begin first.
        idempotency_key: See `NewSubmission`.
        run: See `NewSubmission`.
        study_workers: See `NewSubmission`.
        environment: See `NewSubmission`.

    Raises:
        ConfigurationError: It would be chosen by old prices of which nobody was asked, see `Place.check_prices`; or
            `study_workers` is given for a job that is in no pool.
    """
    prepared.place.check_prices()
    if study_workers is not None and prepared.place.rents:
        raise ConfigurationError(
            f"workers= of a study is for jobs of this program, or of a pool of a server; with infra: "
            f"{prepared.job.infra} a server rents VMs for each trial: leave workers= out"
        )
    account = this_process()
    return NewSubmission(
        name=prepared.job.name,
        spec=prepared.job.written(),
        job_file=os.path.realpath(prepared.job_file),
        user=user or account.user,
        host=account.host,
        uid=os.getuid(),
        rents=prepared.place.rents,
        reserved_usd=prepared.job.constraints.budget,
        audit=audit,
        priority=priority,
        idempotency_key=idempotency_key,
        run=run,
        study_workers=study_workers,
        environment=environment,
    )


def resubmission(
    job: JobRecord,
    earlier: Submission | None,
    renewed: JobSpec | None = None,
    *,
    rents: bool,
    audit: bool,
    study_workers: int | None = None,
    environment: GivenEnvironment | None = None,
) -> NewSubmission:
    """A submission by which a job that has ended goes on.

    Args:
        renewed: Its specification with new limits; None for the one that it was started with.
        earlier: Its earlier submission, if it had one, whose user and priority are kept.
        audit: See `new_submission`.
        study_workers: See `NewSubmission`; None for that of its earlier submission.
        environment: See `NewSubmission`.
    """
    account = this_process()
    spec = job.spec if renewed is None else renewed.written()
    budget: Any = (spec.get("constraints") or {}).get("budget")
    return NewSubmission(
        name=job.name,
        spec=spec,
        job_file=job.job_file,
        user=account.user if earlier is None else earlier.job.user,
        host=account.host,
        uid=os.getuid(),
        rents=rents,
        reserved_usd=budget if isinstance(budget, float | int) else None,
        audit=audit,
        priority=0 if earlier is None else earlier.job.priority,
        run=earlier is None or earlier.job.run,
        study_workers=study_workers or (None if earlier is None else earlier.job.study_workers),
        environment=environment,
    )


def own_environment(environ: Mapping[str, str] = os.environ) -> GivenEnvironment:
    """The environment of this process, for a job that it submits: it is run as if this process ran it."""
    return GivenEnvironment(
        {name: value for name, value in environ.items() if name not in _OF_THIS_PROCESS}, whole=True
    )


def runner_environment(
    given: GivenEnvironment | None,
    store_url: str,
    *,
    background: bool,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a submission's runner.

    Args:
        background: Whether the server was started for a submission, so that its environment is that of whoever happened
            to submit first. That of another server is set up for its jobs.
        environ: The server's own environment.
    """
    own = {name: value for name, value in environ.items() if name != VARIABLE}
    if given is None:
        return {**own, _STORE: store_url}
    place = {PLACE_VARIABLE: own[PLACE_VARIABLE]} if PLACE_VARIABLE in own else {}
    base = {} if given.whole and background else own
    return {**base, **given.variables, **place, _STORE: store_url}


def hand_over(
    store: Store, new: NewSubmission, *, again: str | None = None, study_budget_usd: float | None = None
) -> Submission:
    """Submit a job, and see to it that a server is there.

    Args:
        again: Id of the job that is to go on; None for a new one.
        study_budget_usd: See `Store.submit`.

    Raises:
        ScavengerError: If it cannot be submitted, or no server begins to serve.
    """
    if again is None:
        submission = store.submit(new, study_budget_usd=study_budget_usd)
    else:
        submission = store.submit_again(again, new, study_budget_usd=study_budget_usd)
    store.wake_servers()
    try:
        ensure_server(store)
    except OSError as error:
        raise TransientError(f"the job is submitted, but no server can be started: {error}") from error
    return submission


def live_server(store: Store) -> ServerRecord | None:
    """A server of this installation and account that lives; None if there is none."""
    me = store.me()
    mine = [one for one in store.servers() if one.uid == me.uid and one.serves(me.installation, me.host)]
    return mine[0] if mine else None


def server_log(store: Store) -> Path:
    """The log of servers that are started in the background."""
    folder = store.path.parent if store.path is not None else user_log_path("scavenger")
    return folder / "server.log"


def ensure_server(store: Store) -> ServerRecord:
    """The server that runs this account's submissions; one is started in the background if there is none.

    Call it after the submission: a server that ends because nothing was left looks once more when it has signed off.

    Raises:
        TransientError: A server was started, and does not begin to serve.
        OSError: No process can be started.
    """
    if (found := live_server(store)) is not None:
        return found
    log = server_log(store)
    make_private_folder(log.parent)
    with open(log, "ab", opener=private_opener) as output:
        subprocess.run(
            [sys.executable, "-P", "-m", "scavenger.control.service"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=runner_environment(None, store.url, background=True),
            check=False,
        )
    deadline = time.monotonic() + _START_S
    while (found := live_server(store)) is None:
        if time.monotonic() > deadline:
            raise TransientError(
                f"the job is submitted, but no server begins to serve (log: {log}); it is run by the next"
            )
        time.sleep(_LOOK_S)
    return found
