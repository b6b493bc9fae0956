"""Control, from Python, of a job that runs in another process: scale, migrate, profile, stop.

Every call sends a request to the process that runs the job, as the `scavenger` command does, and waits. The
operations are those of EDL [1]_.

References:
    .. [1] Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", 2021, table 1.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

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
from scavenger.errors import ConfigurationError, TransientError
from scavenger.store import Store
from scavenger.store.records import JobRecord, OperationRecord

__all__ = ["RunningJob"]

TIMEOUT_S = 900.0
"""Default wait for an answer: on a cloud, launching and warming up a worker takes minutes."""
_POLL_S = 0.2
_WITHDRAWN = "withdrawn before the job had started it"


class RunningJob:
    """A running job, identified by its name, its id, or the beginning of its id.

    Args:
        job: The latest job of that name, or the one of that id.
        store: The store that holds the job: an open store or a URL; None for the default one.
        timeout_s: Longest wait for an answer; a request that was not started by then is withdrawn.

    Every method raises `ConfigurationError` if there is no such job, it is not running, or it refuses, which
    changes nothing, and `TransientError` if it is busy with another request, fails, or does not answer in time.
    """

    def __init__(self, job: str, store: Store | str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._key, self._where, self._timeout_s = job, store, timeout_s

    def scale_to(self, workers: int) -> None:
        """Train with this many workers."""
        self._ask(lambda: ScaleTo(workers))

    def scale_out(self, workers: int = 1) -> None:
        """Add this many workers; the others continue training while they start."""
        self._ask(lambda: ScaleOut(workers))

    def scale_in(self, workers: Iterable[str]) -> None:
        """Remove these workers after the current step."""
        self._ask(lambda: ScaleIn(tuple(workers)))

    def scale_aggregators(self, aggregators: int) -> None:
        """Have the first so many of the job's aggregators hold the model, while training continues."""
        self._ask(lambda: ScaleAggregators(aggregators))

    def migrate(self, workers: Iterable[str] | None = None) -> None:
        """Replace these workers, or all (None), by new ones, in one change of view."""
        self._ask(lambda: Migrate(None if workers is None else tuple(workers)))

    def profile(self, fewest: int, most: int, steps: int = 20) -> tuple[Measurement, ...]:
        """Measure the step time at every number of workers from `most` down to `fewest`, over `steps` steps each.

        Sizes at which too many workers died are left out.
        """
        with self._store() as store:
            job = store.job(self._key)
            before = set(store.measurements(job.id))
            self._carry_out(store, job, lambda: ProfileRange(fewest, most, steps))
            return tuple(m for m in store.measurements(job.id) if m not in before)

    def stop(self, *, save: bool = True) -> None:
        """Stop the job gracefully and wait for its end; with `save`, save the model in its current state."""
        self._ask(lambda: StopJob(save))

    def _ask(self, make: Callable[[], Operation]) -> None:
        with self._store() as store:
            self._carry_out(store, store.job(self._key), make)

    @contextmanager
    def _store(self) -> Iterator[Store]:
        if isinstance(self._where, Store):
            yield self._where
            return
        with Store.open(self._where) as store:
            yield store

    def _carry_out(self, store: Store, job: JobRecord, make: Callable[[], Operation]) -> None:
        try:
            operation = make()
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        record = self._ended(store, job, store.submit_operation(job.id, operation, _requester()))
        if record.state != "done":
            refused = record.state == "refused"
            raise (ConfigurationError if refused else TransientError)(
                f"{job.name} ({job.id[:8]}), asked to {describe(operation)}: {record.state}: {record.message}"
            )

    def _ended(self, store: Store, job: JobRecord, record: OperationRecord) -> OperationRecord:
        until_s = time.monotonic() + self._timeout_s
        while not record.ended:
            if not store.is_alive(store.job(job.id)):
                store.reap_dead_jobs()  # this also ends the requests to dead jobs
            elif time.monotonic() > until_s:
                record = store.withdraw_operation(record.id, _WITHDRAWN)
                if record.ended and record.message != _WITHDRAWN:
                    break  # the job answered at the last moment
                what = "the job has not started it" if record.ended else "it is still in progress"
                raise TransientError(
                    f"{job.name} ({job.id[:8]}), asked to {describe(record.operation)}, has not answered within "
                    f"{self._timeout_s:g} s: {what}"
                )
            time.sleep(_POLL_S)
            record = store.operation(record.id)
        return record


def _requester() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
