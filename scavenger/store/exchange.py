"""The pydantic schema of an exported models document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

INT64_MAX = 2**63 - 1
MODELS_MAX = 10_000

Word = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""One line of text that a terminal can show as it is."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Positive = Annotated[int, Field(ge=1, le=INT64_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FingerprintDocument(_Strict):
    """See `scavenger.domain.fingerprint.Fingerprint`."""

    architecture: Word
    parameters: Count
    optimizer: Word
    dataset_size: Positive
    sample_bytes: Count
    goal: Word
    vm: Word
    hardware: Word


class ModelDocument(_Strict):
    """One model; `digest` covers all other fields except `created_at`."""

    digest: Sha256
    fingerprint: FingerprintDocument
    schema_version: Positive
    measurements: Count
    runs: Count
    created_at: Annotated[AwareDatetime, Field(strict=False)]
    model: dict[str, Any]


class ExportDocument(_Strict):
    """The document that `Store.export_models` writes."""

    schema_version: Literal[1]
    kind: Literal["scavenger-models"]
    models: Annotated[list[ModelDocument], Field(max_length=MODELS_MAX)]
