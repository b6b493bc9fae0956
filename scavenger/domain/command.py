"""The command of a job that trains by a program of the user's own: its arguments, placeholders and log patterns."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from scavenger.domain.forms import Duration, FrozenModel, did_you_mean, fault, shown

PLACEHOLDERS: Mapping[str, str] = {
    "local_batch_size": "samples of a step that this process computes",
    "global_batch_size": "samples of a step over all processes",
    "workers": "number of processes",
    "rank": "number of this process, from 0",
    "checkpoint_dir": "the folder that the command goes on from, and saves to",
    "epochs": "goal.max_epochs",
    "seed": "the job's seed",
    "threads": "threads that this process may compute with",
    "lr_scale": "factor on the learning rate, by elastic.lr_scaling",
    "master": "address of the first process, as HOST:PORT",
}
"""What a command may have in braces, besides the names of the job's params."""

EPOCH_GROUPS = ("epoch", "epoch1")
"""Groups of log patterns with the number of an epoch: counted from 0, and from 1."""
DONE_GROUP = "done"
"""Group of log patterns with the program's reason to end training."""
NUMBER = r"(?:[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)(?![a-zA-Z])))"
"""What `{number}` stands for in log patterns: a number as programs print it, with its sign and exponent."""
_SHORTHAND = re.compile(r"(?<!\\)\{([A-Za-z_]\w*)\}")
SAMPLES_MAX = 10**12
_COMMAND_MAX = 8_000
_PATTERNS_MAX = 20


def _words(command: str) -> tuple[str, ...]:
    """Split a command as a shell would, without running one.

    Raises:
        ValueError: If a quote is not closed.
    """
    return tuple(shlex.split(command))


def placeholders_of(word: str) -> tuple[str, ...]:
    """The names in braces; `{{` and `}}` stand for the braces themselves.

    Raises:
        ValueError: If a brace is not closed, or holds more than a name.
    """
    names = []
    for _, name, form, conversion in string.Formatter().parse(word):
        if name is None:
            continue
        if not name.isidentifier() or form or conversion:
            raise ValueError(f"{{{name}}} is no name; write {{{{ and }}}} for braces of the command itself")
        names.append(name)
    return tuple(names)


def fill(command: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """The arguments of a command with its placeholders replaced; a value never makes more than one argument.

    Args:
        command: As `RunSpec` accepted it.
        values: By name, at least those that the command names.
    """
    texts = {name: str(value) for name, value in values.items()}
    return tuple(word.format_map(texts) for word in _words(command))


def regular_expression(pattern: str) -> re.Pattern[str]:
    """A log pattern as a regular expression: `{number}` stands for a number.

    Raises:
        ValueError: If there is another name in braces.
        re.error: If it is no regular expression.
    """
    for name in _SHORTHAND.findall(pattern):
        if name != "number":
            raise ValueError(
                f"has the unknown shorthand {{{name}}}; write {{number}}, or \\{{{name}\\}} for the braces themselves"
            )
    return re.compile(_SHORTHAND.sub(lambda found: NUMBER, pattern))


def _parse_patterns(value: object) -> tuple[str, ...]:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list | tuple) or not 0 < len(patterns) <= _PATTERNS_MAX:
        raise fault(f"must be one to {_PATTERNS_MAX} regular expressions, not {shown(value)}")
    groups: set[str] = set()
    for at, pattern in enumerate(patterns):
        if not isinstance(pattern, str):
            raise fault(f"must be a regular expression, not {shown(pattern)}", at)
        try:
            named = regular_expression(pattern).groupindex
        except re.error as error:
            raise fault(f"is no regular expression: {error}", at) from None
        except ValueError as error:
            raise fault(str(error), at) from None
        if not {"step", DONE_GROUP, *EPOCH_GROUPS} & named.keys():
            raise fault(
                r"must have a group (?P<step>\d+) or (?P<epoch>\d+), so that its line can be placed, or (?P<done>.*)",
                at,
            )
        groups |= named.keys()
    if "step" not in groups:
        raise fault(r"must have a pattern with the group (?P<step>\d+): steps are what is measured")
    return tuple(patterns)


Patterns = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_patterns),
    PlainSerializer(list, return_type=list[str]),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class RunSpec(FrozenModel):
    """The command that each process of the job runs, and how it tells what it does."""

    command: str = Field(
        description="The program and its arguments; no shell reads it. {local_batch_size} and others are replaced.",
        examples=["torchrun train.py --batch {local_batch_size}"],
    )
    samples: int | None = Field(
        default=None,
        ge=1,
        le=SAMPLES_MAX,
        description="Training samples of an epoch, if the program does not tell by scavenger_report.",
    )
    log: Patterns | None = Field(
        default=None,
        description="Regular expressions for lines of the first process's output, with the groups step, loss, epoch, "
        "metric, done and others; {number} is a number. Without them, the program tells by scavenger_report.",
    )
    grace: Duration = Field(
        default=30.0,
        description="Longest time for the command to save a checkpoint and end when it is asked to.",
    )

    setup: str | None = Field(
        default=None,
        description="A program and its arguments that prepare each rented VM, once, before the command begins there.",
        examples=["pip install -r requirements.txt"],
    )

    @field_validator("command", "setup")
    @classmethod
    def _check_command(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if len(value) > _COMMAND_MAX:
            raise fault(f"must be shorter than {_COMMAND_MAX} characters, not {len(value)}")
        try:
            words = _words(value)
            for word in words:
                placeholders_of(word)
        except ValueError as error:
            raise fault(f"cannot be read: {error}") from None
        if not words:
            raise fault("must be a program and its arguments, such as torchrun train.py")
        return value

    @model_validator(mode="after")
    def _check(self) -> RunSpec:
        if self.log is not None and self.samples is None:
            raise fault(
                "is missing: log patterns do not tell how many training samples an epoch has", "samples"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The placeholders of the command, each once."""
        found = (name for word in _words(self.command) for name in placeholders_of(word))
        return tuple(dict.fromkeys(found))

    @property
    def log_groups(self) -> frozenset[str]:
        """The groups of all patterns."""
        return frozenset(group for pattern in self.log or () for group in re.compile(pattern).groupindex)

    @property
    def program(self) -> str:
        """The program that the command starts."""
        return _words(self.command)[0]

    def check_names(self, params: Mapping[str, Any]) -> None:
        """Check that every placeholder is known.

        Raises:
            PydanticCustomError: If one is neither known nor the name of one of `params`.
        """
        known = (*PLACEHOLDERS, *params)
        for name in self.names:
            if name not in known:
                hint = did_you_mean(name, known) or f"; known are {', '.join(known)}"
                raise fault(f"has the unknown placeholder {{{name}}}{hint}", "run")
        for word in _words(self.setup or ""):
            for name in placeholders_of(word):
                if name not in params:
                    hint = did_you_mean(name, tuple(params)) or "; only params have a value there"
                    raise fault(f"has the placeholder {{{name}}}{hint}", "run", "setup")
        for name in params:
            if name in PLACEHOLDERS:
                words = f"is a placeholder of every command ({PLACEHOLDERS[name]}); choose another name"
                raise fault(words, "params", name)


def _from_text(value: object) -> object:
    return {"command": value} if isinstance(value, str) else value


RunText = Annotated[
    RunSpec,
    BeforeValidator(_from_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"\S"},
                RunSpec.model_json_schema(),
            ]
        }
    ),
]
"""`run:` of a job file: the command alone, or with the keys of `RunSpec`."""
