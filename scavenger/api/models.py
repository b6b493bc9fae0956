"""Fitted models, as `scavenger models` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import ModelRecord


def job_names(store: Store, models: Sequence[ModelRecord]) -> dict[str, str | None]:
    """By model, the name of the job that fitted it; None if it was imported, or the job is no longer stored."""
    return {model.id: _job_name(store, model) for model in models}


def _job_name(store: Store, model: ModelRecord) -> str | None:
    if model.job_id is None:
        return None
    try:
        return store.job(model.job_id).name
    except ConfigurationError:
        return None


def models_document(models: Sequence[ModelRecord], names: Mapping[str, str | None]) -> dict[str, Any]:
    """A list of models, without their content."""
    rows = [{**plain(model), "model": None, "job_name": names[model.id]} for model in models]
    return {"schema_version": SCHEMA_VERSION, "models": rows}


def model_document(model: ModelRecord) -> dict[str, Any]:
    """One model with its content."""
    return {"schema_version": SCHEMA_VERSION, "model": plain(model)}
