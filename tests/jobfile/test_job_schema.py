"""The JSON Schema of the job file says the same as the loader, form by form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from mini_json_schema import is_valid

from scavenger.control.job_file.load import job_schema
from scavenger.domain.job import JobSpec

REQUIRED: dict[str, Any] = {
    "version": 1,
    "name": "digits",
    "train": "train:job",
    "goal": {"max_epochs": 10**6, "metric": "bleu"},
}
# Forms alone; what depends on other keys, and ranges that run backwards, are beyond a schema.
TEXTS = """
    never auto always full partial none universal time cost knee kne max min replace linear local gcp
    gcp/us-central1 gcp/us-central1-a aws/us-east-1 aws/us-east-1a aws/x kubernetes kubernetes/x azure/x
    process ray ray/auto ray/head:6379 ray/head ray/head/a ray/A ray/ rayy
    1..4 2..2 1.. ..4 1..4..5 4+ 16+ 3.75+ + 4+x train:job train a.b:c a:b:c 8h 1h30m 250ms 8H h 90 1d2s
    $20 $0.50 $ 20 $-1 digits-cnn -digits Digits val_accuracy val/x e2-standard-4 e2_standard ./x /x/y
"""
POOL: list[Any] = [
    "vm",
    *TEXTS.split(),
    *("x" * 63, "x" * 64, "x" * 129, "", " ", "a b", "\x00", "s3://bucket/x"),
    *(
        0,
        1,
        2,
        3,
        4,
        64,
        512,
        4096,
        4097,
        10**6,
        10**9,
        2**24,
        2**24 + 1,
        2**32,
        -1,
        0.5,
        2.5,
        -0.5,
        True,
        False,
    ),
    *([], [1], [1, 2], [2, 2], [0], ["a"], ["a", {"vm": "b"}], [{"v": "b"}], [1.5], ["a", "a"], {}),
    *({"min": 64, "max": 512}, {"min": 64}, {"min": 64, "max": 512, "step": 64}, {"min": 0, "max": 2}),
    *("own", "shared"),
    *("weak", "strong", "throughput", "utility", "fixed", "model", "ewma", "edl"),
    *({"rule": "edl"}, {"rule": "edl", "threshold": 1.5}, {"at_once": 0.5}, {"at_once": 2}, {"threshold": 0}),
    *({"per_host": 2, "window": "5m"}, {"per_host": 0}, {"cooldown": "1h"}, {"give_up": 1.5}),
    *({"linear": {"worth": "$5", "until": "8h"}}, {"linear": {"worth": 5}}, {"linear": 3}),
    *({"concave": {"worth": 5, "until": 3, "power": 3}}, {"concave": {"worth": 5, "until": 3, "power": 1}}),
    *({"step": [{"worth": 5, "until": "4h"}]}, {"step": []}, {"step": [{"worth": 5}]}, {"step": [3]}),
    *({"utility": {"linear": {"worth": "$5", "until": "8h"}}}, {"utility": {}}, {"utility": {"x": 1}}),
    *({"utility": {"linear": {"worth": 1, "until": 1}, "concave": {"worth": 1, "until": 1}}},),
    *({"utility": "x"}, {"utility": 3}, {"vm": "a"}, {"vm": 3}, {"any_of": ["a"]}, {"cpus": "4+"}),
    *({"cpus": 4, "memory": "16+"}, {"cpus": 2.5}, {"vm": "a", "cpus": 4}, {"vm": "a", "any_of": ["b"]}),
    *({"accelerators": "T4:0"}, {"accelerators": "T4", "cpus": 4}, {"vm": "a", "accelerators": "T4:1"}),
    *({"path": "x"}, {"path": "x", "every": "10m"}, {"every": 3}, {"steps": 20}, {"max_epochs": 3}, {"x": 1}),
    *({"mlflow": "http://h:1"}, {"wandb": "offline", "experiment": "x"}, {"wandb": "never"}, {"group": "x"}),
]
PLACES = [
    *((key,) for key in JobSpec.model_fields),
    *(("search", key) for key in ("strategy", "workers", "batch_size")),
    *(("constraints", key) for key in ("deadline", "budget")),
    *(("goal", key) for key in ("metric", "target", "mode", "epochs_hint")),
    *(("profile", key) for key in ("steps", "max_cost", "max_time")),
    *(("elastic", key) for key in ("policy", "efficiency", "every_steps", "add", "batch", "straggler")),
    *(("elastic", key) for key in ("lr_scaling", "failures")),
    *(("elastic", "straggler", key) for key in ("rule", "at_once")),
    *(("elastic", "failures", key) for key in ("per_host", "give_up")),
    ("elastic", "failures", "cooldown"),
    ("objective", "utility"),
    *(("resources", key) for key in ("vm", "any_of", "cpus", "memory", "accelerators", "disk")),
    *(("limits", key) for key in ("start", "step")),
]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_the_schema_takes_exactly_the_forms_that_the_loader_takes(place: tuple[str, ...]) -> None:
    schema = job_schema()
    verdicts = []
    for value in POOL:
        document = json.loads(json.dumps(REQUIRED))
        # Clusters and batches with which no value of the pool is at odds.
        document["search"] = {"workers": "1..4096", "batch_size": [2**24]}
        if place == ("elastic", "policy"):
            document["objective"] = {"utility": {"linear": {"worth": 1, "until": 1}}}
        if place == ("elastic", "failures", "cooldown"):
            document["elastic"] = {"failures": {"window": 1e-9}}
        if place == ("search", "batch_size"):
            document["search"]["workers"] = 1
        if place == ("resources", "disk"):
            document["resources"] = {"cpus": 4}
        if place == ("run",):
            del document["train"]
        section = document
        for part in place[:-1]:
            section = section.setdefault(part, {})
        section[place[-1]] = value
        verdicts.append(is_valid(document, schema))
        assert verdicts[-1] == accepted(document), f"{'.'.join(place)}: {value!r}"
    assert set(verdicts) == {True, False}


def accepted(document: dict[str, Any]) -> bool:
    try:
        JobSpec.model_validate(document)
    except ValueError:
        return False
    return True


def properties(schema: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    for key, child in schema.get("properties", {}).items():
        yield f"{name}.{key}", child, key in schema.get("required", ())
    for keyword in ("anyOf", "oneOf"):
        for option in schema.get(keyword, ()):
            yield from properties(option, name)
    for key, child in (*schema.get("properties", {}).items(), *schema.get("$defs", {}).items()):
        yield from properties(child, f"{name}.{key}")


def test_every_key_is_described_and_every_required_one_has_an_example() -> None:
    keys = list(properties(job_schema(), ""))

    assert len(keys) > 40
    for name, schema, required in keys:
        if name.endswith(".vm") and "description" not in schema:
            continue  # inside a list of VM types, which is described as a whole
        resolved = (
            job_schema()["$defs"][schema["$ref"].rpartition("/")[2]] | schema if "$ref" in schema else schema
        )
        assert resolved.get("description"), f"{name} has no description"
        if required and not name.startswith(".resources"):
            assert schema.get("examples"), f"{name} has no example for the message that it is missing"


def test_defaults_are_valid_themselves() -> None:
    schema = job_schema()
    for name, child, _ in properties(schema, ""):
        if "default" in child:
            assert is_valid(child["default"], child, schema), name


def test_the_schema_is_json_of_its_draft_without_null_and_each_caller_has_its_own() -> None:
    schema = job_schema()

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    assert not re.search(r"\bnull\b", json.dumps(schema))
    schema.clear()
    assert job_schema()
