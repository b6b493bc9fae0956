"""The definition of the custom resource `ElasticJob`, made from the schemas of the job file and of its `spec`.

Kubernetes takes structural schemas only: every key has one type, unions of types are conditions beside it, and there
are no references. What a union allows is said by what each type must fulfil, and by what the types left out cannot.
Keys that the schema does not know are dropped by the API server, or refused where its client asks for that.

References:
    "Extend the Kubernetes API with CustomResourceDefinitions", Kubernetes documentation.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML

from scavenger.control.job_file.load import job_schema
from scavenger.domain.elastic_job import GROUP, KIND, PLURAL, SHORT, SINGULAR, VERSION, ElasticJobSpec

Schema = dict[str, Any]

_KEPT = (
    *("type", "description", "required", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems"),
    *("minimum", "maximum", "multipleOf", "minProperties", "maxProperties"),
)
_LOOKS = ("(?=[0-9])", "(?!s)")
"""Conditions on what follows, which Go's expressions do not have: the first is said as a length, the second follows
from the rest of its expression."""
_REPEATED_MAX = 1000
"""Go's expressions repeat nothing more often, counting repetitions within repetitions."""
_REPEATS = re.compile(r"\{([01]),(\d+)\}")
_GROUPS = re.compile(r"\)\{0,\d\d+\}")
_IMPOSSIBLE: Mapping[str, Schema] = {
    "string": {"minLength": 1, "maxLength": 0},
    "object": {"minProperties": 1, "maxProperties": 0},
    "array": {"minItems": 1, "maxItems": 0},
    "number": {"minimum": 1, "maximum": 0},
    "boolean": {"not": {"enum": [True, False]}},
}
_ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def structural(schema: Schema, defs: Mapping[str, Schema] | None = None) -> Schema:
    """Convert a JSON Schema to one that a custom resource may have, without defaults.

    Raises:
        ValueError: If it has what cannot be said there.
    """
    defs = {**(defs or {}), **schema.get("$defs", {})}
    if "$ref" in schema:
        named = defs[schema["$ref"].removeprefix("#/$defs/")]
        return structural({**named, **{key: one for key, one in schema.items() if key != "$ref"}}, defs)
    branches = list(_flat(schema, defs))
    if len(branches) > 1:
        made = _union(branches, defs)
    else:
        made = _single({**schema, **branches[0]} if branches else schema, defs)
    return ({"description": schema["description"]} if "description" in schema else {}) | made


def _flat(schema: Schema, defs: Mapping[str, Schema]) -> list[Schema]:
    """The alternatives of a union of types, those of nested unions among them; empty if it is none."""
    found: list[Schema] = []
    for one in schema.get("anyOf", ()):
        resolved = one
        defs = {**defs, **one.get("$defs", {})}
        while "$ref" in resolved:
            resolved = defs[resolved["$ref"].removeprefix("#/$defs/")]
        if not {"type", "enum", "anyOf"} & resolved.keys() or set(resolved) == {"required"}:
            return []  # conditions on one type
        if "anyOf" in resolved and "type" not in resolved:
            found += _flat(resolved, defs)
        elif resolved.get("type") != "null":
            found.append(resolved)
    return found


def _single(schema: Schema, defs: Mapping[str, Schema]) -> Schema:
    made: Schema = {key: schema[key] for key in _KEPT if key in schema and key != "description"}
    if "const" in schema:
        made |= {"type": _type_of(schema["const"]), "enum": [schema["const"]]}
    made |= _bounds(schema) | _pattern(schema)
    if "type" not in made:
        if "enum" not in made:
            raise ValueError(f"no type: {schema}")
        made["type"] = _type_of(made["enum"][0])
    if "items" in schema:
        made["items"] = structural(schema["items"], defs)
    if "properties" in schema:
        made["properties"] = {key: structural(one, defs) for key, one in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(schema["additionalProperties"], defs)
    elif made["type"] == "object":
        made |= _ANYTHING
    for junctor in ("oneOf", "anyOf"):
        if junctor in schema and not (junctor == "anyOf" and _flat(schema, defs)):
            made[junctor] = schema[junctor]
    return made


def _type_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return kinds[type(value)]


def _bounds(schema: Schema) -> Schema:
    """Exclusive bounds, as OpenAPI 3.0 has them."""
    made: Schema = {}
    for key, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if key in schema:
            made |= {plain: schema[key], key: True}
    return made


def _pattern(schema: Schema) -> Schema:
    if "pattern" not in schema:
        return {}
    text = schema["pattern"]
    begins = _LOOKS[0] in text
    for look in _LOOKS:
        text = text.replace(look, "")
    if "(?=" in text or "(?!" in text or "(?<" in text:
        raise ValueError(f"the expression {text} looks around")
    made: Schema = {"minLength": 1} if begins else {}
    if long := [int(most) for _, most in _REPEATS.findall(text) if int(most) > _REPEATED_MAX]:
        made["maxLength"] = long[0] + text.count("/")
    text = _REPEATS.sub(lambda found: _repeat(found) if int(found[2]) > _REPEATED_MAX else found[0], text)
    return made | {"pattern": _GROUPS.sub(")*", text)}


def _repeat(found: re.Match[str]) -> str:
    return "+" if found[1] == "1" else "*"


def _union(branches: Sequence[Schema], defs: Mapping[str, Schema]) -> Schema:
    """A key that may have values of several types."""
    by_type: dict[str, list[Schema]] = {}
    for one in branches:
        branch = structural(one, defs)
        by_type.setdefault("number" if branch["type"] == "integer" else branch["type"], []).append(branch)
    if list(by_type) == ["string"]:
        return {"type": "string", "anyOf": [_conditions(one) for one in by_type["string"]]}
    all_of: list[Schema] = [one for kind, one in _IMPOSSIBLE.items() if kind not in by_type]
    made: Schema = {"x-kubernetes-preserve-unknown-fields": True}
    for kind, alternatives in by_type.items():
        if kind == "object" and (
            known := {key: value for one in alternatives for key, value in one.get("properties", {}).items()}
        ):
            made["properties"] = known
        if kind == "array" and len(alternatives) == 1:
            made["items"] = alternatives[0]["items"]
        conditions = [_conditions(one) for one in alternatives]
        if all(conditions):
            all_of.append(conditions[0] if len(conditions) == 1 else {"anyOf": conditions})
    return made | ({"allOf": all_of} if all_of else {})


def _conditions(schema: Schema) -> Schema:
    """What a value must fulfil beside its type; values of other types fulfil it."""
    left_out = (
        *("type", "description", "properties", "additionalProperties", "items"),
        "x-kubernetes-preserve-unknown-fields",
    )
    made = {key: one for key, one in schema.items() if key not in left_out}
    if schema["type"] == "integer":
        made["multipleOf"] = 1
    if "oneOf" in made:  # of which a value of another type would fulfil all
        made["anyOf"] = [{"oneOf": made.pop("oneOf")}, _IMPOSSIBLE[schema["type"]]]
    if "enum" in made:
        words = made.pop("enum")
        if not all(isinstance(one, str) and one.isidentifier() for one in words):
            raise ValueError(f"{words} cannot be an expression")
        made["pattern"] = f"^(?:{'|'.join(words)})$"
    return made


def crd() -> Schema:
    """The definition, as the API server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _whole()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, **more}
                        for name, kind, path, more in _COLUMNS
                    ],
                }
            ],
        },
    }


_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_COLUMNS: tuple[tuple[str, str, str, Schema], ...] = (
    ("Phase", "string", ".status.phase", {}),
    ("Workers", "integer", ".status.replicas", {}),
    ("Share", "integer", ".status.share.workers", {}),
    ("Step", "integer", ".status.step", {}),
    ("Batch", "integer", ".status.chosen.batchSize", {}),
    ("Dollars", "number", ".status.actual.dollars", {}),
    ("Age", "date", ".metadata.creationTimestamp", {}),
    ("Waits", "string", ".status.share.waits", {}),
    ("Why", "string", ".status.message", {"priority": 1}),
)


def _whole() -> Schema:
    spec = structural(ElasticJobSpec.model_json_schema(by_alias=True))
    spec["properties"]["job"] = _job()
    spec["not"] = {"required": ["pool", "replicas"]}
    spec["properties"]["code"]["oneOf"] = [
        {"required": [name]} for name in spec["properties"]["code"]["properties"]
    ]
    return {
        "type": "object",
        "description": "A training job whose pods Scavenger chooses, starts, adds and removes.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # the job's pods have this name as a label
            "metadata": {"type": "object", "properties": {"name": _NAME}},
            "spec": spec,
            "status": _status(),
        },
    }


def _job() -> Schema:
    """The job file, at one place, and without what the resource itself says."""
    schema = job_schema()
    infra = next(
        one
        for one in schema["properties"]["infra"]["anyOf"]
        if "usd_per_cpu_hour" in one.get("properties", {})
    )
    keys = {key: one for key, one in infra["properties"].items() if key not in ("at", "namespace", "image")}
    schema["properties"]["infra"] = {
        "type": "object",
        "description": "Settings of this job's pods, which replace those of the operator.",
        "properties": {"at": {"enum": ["kubernetes"]}, **keys},
    }
    for name in ("leader", "engine", "aggregation"):
        del schema["properties"][name]
    schema["required"] = [name for name in schema["required"] if name not in ("version", "name")]
    return structural(schema)


def _status() -> Schema:
    text, number, whole = {"type": "string"}, {"type": "number"}, {"type": "integer"}
    figures = {"type": "object", "properties": {"hours": number, "dollars": number}}
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message"), text),
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": whole,
        },
    }
    return {
        "type": "object",
        "properties": {
            "phase": {**text, "description": "What the job does."},
            "state": {**text, "description": "The job's own state, by its leader."},
            "detail": {**text, "description": "What the job says of its state."},
            "message": {**text, "description": "Why it is so."},
            "observedGeneration": {**whole, "description": "Generation that the operator has acted on."},
            "replicas": {**whole, "description": "Workers that train."},
            "pods": {**whole, "description": "Pods that they are on."},
            "wanted": {**whole, "description": "Workers that the leader was last asked for."},
            "refused": {**text, "description": "Why it has not so many."},
            "selector": {**text, "description": "Selects the workers' pods."},
            "share": {
                "type": "object",
                "description": "What the job may have of its pool, by the operator.",
                "properties": {
                    **dict.fromkeys(("allotment", "slots", "workers"), whole),
                    **dict.fromkeys(("pool", "reason", "waits"), text),
                },
            },
            "standing": {**_ANYTHING, "description": "How the job stands, for its pool."},
            "apart": {**whole, "description": "Pods that the job has besides those of its workers."},
            "step": {**whole, "description": "Last applied step."},
            "chosen": {
                "type": "object",
                "description": "The configuration that was chosen, and why.",
                "properties": {"workers": whole, "batchSize": whole, "size": text, "reason": text},
            },
            "predicted": figures,
            "actual": figures,
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }


def crd_yaml() -> str:
    """The definition as a file for `kubectl apply`."""
    yaml = YAML()
    yaml.default_flow_style, yaml.width = False, 110
    yaml.representer.ignore_aliases = lambda _: True
    text = io.StringIO()
    text.write("# Made by `scavenger operator crd`; see docs/kubernetes.md.\n")
    yaml.dump(crd(), text)
    return text.getvalue()
