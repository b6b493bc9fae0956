"""Reads the pages of the documentation: their commands, and the blocks that tutorials show."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PAGES", "ROOT", "TUTORIALS", "commands_of", "console_commands", "python_blocks"]

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(scavenger [^`]+)`")
_LINE = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(scavenger .*)$")
_ENDS = frozenset({"|", ">", ">>", "&", "&&", "||", ";", "#"})


def console_commands(page: Path) -> list[str]:
    """The commands of a page's `console` blocks: lines after `$ `, with the lines that a backslash continues."""
    found: list[str] = []
    for _, language, block in _FENCE.findall(page.read_text()):
        if language != "console":
            continue
        continued = False
        for line in block.splitlines():
            if continued:
                found[-1] += "\n" + line
            elif line.startswith("$ "):
                found.append(line.removeprefix("$ "))
            continued = bool(found) and found[-1].endswith("\\")
    return found


def python_blocks(page: Path) -> list[str]:
    """The Python programs of a page, without the commands that only a notebook understands."""
    return [
        "\n".join(line for line in textwrap.dedent(block).splitlines() if not line.startswith(("!", "%")))
        for _, language, block in _FENCE.findall(page.read_text())
        if language == "python"
    ]


def commands_of(page: Path) -> Iterator[list[str]]:
    """Every `scavenger ...` of a page, in blocks and within lines, as the words after `scavenger`."""
    text = page.read_text()
    lines = [
        line
        for _, language, block in _FENCE.findall(text)
        if language in ("", "console", "sh", "bash")
        for line in re.sub(r"\\\n\s*", " ", block).splitlines()
    ]
    found = [match[1] for line in lines if (match := _LINE.match(line.strip()))]
    inline = [match[1].replace("\n", " ") for match in _INLINE.finditer(_FENCE.sub("", text))]
    # `scavenger curves --from` only names an option: a value stands for the one that is left out
    found += [f"{one} VALUE" if one.split()[-1].startswith("--") else one for one in inline]
    for command in found:
        words = []
        for word in shlex.split(command.replace("'", "").replace('"', ""), comments=True)[1:]:
            if word in _ENDS:
                break
            if word != "...":
                words.append(word.strip("[]()"))
        yield words
