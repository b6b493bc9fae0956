"""Control, from Python, of a job that runs in another process: scale, migrate, profile, stop.

Every call sends a request to the process that runs the job, as the `scavenger` command does, and waits. The
operations are those of EDL [1]_.

References:
    .. [1] Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", 2021, table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from scavenger.api.asking import Asking
from scavenger.api.calls import Local, Remote, Source
from scavenger.api.jobs import job_of
from scavenger.api.opening import open_source
from scavenger.client import Client as ServerClient
from scavenger.client.address import known_address
from scavenger.domain.measurement import Measurement
from scavenger.domain.operation import (
    Migrate,
    Operation,
    ProfileRange,
    ScaleAggregators,
    ScaleIn,
    ScaleOut,
    ScaleTo,
    StopJob,
    describe,
)
from scavenger.errors import ConfigurationError, NotSupportedError, TransientError

__all__ = ["RunningJob"]

TIMEOUT_S = 900.0
"""Default wait for an answer: on a cloud, launching and warming up a worker takes minutes."""


class RunningJob:
    """A running job, identified by its name, its id, or the beginning of its id.

    Args:
        job: The latest job of that name, or the one of that id.
        store: URL of the store that holds the job; None for the one that commands use.
        server: URL of a server that runs the job instead, with what `scavenger api login` has kept for it.
        token: The server's token; else that of `SCAVENGER_TOKEN`, or the kept one.
        timeout_s: Longest wait for an answer; a request that was not started by then is withdrawn.

    Every method raises `ConfigurationError` if there is no such job, it is not running, or it refuses, which
    changes nothing, and `TransientError` if it is busy with another request, fails, or does not answer in time.
    """

    def __init__(
        self,
        job: str,
        store: str | None = None,
        *,
        server: str | None = None,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if store is not None and server is not None:
            raise ConfigurationError("a running job has a store or a server, not both; leave one out")
        self._key, self._timeout_s = job, timeout_s
        self._opened: Callable[[], AbstractContextManager[Source]] = lambda: (
            open_source(store) if server is None else Remote(ServerClient(known_address(server, token)))
        )

    @classmethod
    def known_to(cls, source: Source, job: str, *, timeout_s: float = TIMEOUT_S) -> Self:
        """A running job that an open store or server knows."""
        known = cls(job, timeout_s=timeout_s)
        known._opened = lambda: nullcontext(source)
        return known

    def scale_to(self, workers: int) -> None:
        """Train with this many workers."""
        self._ask(lambda: ScaleTo(workers))

    def scale_out(self, workers: int = 1) -> None:
        """Add this many workers; the others continue training while they start."""
        self._ask(lambda: ScaleOut(workers))

    def scale_in(self, workers: Iterable[str] | str) -> None:
        """Remove these workers, or the one of this name, after the current step."""
        self._ask(lambda: ScaleIn(_names(workers)))

    def scale_aggregators(self, aggregators: int) -> None:
        """Have the first so many of the job's aggregators hold the model, while training continues."""
        self._ask(lambda: ScaleAggregators(aggregators))

    def migrate(self, workers: Iterable[str] | str | None = None) -> None:
        """Replace these workers, the one of this name, or all (None), by new ones, in one change of view."""
        self._ask(lambda: Migrate(None if workers is None else _names(workers)))

    def profile(self, fewest: int, most: int, steps: int = 20) -> tuple[Measurement, ...]:
        """Measure the step time at every number of workers from `most` down to `fewest`, over `steps` steps each.

        Sizes at which too many workers died are left out.
        """
        with self._opened() as source:
            if not isinstance(source, Local):
                raise NotSupportedError("a server takes no profile; ask on its own machine, with its store")
            job = job_of(source, self._key)
            before = set(source.store.measurements(job.id))
            self._carry_out(source, lambda: ProfileRange(fewest, most, steps))
            return tuple(m for m in source.store.measurements(job.id) if m not in before)

    def stop(self, *, save: bool = True) -> None:
        """Stop the job gracefully and wait for its end; with `save`, save the model in its current state."""
        self._ask(lambda: StopJob(save))

    def _ask(self, make: Callable[[], Operation]) -> None:
        with self._opened() as source:
            self._carry_out(source, make)

    def _carry_out(self, source: Source, make: Callable[[], Operation]) -> None:
        asking = Asking(source, self._key)
        try:
            operation = make()
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        record = asking.carry_out(operation, self._timeout_s)
        if record.state != "done":
            refused = record.state == "refused"
            raise (ConfigurationError if refused else TransientError)(
                f"{asking.name}, asked to {describe(operation)}: {record.state}: {record.message}"
            )


def _names(workers: Iterable[str] | str) -> tuple[str, ...]:
    """Names of workers; a text is one name, not its letters."""
    return (workers,) if isinstance(workers, str) else tuple(workers)
