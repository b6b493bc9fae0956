"""Requests of every form that the OpenAPI document allows, and of forms that it does not, over the ASGI application."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from server_world import World
from starlette.testclient import TestClient

from scavenger.server.app import create_app
from scavenger.store import Store

STREAM = "/v1/jobs/{job}/events/stream"  # it does not end while the job runs


def _try(store: Store, world: World, examples: int) -> None:
    """Send requests to every route, with all checks of Schemathesis."""
    app = create_app(store)
    headers = {**world.headers("root"), "Host": "127.0.0.1"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=headers)
    found = [result.ok() for result in schema.get_all_operations()]
    assert len(found) == sum(map(len, app.openapi()["paths"].values()))
    for operation in found:
        if operation.path == STREAM:
            continue
        forms = [
            operation.as_strategy(generation_mode=mode)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        ]

        @given(case=forms[0] | forms[1])
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        def every_request_is_answered_as_the_document_says(case: Any) -> None:
            if "job" in (case.path_parameters or {}) and case.meta.generation.mode == GenerationMode.POSITIVE:
                case.path_parameters["job"] = world.jobs["ann"]
            case.call_and_validate(headers=headers)

        every_request_is_answered_as_the_document_says()


def test_requests_of_every_form(store: Store, world: World) -> None:
    _try(store, world, 2)


@pytest.mark.long
def test_many_requests_of_every_form(store: Store, world: World) -> None:
    _try(store, world, 150)


def test_the_document_is_openapi_3_1_with_problems(app: FastAPI) -> None:
    document = app.openapi()
    assert document["openapi"].startswith("3.1")
    for path, item in document["paths"].items():
        for operation in item.values():
            refused = operation["responses"]["4XX"]["content"]
            assert list(refused) == ["application/problem+json"], path
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_answers_have_the_form_that_the_document_gives_them(
    client: TestClient, app: FastAPI, world: World
) -> None:
    """Schemathesis rarely asks for what is there; these requests have answers with content."""
    job, document = world.jobs["ann"], app.openapi()
    gets = {
        "/v1/jobs": "JobsPage",
        f"/v1/jobs/{job}": "JobAnswer",
        f"/v1/jobs/{job}/cost": "CostAnswer",
        f"/v1/jobs/{job}/logs": "LogsAnswer",
        "/v1/costs": "CostsPage",
        "/v1/queue": "SubmissionsPage",
        "/v1/catalog?provider=gcp": "CatalogAnswer",
        "/v1/aggregators": "PoolAnswer",
        "/v1/models": "ModelsAnswer",
    }
    answers = {form: client.get(path, headers=world.headers("root")) for path, form in gets.items()}
    asked = {"job_file": str(world.job_file), "workers": "1,2"}
    answers["PreviewAnswer"] = client.post("/v1/preview", headers=world.headers("ann"), json=asked)
    cancelled = client.delete(f"/v1/queue/{job}", headers=world.headers("ann"))
    answers["SubmissionAnswer"] = cancelled
    for form, answer in answers.items():
        assert answer.status_code == 200, (form, answer.text)
        schema = {"$ref": f"#/components/schemas/{form}", "components": document["components"]}
        Draft202012Validator(schema).validate(answer.json())
    assert answers["PreviewAnswer"].json()["job"]["search"]["workers"] == [1, 2]
