"""The store's fitted models and finished runs, which later jobs of the same kind reuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import and_, select, tuple_
from sqlalchemy.orm import Session

from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.measurement import ConvergenceRecord
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.store.base import (
    FINGERPRINT_FIELDS,
    KEY_PREFIX_MIN,
    Part,
    fingerprint_of,
    fingerprint_row,
    job_row,
)
from scavenger.store.documents import check_model, dump, export_document, model_id, parse_document
from scavenger.store.records import ModelRecord, Origin
from scavenger.store.schema import ConvergenceRow, FingerprintRow, JobRow, MeasurementRow, ModelRow

CONVERGES_ALIKE = ("architecture", "parameters", "optimizer", "dataset_size", "goal")
"""Fields of a fingerprint on which the epochs to the target depend: all but the hardware."""


class ModelsPart(Part):
    """The part of `Store` that holds fitted models and convergence records.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve
    it.
    """

    def save_model(
        self,
        fingerprint: Fingerprint,
        model: Mapping[str, Any],
        *,
        job_id: str | None,
        schema_version: int,
        measurements: int,
        runs: int,
    ) -> ModelRecord:
        """Store a fitted model; models with the same content are stored once.

        Args:
            model: As JSON.
            job_id: The job that fitted it.
            schema_version: Version of the form of `model`, at least 1.
            measurements: Number of measurements it was fitted to.
            runs: Number of finished runs it was fitted to.

        Raises:
            ValueError: The model holds NaN or infinity, or is larger or deeper than a model can be.
            ConfigurationError: There is no such job.
        """
        content = dict(model)
        check_model(content)
        with self._database.writing() as session:
            if job_id is not None:
                job_row(session, job_id)
            row = ModelRow(
                model=dump(content),
                schema_version=schema_version,
                measurements=measurements,
                runs=runs,
                job_id=job_id,
                origin="local",
                created_at=self._clock(),
            )
            return _kept(session, row, fingerprint)

    def models(self) -> tuple[ModelRecord, ...]:
        """All models, newest first, also those that are no longer `intact`."""
        with self._database.reading() as session:
            rows = session.scalars(select(ModelRow).order_by(ModelRow.created_at.desc(), ModelRow.id))
            return tuple(_model(row) for row in rows)

    def model(self, key: str) -> ModelRecord:
        """A model by its id or a unique prefix of at least four characters.

        Raises:
            ConfigurationError: No model or several match.
        """
        with self._database.reading() as session:
            return _model(_model_row(session, key))

    def delete_model(self, key: str) -> ModelRecord:
        """Delete a model and return it. Raises as `model`."""
        with self._database.writing() as session:
            row = _model_row(session, key)
            session.delete(row)
            return _model(row)

    def find_models(
        self, fingerprint: Fingerprint, *, ignoring: Collection[str] = ()
    ) -> tuple[ModelRecord, ...]:
        """Intact models of a kind of job, newest first.

        Args:
            ignoring: Fields of the fingerprint that need not be equal, as `("vm", "hardware")`.
        """
        if unknown := set(ignoring) - set(FINGERPRINT_FIELDS):
            raise ValueError(f"a fingerprint has no field {', '.join(sorted(unknown))}")
        alike = [name for name in FINGERPRINT_FIELDS if name not in ignoring]
        query = select(ModelRow).join(ModelRow.fingerprint).where(*_equal(fingerprint, alike))
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(ModelRow.created_at.desc(), ModelRow.id))
            return tuple(record for record in map(_model, rows) if record.intact)

    def export_models(self, keys: Sequence[str] | None = None) -> dict[str, Any]:
        """Models as one JSON document, which `import_models` reads.

        Args:
            keys: As for `model`; None for all that are intact.

        Raises:
            ConfigurationError: A key matches no model or several, or its model is not intact.
        """
        if keys is None:
            return export_document([record for record in self.models() if record.intact])
        records = [self.model(key) for key in keys]
        if damaged := [record.id[:12] for record in records if not record.intact]:
            raise ConfigurationError(
                f"model {damaged[0]} does not match its digest, so it was changed; remove it with"
                f" `scavenger models rm {damaged[0]}`"
            )
        return export_document(records)

    def import_models(
        self,
        document: Mapping[str, Any],
        *,
        check: Callable[[Mapping[str, Any], int], None] = lambda model, schema_version: None,
    ) -> tuple[ModelRecord, ...]:
        """Import exported models, all or none; those already stored are returned unchanged.

        Args:
            check: Called with each model and its schema version; raises `ValueError` for one that cannot be used.

        Raises:
            ConfigurationError: One line on the first fault: in the form, a size, a range, a digest, or from `check`.
        """
        entries = parse_document(document)
        for index, (entry, _) in enumerate(entries):
            try:
                check(entry.model, entry.schema_version)
            except ValueError as error:
                first = " ".join(str(error).split())
                raise ConfigurationError(f"models.{index} is refused: {first[:200]}") from None
        with self._database.writing() as session:
            return tuple(
                _kept(
                    session,
                    ModelRow(
                        model=dump(entry.model),
                        schema_version=entry.schema_version,
                        measurements=entry.measurements,
                        runs=entry.runs,
                        origin="imported",
                        created_at=entry.created_at,
                    ),
                    fingerprint,
                )
                for entry, fingerprint in entries
            )

    def add_convergence(self, fingerprint: Fingerprint, record: ConvergenceRecord, job_id: str) -> None:
        """Record when a job reached its target, or would have; a repeated call replaces the record.

        Raises:
            ConfigurationError: There is no such job.
        """
        with self._database.writing() as session:
            job_row(session, job_id)
            row = session.scalar(select(ConvergenceRow).filter_by(job_id=job_id)) or ConvergenceRow(
                job_id=job_id
            )
            row.fingerprint = fingerprint_row(session, fingerprint)
            row.global_batch_size, row.epochs, row.log_sd = (
                record.global_batch_size,
                record.epochs,
                record.log_sd,
            )
            row.created_at = self._clock()
            session.add(row)

    def convergence(self, fingerprint: Fingerprint) -> tuple[ConvergenceRecord, ...]:
        """Runs of the same model, optimizer, data set and goal, on any hardware, oldest first.

        A job is evaluated after every epoch.
        """
        query = select(ConvergenceRow).join(ConvergenceRow.fingerprint)
        query = query.where(*_equal(fingerprint, CONVERGES_ALIKE)).order_by(ConvergenceRow.id)
        with self._database.reading() as session:
            return tuple(
                ConvergenceRecord(row.global_batch_size, row.epochs, 1.0, row.log_sd)
                for row in session.scalars(query)
            )

    def run_ratios(self, fingerprint: Fingerprint, *, limit: int = 30) -> tuple[float, ...]:
        """Step time in the run over that in its profile, of the latest jobs on this hardware, newest first.

        Jobs whose chosen configuration was not profiled, or that ended before they had a step there, have none.
        """
        at = (MeasurementRow.vm, MeasurementRow.workers, MeasurementRow.global_batch_size)
        chosen = (JobRow.chosen_vm, JobRow.chosen_workers, JobRow.chosen_global_batch_size)
        query = (
            select(JobRow.actual, MeasurementRow.step_time_s)
            .join(JobRow.fingerprint)
            .join(MeasurementRow, and_(MeasurementRow.job_id == JobRow.id, tuple_(*at) == tuple_(*chosen)))
            .where(*_equal(fingerprint, ("vm", "hardware")), JobRow.actual.is_not(None))
            .order_by(JobRow.created_at.desc(), JobRow.id)
            .limit(limit)
        )
        with self._database.reading() as session:
            rows = [(actual or {}, profiled_s) for actual, profiled_s in session.execute(query)]
        taken = [(actual.get("step_time_s"), profiled_s) for actual, profiled_s in rows]
        return tuple(float(took_s) / profiled_s for took_s, profiled_s in taken if took_s)

    def rerun_ratios(self, fingerprint: Fingerprint, *, limit: int = 30) -> tuple[float, ...]:
        """Step time in a run over that of the run before it of the same job and choice, on this hardware, newest first.

        Args:
            limit: The latest jobs that are looked at.
        """
        query = (
            select(
                JobRow.fingerprint_id, JobRow.chosen_workers, JobRow.chosen_global_batch_size, JobRow.actual
            )
            .join(JobRow.fingerprint)
            .where(
                *_equal(fingerprint, ("vm", "hardware")),
                JobRow.actual.is_not(None),
                JobRow.chosen_workers.is_not(None),
            )
            .order_by(JobRow.created_at.desc(), JobRow.id)
            .limit(limit)
        )
        with self._database.reading() as session:
            rows = [tuple(row) for row in session.execute(query)]
        later: dict[Any, float] = {}
        ratios: list[float] = []
        for *kind, actual in rows:
            took_s = float((actual or {}).get("step_time_s") or 0.0)
            if took_s and (after_s := later.get(tuple(kind))):
                ratios.append(after_s / took_s)
            if took_s:
                later[tuple(kind)] = took_s
        return tuple(ratios)

    def endings_s(self, fingerprint: Fingerprint, *, limit: int = 5) -> tuple[float, ...]:
        """Seconds that the latest jobs of this architecture on this hardware took to save and end, newest first."""
        return self._ended_with("end_s", fingerprint, limit)

    def program_starts_s(self, fingerprint: Fingerprint, *, limit: int = 5) -> tuple[float, ...]:
        """Seconds from the start of this program to its first step in its latest jobs here, newest first."""
        return self._ended_with("program_start_s", fingerprint, limit)

    def rests_of_starts_s(self, fingerprint: Fingerprint, *, limit: int = 5) -> tuple[float, ...]:
        """What was left of first starts when this module was known, seconds, in its latest jobs here, newest first."""
        return self._ended_with("rest_of_start_s", fingerprint, limit)

    def _ended_with(self, name: str, fingerprint: Fingerprint, limit: int) -> tuple[float, ...]:
        """A number other than 0 of the reports of the latest jobs of this architecture on this hardware."""
        query = (
            select(JobRow.actual)
            .join(JobRow.fingerprint)
            .where(
                *_equal(fingerprint, ("architecture", "vm", "hardware")),
                JobRow.actual.is_not(None),
                JobRow.state.in_(("succeeded", "target_missed")),
            )
            .order_by(JobRow.created_at.desc(), JobRow.id)
            .limit(limit)
        )
        with self._database.reading() as session:
            found = [(actual or {}).get(name) for actual in session.scalars(query)]
        return tuple(float(took_s) for took_s in found if took_s)

    def starts_s(self, fingerprint: Fingerprint, *, limit: int = 10) -> tuple[tuple[float, float], ...]:
        """Start of the first workers and of further ones, seconds, in the latest jobs on this hardware, newest first.

        A job without further workers has 0 for theirs.
        """
        query = (
            select(JobRow.actual)
            .join(JobRow.fingerprint)
            .where(*_equal(fingerprint, ("vm", "hardware")), JobRow.actual.is_not(None))
            .order_by(JobRow.created_at.desc(), JobRow.id)
            .limit(limit)
        )
        with self._database.reading() as session:
            found = [actual or {} for actual in session.scalars(query)]
        pairs = [(actual.get("first_start_s") or 0.0, actual.get("start_s") or 0.0) for actual in found]
        return tuple((float(first), float(further)) for first, further in pairs if first or further)


def _equal(fingerprint: Fingerprint, names: Collection[str]) -> list[Any]:
    return [getattr(FingerprintRow, name) == getattr(fingerprint, name) for name in names]


def _kept(session: Session, row: ModelRow, fingerprint: Fingerprint) -> ModelRecord:
    """Store a model under its digest; an intact row is kept, a damaged one repaired."""
    row.id = _id_of(row, fingerprint)
    present = session.get(ModelRow, row.id)
    if present is not None and (record := _model(present)).intact:
        return record
    row.fingerprint_id = fingerprint_row(session, fingerprint).id
    kept = session.merge(row)
    session.flush()
    session.refresh(kept)
    return _model(kept)


def _model_row(session: Session, key: str) -> ModelRow:
    found: Sequence[ModelRow] = ()
    if len(key) >= KEY_PREFIX_MIN:
        query = select(ModelRow).where(ModelRow.id.startswith(key, autoescape=True))
        found = session.scalars(query.limit(2)).all()
    if len(found) == 1:
        return found[0]
    problem = f"several models begin with {key!r}" if found else f"there is no model {key!r}"
    raise (ConfigurationError if found else NotFoundError)(
        f"{problem}; give at least {KEY_PREFIX_MIN} characters of an id that `scavenger models list` shows"
    )


def _id_of(row: ModelRow, fingerprint: Fingerprint) -> str:
    return model_id(
        fingerprint,
        json.loads(row.model),
        schema_version=row.schema_version,
        measurements=row.measurements,
        runs=row.runs,
    )


def _model(row: ModelRow) -> ModelRecord:
    fingerprint = fingerprint_of(row.fingerprint)
    try:
        intact = _id_of(row, fingerprint) == row.id
        model = json.loads(row.model)
    except (TypeError, ValueError, RecursionError):  # what a changed row may hold
        intact, model = False, {}
    return ModelRecord(
        id=row.id,
        fingerprint=fingerprint,
        model=model,
        schema_version=row.schema_version,
        measurements=row.measurements,
        runs=row.runs,
        job_id=row.job_id,
        origin=cast(Origin, row.origin),
        created_at=row.created_at,
        intact=intact,
    )
