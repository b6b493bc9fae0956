"""Texts of the whole program that do not depend on what a store holds: help and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scavenger_cli.main import app
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from typer.main import get_command

from scavenger.store import schema

FILES = Path(__file__).parent / "files"
WIDTH = 80


def texts() -> dict[str, str]:
    """All of them, by the names of their golden files."""
    return {
        **helps(),
        "tables/sqlite.sql": tables("sqlite"),
        "tables/postgresql.sql": tables("postgresql"),
    }


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group of commands, with the words that call it."""

    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, one in (getattr(command, "commands", None) or {}).items():
            yield from below(one, f"{words} {name}")

    yield from below(get_command(app), "scavenger")


def helps() -> dict[str, str]:
    """What `--help` of each command prints on 80 columns, without colours."""
    made = {}
    for words, command in commands():
        context = command.context_class(
            command, info_name=words, color=False, terminal_width=WIDTH, max_content_width=WIDTH
        )
        made[f"help/{words.replace(' ', '-')}.txt"] = command.get_help(context).rstrip() + "\n"
    return made


def tables(dialect: str) -> str:
    """The statements that make the store's tables and indexes, in one order."""
    found = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}[dialect]()
    statements = []
    for table in sorted(schema.Base.metadata.tables.values(), key=lambda one: one.name):
        statements.append(CreateTable(table).compile(dialect=found))
        statements += [
            CreateIndex(index).compile(dialect=found)
            for index in sorted(table.indexes, key=lambda one: str(one.name))
        ]
    lines = [line.rstrip() for one in statements for line in f"{one}".strip().splitlines()]
    return "\n".join(lines) + "\n"


def written(document: Any) -> str:
    """A document as golden files hold it."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
