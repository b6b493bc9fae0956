"""As much of JSON Schema 2020-12 as the job file's schema uses; any other keyword is an error."""

from __future__ import annotations

import re
from typing import Any

_ANNOTATIONS = {"$schema", "$defs", "title", "description", "default", "examples"}
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def is_valid(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    """Whether `value` is an instance of `schema`."""
    root = schema if root is None else root

    def holds(keyword: str, argument: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        match keyword:
            case "$ref":
                return is_valid(value, root["$defs"][argument.removeprefix("#/$defs/")], root)
            case "type":
                return isinstance(value, _TYPES[argument]) and (argument == "boolean") == isinstance(
                    value, bool
                )
            case "const":
                return type(value) is type(argument) and bool(value == argument)
            case "enum":
                return value in argument
            case "anyOf":
                return any(is_valid(value, option, root) for option in argument)
            case "oneOf":
                return sum(is_valid(value, option, root) for option in argument) == 1
            case "properties":
                return not isinstance(value, dict) or all(
                    is_valid(value[key], child, root) for key, child in argument.items() if key in value
                )
            case "additionalProperties":
                if not isinstance(value, dict):
                    return True
                others = [one for key, one in value.items() if key not in schema.get("properties", {})]
                return all(argument is not False and is_valid(one, argument, root) for one in others)
            case "required":
                return not isinstance(value, dict) or value.keys() >= set(argument)
            case "items":
                return not isinstance(value, list) or all(is_valid(item, argument, root) for item in value)
            case "minItems":
                return not isinstance(value, list) or len(value) >= argument
            case "maxItems":
                return not isinstance(value, list) or len(value) <= argument
            case "uniqueItems":
                return not isinstance(value, list) or len({repr(item) for item in value}) == len(value)
            case "pattern":
                return not isinstance(value, str) or re.search(argument, value) is not None
            case "minimum":
                return not number or value >= argument
            case "maximum":
                return not number or value <= argument
            case "exclusiveMinimum":
                return not number or value > argument
        raise AssertionError(f"unknown keyword {keyword}")

    return all(holds(key, argument) for key, argument in schema.items() if key not in _ANNOTATIONS)
