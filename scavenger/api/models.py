"""Fitted models, as `scavenger models` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.forms import JobKey, ModelKey
from scavenger.api.values import Answer, gathered
from scavenger.errors import ConfigurationError, ForbiddenError, NotFoundError
from scavenger.store import Store
from scavenger.store.records import ModelRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel(ModelRecord):
    """A model, without its content.

    Attributes:
        job_name: Of the job that fitted it; null if it was imported, or the job is no longer stored.
    """

    model: None  # type: ignore[assignment]  # left out of lists
    job_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsAnswer(Answer):
    """Fitted models, newest first."""

    models: tuple[ListedModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer(Answer):
    """A fitted model with its content."""

    model: ModelRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsImported(Answer):
    """Imported models.

    Attributes:
        imported: Ids of the models.
    """

    imported: tuple[str, ...]


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


@call("get", "models", tag="models", summary="Fitted models")
def list_models(at: Local) -> ModelsAnswer:
    """Every fitted model, newest first. All users share them; names of jobs are those that the caller may see."""
    models = at.store.models()
    names = job_names(at.store, models) if at.sees_all else {}
    return ModelsAnswer(
        models=tuple(gathered(ListedModel, one, model=None, job_name=names.get(one.id)) for one in models)
    )


@call("get", "models/export", tag="models", summary="Models for another store")
def export_models(
    at: Local,
    model: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]] | None, Field(max_length=1000)
    ] = None,
) -> dict[str, Any]:
    """Models as one document, which `POST models/import` takes; of none that is named, all that are intact."""
    return at.store.export_models(model or None)


@call(
    "post",
    "models/import",
    tag="models",
    summary="Import models",
    role="admin",
    writes="once",
    status=202,
    body="*",
)
def import_models(at: Local, document: dict[str, Any]) -> ModelsImported:
    """Import exported models, all or none; each must match its digest and be able to predict.

    They predict for jobs of all users, so an admin imports them.
    """
    from scavenger.control.search.model_library import check_model

    found = at.store.import_models(document, check=check_model)
    return ModelsImported(imported=tuple(model.id for model in found))


@call("get", "models/{model}", tag="models", summary="One model")
def show_model(at: Local, model: ModelKey) -> ModelAnswer:
    """A fitted model with its content."""
    return ModelAnswer(model=at.store.model(model))


@call("delete", "models/{model}", tag="models", summary="Delete a model", role="changer", writes="once")
def delete_model(at: Local, model: ModelKey) -> ModelAnswer:
    """Delete a model, and return it: one that a job of the caller has fitted, or, as an admin, any."""
    if not at.is_admin:
        try:
            at.find_job(at.store.model(model).job_id or "")
        except NotFoundError:
            raise ForbiddenError(
                "the model was fitted by a job of somebody else, and predicts for all: ask an admin"
            ) from None
    return ModelAnswer(model=at.store.delete_model(model))


@call(
    "post",
    "jobs/{job}/model",
    tag="models",
    summary="Store a fit",
    role="changer",
    writes="once",
    status=202,
    body="FitRequest",
)
def put_fit(
    at: Local,
    job: JobKey,
    model: Annotated[dict[str, Any], Field(description="As `scavenger models fit` writes it.")],
) -> ModelAnswer:
    """Store a model that `scavenger models fit` has fitted to past measurements, for jobs like this one."""
    from scavenger.control.search.model_library import save_fit
    from scavenger.models.job_model import JobModel

    record = at.find_job(job)
    try:
        fitted = JobModel.from_dict(model)
    except ValueError as error:
        raise ConfigurationError(f"the model cannot be read: {' '.join(str(error).split())[:200]}") from None
    return ModelAnswer(model=save_fit(at.store, record, fitted))
