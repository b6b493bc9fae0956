"""The store's indicators: what jobs report at each step, in batches of columns."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from sqlalchemy import delete, func, select

from scavenger.domain.indicators import IndicatorBatch, check_batch
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.store.base import Part
from scavenger.store.schema import IndicatorRow, JobRow

INDICATORS_MAX = 10_000_000
"""Most values kept of one job, the newest."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[int], dict[str, list[float]]]).decode


class IndicatorsPart(Part):
    """The part of `Store` that holds indicators.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def add_indicators(self, job_id: str, steps: Sequence[int], values: Mapping[str, Sequence[float]]) -> int:
        """Record a batch, as one compressed row; the job's oldest beyond `INDICATORS_MAX` values are deleted.

        A batch that begins at or before the last step on record replaces nothing: it is refused, so that a batch
        that was sent twice counts once.

        Args:
            steps: Steps, growing.
            values: By name, one number a step; NaN where a step has none.

        Returns:
            Number of values on record of this job.

        Raises:
            NotFoundError: There is no such job.
            ConfigurationError: The batch is not consistent, or its steps are on record.
        """
        try:
            check_batch(steps, values)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        count = len(steps) * len(values)
        # the fastest level: numbers of measurements hardly compress any better with more effort
        content = zlib.compress(_encode((steps, dict(values))), 1)
        with self._database.writing() as session:
            if session.scalar(select(JobRow.id).where(JobRow.id == job_id)) is None:
                raise NotFoundError(f"there is no job {job_id}; `scavenger status` lists the jobs")
            mine = select(IndicatorRow.last_step, IndicatorRow.total).where(IndicatorRow.job_id == job_id)
            last_step, total = session.execute(mine.order_by(IndicatorRow.id.desc()).limit(1)).first() or (
                -1,
                0,
            )
            if steps[0] <= last_step:
                raise ConfigurationError(
                    f"indicators up to step {last_step} are on record; send those after it"
                )
            total += count
            row = IndicatorRow(
                job_id=job_id,
                at=self._clock(),
                first_step=steps[0],
                last_step=steps[-1],
                count=count,
                total=total,
                content=content,
            )
            session.add(row)
            old = (IndicatorRow.job_id == job_id, IndicatorRow.total <= total - INDICATORS_MAX)
            if total > INDICATORS_MAX:
                session.execute(delete(IndicatorRow).where(*old))
            return min(total, INDICATORS_MAX)

    def indicators(self, job_id: str, *, limit: int = 10, after: int = 0) -> tuple[IndicatorBatch, ...]:
        """The first `limit` batches of a job with a number above `after`, oldest first."""
        query = select(IndicatorRow).where(IndicatorRow.job_id == job_id, IndicatorRow.id > after)
        with self._database.reading() as session:
            return tuple(_batches(session.scalars(query.order_by(IndicatorRow.id).limit(limit))))

    def count_indicators(self) -> int:
        """Number of values on record, of all jobs."""
        with self._database.reading() as session:
            return session.scalar(select(func.coalesce(func.sum(IndicatorRow.count), 0))) or 0


def _batches(rows: Iterable[IndicatorRow]) -> Iterable[IndicatorBatch]:
    for row in rows:
        steps, values = _decode(zlib.decompress(row.content))
        yield IndicatorBatch(row.id, row.job_id, row.at, steps, values)
