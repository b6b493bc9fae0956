"""Fitted models, machine types with prices, and the pool of aggregators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from scavenger.api import pool
from scavenger.api.catalog import Asked, catalog_document, find_machines
from scavenger.api.models import job_names, model_document, models_document
from scavenger.api.values import SCHEMA_VERSION
from scavenger.control.search.model_library import check_model, save_fit
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.models.job_model import JobModel
from scavenger.server import schemas
from scavenger.server.access import Admin, CallerOf, Changer, find_job
from scavenger.server.context import ContextOf, answer
from scavenger.server.problems import RefusedError
from scavenger.server.repeating import OnceOf
from scavenger.server.routes.jobs import JobKey
from scavenger.server.routing import add_routes

router = APIRouter(prefix="/v1")

ModelKey = Annotated[str, Path(min_length=1, max_length=64, description="Id of a model, or its beginning.")]
ModelName = Annotated[str, Query(min_length=1, max_length=64)]
Word = Annotated[str | None, Query(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$")]


@router.get("/models", response_model=schemas.ModelsAnswer, tags=["models"], summary="Fitted models")
def list_models(context: ContextOf, caller: CallerOf) -> Response:
    """Every fitted model, newest first. All users share them; names of jobs are those that the caller may see."""
    store = context.store
    models = store.models()
    names = job_names(store, models) if caller.user.sees_all else {model.id: None for model in models}
    return answer(models_document(models, names))


@router.get(
    "/models/export", response_model=schemas.ModelExport, tags=["models"], summary="Models for another store"
)
def export_models(
    context: ContextOf, _: CallerOf, model: Annotated[list[ModelName] | None, Query(max_length=1000)] = None
) -> Response:
    """Models as one document, which `POST models/import` takes; of none that is named, all that are intact."""
    return answer(context.store.export_models(model))


@router.post(
    "/models/import",
    response_model=schemas.ModelsImported,
    status_code=202,
    tags=["models"],
    summary="Import models",
)
def import_models(context: ContextOf, _: Admin, once: OnceOf, request: schemas.ModelExport) -> Response:
    """Import exported models, all or none; each must match its digest and be able to predict.

    They predict for jobs of all users, so an admin imports them.
    """

    def change() -> dict[str, Any]:
        document = request.model_dump(mode="json", exclude_unset=True)
        found = context.store.import_models(document, check=check_model)
        return {"schema_version": SCHEMA_VERSION, "imported": [model.id for model in found]}

    return once.answer(change)


@router.get("/models/{model}", response_model=schemas.ModelAnswer, tags=["models"], summary="One model")
def show_model(context: ContextOf, _: CallerOf, model: ModelKey) -> Response:
    """A fitted model with its content."""
    return answer(model_document(context.store.model(model)))


@router.delete(
    "/models/{model}", response_model=schemas.ModelAnswer, tags=["models"], summary="Delete a model"
)
def delete_model(context: ContextOf, caller: Changer, once: OnceOf, model: ModelKey) -> Response:
    """Delete a model, and return it: one that a job of the caller has fitted, or, as an admin, any."""
    if caller.user.role != "admin":
        fitted_by = context.store.model(model).job_id
        try:
            find_job(context, caller, fitted_by or "")
        except NotFoundError:
            raise RefusedError(
                403,
                "forbidden",
                "the model was fitted by a job of somebody else, and predicts for all: ask an admin",
            ) from None
    return once.answer(lambda: model_document(context.store.delete_model(model)), 200)


@router.post(
    "/jobs/{job}/model",
    response_model=schemas.ModelAnswer,
    status_code=202,
    tags=["models"],
    summary="Store a fit",
)
def put_fit(
    context: ContextOf, caller: Changer, once: OnceOf, job: JobKey, request: schemas.FitRequest
) -> Response:
    """Store a model that `scavenger models fit` has fitted to past measurements, for jobs like this one."""

    def change() -> dict[str, Any]:
        record = find_job(context, caller, job)
        return model_document(save_fit(context.store, record, _read_model(request.model)))

    return once.answer(change)


def _read_model(document: dict[str, Any]) -> JobModel:
    try:
        return JobModel.from_dict(document)
    except ValueError as error:
        raise ConfigurationError(f"the model cannot be read: {' '.join(str(error).split())[:200]}") from None


@router.get("/catalog", response_model=schemas.CatalogAnswer, tags=["prices"], summary="Machine types")
def show_catalog(
    _: CallerOf,
    provider: Literal["aws", "gcp"] | None = None,
    region: Word = None,
    vm: Annotated[list[Annotated[str, Query(max_length=64)]] | None, Query(max_length=20)] = None,
    gpu: Word = None,
    cpus: Annotated[str | None, Query(max_length=16, description="As `4` or `4+`.")] = None,
    memory: Annotated[str | None, Query(max_length=16, description="GiB, as `16` or `16+`.")] = None,
) -> Response:
    """Machine types with their prices and the age and source of each price, cheapest first."""
    asked = Asked(provider, region, tuple(vm or ()), gpu, cpus, memory, every=True)
    return answer(catalog_document(find_machines(asked)))


add_routes(router, pool.show_pool, pool.drain_node)
