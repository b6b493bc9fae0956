"""The report as a document for machines, and back.

One form serves `-o json`, the store and the exported curves. It holds only JSON's own types: floats that are
not finite become null (and come back as NaN), tuples become lists. Units stand last in the names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scavenger.domain.configuration import Configuration
from scavenger.domain.cost import CostEstimate, CostItem
from scavenger.domain.curve import Choice, CurvePoint, Infeasible, TradeoffCurve
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import Actual, MetricOutcome, Predicted, RunReport, SearchOutcome, time_error

__all__ = [
    "SCHEMA_VERSION",
    "curve_from_document",
    "estimate_from_document",
    "report_document",
    "report_from_document",
]

SCHEMA_VERSION = 1
"""Rises when a field changes its meaning or goes; new fields do not raise it."""

Document = dict[str, Any]


def report_document(report: RunReport) -> Document:
    """The whole report, ready for `json.dumps(..., allow_nan=False)`.

    Returns:
        `schema_version`, `job`, `search`, `choice` (null where `infeasible` says why), `curve` with one entry
        per configuration, `curve_info`, `predicted`, `actual` (null for a plan), `time_error` (predicted less
        actual time by cause; null where it cannot be split), `metric`, `steps`,
        `model_path`, `measurements_path`, `warnings`, `quarantined`, `estimate`, `error` and `exit_code`.
    """
    chosen = report.choice if isinstance(report.choice, Choice) else None
    infeasible = report.choice if isinstance(report.choice, Infeasible) else None
    return {
        "schema_version": SCHEMA_VERSION,
        "job": {"id": report.job_id, "name": report.job_name, "state": report.state},
        "search": _search(report.search),
        "choice": None if chosen is None else _choice(chosen),
        "infeasible": None
        if infeasible is None
        else {
            "reason": infeasible.reason,
            "nearest": None if infeasible.nearest is None else _summary(infeasible.nearest),
        },
        "curve": None if report.curve is None else _points(report.curve),
        "curve_info": None
        if report.curve is None
        else {"relative_only": report.curve.relative_only, "notes": list(report.curve.notes)},
        "predicted": None if report.predicted is None else _predicted(report.predicted),
        "actual": None
        if report.actual is None
        else {
            "time_s": _finite(report.actual.time_s),
            "cost_usd": _finite(report.actual.cost_usd),
            "step_time_s": _finite(report.actual.step_time_s),
            "epochs": _finite(report.actual.epochs),
        },
        "time_error": _time_error(report.predicted, report.actual),
        "metric": None
        if report.metric is None
        else {
            "name": report.metric.name,
            "value": _finite(report.metric.value),
            "target": _finite(report.metric.target),
            "reached": report.metric.reached,
        },
        "steps": report.steps,
        "model_path": report.model_path,
        "measurements_path": report.measurements_path,
        "warnings": list(report.warnings),
        "quarantined": list(report.quarantined),
        "estimate": None if report.estimate is None else _estimate(report.estimate),
        "error": report.error,
        "exit_code": report.exit_code,
    }


def report_from_document(document: Mapping[str, Any]) -> RunReport:
    """The report that a document was made of; `report_document` of it gives an equal document.

    Raises:
        ValueError: If this is no report, or one of a later schema.
    """
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"a report of schema {version!r}; this version reads schema {SCHEMA_VERSION}")
    try:
        return _read_report(document)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not a report: {type(error).__name__} at {error}") from error


def curve_from_document(document: Mapping[str, Any]) -> TradeoffCurve:
    """The curve of a report's document, its points in the same order.

    Raises:
        ValueError: If the document has no curve, or a malformed one.
    """
    rows, info = document.get("curve"), document.get("curve_info")
    if rows is None or info is None:
        raise ValueError("the report has no curve: the job ended before one was predicted")
    try:
        return _read_curve(rows, info)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a curve: {type(error).__name__} at {error}") from error


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _configuration(configuration: Configuration) -> Document:
    return {
        "workers": configuration.workers,
        "global_batch_size": configuration.global_batch_size,
        "vm": configuration.vm,
    }


def _read_configuration(row: Mapping[str, Any]) -> Configuration:
    return Configuration(str(row["vm"]), int(row["workers"]), int(row["global_batch_size"]))


def _summary(point: CurvePoint) -> Document:
    return {
        **_configuration(point.configuration),
        "time_s": _finite(point.time_s),
        "cost_usd": _finite(point.cost_usd),
    }


def _interval(time_s: Iterable[float], cost_usd: Iterable[float]) -> Document:
    return {"time_s": [_finite(x) for x in time_s], "cost_usd": [_finite(x) for x in cost_usd]}


def _choice(choice: Choice) -> Document:
    return {
        **_configuration(choice.configuration),
        "objective": choice.objective,
        "reason": choice.reason,
        "alternatives": [{"label": label, **_summary(point)} for label, point in choice.alternatives],
    }


def _predicted(predicted: Predicted) -> Document:
    return {
        "time_s": _finite(predicted.time_s),
        "cost_usd": _finite(predicted.cost_usd),
        "interval": _interval(predicted.time_interval_s, predicted.cost_interval_usd),
        "step_time_s": _finite(predicted.step_time_s),
        "epochs": _finite(predicted.epochs),
        "spent_s": _finite(predicted.spent_s),
        "spent_usd": _finite(predicted.spent_usd),
        "remaining": _finite(predicted.remaining),
    }


def _time_error(predicted: Predicted | None, actual: Actual | None) -> Document | None:
    error = None if predicted is None or actual is None else time_error(predicted, actual)
    if error is None:
        return None
    return {
        "whole_s": error.whole_s,
        "from_epochs_s": error.epochs_s,
        "from_step_time_s": error.step_time_s,
        "from_other_s": error.other_s,
    }


def _estimate(estimate: CostEstimate) -> Document:
    return {
        "time_s": _finite(estimate.time_s),
        "total_usd": _finite(estimate.total_usd),
        "items": [{"name": i.name, "usd": _finite(i.usd), "how": i.how} for i in estimate.items],
        "not_counted": list(estimate.not_counted),
    }


def estimate_from_document(document: Mapping[str, Any]) -> CostEstimate | None:
    """The itemised estimate of a report's document; None where it has none.

    Raises:
        ValueError: If it is malformed.
    """
    estimate = document.get("estimate")
    if estimate is None:
        return None
    try:
        items = tuple(CostItem(str(i["name"]), _number(i["usd"]), str(i["how"])) for i in estimate["items"])
        return CostEstimate(_number(estimate["time_s"]), items, tuple(map(str, estimate["not_counted"])))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an estimate: {type(error).__name__} at {error}") from error


def _search(search: SearchOutcome) -> Document:
    return {
        "strategy": search.strategy,
        "reason": search.reason,
        "time_s": _finite(search.time_s),
        "cost_usd": _finite(search.cost_usd),
        "overhead_s": _finite(search.overhead_s),
        "overhead_usd": _finite(search.overhead_usd),
        "profiled": [
            {
                **_configuration(measurement.configuration),
                "steps": measurement.steps,
                "step_time_s": _finite(measurement.step_time_s),
                "step_time_spread_s": _finite(measurement.step_time_spread_s),
                "compute_s": _finite(measurement.compute_s),
                "sync_s": _finite(measurement.sync_s),
                "noise": _finite(measurement.gradient_noise),
                "noise_scale": _finite(measurement.noise_scale),
                "memory_bytes": measurement.memory_bytes,
                "progress": _finite(measurement.progress),
            }
            for measurement in search.profiled
        ],
    }


def _floats(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float | None]:
    return [_finite(value) for value in np.asarray(values, float).tolist()]


def _points(curve: TradeoffCurve) -> list[Document]:
    """By columns, since a curve may have 100,000 points."""
    columns = zip(
        curve.vm_index.tolist(),
        curve.workers.tolist(),
        curve.global_batch_size.tolist(),
        _floats(curve.time_s),
        _floats(curve.cost_usd),
        zip(_floats(curve.time_low_s), _floats(curve.time_high_s), strict=True),
        zip(_floats(curve.cost_low_usd), _floats(curve.cost_high_usd), strict=True),
        _floats(curve.step_time_s),
        _floats(curve.epochs),
        curve.on_front.tolist(),
        curve.measured.tolist(),
        curve.extrapolated.tolist(),
        curve.excluded.tolist(),
        strict=True,
    )
    return [
        {
            "workers": workers,
            "global_batch_size": batch,
            "vm": curve.vms[vm],
            "time_s": time_s,
            "cost_usd": cost_usd,
            "interval": {"time_s": list(time_interval), "cost_usd": list(cost_interval)},
            "step_time_s": step_time_s,
            "epochs": epochs,
            "on_front": on_front,
            "knee": index == curve.knee,
            "measured": measured,
            "extrapolated": extrapolated,
            "excluded": curve.reasons[excluded],
        }
        for index, (
            vm,
            workers,
            batch,
            time_s,
            cost_usd,
            time_interval,
            cost_interval,
            step_time_s,
            epochs,
            on_front,
            measured,
            extrapolated,
            excluded,
        ) in enumerate(columns)
    ]


def _read_curve(rows: Sequence[Mapping[str, Any]], info: Mapping[str, Any]) -> TradeoffCurve:
    vms = {name: i for i, name in enumerate(dict.fromkeys(str(row["vm"]) for row in rows))}
    reasons = {"": 0}
    for row in rows:
        reasons.setdefault(str(row["excluded"]), len(reasons))
    knees = [i for i, row in enumerate(rows) if row["knee"]]

    def floats(values: Iterable[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([_number(value) for value in values], np.float64)

    return TradeoffCurve(
        vms=tuple(vms),
        vm_index=np.array([vms[str(row["vm"])] for row in rows], np.int64),
        workers=np.array([row["workers"] for row in rows], np.int64),
        global_batch_size=np.array([row["global_batch_size"] for row in rows], np.int64),
        time_s=floats(row["time_s"] for row in rows),
        time_low_s=floats(row["interval"]["time_s"][0] for row in rows),
        time_high_s=floats(row["interval"]["time_s"][1] for row in rows),
        cost_usd=floats(row["cost_usd"] for row in rows),
        cost_low_usd=floats(row["interval"]["cost_usd"][0] for row in rows),
        cost_high_usd=floats(row["interval"]["cost_usd"][1] for row in rows),
        step_time_s=floats(row["step_time_s"] for row in rows),
        epochs=floats(row["epochs"] for row in rows),
        on_front=np.array([row["on_front"] for row in rows], np.bool_),
        measured=np.array([row["measured"] for row in rows], np.bool_),
        extrapolated=np.array([row["extrapolated"] for row in rows], np.bool_),
        excluded=np.array([reasons[str(row["excluded"])] for row in rows], np.int64),
        reasons=tuple(reasons),
        relative_only=bool(info["relative_only"]),
        notes=tuple(str(note) for note in info["notes"]),
        knee=knees[0] if knees else None,
    )


def _read_point(row: Mapping[str, Any], curve: TradeoffCurve) -> CurvePoint:
    configuration = _read_configuration(row)
    point = curve.find(configuration)
    if point is None:
        raise ValueError(f"not a report: {configuration} is not on its curve")
    return point


def _read_choice(document: Mapping[str, Any], curve: TradeoffCurve | None) -> Choice | Infeasible | None:
    chosen, infeasible = document["choice"], document["infeasible"]
    if infeasible is not None:
        nearest = infeasible["nearest"]
        return Infeasible(
            str(infeasible["reason"]),
            None if nearest is None or curve is None else _read_point(nearest, curve),
        )
    if chosen is None:
        return None
    if curve is None:
        raise ValueError("not a report: a choice without a curve")
    return Choice(
        _read_point(chosen, curve),
        str(chosen["objective"]),
        str(chosen["reason"]),
        tuple((str(row["label"]), _read_point(row, curve)) for row in chosen["alternatives"]),
    )


def _read_measurement(row: Mapping[str, Any]) -> Measurement:
    return Measurement(
        configuration=_read_configuration(row),
        steps=int(row["steps"]),
        step_time_s=_number(row["step_time_s"]),
        step_time_spread_s=_number(row["step_time_spread_s"]),
        compute_s=_number(row["compute_s"]),
        sync_s=_number(row["sync_s"]),
        gradient_noise=row["noise"],
        noise_scale=row["noise_scale"],
        memory_bytes=int(row["memory_bytes"]),
        progress=row.get("progress"),
    )


def _read_report(document: Mapping[str, Any]) -> RunReport:
    job, search, metric = document["job"], document["search"], document["metric"]
    predicted, actual = document["predicted"], document["actual"]
    curve = None if document["curve"] is None else curve_from_document(document)
    return RunReport(
        job_id=str(job["id"]),
        job_name=str(job["name"]),
        state=job["state"],
        search=SearchOutcome(
            strategy=str(search["strategy"]),
            reason=str(search["reason"]),
            profiled=tuple(_read_measurement(row) for row in search["profiled"]),
            time_s=_number(search["time_s"]),
            cost_usd=_number(search["cost_usd"]),
            overhead_s=search["overhead_s"],
            overhead_usd=search["overhead_usd"],
        ),
        curve=curve,
        choice=_read_choice(document, curve),
        predicted=None
        if predicted is None
        else Predicted(
            time_s=_number(predicted["time_s"]),
            time_interval_s=_pair(predicted["interval"]["time_s"]),
            cost_usd=_number(predicted["cost_usd"]),
            cost_interval_usd=_pair(predicted["interval"]["cost_usd"]),
            step_time_s=_number(predicted["step_time_s"]),
            epochs=_number(predicted["epochs"]),
            spent_s=_number(predicted.get("spent_s", 0.0)),
            spent_usd=_number(predicted.get("spent_usd", 0.0)),
            remaining=_number(predicted.get("remaining", 1.0)),
        ),
        actual=None
        if actual is None
        else Actual(
            **{name: _number(actual[name]) for name in ("time_s", "cost_usd", "step_time_s", "epochs")}
        ),
        metric=None
        if metric is None
        else MetricOutcome(str(metric["name"]), metric["value"], metric["target"], bool(metric["reached"])),
        steps=int(document["steps"]),
        model_path=document["model_path"],
        measurements_path=document["measurements_path"],
        warnings=tuple(str(warning) for warning in document["warnings"]),
        quarantined=tuple(int(sample) for sample in document.get("quarantined", ())),
        estimate=estimate_from_document(document),
        error=str(document["error"]),
        exit_code=int(document["exit_code"]),
    )


def _pair(values: Sequence[float | None]) -> tuple[float, float]:
    low, high = values
    return _number(low), _number(high)
