"""What the store knows of jobs of a kind, and what a run adds to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields

from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.measurement import ConvergenceRecord
from scavenger.models.average import average
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.search.reuse import find_nearest, same
from scavenger.store import Store
from scavenger.store.records import ModelRecord

__all__ = ["Knowledge", "optimizer_id"]

_DECIDE_ON_STEPS = ("architecture", "parameters", "dataset_size", "sample_bytes", "vm", "hardware")
"""What must be equal for step times to carry over; they are held against live steps all the same."""


class Knowledge:
    """The stored models and finished runs that bear on one job.

    Args:
        fingerprint: The job's.

    Attributes:
        same: The newest model of the same job on the same hardware; None if there is none.
        nearest: Where there is none, the nearest that differs in settings alone (optimizer's, goal), as in a
            search over hyperparameters, with what differs; None if there is none.
        convergence: Finished runs of the same job to the same goal, on any hardware.
    """

    def __init__(self, store: Store, fingerprint: Fingerprint) -> None:
        self._store, self._fingerprint = store, fingerprint
        self._kept: str | None = None
        self._models = [record for record in store.models() if record.intact]
        alike = [record for record in self._models if same(fingerprint, record.fingerprint)]
        self.same = next((model for model in map(_load, alike) if model is not None), None)
        self.nearest = None if self.same is not None else self._nearest()
        self.convergence: tuple[ConvergenceRecord, ...] = store.convergence(fingerprint)

    def _nearest(self) -> tuple[JobModel, str] | None:
        mine = self._fingerprint
        alike = [
            record
            for record in self._models
            if all(getattr(record.fingerprint, name) == getattr(mine, name) for name in _DECIDE_ON_STEPS)
        ]
        found = find_nearest(mine, [record.fingerprint for record in alike])
        if found is None:
            return None
        record = alike[found[0]]
        model = _load(record)
        differing = [
            f.name for f in fields(mine) if getattr(mine, f.name) != getattr(record.fingerprint, f.name)
        ]
        return None if model is None else (model, " and ".join(differing))

    @property
    def universal(self) -> JobModel | None:
        """The average of all stored models on this VM type; None if there is none."""
        here = [record for record in self._models if record.fingerprint.vm == self._fingerprint.vm]
        models = [model for model in map(_load, here) if model is not None]
        return average(models) if models else None

    def keep(self, model: JobModel, job_id: str, *, measurements: int) -> None:
        """Store a fitted model."""
        record = self._store.save_model(
            self._fingerprint,
            model.to_dict(),
            job_id=job_id,
            schema_version=SCHEMA_VERSION,
            measurements=measurements,
            runs=len(self.convergence),
        )
        if self._kept not in (None, record.id):
            self._store.delete_model(str(self._kept))  # the same run knew less when it fitted that one
        self._kept = record.id

    def converged(self, samples_by_batch: Mapping[int, int], epochs: int, job_id: str) -> None:
        """Store how many epochs a finished run took, under the batch size of most of its samples."""
        main = max(samples_by_batch, key=samples_by_batch.__getitem__)
        record = ConvergenceRecord(main, float(epochs))
        self._store.add_convergence(self._fingerprint, record, job_id)
        self.convergence = self._store.convergence(self._fingerprint)


def _load(record: ModelRecord) -> JobModel | None:
    """A stored model; None where this version cannot read it."""
    try:
        return JobModel.from_dict(record.model)
    except ValueError:
        return None


def optimizer_id(serialised: str) -> str:
    """Class and configuration of Keras's serialised optimizer, as `Adam:1f0c2b...`, without its name."""
    body = json.loads(serialised)
    config = {key: value for key, value in body["config"].items() if key != "name"}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return f"{body['class_name']}:{digest[:16]}"
