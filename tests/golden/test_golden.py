"""What users and programs read changes only where somebody means it: it is compared with the golden files."""

from __future__ import annotations

import difflib

import pytest

from tests.golden.documents import COMMANDS, ELSEWHERE, REST, documents
from tests.golden.texts import FILES, commands, texts

AGAIN = "if that is meant, write the golden files again, and read what changes: `python -m tests.golden`"
PLACES = [
    (one, place) for one in COMMANDS for place in ("store", "server") if place == "store" or one.by_server
]


def compare(name: str, now: str) -> None:
    path = FILES / name
    before = path.read_text() if path.exists() else ""
    if before != now:
        lines = difflib.unified_diff(
            before.splitlines(), now.splitlines(), str(path), "now", lineterm="", n=2
        )
        pytest.fail("\n".join((*list(lines)[:60], AGAIN)), pytrace=False)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return texts()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    folder = tmp_path_factory.mktemp("documents")
    return {(name, place): text for name, place, text in documents(folder)}


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_help_is_as_before(words: str, made: dict[str, str]) -> None:
    name = f"help/{words.replace(' ', '-')}.txt"
    compare(name, made[name])


@pytest.mark.parametrize("name", ["tables/sqlite.sql", "tables/postgresql.sql"])
def test_tables_are_as_before(name: str, made: dict[str, str]) -> None:
    compare(name, made[name])


@pytest.mark.slow
def test_the_rest_interface_is_as_before(printed: dict[tuple[str, str], str]) -> None:
    compare(REST, printed[REST, "server"])


@pytest.mark.parametrize(("command", "place"), PLACES, ids=[f"{one.name}-{place}" for one, place in PLACES])
def test_documents_are_as_before(command, place, printed) -> None:  # type: ignore[no-untyped-def]
    name = f"documents/{command.name}.json"
    compare(name, printed[name, place])


def test_every_golden_file_has_its_command(made: dict[str, str]) -> None:
    """A file whose command is gone compares nothing."""
    names = {*made, REST, *(f"documents/{one.name}.json" for one in COMMANDS)}
    assert {str(path.relative_to(FILES)) for path in FILES.rglob("*.*")} == names, AGAIN


def test_a_change_is_shown_with_the_way_to_accept_it() -> None:
    help_of_root = (FILES / "help" / "scavenger.txt").read_text()
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-.*machines.*\+.*boxes.*python -m tests.golden"):
        compare("help/scavenger.txt", help_of_root.replace("machines", "boxes"))


def test_every_command_with_a_document_is_compared_or_says_why_not() -> None:
    with_documents = {
        words.removeprefix("scavenger ")
        for words, command in commands()
        if any(one.name == "output" for one in command.params)
    }
    told = {
        next(words for words in sorted(with_documents, key=len, reverse=True) if one.words.startswith(words))
        for one in COMMANDS
    }
    assert with_documents == told | set(ELSEWHERE)
