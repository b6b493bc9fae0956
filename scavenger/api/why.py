"""Where the prediction of a configuration comes from, as `scavenger curves JOB --why K B -o json` writes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from scavenger.api.curves import curve_document, report_with_curve
from scavenger.errors import ConfigurationError, StoreError
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.models.why import explain

if TYPE_CHECKING:
    from scavenger.domain.report import RunReport
    from scavenger.store import Store
    from scavenger.store.records import JobRecord, ModelRecord

_OF_A_CURVE = ("schema_version", "job")
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


def why_of(store: Store, job: JobRecord, workers: int, global_batch_size: int) -> dict[str, Any]:
    """Explain a configuration of a stored job by the model that it stored, or else by the one that it reused.

    Raises:
        ConfigurationError: The job has no curve, no model is stored for it, or there is no such configuration.
        StoreError: Its report or model cannot be read.
    """
    report = report_with_curve(job)
    record = _model_of(store, job)
    try:
        model = JobModel.from_dict(record.model)
    except ValueError as error:
        raise StoreError(f"the stored model {record.id[:8]} cannot be read: {error}") from error
    used = {"id": record.id, "job_id": record.job_id}
    return why_document(report, model, workers, global_batch_size, used=used)


def why_document(
    report: RunReport,
    model: JobModel,
    workers: int,
    global_batch_size: int,
    *,
    used: dict[str, str | None] | None = None,
) -> dict[str, Any]:
    """Explain a configuration on each VM type of a curve.

    Args:
        report: With a curve; its configurations are what may be measured.
        used: Where the model is stored; None if it is not.

    Raises:
        ConfigurationError: If some workers would get nothing, or no step was measured on any of its VM types.
    """
    assert report.curve is not None
    whole, of = curve_document(report), report.curve.configurations
    rows = {(row["vm"], row["workers"], row["global_batch_size"]): row for row in whole["curve"]}
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
        found.append({**asdict(why), "relative_only": model.relative_only, "point": point})
    if not found:
        raise ConfigurationError(
            f"no step was measured on {' or '.join(of.vms)}: its step times are those of {model.vms[0].vm}, by the "
            "number of processors"
        )
    return {name: whole[name] for name in _OF_A_CURVE} | {"model": used, "predictions": found}


def _model_of(store: Store, job: JobRecord) -> ModelRecord:
    own = (one for one in store.models() if one.job_id == job.id and one.intact)
    alike = store.find_models(job.fingerprint) if job.fingerprint is not None else ()
    for record in (*own, *alike):
        if record.schema_version == SCHEMA_VERSION:
            return record
    raise ConfigurationError(
        f"job {job.name} ({job.id[:8]}) has no stored model that this version can read: `scavenger plan` makes one"
    )
