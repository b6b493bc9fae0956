"""Where the prediction of a configuration comes from, as `scavenger curves JOB --why K B -o json` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.curves import CurveAnswer, part_of, report_with_curve
from scavenger.api.forms import JobKey
from scavenger.api.values import Answer, gathered
from scavenger.domain.document import Document
from scavenger.errors import ConfigurationError, StoreError
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.models.why import Why, explain

if TYPE_CHECKING:
    from scavenger.domain.report import RunReport
    from scavenger.store import Store
    from scavenger.store.records import JobRecord, ModelRecord

_OF_A_POINT = (
    "time_s",
    "cost_usd",
    "interval",
    "step_time_s",
    "epochs",
    "measured",
    "extrapolated",
    "excluded",
)

Size = Annotated[int, Field(ge=1, le=1 << 31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A stored model; `job_id` is null if no job on record has made it."""

    id: str
    job_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPrediction(Why):
    """Where the prediction of a configuration on one VM type comes from.

    Attributes:
        relative_only: Whether the epochs to the target are not known.
        point: What the curve has of it; null if it is no configuration of the curve.
    """

    relative_only: bool
    point: Document | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyAnswer(Answer):
    """As `scavenger curves JOB --why K B -o json`.

    Attributes:
        model: By which it is explained; null if it is not stored.
        predictions: One for each VM type on which steps were measured.
    """

    job: Document
    model: StoredModel | None
    predictions: tuple[ExplainedPrediction, ...]


@call("get", "jobs/{job}/curve/why", tag="jobs", summary="Where a prediction comes from")
def show_why(at: Local, job: JobKey, workers: Size, global_batch_size: Size) -> WhyAnswer:
    """The law, the parts and the measured points of a prediction, and what would narrow its interval most."""
    with at.store.at_one_moment():
        found = at.find_job(job)
        report = report_with_curve(found)
        record = _model_of(at.store, found)
    try:
        model = JobModel.from_dict(record.model)
    except ValueError as error:
        raise StoreError(f"the stored model {record.id[:8]} cannot be read: {error}") from error
    return explanation(report, model, workers, global_batch_size, used=gathered(StoredModel, record))


def explanation(
    report: RunReport,
    model: JobModel,
    workers: int,
    global_batch_size: int,
    *,
    used: StoredModel | None = None,
) -> WhyAnswer:
    """Explain a configuration on each VM type of a curve.

    Args:
        report: With a curve; its configurations are what may be measured.
        used: Where the model is stored; None if it is not.

    Raises:
        ConfigurationError: If some workers would get nothing, or no step was measured on any of its VM types.
    """
    assert report.curve is not None
    whole, of = part_of(report, CurveAnswer), report.curve.configurations
    rows = {(row["vm"], row["workers"], row["global_batch_size"]): row for row in whole.curve or ()}
    found = []
    for vm in model.vms:
        if vm.vm not in of.vms:
            continue
        here = (of.vm_index == of.vms.index(vm.vm)) & (report.curve.marks.excluded == 0)
        probes = np.column_stack((of.workers[here], of.global_batch_size[here])).tolist()
        try:
            why = explain(model, vm, workers, global_batch_size, [(k, b) for k, b in probes])
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        row = rows.get((vm.vm, workers, global_batch_size))
        point = None if row is None else {name: row[name] for name in _OF_A_POINT}
        found.append(gathered(ExplainedPrediction, why, relative_only=model.relative_only, point=point))
    if not found:
        raise ConfigurationError(
            f"no step was measured on {' or '.join(of.vms)}: its step times are those of {model.vms[0].vm}, by the "
            "number of processors"
        )
    return WhyAnswer(job=whole.job, model=used, predictions=tuple(found))


def _model_of(store: Store, job: JobRecord) -> ModelRecord:
    own = (one for one in store.models() if one.job_id == job.id and one.intact)
    alike = store.find_models(job.fingerprint) if job.fingerprint is not None else ()
    for record in (*own, *alike):
        if record.schema_version == SCHEMA_VERSION:
            return record
    raise ConfigurationError(
        f"job {job.name} ({job.id[:8]}) has no stored model that this version can read: `scavenger plan` makes one"
    )
