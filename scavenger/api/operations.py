"""Operations on running jobs, as `scavenger status` and `scavenger scale` show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.domain.operation import (
    Migrate,
    Operation,
    ScaleAggregators,
    ScaleIn,
    ScaleOut,
    ScaleTo,
    operation_document,
)
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord, OperationRecord

Made = TypeVar("Made", bound=Operation)


def operation_row(record: OperationRecord) -> dict[str, Any]:
    """The record as JSON values; its operation names its kind."""
    row: dict[str, Any] = plain(record)
    return {**row, "operation": operation_document(record.operation)}


def outcome_document(job: JobRecord, record: OperationRecord) -> dict[str, Any]:
    """What became of an operation so far."""
    return {
        "schema_version": SCHEMA_VERSION,
        "job": {"id": job.id, "name": job.name, "state": job.state},
        "operation": operation_row(record),
    }


def scaling(
    workers: int | None = None,
    add: int | None = None,
    remove: tuple[str, ...] = (),
    aggregators: int | None = None,
) -> Operation:
    """The change of size that the options ask for.

    Raises:
        ConfigurationError: Not exactly one option was given, or its value is not allowed.
    """
    from scavenger.domain.ranges import WORKERS_MAX

    if [workers is not None, add is not None, bool(remove), aggregators is not None].count(True) != 1:
        raise ConfigurationError("give one of --workers N, --add N, --remove ID and --aggregators N")
    if aggregators is not None:
        return _made(lambda: ScaleAggregators(aggregators))
    if (count := workers or add or 0) > WORKERS_MAX:
        raise ConfigurationError(f"a job has at most {WORKERS_MAX:,} workers, not {count:,}")
    if workers is not None:
        return _made(lambda: ScaleTo(workers))
    return _made(lambda: ScaleIn(remove)) if add is None else _made(lambda: ScaleOut(add))


def migration(workers: tuple[str, ...]) -> Migrate:
    """The migration of these workers, or of all workers if none is given.

    Raises:
        ConfigurationError: A name is not the id of a worker.
    """
    return _made(lambda: Migrate(workers or None))


def _made(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
