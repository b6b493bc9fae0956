"""A loader for a safe subset of YAML that keeps the position of every key and value.

Only what a configuration file needs is read: one document of mappings, lists and YAML 1.2 core scalars (`010`
is 10, `on` and `12:30:45` are text). Aliases, anchors, tags, merge keys, duplicate keys, deep nesting, huge
numbers and unprintable characters are refused, so that the result is no larger than the input.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from scavenger.domain.forms import shown
from scavenger.errors import JobFileError

BYTES_MAX = 64 * 1024
"""Size limit of a job file; it also limits the parser's time."""
DEPTH_MAX = 20
"""Limit of the nesting depth; a job file needs four levels."""
DIGITS_MAX = 18
"""Number of digits that always fits a 64-bit integer."""

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DIRECTIVE = re.compile(r"(?:(?<=[\r\n])|\A)%")
_ESCAPE = re.compile(r"\\U([0-9a-fA-F]{8})")
# Tab, line feed and carriage return are allowed; other line breaks would make line numbers differ from an editor's.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and its position.

    Attributes:
        value: A scalar, a mapping of nodes or a list of nodes.
        line, column: Position of its first character, 1-based.
        keys: For a mapping, the position of each key as (line, column).
    """

    value: str | int | float | bool | dict[str, YamlNode] | list[YamlNode] | None
    line: int
    column: int
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)

    def plain(self) -> object:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_scalar(text: str) -> str | int | float | bool | None:
    """Parse an unquoted scalar by the YAML 1.2 core schema.

    Raises:
        ValueError: If it is an integer with more than `DIGITS_MAX` digits.
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        if len(text.lstrip("+-0")) > DIGITS_MAX:
            raise ValueError(f"{shown(text)} is too large a number; at most {DIGITS_MAX} digits are read")
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _SPECIAL.fullmatch(text):
        return float("nan") if match[1] is None else float(f"{match[1]}inf")
    return text


def load_yaml(text: str, *, path: str) -> YamlNode:
    """Parse the text of a YAML file.

    Args:
        text: Content of the file; a byte order mark at its start is skipped.
        path: The file's name in error messages.

    Raises:
        JobFileError: For anything outside the safe subset, with its position.
    """
    return _Loader(text.removeprefix("\ufeff"), path).load()


class _Loader:
    """One pass over the parser's events."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path
        self._line, self._column = 1, 1
        self._events: Iterator[Event] = iter(())

    def load(self) -> YamlNode:
        size = len(self._text.encode("utf-8", "surrogatepass"))
        if size > BYTES_MAX:
            raise JobFileError(
                f"the file is {size} bytes; a job file has at most {BYTES_MAX}",
                path=self._path,
                line=1,
                column=1,
            )
        if match := _FORBIDDEN.search(self._text):
            self._look_at(match.start())
            raise self._error(f"the character {shown(match[0])} has no place in a job file; remove it")
        if match := _DIRECTIVE.search(self._text):
            self._look_at(match.start())
            raise self._error("directives (%YAML, %TAG) are not read; remove the line")
        yaml = YAML(typ="safe", pure=True)
        self._events = iter(yaml.parse(self._text))
        try:
            return self._document()
        except MarkedYAMLError as error:
            message, mark = _explained(error)
            if mark is not None:
                self._line, self._column = mark.line + 1, mark.column + 1
            raise self._error(message) from error
        except (YAMLError, ValueError, OverflowError) as error:
            # For an escape beyond Unicode, the parser gives no position.
            beyond = (m.start() for m in _ESCAPE.finditer(self._text) if int(m[1], 16) > sys.maxunicode)
            self._look_at(next(beyond, 0))
            raise self._error("no such character in Unicode; between double quotes write \\ twice") from error

    def _look_at(self, index: int) -> None:
        lines = re.split(r"\r\n|\r|\n", self._text[:index])
        self._line, self._column = len(lines), len(lines[-1]) + 1

    def _error(self, message: str, place: tuple[int, int] | None = None) -> JobFileError:
        line, column = place or (self._line, self._column)
        return JobFileError(message, path=self._path, line=line, column=column)

    def _next(self) -> Event:
        event = next(self._events)
        mark = event.start_mark
        self._line, self._column = mark.line + 1, mark.column + 1
        return event

    def _document(self) -> YamlNode:
        root: YamlNode | None = None
        self._next()  # the start of the stream
        while isinstance(self._next(), DocumentStartEvent):
            if root is not None:
                raise self._error("a second document begins here; a job file holds one")
            root = self._node(self._next(), 1)
            self._next()  # the end of the document
        if root is None:
            self._line, self._column = 1, 1
            raise self._error("the file is empty; begin with version: 1")
        return root

    def _node(self, event: Event, depth: int) -> YamlNode:
        line, column = self._line, self._column
        if isinstance(event, AliasEvent):
            raise self._error(f"aliases ({shown(f'*{event.anchor}')}) are not read; write the value out")
        if isinstance(event, NodeEvent) and event.anchor:
            raise self._error(f"anchors ({shown(f'&{event.anchor}')}) are not read; remove it")
        if tag := getattr(event, "tag", None):
            short = str(tag).replace("tag:yaml.org,2002:", "!!")
            raise self._error(f"tags ({shown(short)}) are not read; remove it")
        if isinstance(event, ScalarEvent):
            return YamlNode(self._scalar(event), line, column)
        if depth > DEPTH_MAX:
            raise self._error(f"nested more than {DEPTH_MAX} levels deep")
        if isinstance(event, SequenceStartEvent):
            items: list[YamlNode] = []
            while not isinstance(event := self._next(), SequenceEndEvent):
                items.append(self._node(event, depth + 1))
            return YamlNode(items, line, column)
        assert isinstance(event, MappingStartEvent)
        return self._mapping(line, column, depth)

    def _mapping(self, line: int, column: int, depth: int) -> YamlNode:
        members: dict[str, YamlNode] = {}
        keys: dict[str, tuple[int, int]] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            place = self._line, self._column
            if not isinstance(event, ScalarEvent):
                raise self._error("a key must be a plain word")
            self._node(event, depth)  # refuses aliases, anchors and tags
            key = event.value
            if key == "<<" and event.style is None:
                raise self._error("merge keys (<<) are not read; write the keys out")
            if key in members:
                raise self._error(f"key {shown(key)} is given twice; first on line {keys[key][0]}")
            keys[key] = place
            members[key] = self._node(self._next(), depth + 1)
        return YamlNode(members, line, column, keys)

    def _scalar(self, event: ScalarEvent) -> str | int | float | bool | None:
        text: str = event.value
        if len(text.splitlines()) > 1:
            raise self._error(
                "holds several lines; write one, and several commands into a script: run: bash train.sh"
            )
        for character in text:
            if not character.isprintable():
                raise self._error(
                    f"holds the character {shown(character)}, which cannot be printed; remove it"
                )
        if event.style is not None:
            return text
        try:
            return read_scalar(text)
        except ValueError as error:
            raise self._error(str(error)) from error


def _explained(error: MarkedYAMLError) -> tuple[str, StringMark | None]:
    """Describe a parser error in plain words, with its position."""
    problem = str(error.problem or error)
    mark = error.problem_mark or error.context_mark
    if "stream end" in problem or "end of stream" in problem:
        opened = "a bracket, brace or quotation mark is opened here and never closed"
        return opened, error.context_mark or mark
    for words, plain in _PLAIN_WORDS:
        if words in problem:
            return plain, mark
    return f"not valid YAML: {shown(problem)[1:-1]}", mark


_PLAIN_WORDS = (
    ("'\\t'", "a tab can neither indent nor begin a value; use spaces"),
    (
        "mapping values are not allowed",
        "': ' cannot stand here; put the value in quotes, or mend the indentation",
    ),
    ("cannot start any token", "no value can begin with this character; put the value in quotes"),
    ("could not find expected ':'", "a line without ': '; write key: value"),
    (
        "expected <block end>",
        "this does not fit what stands before it; check the indentation, quotes and brackets",
    ),
    ("expected the node content", "a value should stand here"),
    ("expected ',' or", "a comma or a closing bracket should stand here"),
)
