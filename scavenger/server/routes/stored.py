"""Fitted models, machine types with prices, and the pool of aggregators."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from scavenger.control.documents.catalog import Asked, catalog_document, find_machines
from scavenger.control.documents.models import job_names, model_document, models_document
from scavenger.control.documents.pool import pool_document, see_pool
from scavenger.server import schemas
from scavenger.server.access import CallerOf, Changer
from scavenger.server.context import ContextOf, answer

__all__ = ["router"]

router = APIRouter(prefix="/v1")

ModelKey = Annotated[str, Path(min_length=1, max_length=64, description="Id of a model, or its beginning.")]
Word = Annotated[str | None, Query(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$")]


@router.get("/models", response_model=schemas.ModelsAnswer, tags=["models"], summary="Fitted models")
def list_models(context: ContextOf, caller: CallerOf) -> Response:
    """Every fitted model, newest first. All users share them; names of jobs are those that the caller may see."""
    store = context.store
    models = store.models()
    names = job_names(store, models) if caller.user.sees_all else {model.id: None for model in models}
    return answer(models_document(models, names))


@router.get("/models/{model}", response_model=schemas.ModelAnswer, tags=["models"], summary="One model")
def show_model(context: ContextOf, _: CallerOf, model: ModelKey) -> Response:
    """A fitted model with its content."""
    return answer(model_document(context.store.model(model)))


@router.delete(
    "/models/{model}", response_model=schemas.ModelAnswer, tags=["models"], summary="Delete a model"
)
def delete_model(context: ContextOf, _: Changer, model: ModelKey) -> Response:
    """Delete a model, and return it."""
    return answer(model_document(context.writer.call(lambda: context.store.delete_model(model))))


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


@router.get(
    "/aggregators", response_model=schemas.PoolAnswer, tags=["aggregators"], summary="The pool of aggregators"
)
def show_pool(_: CallerOf) -> Response:
    """The pool of aggregators that jobs share on the server's machine, and what each of them uses."""
    return answer(pool_document(see_pool()))
