"""The routes of the REST API as functions. Answers are the documents that the OpenAPI document describes."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any
from urllib.parse import quote

from scavenger.client.address import ServerAddress
from scavenger.client.connection import Connection
from scavenger.client.events import read_events
from scavenger.domain.operation import (
    Migrate,
    Operation,
    ScaleAggregators,
    ScaleIn,
    ScaleOut,
    ScaleTo,
    StopJob,
)
from scavenger.domain.overrides import UNCHANGED, Overrides, Renewal
from scavenger.errors import NotFoundError, NotSupportedError, TransientError

__all__ = ["Client", "Document", "SubmitOptions"]

log = logging.getLogger(__name__)

Document = dict[str, Any]

NO_VARIABLES: Mapping[str, str] = {}
PATIENCE_S = 600.0
"""How long a stream of events may be out of reach before following it fails: a network or a server that is back after
a restart is waited for."""
_AGAIN_S = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How a job is submitted; see `scavenger optimize`.

    Attributes:
        overrides: Values that replace those of the job file.
        audit: Record which worker trains on which samples.
        priority: Jobs of a higher one begin first.
        run: False: the job ends with the choice, as of `scavenger plan`.
        environment: Values of variables that the job file names; the server has its own of others.
        study_budget: Budget of all jobs of this name and user, US dollars: the job gets at most what is left.
    """

    overrides: Overrides = field(default_factory=Overrides)
    audit: bool = False
    priority: int = 0
    run: bool = True
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    study_budget: float | None = None


class Client(Connection):
    """A server. Every method raises the errors of `Connection.get`."""

    def __init__(self, address: ServerAddress) -> None:
        super().__init__(address)

    # ---- jobs ------------------------------------------------------------------------------------------------

    def submit(
        self, job_file: str, options: SubmitOptions | None = None, *, key: str | None = None
    ) -> Document:
        """Submit a job; the answer has its `submission`.

        Args:
            job_file: Absolute path of the job file on the server's machine.
            options: How it is submitted.
            key: The same key submits once, however often it is sent; None for a new one.
        """
        budget = (
            {} if options is None or options.study_budget is None else {"study_budget": options.study_budget}
        )
        return self.post("jobs", {**_submission(job_file, options), **budget}, key=key or str(uuid.uuid4()))

    def preview(self, job_file: str, options: SubmitOptions | None = None, *, yes: bool = True) -> Document:
        """What a job would search, profile, choose and run; nothing is submitted."""
        return self.post("preview", {**_submission(job_file, options), "yes": yes})

    def job(self, job: str) -> Document:
        """A job with progress, processes, operations and events; `job` is null while only its `submission` exists."""
        return self.get(f"jobs/{_part(job)}")

    def submissions(self, limit: int, *, states: Sequence[str] = (), cursor: str | None = None) -> Document:
        """Submitted jobs, newest first."""
        return self.get("queue", {"limit": limit, "state": list(states), "cursor": cursor})

    def fetch_outputs(self, job: str, file: IO[bytes]) -> None:
        """Write a tar archive of a job's outputs to a file."""
        self.download(f"jobs/{_part(job)}/outputs", file)

    def of_job(self, job: str, what: str, query: Mapping[str, Any] | None = None) -> Document:
        """What a route below a job tells: `plan`, `curve`, `cost`, `logs`, `events` or `operations`."""
        return self.get(f"jobs/{_part(job)}/{what}", query)

    def logs(
        self,
        job: str,
        *,
        lines: int = 20,
        process: str | None = None,
        events: bool = True,
        written: bool = True,
        follow: bool = False,
        cursor: str | None = None,
    ) -> Document:
        """The latest events and lines of the logs of a job, or all since a `cursor`, `next` of the answer before.

        Until `over` is true, more may come.
        """
        shown = {"events": _word(events), "written": _word(written), "follow": _word(follow)}
        return self.of_job(job, "logs", {"lines": lines, "process": process, "cursor": cursor, **shown})

    def follow_events(
        self, job: str, after: int = 0, *, patience_s: float = PATIENCE_S
    ) -> Iterator[Document]:
        """Events of a job as they come, until it has ended; after a break, the stream goes on after the last one.

        Args:
            job: Its id.
            after: Only events with a higher id.
            patience_s: How long the server may be out of reach, seconds.

        Raises:
            TransientError: It was out of reach for longer.
        """
        until_s, failures = time.monotonic() + patience_s, 0
        while True:
            try:
                headers = {"Last-Event-ID": str(after)} if after else {}
                with self.stream(f"jobs/{_part(job)}/events/stream", headers) as lines:
                    for event in read_events(lines):
                        if event.kind == "end":
                            return
                        after = int(event.id)
                        until_s, failures = time.monotonic() + patience_s, 0
                        yield json.loads(event.data)
            except TransientError as error:
                if time.monotonic() > until_s:
                    raise
                log.info("the stream of events broke off: %s", error)
                time.sleep(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
                failures += 1

    # ---- operations ------------------------------------------------------------------------------------------

    def operate(self, job: str, operation: Operation, *, key: str | None = None) -> Document:
        """Ask a running job for an operation. The answer has the `operation`, or, of a stop of a job that still waits,
        the `submission` that was withdrawn.

        Args:
            job: As of `job`.
            operation: What it is asked for.
            key: The same key asks once, however often it is sent; None for a new one.

        Raises:
            NotSupportedError: No route takes this operation.
        """
        body: Document
        match operation:
            case ScaleTo(workers):
                verb, body = "scale", {"workers": workers}
            case ScaleOut(add):
                verb, body = "scale", {"add": add}
            case ScaleIn(remove):
                verb, body = "scale", {"remove": list(remove)}
            case ScaleAggregators(aggregators):
                verb, body = "scale", {"aggregators": aggregators}
            case Migrate(workers):
                verb, body = "migrate", {"workers": None if workers is None else list(workers)}
            case StopJob(save, reason):
                verb, body = "stop", {"save": save, **({"reason": reason} if reason else {})}
            case _:
                raise NotSupportedError("the server takes no such operation; ask on its own machine")
        return self.post(f"jobs/{_part(job)}/{verb}", body, key=key or str(uuid.uuid4()))

    def resume(
        self,
        job: str,
        *,
        audit: bool = False,
        renewal: Renewal = UNCHANGED,
        study_budget: float | None = None,
        environment: Mapping[str, str] = NO_VARIABLES,
        key: str | None = None,
    ) -> Document:
        """Submit a job that ended before its goal again, to go on from its checkpoint.

        Args:
            job: The job.
            audit: As of `SubmitOptions`.
            renewal: What it goes on with.
            study_budget: It goes on only if what it may cost is left of that; see `SubmitOptions`.
            environment: Values of its secrets; those that it had, and the server's own, for others.
            key: As of `operate`.
        """
        asked = {**asdict(renewal), "study_budget": study_budget}
        given = {name: value for name, value in asked.items() if value is not None}
        body = {"audit": audit, "environment": dict(environment), **given}
        return self.post(f"jobs/{_part(job)}/resume", body, key=key or str(uuid.uuid4()))


def _submission(job_file: str, options: SubmitOptions | None) -> Document:
    given = asdict(options or SubmitOptions())
    del given["study_budget"]
    replaced = {name: value for name, value in given.pop("overrides").items() if value is not None}
    return {"job_file": job_file, **replaced, **given}


def _word(value: bool) -> str:
    return "true" if value else "false"


def _part(text: str) -> str:
    """A name as one part of a path.

    Raises:
        NotFoundError: It is one that paths give another meaning.
    """
    if text.strip(".") == "":
        raise NotFoundError(f"there is no job {text!r}; `scavenger status` lists the jobs")
    return quote(text, safe="")
