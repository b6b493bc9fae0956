"""Google's own description of Compute Engine: what a call may ask, and what an answer may say.

The document comes with google-api-python-client. Requests and answers are held to it alike, so that neither the
provider nor the server that it is tested with can make up a field.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any

_SYSTEM = {"$alt": {"json", "json;enum-encoding=int", "json;enum-encoding=int;"}}
"""Parameters that every Google API takes and no document lists."""
_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


class RefusedError(Exception):
    """An error in Google's form."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [error]}}


class Discovery:
    """The methods named `ids`, `compute.instances.insert` and the like, of the API's first version."""

    def __init__(self, ids: frozenset[str]) -> None:
        import googleapiclient  # its package data is all that is used

        folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
        document = json.loads((folder / "compute.v1.json").read_text())
        self._schemas: dict[str, Any] = document["schemas"]
        self._common = document["parameters"].keys()
        self._methods = [
            (re.compile("/" + document["servicePath"] + _pattern(method)), method)
            for resource in document["resources"].values()
            for method in resource["methods"].values()
            if method["id"] in ids
        ]
        missing = ids - {method["id"] for _, method in self._methods}
        assert not missing, f"no such methods: {missing}"

    def route(self, verb: str, path: str) -> tuple[dict[str, Any], dict[str, str]]:
        """The method that is asked for and the parameters in its path.

        Raises:
            RefusedError: If there is none.
        """
        for pattern, method in self._methods:
            if method["httpMethod"] == verb and (found := pattern.fullmatch(path)):
                return method, found.groupdict()
        raise RefusedError(404, "notFound", f"no method {verb} {path}")

    def check_parameters(self, method: dict[str, Any], parameters: dict[str, list[str]]) -> dict[str, str]:
        """The query's parameters.

        Raises:
            RefusedError: If one is unknown, given twice or malformed.
        """
        known = {name: each for name, each in method["parameters"].items() if each["location"] == "query"}
        result = {}
        for name, values in parameters.items():
            if name in _SYSTEM:
                if not set(values) <= _SYSTEM[name]:
                    raise RefusedError(400, "badRequest", f"Invalid value at '{name}'")
                continue
            if name in self._common:
                continue
            if name not in known or len(values) != 1:
                raise RefusedError(
                    400,
                    "badRequest",
                    f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.',
                )
            (value,) = values
            kind = known[name].get("type")
            parsed: Any = value
            if kind == "integer":
                parsed = int(value) if re.fullmatch(r"-?\d+", value) else value
            elif kind == "boolean":
                parsed = {"true": True, "false": False}.get(value, value)
            self.check(known[name], parsed, name)
            result[name] = value
        return result

    def check_named(self, schema: str, value: Any, *, answer: bool) -> None:
        """Hold a body to its schema; see `check`."""
        self.check(self._schemas[schema], value, schema, answer=answer)

    def check(self, schema: dict[str, Any], value: Any, where: str, *, answer: bool = False) -> None:
        """Hold a value to a schema.

        Args:
            answer: Whether Google says it: then 64-bit numbers are text.

        Raises:
            RefusedError: If it does not keep to it.
        """
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema.get("type")
        if kind == "object":
            self._check_object(schema, value, where, answer)
        elif kind == "array":
            if not isinstance(value, list):
                raise _invalid(where, value)
            for index, item in enumerate(value):
                self.check(schema["items"], item, f"{where}[{index}]", answer=answer)
        elif not _is_scalar(schema, value, answer):
            raise _invalid(where, value)

    def _check_object(self, schema: dict[str, Any], value: Any, where: str, answer: bool) -> None:
        if not isinstance(value, dict):
            raise _invalid(where, value)
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if name in properties:
                self.check(properties[name], item, f"{where}.{name}", answer=answer)
            elif rest is not None:
                self.check(rest, item, f"{where}.{name}", answer=answer)
            else:
                raise RefusedError(
                    400,
                    "badRequest",
                    f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field.",
                )


def _pattern(method: dict[str, Any]) -> str:
    def group(found: re.Match[str]) -> str:
        name = found[1]
        return f"(?P<{name}>{method['parameters'][name].get('pattern', '[^/]+')})"

    return re.sub(r"\{(\w+)\}", group, method["path"])


def _is_scalar(schema: dict[str, Any], value: Any, answer: bool) -> bool:
    kind, form = schema.get("type"), schema.get("format", "")
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer" or form in ("int64", "uint64"):
        least, most = _RANGES[form or "int32"]
        if isinstance(value, str) and kind == "string" and re.fullmatch(r"-?\d+", value):
            return least <= int(value) <= most
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and least <= value <= most and not (answer and kind == "string")
    if kind == "string":
        return isinstance(value, str) and _is_text(schema, value)
    return True


def _is_text(schema: dict[str, Any], value: str) -> bool:
    if schema.get("format") == "byte":
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    return "pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None


def _invalid(where: str, value: Any) -> RefusedError:
    return RefusedError(400, "invalid", f"Invalid value for field '{where}': '{value}'.")
