"""Parsers for the literals of the job file, such as `8h`, `$20`, `train:job` and `gcp/us-central1`.

Each form is an annotated type: a validator that turns what was written into a value, a serializer that writes
it back, and the JSON Schema of what may be written. A validator also takes the value itself, so that a dumped
job validates again. Error messages complete a sentence that begins with the key: `must be ...`.
"""

from __future__ import annotations

import difflib
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from scavenger.domain.script import Script

MONEY_MAX_USD = 1e9
"""Highest accepted budget; a higher one is a typing error."""
DURATION_MAX_S = 366 * 86400.0
"""Longest accepted duration, one year; a longer one is a typing error."""

FAULT = "scavenger"
"""Type of the validation errors raised by `fault`; their context holds `text` and `at`."""


class FrozenModel(BaseModel):
    """Base of immutable models with strict types (`true` and `"3"` are not numbers); refuses NaN and unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def fault(text: str, *at: str | int) -> PydanticCustomError:
    """Build the validation error for an invalid value.

    Args:
        text: Completes a sentence that begins with the key, as `must be at least 1, not 0`.
        at: Path of the fault inside the value that is validated; empty for the value itself.
    """
    return PydanticCustomError(FAULT, "{text}", {"text": text, "at": at})


def shown(value: object) -> str:
    """Render a value as the user wrote it: on one line, short, and without terminal escapes."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:200])
    return safe if len(text) <= 60 else f"{safe[:56]}...'" if isinstance(value, str) else f"{safe[:56]}..."


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option most similar to `word`, ignoring case; None if none is similar."""
    by_lower = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word[:100].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The hint `; did you mean 'x'?`, or an empty string."""
    near = nearest(word, options)
    return f"; did you mean '{near}'?" if near else ""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; booleans do not count."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def text_form(pattern: str, words: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """The form of a text: a pattern, and what it is called in a refusal, as `must be WORDS`."""
    compiled = re.compile(pattern)

    def check(value: object) -> object:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        hint = "; put it in quotes" if value is not None and compiled.fullmatch(shown(value)) else ""
        raise fault(f"must be {words}, not {shown(value)}{hint}")

    return BeforeValidator(check), WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})


VM = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]{0,99}"

JobName = Annotated[
    str,
    *text_form(
        r"[a-z0-9][a-z0-9-]{0,62}",
        "made of lower-case letters, digits and hyphens (at most 63, the first no hyphen)",
    ),
]
VmName = Annotated[str, *text_form(VM, "the name of a VM type such as 'e2-standard-4'")]
MetricName = Annotated[
    str, *text_form(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}", "the name of a Keras metric such as 'val_accuracy'")
]
Path = Annotated[str, *text_form(r"[^\x00-\x1f\x7f]{1,4096}", "a path")]


NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION = "(?=[0-9])" + "".join(
    f"(?:(%s){unit}{'(?!s)' if unit == 'm' else ''})?" % NUMBER for unit in _UNITS_S
)
_MONEY = r"\$" + NUMBER


def parse_duration(value: object) -> float:
    """Parse a duration such as `8h`, `1h30m`, `250ms` or a number of seconds; above 0 and at most a year.

    Raises:
        PydanticCustomError: A `ValueError`, worded as the rest of a sentence.
    """
    example = "a duration such as 90s, 10m, 8h or 1h30m"
    if isinstance(value, str) and (match := re.fullmatch(_DURATION, value)):
        seconds = math.fsum(
            float(n) * s for n, s in zip(match.groups(), _UNITS_S.values(), strict=True) if n is not None
        )
    elif is_number(value):
        seconds = float(value)
    else:
        hint = "; give it a unit, as in 90s" if isinstance(value, str) and value.isdecimal() else ""
        raise fault(f"must be {example}, not {shown(value)}{hint}")
    if not 0 < seconds <= DURATION_MAX_S:
        raise fault(f"must be above 0 and at most a year (366d), not {shown(value)}")
    return seconds


def parse_money(value: object) -> float:
    """Parse US dollars such as `$20`, `$0.50` or a number; at least 0 and at most a billion.

    Raises:
        PydanticCustomError: A `ValueError`, worded as the rest of a sentence.
    """
    if isinstance(value, str) and re.fullmatch(_MONEY, value):
        dollars = float(value[1:])
    elif is_number(value):
        dollars = float(value)
    else:
        raise fault(f"must be US dollars such as $20 or $0.50, not {shown(value)}")
    if not 0 <= dollars <= MONEY_MAX_USD:
        raise fault(f"must be from $0 to $1000000000, not {shown(value)}")
    return dollars


Duration = Annotated[
    float,
    PlainValidator(parse_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^(?:{_DURATION})$"},
                {"type": "number", "exclusiveMinimum": 0, "maximum": DURATION_MAX_S},
            ]
        }
    ),
]
Money = Annotated[
    float,
    PlainValidator(parse_money),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_MONEY}$"},
                {"type": "number", "minimum": 0, "maximum": MONEY_MAX_USD},
            ]
        }
    ),
]


def _parse_budget(value: object) -> float:
    dollars = parse_money(value)
    if dollars == 0.0:
        raise fault("must be above $0, or no worker could start; without a limit, leave it out")
    return dollars


Budget = Annotated[
    float,
    PlainValidator(_parse_budget),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_MONEY}$"},
                {"type": "number", "exclusiveMinimum": 0, "maximum": MONEY_MAX_USD},
            ]
        }
    ),
]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The training code: an object in a module in the job file's folder."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    @classmethod
    def parse(cls, value: object, *, otherwise: str = "") -> EntryPoint:
        """Parse `module:object`, both Python names; the module may be dotted.

        Args:
            otherwise: What the value may be instead, as the end of a sentence.
        """
        if isinstance(value, EntryPoint):
            return value
        words = f"must be module:object such as train:job{otherwise}"
        if not isinstance(value, str):
            raise fault(f"{words}, not {shown(value)}")
        module, _, name = value.partition(":")
        if re.fullmatch(r"[A-Za-z0-9_./]+\.py", module):
            dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
            raise fault(f"names a module, not a file: write {dotted}:{name or 'job'}, not {shown(value)}")
        if not re.fullmatch(_ENTRY, value):
            raise fault(f"{words}, not {shown(value)}")
        for part in (*module.split("."), name):
            if keyword.iskeyword(part):
                raise fault(f"{words}; '{part}' is a word of the Python language")
        return cls(module, name)


_ENTRY = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER}){{0,19}}:{_IDENTIFIER}"

EntryPointText = Annotated[
    EntryPoint,
    PlainValidator(EntryPoint.parse),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_ENTRY})$"}),
]

_SCRIPT_MAX = 8_000


def _parse_training(value: object) -> EntryPoint | Script:
    if isinstance(value, Script):
        return value
    line = value if isinstance(value, str) and len(value) <= _SCRIPT_MAX and value.isprintable() else ""
    return Script.find(line) or EntryPoint.parse(value, otherwise=", or a script such as train.py")


TrainingText = Annotated[
    EntryPoint | Script,
    PlainValidator(_parse_training),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^(?:{_ENTRY})$"},
                {"type": "string", "pattern": r"^[^:]+\.py['\"]?(?:\s.*)?$"},
            ]
        }
    ),
]
"""`train:` of a job file: an object of a module, or a script."""

_OBJECT = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_ENGINE = rf"process|ray(?:/(?:auto|local|[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{{1,5}}|{_OBJECT}(?:/{_OBJECT})?))?"


def parse_engine(value: object) -> str:
    """Parse the engine.

    It is `process`, or `ray` on the local machine's Ray cluster, `ray/HOST:PORT` on another one, or `ray/NAME[/GROUP]`
    on a RayCluster of Kubernetes.
    """
    if isinstance(value, str) and re.fullmatch(_ENGINE, value):
        return value
    hint = did_you_mean(value.partition("/")[0], ("process", "ray")) if isinstance(value, str) else ""
    raise fault(f"must be process, ray, ray/HOST:PORT or ray/RAYCLUSTER, not {shown(value)}{hint}")


def worker_group_of(engine: str) -> tuple[str, str] | None:
    """The RayCluster that an engine names, and its worker group, empty if it names none; None for other engines."""
    found = re.fullmatch(rf"ray/(?!(?:auto|local)$)({_OBJECT})(?:/({_OBJECT}))?", engine)
    return None if found is None else (found[1], found[2] or "")


EngineText = Annotated[
    str,
    PlainValidator(parse_engine),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_ENGINE})$"}),
]
