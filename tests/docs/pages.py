"""Reads the pages of the documentation: their commands, and the blocks that tutorials show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from docs.site import checks

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = checks.pages(ROOT)
_INLINE = re.compile(r"`(scavenger [^`]+)`")
_LINE = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(scavenger .*)$")
_ENDS = frozenset({"|", ">", ">>", "2>>", "&", "&&", "||", ";", "#"})


def console_commands(page: Path) -> list[str]:
    """The commands of a page's `console` blocks: lines after `$ `, with the lines that a backslash continues."""
    text = "\n".join(block.text for block in checks.blocks(page.read_text()) if block.language == "console")
    return list(checks.commands(text))


def python_blocks(page: Path) -> list[str]:
    """The Python programs of a page, without the commands that only a notebook understands."""
    return [
        re.sub(r"^[!%].*$", "", block.text, flags=re.MULTILINE)
        for block in checks.blocks(page.read_text())
        if block.language == "python"
    ]


def commands_of(page: Path) -> Iterator[list[str]]:
    """Every `scavenger ...` of a page, in blocks and within lines, as the words after `scavenger`."""
    text = page.read_text()
    lines = [
        line
        for block in checks.blocks(text)
        if block.language in ("", "console", "sh", "bash")
        for line in re.sub(r"\\\n\s*", " ", block.text).splitlines()
    ]
    found = [match[1] for line in lines if (match := _LINE.match(line.strip()))]
    inline = [match[1].replace("\n", " ") for match in _INLINE.finditer(checks.FENCE.sub("", text))]
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
