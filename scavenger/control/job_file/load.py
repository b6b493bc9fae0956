"""Reads and validates the job file; errors are one line with the place, the fault and the correction."""

from __future__ import annotations

import copy
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scavenger.control.job_file.script_text import missing_words, no_notebook
from scavenger.control.job_file.yaml_loader import BYTES_MAX, YamlNode, load_yaml, read_scalar
from scavenger.domain.forms import FAULT, did_you_mean, nearest, shown
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, JobFileError

Loc = tuple[str | int, ...]


def load_job(path: Path) -> JobSpec:
    """Read a job file.

    Args:
        path: A regular file of at most 64 KB in UTF-8.

    Raises:
        JobFileError: If it cannot be read or is invalid; one line with path, line, column and what to write.
        ConfigurationError: If it is a notebook.
    """
    no_notebook(path)
    name = _one_line(str(path))
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise JobFileError("this is not a regular file", path=name)
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise JobFileError(_one_line(missing_words(path, (".yaml", ".yml", ".py"))), path=name) from error
    except IsADirectoryError as error:
        inside = next(
            (one for kind in ("*.yaml", "*.yml") for one in sorted(path.glob(kind))), path / "job.yaml"
        )
        raise JobFileError(
            f"this is a folder; name its job file, as {_one_line(str(inside))}", path=name
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise JobFileError(f"the file cannot be read: {reason}", path=name) from error
    if len(data) > BYTES_MAX:
        raise JobFileError(f"the file is larger than {BYTES_MAX} bytes, the most a job file has", path=name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        lines = re.split(r"\r\n|\r|\n", data[: error.start].decode("utf-8"))
        raise JobFileError(
            "the file is not UTF-8 from here on; save it as UTF-8",
            path=name,
            line=len(lines),
            column=len(lines[-1]) + 1,
        ) from error
    return parse_job(text, path=name)


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking: opening a named pipe would otherwise wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse_job(text: str, *, path: str) -> JobSpec:
    """Parse the text of a job file.

    Args:
        text: The whole content of the file.
        path: The file's name in error messages.

    Raises:
        JobFileError: As `load_job`; names the first fault in the file and the number of other faults.
    """
    path = _one_line(path)
    try:
        root = load_yaml(text, path=path)
    except JobFileError:
        if (tool := _tool_of(_TOP_KEYS.findall(text))) is None:
            raise
        raise JobFileError(_of_tool(tool), path=path, line=1, column=1) from None
    if not isinstance(root.value, dict):
        raise JobFileError(
            f"the file must hold keys such as version: 1, not {shown(root.plain())}",
            path=path,
            line=root.line,
            column=root.column,
        )
    if (tool := _tool_of(root.value)) is not None:
        raise JobFileError(_of_tool(tool), path=path, line=root.line, column=root.column)
    try:
        job = JobSpec.model_validate(root.plain())
        faults = []
    except ValidationError as error:
        faults = _faults(error)
    known = [fault.loc for fault in faults]
    for loc in _empty(root, ()):
        if not any(loc[: len(other)] == other for other in known):
            faults.append(_Fault(loc, _empty_words(loc), key=True))
    if not faults:
        return job
    version = [fault for fault in faults if fault.loc == ("version",) and not fault.missing]
    faults = sorted(version or faults, key=lambda fault: (_place(fault, root), fault.missing))
    line, column = _place(faults[0], root)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise JobFileError(f"{faults[0]}{more}", path=path, line=line, column=column)


def override_job(job: JobSpec, changes: Mapping[str, object]) -> JobSpec:
    """Replace some values of a job, as options of a command do.

    Args:
        job: The original job; it is not changed.
        changes: By dotted key, as `constraints.budget`; text is read as the job file reads it without quotes
            (`$20`, `8h`, `20`), and None changes nothing.

    Raises:
        ConfigurationError: If the result is not a valid job; the message says which key and what to write.
    """
    document = copy.deepcopy(job.written())
    for key, value in changes.items():
        if value is None:
            continue
        *parents, leaf = key.split(".")
        target = document
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ConfigurationError(f"{key}: {parent} holds no keys")
        try:
            target[leaf] = read_scalar(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ConfigurationError(f"{key}: {error}") from error
    return job_of(document)


def job_of(document: Mapping[str, object]) -> JobSpec:
    """A job of its keys and values, as a job file has them.

    Raises:
        ConfigurationError: If it is not a valid job; the message says which key and what to write.
    """
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(str(_faults(error)[0])) from error


def place_of(key: str, job: JobSpec, path: Path) -> str:
    """The place of a job's value in its file, as `job.yaml:5:8`.

    Args:
        key: As in `ConfigurationError`.
        path: The file that the job was read from.

    Returns:
        The file alone if its value of the key is another one, or it has none, or it can no longer be read: the value
        may be a default or a command's option.
    """
    name, loc = _one_line(str(path)), tuple(key.split("."))
    try:
        text = path.read_text("utf-8")
        ours, written = (_value_at(one.written(), loc) for one in (job, parse_job(text, path=name)))
    except (OSError, ValueError, ConfigurationError):
        return name
    if ours is None or ours != written:
        return name
    line, column = _place(_Fault(loc, ""), load_yaml(text, path=name))
    return f"{name}:{line}:{column}"


def _value_at(document: object, loc: Loc) -> object:
    for part in loc:
        document = document.get(part) if isinstance(document, dict) else None
    return document


def job_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the job file as it is written, with a description of each key.

    Conditions on several keys (`min` above `max`, more workers than samples) are checked by `load_job` only.
    """
    return copy.deepcopy(_schema())


@functools.cache
def _schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scavenger job file",
        **_tidied(JobSpec.model_json_schema()),
    }


def _tidied(schema: Any) -> Any:
    """Remove generated titles, null, and the defaults of whole sections, whose keys have their own.

    A key of a job file is given or absent, never empty.
    """
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {
        key: _tidied(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and (value is None or isinstance(value, dict)))
    }
    if "anyOf" in tidy:
        tidy["anyOf"] = [option for option in tidy["anyOf"] if option != {"type": "null"}]
        if len(tidy["anyOf"]) == 1:
            tidy = {**tidy.pop("anyOf")[0], **tidy}
    return tidy


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with the value at `loc`; `text` completes a sentence that begins with its key.

    Attributes:
        key: Whether the key is at fault rather than the value.
        missing: Whether the key is missing.
        meant: For an unknown key, the key that was probably meant.
    """

    loc: Loc
    text: str
    key: bool = False
    missing: bool = False
    meant: Loc = ()

    def __str__(self) -> str:
        name = ""
        for part in self.loc:
            name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
        name = name if len(name) <= 100 else f"{name[:97]}..."
        return f"{name} {self.text}" if not self.text.startswith("unknown") else self.text


def _faults(error: ValidationError) -> list[_Fault]:
    """Describe every fault, except keys that are missing only because they are misspelled."""
    faults = [_worded(details) for details in error.errors(include_url=False)]
    meant = {fault.meant for fault in faults if fault.meant}
    return [fault for fault in faults if not (fault.missing and fault.loc in meant)]


def _worded(error: ErrorDetails) -> _Fault:
    kind, loc, value, context = error["type"], error["loc"], error["input"], error.get("ctx", {})
    if kind == FAULT:
        return _Fault(loc + context["at"], context["text"], key=context["text"].startswith("unknown key"))
    if kind == "missing":
        return _Fault(loc, f"is missing; add {_example(loc)}", missing=True)
    if kind == "extra_forbidden":
        return _unknown_key(loc)
    if value is None:
        return _Fault(loc, _empty_words(loc), key=True)
    if kind == "literal_error":
        options = re.findall("'([^']*)'", context["expected"])
        hint = did_you_mean(value, options) if isinstance(value, str) else ""
        return _Fault(loc, f"must be one of {', '.join(options)}, not {shown(value)}{hint}")
    if kind in _BOUNDS:
        return _Fault(loc, f"must be {_BOUNDS[kind]} {next(iter(context.values()))}, not {shown(value)}")
    if kind in _KINDS:
        words, pattern = _KINDS[kind]
        quoted = isinstance(value, str) and pattern and re.fullmatch(pattern, value)
        return _Fault(loc, f"must be {words}, not {shown(value)}{'; remove the quotes' if quoted else ''}")
    if kind in ("model_type", "dict_type"):
        keys = ", ".join(_object_at(loc)["properties"])
        return _Fault(loc, f"must hold keys ({keys}), not {shown(value)}")
    return _Fault(loc, f"cannot be {shown(value)}")


def _empty_words(loc: Loc) -> str:
    if len(loc) == 1 and "properties" in _object_at(loc):
        required = loc[0] in _schema()["required"]
        return (
            f"has no keys; indent them below it, or {f'write {_example(loc)}' if required else 'remove it'}"
        )
    return "has no value; give it one, or remove the key"


_BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_KINDS = {
    "int_type": ("a whole number", r"[0-9]+"),
    "float_type": ("a number", r"[0-9]+(?:\.[0-9]+)?"),
    "finite_number": ("a finite number", ""),
    "string_type": ("text", ""),
}


_ELSEWHERE = {
    "gpus": ("accelerators", "GPUs are accelerators: T4:1 in resources"),
    "gpu": ("accelerators", "GPUs are accelerators: T4:1 in resources"),
    "epochs": ("max_epochs", "epochs are max_epochs in goal"),
    "command": ("run", "a command is run: python train.py"),
}
"""Keys of other tools, with the one that is meant and what to write."""
_OTHER_TOOLS = {
    "SkyPilot": frozenset(["num_nodes", "setup", "file_mounts", "workdir", "envs"]),
    "dstack": frozenset(["commands", "type", "nodes"]),
}
"""Keys by which the files of other tools are known: none is one of a job file's."""


_TOP_KEYS = re.compile(r"^([a-z_]+):", re.MULTILINE)
"""In a file that may be none of ours, and not be read therefore."""


def _of_tool(tool: str) -> str:
    return (
        f"this looks like a file of {tool}, not a job file: `scavenger init` writes one, and "
        f"docs/coming-from.md says what the keys of {tool} are called here"
    )


def _tool_of(keys: Iterable[object]) -> str | None:
    """The other tool whose file has these keys; None if they may be a job file's."""
    found = frozenset(keys)
    if "version" in found:
        return None
    return next((tool for tool, known in _OTHER_TOOLS.items() if known & found), None)


def _unknown_key(loc: Loc) -> _Fault:
    *parents, leaf = loc
    known = _object_at(tuple(parents))["properties"]
    top = _schema()["properties"]
    homes = [key for key in top if leaf in _with_keys(top[key]).get("properties", ())]
    near = nearest(str(leaf), known) if len(homes) != 1 else None
    where = f" in {'.'.join(map(str, parents))}" if parents else ""
    if leaf in _ELSEWHERE:
        meant, hint = _ELSEWHERE[str(leaf)]
        return _Fault(loc, f"unknown key {shown(leaf)}{where}; {hint}", key=True, meant=(*parents, meant))
    if len(homes) == 1:
        hint = f"it belongs in {homes[0]}"
    else:
        hint = f"did you mean '{near}'?" if near else f"known are {', '.join(known)}"
    text = f"unknown key {shown(str(leaf))}{where}; {hint}"
    return _Fault(loc, text, key=True, meant=(*parents, near) if near else ())


def _object_at(loc: Loc) -> dict[str, Any]:
    """The schema of the mapping at `loc`; `properties` lists its keys."""
    schema = _schema()
    for part in loc:
        schema = _with_keys(schema["properties"][part])
    return schema


def _with_keys(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        definition: dict[str, Any] = _schema()["$defs"][schema["$ref"].rpartition("/")[2]]
        return definition
    return next((option for option in schema.get("anyOf", ()) if "properties" in option), schema)


def _example(loc: Loc) -> str:
    *parents, leaf = loc
    example = _object_at(tuple(parents))["properties"][leaf]["examples"][0]
    if isinstance(example, dict):
        return f"{leaf}: {{{', '.join(f'{key}: {value}' for key, value in example.items())}}}"
    return f"{leaf}: {example}"


def _empty(node: YamlNode, loc: Loc) -> Iterator[Loc]:
    """Locations of missing or null values, which are refused since their meaning is ambiguous."""
    if node.value is None:
        yield loc
    elif isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _empty(child, (*loc, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _empty(child, (*loc, index))


def _place(fault: _Fault, root: YamlNode) -> tuple[int, int]:
    """Line and column of a fault, or of the nearest enclosing value in the file."""
    node = root
    for index, part in enumerate(fault.loc):
        if isinstance(node.value, dict) and part in node.value:
            if fault.key and index == len(fault.loc) - 1:
                return node.keys[str(part)]
            node = node.value[str(part)]
        elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        else:
            break
    return node.line, node.column


def _one_line(path: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)
