"""Checks of the pages: each block of code parses, each job file is valid, and pages keep the form that readers rely on.

`make docs` and the tests hold all pages to them. The form: a page begins with an example, no line of a table has more
than 160 characters, and no paragraph more than eight lines of 120.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

TABLE_MAX = 160
LINE_WIDTH = 120
PARAGRAPH_LINES_MAX = 8
BEGIN_LINES = 12
"""Lines below the title within which a page shows its first example."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", re.DOTALL)
_EXAMPLE = re.compile(r"^ *(```|!\[)|^    \S|^::: ")
_SETTINGS = frozenset({"prices", "discounts", "apiVersion", "services", "scrape_configs"})
"""Keys of the documents that are no part of a job file: price files, objects of Kubernetes, settings of Prometheus."""


class Block(NamedTuple):
    """A block of code on a page."""

    line: int
    language: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, without the indentation that they have within a list."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(line, found[2], textwrap.dedent(found[3]))


def faults_of_code(text: str) -> Iterator[str]:
    """What is wrong with the blocks of a page, each with its line."""
    for block in blocks(text):
        if why := _fault(block):
            yield f"{block.line}: {block.language or 'a block'}: {why}"
        elif not block.language and (line := next(_unlabelled(block.text), "")):
            yield f"{block.line}: name the language of this block: {line!r}"


def faults_of_form(text: str) -> Iterator[str]:
    """Where a page is hard to read: long lines of tables, and long paragraphs."""
    prose = FENCE.sub(_blank, text)
    for number, line in enumerate(prose.splitlines(), 1):
        if line.lstrip().startswith("|") and len(line) > TABLE_MAX:
            yield f"{number}: a line of a table has {len(line)} characters, more than {TABLE_MAX}"
    for number, paragraph in _paragraphs(prose):
        lines = len(textwrap.wrap(_shown(paragraph), LINE_WIDTH))
        if lines > PARAGRAPH_LINES_MAX:
            yield f"{number}: a paragraph has {lines} lines, more than {PARAGRAPH_LINES_MAX}"


def begins_with_example(text: str) -> bool:
    """Whether a page shows a block, a picture or a documented name within its first lines."""
    return any(_EXAMPLE.match(line) for line in text.splitlines()[1 : 1 + BEGIN_LINES])


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _shown(paragraph: str) -> str:
    """The text of a paragraph as it is shown, without the addresses of its links."""
    return re.sub(r"\]\([^)]*\)", "]", paragraph)


def _paragraphs(prose: str) -> Iterator[tuple[int, str]]:
    """Each paragraph and each item of a list, with the line at which it begins."""
    start, lines = 0, list[str]()
    for number, line in enumerate([*prose.splitlines(), ""], 1):
        words = line.strip()
        if not words or words[0] in "|#<" or re.match(r"[-*] |\d+\. ", words):
            if lines:
                yield start, " ".join(lines)
            start, lines = number, [words] if words and words[0] not in "|#<" else []
        else:
            start = start if lines else number
            lines.append(words)


def _fault(block: Block) -> str:
    try:
        match block.language:
            case "python":
                ast.parse(re.sub(r"^[!%].*$", "", block.text, flags=re.MULTILINE))
            case "yaml":
                _check_yaml(block.text)
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "console":
                return _shell("\n".join(commands(block.text)))
            case "sh" | "bash":
                return _shell(block.text)
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return " ".join(str(error).split())
    return ""


def _check_yaml(text: str) -> None:
    """Read a YAML block; a job file, or a part of one, is held against the schema of job files.

    Raises:
        ValueError: It is no valid job file.
        yaml.YAMLError: It is no YAML.
    """
    from scavenger.control.job_file.load import parse_job
    from scavenger.errors import ConfigurationError

    for document in yaml.safe_load_all(text):
        job = _job_of(document)
        if job is None:
            continue
        # a part of a job file is completed by what every job needs; a whole one is read as it stands, with its comments
        source = text if job is document else yaml.safe_dump(job)
        try:
            parse_job(source, path="job.yaml")
        except ConfigurationError as error:
            raise ValueError(str(error)) from error


def _job_of(document: Any) -> dict[str, Any] | None:
    if isinstance(document, dict) and document.get("kind") == "ElasticJob":
        document = document["spec"]["job"]
    if not isinstance(document, dict) or _SETTINGS & document.keys():
        return None
    if "version" in document:
        return document
    code = {} if {"run", "train"} & document.keys() else {"train": "train:job"}
    needed = {"version": 1, "name": "example", **code}
    goal = {"goal": {"max_epochs": 60, **(document.get("goal") or {})}}
    return {**needed, **document, **goal}


def commands(text: str) -> Iterator[str]:
    """The commands of a `console` block: what follows `$ `, with the lines that a backslash continues."""
    for found in re.finditer(r"^\$ (.*(?:\\\n.*)*)", text, re.MULTILINE):
        yield found[1]


def _unlabelled(text: str) -> Iterator[str]:
    """Lines of a block without a language that are a command: readers copy them, so they are to be checked."""
    yield from (
        line for line in text.splitlines() if re.match(r"(\$ )?(scavenger|pip|kubectl|make) [^─]*$", line)
    )


def _shell(script: str) -> str:
    read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    return " ".join(read.stderr.split())


def pages(root: Path) -> list[Path]:
    """The pages of the repository: those that the site shows, and those of the examples."""
    folders = [root.glob("*.md"), (root / "docs").rglob("*.md"), (root / "benchmarks").glob("*.md")]
    return sorted({*(page for folder in folders for page in folder), *root.glob("examples/**/*.md")})


def faults(page: Path, name: str) -> list[str]:
    """All that is wrong with a page, one line each, with its name and line."""
    text = page.read_text()
    found = [f"{name}:{one}" for one in faults_of_code(text)]
    if "/adr/" in name:  # records of the past are left as they were written
        return found
    if name.startswith(
        "benchmarks/"
    ):  # its tables are printed by programs, and are as wide as what they compare
        text = _GENERATED.sub(_blank, text)
    found += [f"{name}:{one}" for one in faults_of_form(text)]
    if name.startswith("docs/") and not begins_with_example(text):
        found.append(f"{name}:1: the page does not begin with an example")
    return found
