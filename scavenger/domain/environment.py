"""Environment variables that a job file gives to the training code: the forms of `env` and `secrets`. Pure.

A value may name variables of who begins the job, as `${NAME}`. It is settled once, when the job begins or is submitted;
the job keeps it for all its attempts, wherever they run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from scavenger.domain.forms import fault, shown

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
"""Form of a variable's name."""
_DOLLAR = re.compile(rf"\$(?:\$|\{{({NAME})\}})")
_VALUE = rf"^(?:[^$\x00]|\$\$|\$\{{{NAME}\}})*$"
_BYTES_MAX = 1 << 16
"""Most that the variables of a job take, written as text."""

_RESERVED_PREFIXES = ("SCAVENGER_", "PET_", "KERAS_DISTRIBUTION_")
_RESERVED = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_CONFIG"),
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    )
)
"""Variables that Scavenger sets for each process, or that decide what it imports itself."""


def check_name(name: object, *at: str | int) -> str:
    """Check that a job file may give a variable of this name.

    Raises:
        PydanticCustomError: If it is no name, or one of those that Scavenger sets.
    """
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise fault(
            f"must be a variable's name, of letters, digits and _, as DATA_VERSION, not {shown(name)}", *at
        )
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise fault("is set by Scavenger for each process; leave it out, or choose another name", *at)
    return name


def _parse(value: object) -> dict[str, str]:
    if isinstance(value, list):
        return {check_name(name, at): f"${{{name}}}" for at, name in enumerate(value)}
    if not isinstance(value, Mapping):
        raise fault(
            f"must be names with values, such as {{DATA_VERSION: 2}}, or a list of names, not {shown(value)}"
        )
    found = {check_name(name, str(name)): _parse_value(str(name), one) for name, one in value.items()}
    if (size := sum(len(name) + len(one) for name, one in found.items())) > _BYTES_MAX:
        raise fault(f"must be shorter than {_BYTES_MAX} characters, not {size}")
    return found


def _parse_value(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        # what 1.10 or yes would be as text is not known
        raise fault(f"must be text or a whole number, not {shown(value)}; put it in quotes", name)
    if not re.fullmatch(_VALUE, value):
        raise fault(
            f"must have dollars only as ${{NAME}}, or as $$ for the dollar itself, not {shown(value)}", name
        )
    return value


EnvironmentText = Annotated[
    dict[str, str],
    PlainValidator(_parse),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "additionalProperties": {
                        "anyOf": [{"type": "string", "pattern": _VALUE}, {"type": "integer"}]
                    },
                },
                {"type": "array", "items": {"type": "string", "pattern": f"^{NAME}$"}},
            ]
        }
    ),
]
"""`env:` of a job file: names with values, or names alone, whose values are taken where the job begins."""


SECRET_LENGTH_MIN = 4
"""Shorter values cannot be masked: they occur in other words, too."""


def _parse_secrets(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise fault(f"must be a list of names, as [HF_TOKEN]; values stay where they are, not {_kind(value)}")
    return tuple(dict.fromkeys(check_name(name, at) for at, name in enumerate(value)))


def _kind(value: object) -> str:
    """A value without showing it: it may be a secret."""
    return "a mapping" if isinstance(value, Mapping) else "a text" if isinstance(value, str) else shown(value)


SecretNames = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_secrets),
    PlainSerializer(list, return_type=list[str]),
    WithJsonSchema({"type": "array", "items": {"type": "string", "pattern": f"^{NAME}$"}}),
]
"""`secrets:` of a job file: names of variables whose values are taken from who begins the job, and shown nowhere."""


def references(value: str) -> tuple[str, ...]:
    """The variables that a value names, as `${NAME}`."""
    return tuple(found[1] for found in _DOLLAR.finditer(value) if found[1])


def named(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that the values of `env` name, each once."""
    return tuple(dict.fromkeys(name for value in env.values() for name in references(value)))


def literal(value: str, variables: Mapping[str, str]) -> str:
    """A value without names of variables, as a job file has it.

    Args:
        value: As `env` has it.
        variables: By name, at least those that the value names.
    """
    return _DOLLAR.sub(lambda found: variables[found[1]].replace("$", "$$") if found[1] else found[0], value)


def plain(env: Mapping[str, str]) -> dict[str, str]:
    """The variables as a process has them: `$$` is a dollar."""
    return {name: value.replace("$$", "$") for name, value in env.items()}
