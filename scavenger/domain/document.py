"""Conversion of a run's report to a JSON document and back.

`-o json`, the store and the exported curves use the same document. It holds only JSON types: floats that are
not finite become null (and are read back as NaN), tuples become lists. Names end with their unit.

`msgspec` writes and reads the fields by their names in `domain.report` and the values that it holds. This module
contains only what differs in shape between document and values. A new field needs no change here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from scavenger.domain.configuration import Configuration
from scavenger.domain.cost import CostEstimate
from scavenger.domain.curve import (
    Choice,
    CurveConfigurations,
    CurvePoint,
    FloatArray,
    Infeasible,
    Interval,
    PointMarks,
    TradeoffCurve,
)
from scavenger.domain.report import RunReport, time_error
from scavenger.frames import Frame

SCHEMA_VERSION = 1
"""Incremented when a field changes its meaning or is removed; new fields do not change it."""

Document = dict[str, Any]
T = TypeVar("T")

_INLINE = ("actual", "metric", "steps", "model_path", "quarantined", "forecasts", "traceback")
"""Fields of the training's result, which the document has at its top."""
_ORDER = (
    *("predicted", "actual", "metric", "steps", "model_path", "measurements_path", "warnings"),
    *("error", "traceback", "exit_code", "quarantined", "estimate", "forecasts"),
)
"""Order of the document's fields after the curve."""
_LATER = ("warnings", "error", "traceback", "exit_code", "quarantined", "estimate", "forecasts")
"""Those that an early document may lack."""
_INTERVAL = {"time_s": "time_interval_s", "cost_usd": "cost_interval_usd"}
"""Fields of a prediction that the document groups under `interval`."""
_CONFIGURATION = ("workers", "global_batch_size", "vm")
"""Fields of a configuration, which are inlined into the row that refers to it."""
_APART = ("curve", "choice")
"""Fields of the report with a representation of their own: the curve's columns, and references to its points."""


def without_nonfinite(value: Any) -> Any:
    """Replace NaN and infinity by None, so that one such number does not prevent a report."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(item) for item in value]
    return value


# ---- the report ----------------------------------------------------------------------------------------------


def report_document(report: RunReport) -> Document:
    """The whole report, ready for `json.dumps(..., allow_nan=False)`.

    Returns:
        `schema_version`, `job`, `search`, `choice` (null where `infeasible` says why), `curve` with one entry
        per configuration, `curve_info`, `predicted`, `actual` (null for a plan), `time_error` (predicted less
        actual time by cause; null where it cannot be split), `metric`, `steps`, `model_path`,
        `measurements_path`, `warnings`, `quarantined`, `estimate`, `forecasts`, `error`,
        `traceback` and `exit_code`.
    """
    curve, choice = report.curve, report.choice
    written = {
        field.name: without_nonfinite(msgspec.to_builtins(getattr(report, field.name)))
        for field in fields(report)
        if field.name not in _APART
    }
    written |= written.pop("result")
    written["search"]["profiled"] = [_measurement_row(one) for one in written["search"]["profiled"]]
    if (predicted := written["predicted"]) is not None:
        predicted["interval"] = {key: predicted.pop(name) for key, name in _INTERVAL.items()}
    return {
        "schema_version": SCHEMA_VERSION,
        "job": written["job"],
        "search": written["search"],
        "choice": _choice_row(choice) if isinstance(choice, Choice) else None,
        "infeasible": _infeasible_row(choice) if isinstance(choice, Infeasible) else None,
        "curve": None if curve is None else _curve_rows(curve),
        "curve_info": None
        if curve is None
        else {"relative_only": curve.relative_only, "notes": list(curve.notes)},
        **{name: written[name] for name in _ORDER},
        "time_error": _time_error(report),
    }


def _time_error(report: RunReport) -> Document | None:
    """The split of the time error, which is derived from other fields and therefore only written, never read."""
    predicted, actual = report.predicted, report.result.actual
    error = None if predicted is None or actual is None else time_error(predicted, actual)
    if error is None:
        return None
    return {
        "whole_s": error.whole_s,
        "from_epochs_s": error.epochs_s,
        "from_step_time_s": error.step_time_s,
        "from_other_s": error.other_s,
    }


def traceback_of(document: Mapping[str, Any] | None) -> tuple[Frame, ...]:
    """The user's frames in a report's document; none if there is no report, or an older one."""
    try:
        return msgspec.convert((document or {}).get("traceback", ()), tuple[Frame, ...])
    except msgspec.ValidationError:
        return ()


def report_from_document(document: Mapping[str, Any]) -> RunReport:
    """Read a report from a document; `report_document` of the result gives an equal document.

    Raises:
        ValueError: If this is not a report, or one of a later schema.
    """
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"a report of schema {version!r}; this version reads schema {SCHEMA_VERSION}")
    try:
        curve = None if document["curve"] is None else curve_from_document(document)
        search, predicted = document["search"], document["predicted"]
        given = {name: document[name] for name in _ORDER if name in document or name not in _LATER}
        result = {name: given[name] for name in _INLINE if name in given}
        written = {"job": document["job"], "result": result, **given}
        written["search"] = {**search, "profiled": [_from_measurement_row(row) for row in search["profiled"]]}
        if predicted is not None:
            written["predicted"] = {
                **predicted,
                **{name: predicted["interval"][key] for key, name in _INTERVAL.items()},
            }
        read = {
            name: restored(written[name], kind)
            for name, kind in _hints(RunReport).items()
            if name in written and name not in (*_APART, "estimate")
        }
        read["estimate"] = estimate_from_document(document)
        return RunReport(**read, curve=curve, choice=_read_choice(document, curve))
    except (KeyError, TypeError, IndexError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"not a report: {type(error).__name__} at {error}") from error


def estimate_from_document(document: Mapping[str, Any]) -> CostEstimate | None:
    """Read the itemised estimate from a report's document; None if it has none.

    Raises:
        ValueError: If it is malformed.
    """
    try:
        found: CostEstimate | None = restored(document.get("estimate"), CostEstimate | None)
    except msgspec.ValidationError as error:
        raise ValueError(f"not an estimate: {error}") from error
    return found


def restored(written: Any, kind: Any) -> Any:
    """Restore a value of type `kind` from the output of `msgspec.to_builtins` and `without_nonfinite`.

    Raises:
        msgspec.ValidationError: If it is not a value of this type.
    """
    return msgspec.convert(_with_nan(written, kind), kind)


def _with_nan(written: Any, kind: Any) -> Any:
    """Replace null by NaN wherever the type is a number."""
    if written is None:
        return math.nan if kind is float else None
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(written, Mapping):
        hints = _hints(kind)
        return {key: _with_nan(item, hints.get(key)) for key, item in written.items()}
    inner = get_args(kind)
    if get_origin(kind) is tuple and isinstance(written, Sequence) and not isinstance(written, str):
        kinds = [inner[0]] * len(written) if inner[1:] == (...,) else inner
        return [_with_nan(item, one) for item, one in zip(written, kinds, strict=False)]
    for one in inner:  # of `kind | None`
        if is_dataclass(one):
            return _with_nan(written, one)
    return written


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _measurement_row(measurement: Document) -> Document:
    """Row of a measurement, with the configuration's fields inlined and the gradient noise under its short name."""
    configuration = measurement.pop("configuration")
    noise = measurement.pop("gradient_noise")
    return {**{name: configuration[name] for name in _CONFIGURATION}, **measurement, "noise": noise}


def _from_measurement_row(row: Mapping[str, Any]) -> Document:
    configuration = {name: row[name] for name in _CONFIGURATION}
    return {**row, "configuration": configuration, "gradient_noise": row["noise"]}


# ---- the choice, which refers to points of the curve ----------------------------------------------------------


def _configuration_of(point: CurvePoint) -> Document:
    return {name: getattr(point.configuration, name) for name in _CONFIGURATION}


def _summary(point: CurvePoint) -> Document:
    figures = {"time_s": point.time_s, "cost_usd": point.cost_usd}
    return {**_configuration_of(point), **without_nonfinite(figures)}


def _choice_row(choice: Choice) -> Document:
    return {
        **_configuration_of(choice.point),
        "objective": choice.objective,
        "reason": choice.reason,
        "alternatives": [{"label": label, **_summary(point)} for label, point in choice.alternatives],
    }


def _infeasible_row(infeasible: Infeasible) -> Document:
    nearest = infeasible.nearest
    return {"reason": infeasible.reason, "nearest": None if nearest is None else _summary(nearest)}


def _read_choice(document: Mapping[str, Any], curve: TradeoffCurve | None) -> Choice | Infeasible | None:
    chosen, infeasible = document["choice"], document["infeasible"]
    if infeasible is not None:
        nearest = infeasible["nearest"]
        point = None if nearest is None or curve is None else _read_point(nearest, curve)
        return Infeasible(str(infeasible["reason"]), point)
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


def _read_point(row: Mapping[str, Any], curve: TradeoffCurve) -> CurvePoint:
    configuration = msgspec.convert(row, Configuration)
    point = curve.find(configuration)
    if point is None:
        raise ValueError(f"not a report: {configuration} is not on its curve")
    return point


# ---- the curve, column by column, since it may have 100,000 points --------------------------------------------


class _Interval(msgspec.Struct):
    time_s: tuple[float | None, float | None]
    cost_usd: tuple[float | None, float | None]


class _Row(msgspec.Struct):
    """One point of a curve."""

    workers: int
    global_batch_size: int
    vm: str
    time_s: float | None
    cost_usd: float | None
    interval: _Interval
    step_time_s: float | None
    epochs: float | None
    on_front: bool
    knee: bool
    measured: bool
    extrapolated: bool
    excluded: str
    setup_s: float | None = None
    progress_share: float | None = None


def _curve_rows(curve: TradeoffCurve) -> list[Document]:
    nothing = [None] * len(curve)
    columns = zip(
        curve.configurations.workers.tolist(),
        curve.configurations.global_batch_size.tolist(),
        [curve.configurations.vms[index] for index in curve.configurations.vm_index.tolist()],
        _column(curve.time_s),
        _column(curve.cost_usd),
        map(
            _Interval,
            zip(_column(curve.time_interval_s.low), _column(curve.time_interval_s.high), strict=True),
            zip(_column(curve.cost_interval_usd.low), _column(curve.cost_interval_usd.high), strict=True),
        ),
        _column(curve.step_time_s),
        _column(curve.epochs),
        curve.marks.on_front.tolist(),
        [index == curve.knee for index in range(len(curve))],
        curve.marks.measured.tolist(),
        curve.marks.extrapolated.tolist(),
        [curve.marks.reasons[index] for index in curve.marks.excluded.tolist()],
        *(nothing if values is None else _column(values) for values in (curve.setup_s, curve.progress_share)),
        strict=True,
    )
    rows: list[Document] = msgspec.to_builtins([_Row(*cells) for cells in columns])
    for row in rows:  # as the JSON parser returns them
        row["interval"] = {key: list(pair) for key, pair in row["interval"].items()}
    return rows


def _column(values: FloatArray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def curve_from_document(document: Mapping[str, Any]) -> TradeoffCurve:
    """Read the curve from a report's document, its points in the same order.

    Raises:
        ValueError: If the document has no curve, or a malformed one.
    """
    written, info = document.get("curve"), document.get("curve_info")
    if written is None or info is None:
        raise ValueError("the report has no curve: the job ended before one was predicted")
    try:
        rows = msgspec.convert(written, list[_Row])
        return _read_curve(
            rows, relative_only=bool(info["relative_only"]), notes=tuple(map(str, info["notes"]))
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"not a curve: {type(error).__name__} at {error}") from error


def _read_curve(rows: Sequence[_Row], *, relative_only: bool, notes: tuple[str, ...]) -> TradeoffCurve:
    vms = {name: index for index, name in enumerate(dict.fromkeys(row.vm for row in rows))}
    reasons = {name: index for index, name in enumerate(dict.fromkeys(["", *(row.excluded for row in rows)]))}

    def figures(name: str) -> FloatArray:
        return np.array([getattr(row, name) for row in rows], np.float64)  # NaN for None

    def figures_if_any(name: str) -> FloatArray | None:
        return None if all(getattr(row, name) is None for row in rows) else figures(name)

    times = np.array([row.interval.time_s for row in rows], np.float64).reshape(-1, 2)
    costs = np.array([row.interval.cost_usd for row in rows], np.float64).reshape(-1, 2)
    return TradeoffCurve(
        configurations=CurveConfigurations(
            vms=tuple(vms),
            vm_index=np.array([vms[row.vm] for row in rows], np.int64),
            workers=np.array([row.workers for row in rows], np.int64),
            global_batch_size=np.array([row.global_batch_size for row in rows], np.int64),
        ),
        time_s=figures("time_s"),
        time_interval_s=Interval(times[:, 0], times[:, 1]),
        cost_usd=figures("cost_usd"),
        cost_interval_usd=Interval(costs[:, 0], costs[:, 1]),
        step_time_s=figures("step_time_s"),
        epochs=figures("epochs"),
        marks=PointMarks(
            on_front=np.array([row.on_front for row in rows], np.bool_),
            measured=np.array([row.measured for row in rows], np.bool_),
            extrapolated=np.array([row.extrapolated for row in rows], np.bool_),
            excluded=np.array([reasons[row.excluded] for row in rows], np.int64),
            reasons=tuple(reasons),
        ),
        relative_only=relative_only,
        notes=notes,
        knee=next((index for index, row in enumerate(rows) if row.knee), None),
        setup_s=figures_if_any("setup_s"),
        progress_share=figures_if_any("progress_share"),
    )
