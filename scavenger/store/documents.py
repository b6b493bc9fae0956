"""The store's JSON: canonical form, digests, and the export and import of models.

A digest detects that a record was damaged or edited. It is not a signature: anyone can compute a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scavenger.domain.fingerprint import Fingerprint
from scavenger.errors import ConfigurationError
from scavenger.store.records import ModelRecord

if TYPE_CHECKING:
    from scavenger.store.exchange import ModelDocument

EXPORT_SCHEMA_VERSION = 1
MODEL_BYTES_MAX = 1 << 20
"""Largest accepted model, bytes; a fitted model with its residuals takes some kilobytes."""
DEPTH_MAX = 20


def dump(value: Any) -> str:
    """Convert a value to JSON text; `ValueError` for NaN and infinity, which JSON cannot represent."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def digest(value: Any) -> str:
    """SHA-256, hex, of the canonical JSON: keys sorted, no spaces, ASCII, every float in its shortest form.

    Raises:
        ValueError: For NaN and infinity.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def fingerprint_id(fingerprint: Fingerprint) -> str:
    """The key of a fingerprint: its digest."""
    return digest(asdict(fingerprint))


def model_id(
    fingerprint: Fingerprint, model: Mapping[str, Any], *, schema_version: int, measurements: int, runs: int
) -> str:
    """The key of a model: the digest of its content, without where and when it was fitted.

    Raises:
        ValueError: For NaN and infinity in the model.
    """
    return digest(
        {
            "fingerprint": asdict(fingerprint),
            "schema_version": schema_version,
            "measurements": measurements,
            "runs": runs,
            "model": model,
        }
    )


def check_model(model: Mapping[str, Any]) -> None:
    """Check that a document can be a fitted model.

    Raises:
        ValueError: If a number is not finite, nesting passes `DEPTH_MAX`, or the whole `MODEL_BYTES_MAX`.
    """
    level: list[Any] = [model]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            break
    else:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    try:
        size = len(dump(model))
    except ValueError:
        raise ValueError("it holds a number that is not finite") from None
    if size > MODEL_BYTES_MAX:
        raise ValueError(f"it has {size:,} bytes, and {MODEL_BYTES_MAX:,} are allowed")


def export_document(records: Sequence[ModelRecord]) -> dict[str, Any]:
    """One JSON document with all of the models; `parse_document` reads it back."""
    return {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "kind": "scavenger-models",
        "models": [
            {
                "digest": record.id,
                "fingerprint": asdict(record.fingerprint),
                "schema_version": record.schema_version,
                "measurements": record.measurements,
                "runs": record.runs,
                "created_at": record.created_at.isoformat(),
                "model": record.model,
            }
            for record in records
        ],
    }


def parse_document(document: Mapping[str, Any]) -> list[tuple[ModelDocument, Fingerprint]]:
    """Read an untrusted exported document.

    Raises:
        ConfigurationError: One line that names the first fault: in the form, a size, a range, or a digest.
    """
    from pydantic import ValidationError

    from scavenger.store.exchange import ExportDocument

    version = document.get("schema_version") if isinstance(document, Mapping) else None
    if isinstance(version, int) and version > EXPORT_SCHEMA_VERSION:
        raise ConfigurationError(
            f"the models were exported by a newer Scavenger (schema_version {version}, this one reads up to"
            f" {EXPORT_SCHEMA_VERSION}); upgrade Scavenger"
        )
    try:
        export = ExportDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ConfigurationError(f"not a Scavenger models export: {place}: {first['msg']}") from None
    parsed = []
    for index, entry in enumerate(export.models):
        fingerprint = Fingerprint(**entry.fingerprint.model_dump())
        try:
            check_model(entry.model)
            actual = model_id(
                fingerprint,
                entry.model,
                schema_version=entry.schema_version,
                measurements=entry.measurements,
                runs=entry.runs,
            )
        except ValueError as error:
            raise ConfigurationError(f"models.{index} is refused: {error}") from None
        if actual != entry.digest:
            raise ConfigurationError(
                f"models.{index} is refused: its content does not have the digest {entry.digest[:12]}...,"
                " so it was changed after its export; export it again"
            )
        parsed.append((entry, fingerprint))
    return parsed


def budget_of(spec: Mapping[str, Any]) -> float | None:
    """The budget in a job's specification, $; it is written as a number or as `$5`."""
    value = (spec.get("constraints") or {}).get("budget")
    if isinstance(value, str):
        from scavenger.domain.forms import parse_money

        return parse_money(value)
    return float(value) if isinstance(value, int | float) else None
